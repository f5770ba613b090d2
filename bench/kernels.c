/*
 * Times kernels against a copy of the same run.
 *
 *   bench/kernels [--mib N,N] [--repeats N] [--only TEXT] [--variants] [--json FILE]
 *
 * For each size (MiB of 16-bit input, 8192 rows; default 32 and 128) and each case whose name has
 * TEXT in it: time of one launch, median of many, from CUDA events around ten launches in a row
 * behind one that is not timed; bandwidth over the bytes that must move; that as a part of what
 * cudaMemcpyAsync reaches between device buffers of the input's size, timed in turn with the case.
 * Each launch takes another set of operands, several times the L2 cache in all; `warm` is the time
 * with one set over and over. Every case is first compared with its host twin on a small shape.
 * --variants adds shapes of kernels that are not the library's.
 */
#include "bench/kernels.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/device.h"
#include "examples/arguments.h"
#include "examples/json.h"
#include "kernels/convert.h"

#define ROWS 8192
#define LAUNCHES 10
#define SETS_MAX 16
#define SETS_BYTES (INT64_C(512) << 20) /* of one case's sets: ten times the L2 cache */
#define SIZES_MAX 8
#define REPEATS_MAX 1000
#define MIB_MAX 4096

static const struct bench_case *const tables[] = {quantize_cases, activation_cases, modulate_cases,
                                                  adamw_cases};

struct options {
    const char *sizes_text;
    int64_t mib[SIZES_MAX];
    int sizes;
    int64_t repeats;
    const char *only; /* these: NULL, or given */
    FILE *json;
    bool variants;
    bool help;
};

/* What is launched over and over: a case with its sets, or a copy. */
struct subject {
    const struct bench_case *bench; /* NULL: a copy */
    void *sets[SETS_MAX];
    void *to[SETS_MAX]; /* of the copies from `sets` */
    int count;
    int next;
    int64_t bytes;
};

static cudaStream_t stream;
static cudaEvent_t begin, end;

void bench_fail(const char *format, ...)
{
    va_list args;

    fputs("kernels: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void *bench_alloc(size_t bytes)
{
    void *data = NULL;

    bench_must(cudaMalloc(&data, bytes));
    return data;
}

void *bench_download(const void *device, size_t bytes)
{
    void *data = malloc(bytes + 1);

    if (data == NULL)
        bench_fail("out of memory");
    if (bytes > 0)
        bench_must(cudaMemcpy(data, device, bytes, cudaMemcpyDeviceToHost));
    return data;
}

/* A value from a normal distribution, near enough: the sum of twelve uniform ones. */
static float normal(uint64_t *state)
{
    float sum = -6.0f;

    for (int i = 0; i < 3; i++) {
        uint64_t bits;

        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bits = *state ^ *state >> 29;
        for (int j = 0; j < 4; j++)
            sum += (float)(bits >> (16 * j) & 0xffff) * 0x1p-16f;
    }
    return sum;
}

/* A pattern of a prime length, over and over. */
#define PATTERN 1000003

static void fill(void *device, int64_t count, float deviation, bool wide)
{
    size_t element = wide ? sizeof(float) : sizeof(uint16_t);
    char *pattern = malloc(PATTERN * element);
    uint64_t state = 1;

    if (pattern == NULL)
        bench_fail("out of memory");
    for (int i = 0; i < PATTERN; i++) {
        float value = normal(&state) * deviation;

        if (wide)
            ((float *)(void *)pattern)[i] = value;
        else
            ((uint16_t *)(void *)pattern)[i] = bf16_from_float(value);
    }
    for (int64_t at = 0; at < count; at += PATTERN) {
        int64_t left = count - at < PATTERN ? count - at : PATTERN;

        bench_must(cudaMemcpy((char *)device + (size_t)at * element, pattern,
                              (size_t)left * element, cudaMemcpyHostToDevice));
    }
    free(pattern);
}

void bench_fill_bf16(void *device, int64_t count, float deviation)
{
    fill(device, count, deviation, false);
}

void bench_fill_fp32(void *device, int64_t count, float deviation)
{
    fill(device, count, deviation, true);
}

/* ---- Subjects ----------------------------------------------------------------------------- */

static int sets_for(int64_t bytes)
{
    int64_t count = (SETS_BYTES + bytes - 1) / bytes;

    return count < 2 ? 2 : count > SETS_MAX ? SETS_MAX : (int)count;
}

static struct subject subject_case(const struct bench_case *bench, int64_t rows, int64_t cols)
{
    struct subject subject = {.bench = bench};

    subject.sets[0] = bench->make(bench, rows, cols);
    subject.bytes = bench->bytes(subject.sets[0]);
    subject.count = sets_for(subject.bytes);
    for (int i = 1; i < subject.count; i++)
        subject.sets[i] = bench->make(bench, rows, cols);
    return subject;
}

static struct subject subject_copy(int64_t bytes)
{
    struct subject subject = {.bytes = 2 * bytes, .count = sets_for(2 * bytes)};

    for (int i = 0; i < subject.count; i++) {
        subject.sets[i] = bench_alloc((size_t)bytes);
        bench_fill_bf16(subject.sets[i], bytes / 2, 1.0f);
        subject.to[i] = bench_alloc((size_t)bytes);
    }
    return subject;
}

static void subject_free(struct subject *subject)
{
    for (int i = 0; i < subject->count; i++)
        if (subject->bench != NULL) {
            subject->bench->free(subject->sets[i]);
        } else {
            bench_must(cudaFree(subject->sets[i]));
            bench_must(cudaFree(subject->to[i]));
        }
}

static void subject_launch(struct subject *subject, bool warm)
{
    int i = warm ? 0 : subject->next;

    subject->next = (subject->next + 1) % subject->count;
    if (subject->bench == NULL)
        bench_must(cudaMemcpyAsync(subject->to[i], subject->sets[i], (size_t)subject->bytes / 2,
                                   cudaMemcpyDeviceToDevice, stream));
    else
        bench_must((cudaError_t)subject->bench->run(subject->sets[i], stream));
}

/* Microseconds of one launch. */
static float subject_time(struct subject *subject, bool warm)
{
    float ms;

    /* Keeps the GPU at work until the others are enqueued. */
    for (int i = 0; i < 3; i++)
        subject_launch(subject, warm);
    bench_must(cudaEventRecord(begin, stream));
    for (int i = 0; i < LAUNCHES; i++)
        subject_launch(subject, warm);
    bench_must(cudaEventRecord(end, stream));
    bench_must(cudaEventSynchronize(end));
    bench_must(cudaEventElapsedTime(&ms, begin, end));
    return ms * 1000.0f / LAUNCHES;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float median(float *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

/* ---- Cases -------------------------------------------------------------------------------- */

static void check(const struct bench_case *bench)
{
    void *set = bench->make(bench, 304, 2064);
    int error = bench->run(set, stream);

    if (error != 0)
        bench_fail("%s: %s", bench->name, cudaGetErrorString((cudaError_t)error));
    bench_must(cudaStreamSynchronize(stream));
    if (!bench->check(set))
        bench_fail("%s: the results are not the host twin's", bench->name);
    bench->free(set);
}

static void measure(const struct bench_case *bench, const struct options *options, int64_t mib,
                    struct subject *copy, struct json *json)
{
    static float took[REPEATS_MAX], warm[REPEATS_MAX], copied[REPEATS_MAX];
    struct subject subject = subject_case(bench, ROWS, mib * (1 << 20) / 2 / ROWS);
    float us, warm_us, copy_us;
    double gbs, copy_gbs;

    for (int i = -3; i < options->repeats; i++) {
        int at = i < 0 ? 0 : i;

        copied[at] = subject_time(copy, false);
        took[at] = subject_time(&subject, false);
        warm[at] = subject_time(&subject, true);
    }
    us = median(took, (int)options->repeats);
    warm_us = median(warm, (int)options->repeats);
    copy_us = median(copied, (int)options->repeats);
    gbs = (double)subject.bytes / us * 1e-3;
    copy_gbs = (double)copy->bytes / copy_us * 1e-3;
    printf("%-64s %4lld %8.2f %7.0f %6.1f %8.2f %8.2f\n", bench->name, (long long)mib, (double)us,
           gbs, gbs / copy_gbs * 100, (double)warm_us, (double)copy_us);
    fflush(stdout);
    json_lines(json, 4);
    json_object(json, NULL);
    json_lines(json, -1);
    json_text(json, "kernel", bench->name);
    json_integer(json, "mib", mib);
    json_integer(json, "bytes", subject.bytes);
    json_fixed(json, "us", 3, (double)us);
    json_fixed(json, "gb_s", 1, gbs);
    json_fixed(json, "of_copy", 4, gbs / copy_gbs);
    json_fixed(json, "warm_us", 3, (double)warm_us);
    json_fixed(json, "copy_us", 3, (double)copy_us);
    json_object_end(json);
    subject_free(&subject);
}

static void run_table(const struct bench_case *table, const struct options *options,
                      struct json *json)
{
    for (const struct bench_case *bench = table; bench->name != NULL; bench++)
        if (options->only == NULL || strstr(bench->name, options->only) != NULL)
            check(bench);
    for (int i = 0; i < options->sizes; i++) {
        struct subject copy = subject_copy(options->mib[i] << 20);

        for (const struct bench_case *bench = table; bench->name != NULL; bench++)
            if (options->only == NULL || strstr(bench->name, options->only) != NULL)
                measure(bench, options, options->mib[i], &copy, json);
        subject_free(&copy);
    }
}

/* ---- Options ------------------------------------------------------------------------------ */

/* "32,128" */
static void parse_sizes(struct options *options)
{
    const char *text = options->sizes_text;

    options->sizes = 0;
    do {
        char *rest;
        long long value;

        if (options->sizes == SIZES_MAX)
            bench_fail("--mib: up to %d sizes", SIZES_MAX);
        errno = 0;
        value = strtoll(text, &rest, 10);
        if (rest == text || (*rest != '\0' && *rest != ',') || errno != 0 || value < 1 ||
            value > MIB_MAX)
            bench_fail("--mib %s: numbers from 1 to %d, with commas between", text, MIB_MAX);
        options->mib[options->sizes++] = value;
        text = rest;
    } while (*text == ',' && *++text != '\0');
}

static struct options parse(int argc, char **argv)
{
    static const struct argument_program program = {
        "kernels", "Times kernels against a copy of the same run, on CUDA."};
    static const struct argument known[] = {
        {"--mib", ARGUMENT_TEXT, offsetof(struct options, sizes_text), 0, 0, NULL,
         "sizes, with commas between (32,128)"},
        {"--repeats", ARGUMENT_NUMBER, offsetof(struct options, repeats), 1, REPEATS_MAX, NULL,
         "times of which the median is taken (50)"},
        {"--only", ARGUMENT_TEXT, offsetof(struct options, only), 0, 0, NULL,
         "cases with this in their name alone"},
        {"--variants", ARGUMENT_FLAG, offsetof(struct options, variants), 0, 0, NULL,
         "shapes of kernels that are not the library's too"},
        {"--json", ARGUMENT_OUTPUT, offsetof(struct options, json), 0, 0, NULL,
         "write the numbers to this file"},
        {"--help", ARGUMENT_FLAG, offsetof(struct options, help), 0, 0, NULL, "this text"},
        {.name = NULL},
    };
    struct options options = {.sizes_text = "32,128", .repeats = 50};

    arguments_take(&program, known, argc, argv, &options);
    parse_sizes(&options);
    return options;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct cudaDeviceProp device;
    int driver = 0, runtime = 0;
    struct json json;

    device_find("kernels");
    bench_must(cudaGetDeviceProperties(&device, 0));
    bench_must(cudaDriverGetVersion(&driver));
    bench_must(cudaRuntimeGetVersion(&runtime));
    bench_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bench_must(cudaEventCreate(&begin));
    bench_must(cudaEventCreate(&end));
    json = json_to(options.json);
    printf("%s, driver %d, runtime %d; medians of %d\n", device.name, driver, runtime,
           (int)options.repeats);
    json_object(&json, NULL);
    json_lines(&json, 2);
    json_text(&json, "device", device.name);
    json_integer(&json, "driver", driver);
    json_integer(&json, "runtime", runtime);
    json_integer(&json, "repeats", options.repeats);
    json_list(&json, "kernels");
    printf("%-64s %4s %8s %7s %6s %8s %8s\n", "kernel", "MiB", "us", "GB/s", "% copy", "warm us",
           "copy us");
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        run_table(tables[i], &options, &json);
    if (options.variants) {
        run_table(quantize_variant_cases(), &options, &json);
        run_table(modulate_variant_cases(), &options, &json);
        run_table(activation_variant_cases(), &options, &json);
        run_table(adamw_variant_cases(), &options, &json);
    }
    json_lines(&json, 2);
    json_list_end(&json);
    json_lines(&json, 0);
    json_object_end(&json);
    if (json_close(&json) != 0)
        bench_fail("--json: %s", strerror(errno));
    return 0;
}
