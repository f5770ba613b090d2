#include "bench/adamw_variants.h"
#include "bench/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

struct choice {
    bool norm; /* gradient_norm, not adamw */
    enum fp8pipe_dtype gradient_dtype;
    bool fp8; /* both FP8 copies */
    bool average;
    int variant; /* of adamw, counted from 1; 0: the library's */
};

/* What is not a matrix. */
struct words {
    int64_t steps;
    uint32_t scratch;
    float scale;
    float scale_inv;
    int32_t has_scale;
    uint32_t amax;
    float norm;
};

struct set {
    const struct choice *choice;
    struct kernel_parameter parameter; /* device addresses */
    struct kernel_adamw_args adamw;
    struct kernel_gradient_norm_args norm;
    struct words *words;
    float *before[3]; /* master and moments, on the host; NULL: too large to be checked */
};

#define CHECKED_ELEMENTS (1 << 20)

static const struct fp8pipe_parameter_group group = {1.0f, 0.9f, 0.999f, 1e-8f, 0.01f, 0.9999f};
static const struct words words_before = {.steps = 99, .scale = 100.0f, .has_scale = 1};

static int64_t elements_of(const struct set *set)
{
    return set->parameter.rows * set->parameter.cols;
}

static size_t gradient_bytes(const struct set *set)
{
    size_t element = set->choice->gradient_dtype == FP8PIPE_FP32 ? 4 : 2;

    return (size_t)elements_of(set) * element;
}

static void *upload(const void *host, size_t bytes)
{
    void *device = bench_alloc(bytes);

    bench_must(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    return device;
}

static float *make_floats(int64_t count, float deviation)
{
    float *device = bench_alloc((size_t)count * sizeof(float));

    bench_fill_fp32(device, count, deviation);
    return device;
}

/* Moments of a run: the second are squares. */
static float *make_second(int64_t count)
{
    float *device = make_floats(count, 1e-3f);
    float *host = bench_download(device, (size_t)count * sizeof(float));

    for (int64_t i = 0; i < count; i++)
        host[i] *= host[i];
    bench_must(cudaMemcpy(device, host, (size_t)count * sizeof(float), cudaMemcpyHostToDevice));
    free(host);
    return device;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void make_tables(struct set *set)
{
    const struct kernel_parameter *p = &set->parameter;
    int64_t count =
        p->square ? divide_up(p->rows, KERNEL_TILE_SIDE) * divide_up(p->cols, KERNEL_TILE_SIDE)
                  : divide_up(elements_of(set), KERNEL_TILE_ELEMENTS);
    struct kernel_tile *tiles = calloc((size_t)count, sizeof(*tiles));

    if (tiles == NULL)
        bench_fail("out of memory");
    for (int64_t i = 0; i < count; i++)
        tiles[i].index = (uint32_t)i;
    set->adamw.parameters = upload(p, sizeof(*p));
    set->adamw.tiles = upload(tiles, (size_t)count * sizeof(*tiles));
    set->adamw.tile_count = count;
    set->adamw.groups = upload(&group, sizeof(group));
    set->adamw.lr = 1e-5f;
    set->adamw.steps = &set->words->steps;
    set->adamw.scratch = &set->words->scratch;
    set->norm.parameters = set->adamw.parameters;
    set->norm.tiles = set->adamw.tiles;
    set->norm.tile_count = count;
    set->norm.partials = bench_alloc((size_t)count * sizeof(double));
    set->norm.scratch = &set->words->scratch;
    set->norm.norm = &set->words->norm;
    free(tiles);
}

/* An eighth of the rows: what is read are then as many bytes as rows x cols elements of 16 bits. */
static void *set_make(const struct bench_case *self, int64_t rows, int64_t cols)
{
    const struct choice *choice = self->choice;
    struct set *set = calloc(1, sizeof(*set));
    struct kernel_parameter *p;
    int64_t count;

    if (set == NULL)
        bench_fail("out of memory");
    set->choice = choice;
    set->words = upload(&words_before, sizeof(words_before));
    p = &set->parameter;
    p->rows = choice->norm ? rows / (choice->gradient_dtype == FP8PIPE_FP32 ? 2 : 1) : rows / 8;
    p->cols = cols;
    p->square = choice->fp8;
    p->gradient_dtype = (int32_t)choice->gradient_dtype;
    count = elements_of(set);
    if (choice->gradient_dtype == FP8PIPE_FP32) {
        p->gradient = make_floats(count, 1e-3f);
    } else {
        p->gradient = bench_alloc(gradient_bytes(set));
        bench_fill_bf16((void *)(uintptr_t)p->gradient, count, 1e-3f);
    }
    if (!choice->norm) {
        p->master = make_floats(count, 0.02f);
        p->first = make_floats(count, 1e-3f);
        p->second = make_second(count);
        p->average = choice->average ? make_floats(count, 0.02f) : NULL;
    }
    if (choice->fp8) {
        p->row_stride = padded(p->cols);
        p->transposed_stride = padded(p->rows);
        p->row = bench_alloc((size_t)(p->rows * p->row_stride));
        p->transposed = bench_alloc((size_t)(p->cols * p->transposed_stride));
        bench_must(cudaMemset(p->row, 0, (size_t)(p->rows * p->row_stride)));
        bench_must(cudaMemset(p->transposed, 0, (size_t)(p->cols * p->transposed_stride)));
        p->scale = &set->words->scale;
        p->scale_inv = &set->words->scale_inv;
        p->has_scale = &set->words->has_scale;
        p->amax = &set->words->amax;
        p->scale_numerator = 448.0f;
    }
    make_tables(set);
    if (!choice->norm && count < CHECKED_ELEMENTS) {
        set->before[0] = bench_download(p->master, (size_t)count * sizeof(float));
        set->before[1] = bench_download(p->first, (size_t)count * sizeof(float));
        set->before[2] = bench_download(p->second, (size_t)count * sizeof(float));
    }
    return set;
}

static void set_free(void *memory)
{
    struct set *set = memory;
    struct kernel_parameter *p = &set->parameter;

    bench_must(cudaFree(p->master));
    bench_must(cudaFree((void *)(uintptr_t)p->gradient));
    bench_must(cudaFree(p->first));
    bench_must(cudaFree(p->second));
    bench_must(cudaFree(p->average));
    bench_must(cudaFree(p->row));
    bench_must(cudaFree(p->transposed));
    bench_must(cudaFree((void *)(uintptr_t)set->adamw.parameters));
    bench_must(cudaFree((void *)(uintptr_t)set->adamw.tiles));
    bench_must(cudaFree((void *)(uintptr_t)set->adamw.groups));
    bench_must(cudaFree(set->norm.partials));
    bench_must(cudaFree(set->words));
    for (int i = 0; i < 3; i++)
        free(set->before[i]);
    free(set);
}

static int set_run(void *memory, cudaStream_t stream)
{
    const struct set *set = memory;

    if (set->choice->norm)
        return kernel_gradient_norm_cuda(&set->norm, stream);
    return set->choice->variant > 0 ? adamw_variant(set->choice->variant - 1, &set->adamw, stream)
                                    : kernel_adamw_cuda(&set->adamw, stream);
}

static int64_t set_bytes(const void *memory)
{
    const struct set *set = memory;
    int64_t bytes = (int64_t)gradient_bytes(set);

    if (set->choice->norm)
        return bytes;
    bytes += elements_of(set) * 4 * 2 * (set->choice->average ? 4 : 3);
    return bytes + (set->choice->fp8 ? 2 * elements_of(set) : 0);
}

/* Whether device memory has these bytes, which are then freed. */
static bool same(void *host, const void *device, size_t bytes)
{
    void *got = bench_download(device, bytes);
    bool equal = memcmp(got, host, bytes) == 0;

    free(got);
    free(host);
    return equal;
}

static bool norm_check(const struct set *set, const struct kernel_parameter *parameter,
                       const struct kernel_tile *tiles)
{
    struct kernel_gradient_norm_args args = set->norm;
    double *partials = calloc((size_t)args.tile_count, sizeof(*partials));
    struct words *words = bench_download(set->words, sizeof(*words));
    float norm = 0, got = words->norm;

    args.parameters = parameter;
    args.tiles = tiles;
    args.partials = partials;
    args.norm = &norm;
    kernel_gradient_norm_host(&args);
    free(partials);
    free(words);
    return norm == got && norm > 0;
}

static bool adamw_check(const struct set *set, const struct kernel_parameter *parameter,
                        const struct kernel_tile *tiles)
{
    struct kernel_adamw_args args = set->adamw;
    struct kernel_parameter host = *parameter;
    size_t bytes = (size_t)elements_of(set) * sizeof(float);
    size_t row_bytes = (size_t)(host.rows * host.row_stride);
    size_t transposed_bytes = (size_t)(host.cols * host.transposed_stride);
    struct words words = words_before;
    struct words *got = bench_download(set->words, sizeof(*got));
    bool equal;

    host.master = memcpy(calloc(1, bytes), set->before[0], bytes);
    host.first = memcpy(calloc(1, bytes), set->before[1], bytes);
    host.second = memcpy(calloc(1, bytes), set->before[2], bytes);
    host.average = NULL; /* its tests look at it */
    if (host.row != NULL) {
        host.row = calloc(1, row_bytes);
        host.transposed = calloc(1, transposed_bytes);
        host.scale = &words.scale;
        host.scale_inv = &words.scale_inv;
        host.has_scale = &words.has_scale;
        host.amax = &words.amax;
    }
    args.parameters = &host;
    args.tiles = tiles;
    args.groups = &group;
    args.steps = &words.steps;
    kernel_adamw_host(&args);
    equal = got->steps == words.steps && got->amax == words.amax &&
            got->scale_inv == words.scale_inv && got->scratch == 0;
    equal = same(host.master, set->parameter.master, bytes) && equal;
    equal = same(host.first, set->parameter.first, bytes) && equal;
    equal = same(host.second, set->parameter.second, bytes) && equal;
    if (host.row != NULL) {
        equal = same(host.row, set->parameter.row, row_bytes) && equal;
        equal = same(host.transposed, set->parameter.transposed, transposed_bytes) && equal;
    }
    free(got);
    return equal;
}

static bool set_check(void *memory)
{
    const struct set *set = memory;
    struct kernel_parameter parameter = set->parameter;
    void *gradient = bench_download(parameter.gradient, gradient_bytes(set));
    struct kernel_tile *tiles =
        bench_download(set->adamw.tiles, (size_t)set->adamw.tile_count * sizeof(*tiles));
    bool equal;

    parameter.gradient = gradient;
    equal = set->choice->norm ? norm_check(set, &parameter, tiles)
                              : adamw_check(set, &parameter, tiles);
    free(gradient);
    free(tiles);
    return equal;
}

#define CASE(name, ...)                                                                            \
    {                                                                                              \
        name, set_make, set_free, set_run, set_bytes, set_check, &(const struct choice)            \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

const struct bench_case adamw_cases[] = {
    CASE("adamw fp32 gradient, e4m3 transposed", false, FP8PIPE_FP32, true, false, 0),
    CASE("adamw bf16 gradient, e4m3 transposed", false, FP8PIPE_BF16, true, false, 0),
    CASE("adamw fp32 gradient, e4m3 transposed, average", false, FP8PIPE_FP32, true, true, 0),
    CASE("adamw fp32 gradient", false, FP8PIPE_FP32, false, false, 0),
    CASE("gradient_norm fp32", true, FP8PIPE_FP32, false, false, 0),
    CASE("gradient_norm fp32, square tiles", true, FP8PIPE_FP32, true, false, 0),
    CASE("gradient_norm bf16", true, FP8PIPE_BF16, false, false, 0),
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};

const struct bench_case *adamw_variant_cases(void)
{
    enum { COUNT = 2 * ADAMW_VARIANTS };
    static struct choice choices[COUNT];
    static char names[COUNT][96];
    static struct bench_case cases[COUNT + 1];

    for (int i = 0; i < COUNT; i++) {
        bool fp8 = i < ADAMW_VARIANTS;
        int variant = i % ADAMW_VARIANTS;

        choices[i] = (struct choice){false, FP8PIPE_FP32, fp8, false, variant + 1};
        snprintf(names[i], sizeof(names[i]), "variant adamw%s: %s", fp8 ? " e4m3" : "",
                 adamw_variant_name(variant));
        cases[i] = (struct bench_case){names[i],  set_make,  set_free,   set_run,
                                       set_bytes, set_check, &choices[i]};
    }
    return cases;
}
