/*
 * GEMM plans on CUDA, by the backend's table: every epilogue against float64, or refused with no
 * effect; plans that are borrowed and refined; fixed ones that give the same bits; tuned ones that
 * a file gives to the next pipe.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda/plan.h"
#include "ec.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "tune_file.h"
#include "util.h"

#define POISON 0xFF

/* ---- A backend and its memory ------------------------------------------------------------- */

struct rig {
    struct backend *backend;
    struct fp8pipe_stream *stream;
    struct backend_event *event;
    struct backend_scope scope;
    struct log log;
    int warnings;
    char warning[512];
};

static void log_warning(void *arg, enum fp8pipe_log_level level, const char *line)
{
    struct rig *rig = arg;

    if (level == FP8PIPE_LOG_WARN) {
        rig->warnings++;
        snprintf(rig->warning, sizeof(rig->warning), "%s", line);
    }
}

static void rig_open(struct rig *rig, enum fp8pipe_plans plans, const char *tune_file)
{
    struct backend_options options = {
        .workspace_bytes = (size_t)32 << 20,
        .plans = plans,
        .tune_file = tune_file,
        .log = &rig->log,
    };

    memset(rig, 0, sizeof(*rig));
    log_init(&rig->log, FP8PIPE_LOG_INFO, log_warning, rig);
    must(backend_cuda_ops.open(&options, &rig->backend));
    backend_cuda_ops.enter(rig->backend, &rig->scope);
    must(backend_cuda_ops.stream_create(rig->backend, NULL, &rig->stream));
    must(backend_cuda_ops.event_create(rig->backend, &rig->event));
}

static void rig_close(struct rig *rig)
{
    backend_cuda_ops.event_destroy(rig->backend, rig->event);
    backend_cuda_ops.stream_destroy(rig->backend, rig->stream);
    backend_cuda_ops.leave(rig->backend, &rig->scope);
    backend_cuda_ops.close(rig->backend);
}

static void rig_finish(struct rig *rig)
{
    bool done = false;

    must(backend_cuda_ops.event_record(rig->backend, rig->event, rig->stream));
    while (!done)
        must(backend_cuda_ops.event_query(rig->backend, rig->event, &done));
}

static struct backend_plan_stats rig_stats(struct rig *rig)
{
    struct backend_plan_stats stats;

    backend_cuda_ops.plan_stats(rig->backend, &stats);
    return stats;
}

static void *device_copy(struct rig *rig, const void *from, size_t bytes)
{
    void *data;

    must(backend_cuda_ops.memory_alloc(rig->backend, bytes, &data));
    must(backend_cuda_ops.memory_copy(rig->backend, data, from, bytes));
    return data;
}

static void device_free(struct rig *rig, const void *data)
{
    must(backend_cuda_ops.memory_free(rig->backend, (void *)data));
}

/* ---- Matrices of every GEMM type ----------------------------------------------------------- */

struct operand {
    enum gemm_type type;
    int64_t rows, cols, stride;
    double *values; /* [rows, cols], as the elements are */
    void *device;
    size_t bytes;
};

static void element_set(enum gemm_type type, void *at, double value)
{
    const float rounded = (float)value;

    switch (type) {
    case GEMM_FP32:
        *(float *)at = rounded;
        break;
    case GEMM_BF16:
        *(uint16_t *)at = bf16_from_float(rounded);
        break;
    case GEMM_FP16:
        *(uint16_t *)at = fp16_from_float(rounded);
        break;
    case GEMM_E4M3:
        *(uint8_t *)at = fp8_from_float(rounded, FP8PIPE_E4M3);
        break;
    case GEMM_E5M2:
        *(uint8_t *)at = fp8_from_float(rounded, FP8PIPE_E5M2);
        break;
    }
}

static double element_get(enum gemm_type type, const void *at)
{
    switch (type) {
    case GEMM_FP32:
        return (double)*(const float *)at;
    case GEMM_BF16:
        return (double)bf16_to_float(*(const uint16_t *)at);
    case GEMM_FP16:
        return (double)fp16_to_float(*(const uint16_t *)at);
    case GEMM_E4M3:
        return (double)fp8_to_float(*(const uint8_t *)at, FP8PIPE_E4M3);
    case GEMM_E5M2:
        return (double)fp8_to_float(*(const uint8_t *)at, FP8PIPE_E5M2);
    }
    return NAN;
}

/* Normal values times `deviation`; 0: poison. */
static struct operand operand_make(struct rig *rig, enum gemm_type type, int64_t rows, int64_t cols,
                                   int64_t stride, double deviation, struct test_rng *rng)
{
    struct operand made = {type, rows, cols, stride, NULL, NULL, 0};
    const size_t element = gemm_type_bytes((int)type);
    uint8_t *copy;

    made.bytes = (size_t)rows * (size_t)stride * element;
    made.values = test_calloc((size_t)(rows * cols), sizeof(double));
    copy = test_calloc(made.bytes, 1);
    memset(copy, deviation == 0 ? POISON : 0, made.bytes);
    for (int64_t row = 0; row < rows && deviation != 0; row++)
        for (int64_t col = 0; col < cols; col++) {
            uint8_t *at = copy + (size_t)(row * stride + col) * element;

            element_set(type, at, test_random_normal(rng) * deviation);
            made.values[row * cols + col] = element_get(type, at);
        }
    made.device = device_copy(rig, copy, made.bytes);
    free(copy);
    return made;
}

static void operand_free(struct rig *rig, struct operand *operand)
{
    device_free(rig, operand->device);
    free(operand->values);
}

static uint8_t *operand_download(struct rig *rig, const struct operand *operand)
{
    uint8_t *copy = test_calloc(operand->bytes, 1);

    must(backend_cuda_ops.memory_copy(rig->backend, copy, operand->device, operand->bytes));
    return copy;
}

static bool operand_is_poison(struct rig *rig, const struct operand *operand)
{
    uint8_t *copy = operand_download(rig, operand);
    bool poison = true;

    for (size_t i = 0; i < operand->bytes; i++)
        poison &= copy[i] == POISON;
    free(copy);
    return poison;
}

/* ---- One GEMM ------------------------------------------------------------------------------ */

enum added { ADDED_NOTHING, ADDED_RESIDUAL, ADDED_D };

struct gemm_case {
    int64_t m, n, k;
    enum gemm_type a, b, d;
    enum added added;
    bool bias, gelu, fast, padded; /* padded: strides beyond the rows */
};

static const char *const type_names[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2"};

static const char *case_name(const struct gemm_case *c)
{
    static char name[160];

    snprintf(name, sizeof(name), "%lld x %lld x %lld, %s . %s to %s%s%s%s%s", (long long)c->m,
             (long long)c->n, (long long)c->k, type_names[c->a], type_names[c->b], type_names[c->d],
             c->bias ? ", bias" : "", c->gelu ? ", gelu" : "",
             c->added == ADDED_RESIDUAL ? ", residual" : "",
             c->added == ADDED_D ? ", accumulate" : "");
    return name;
}

struct gemm_run {
    struct operand a, b, d, residual, bias;
    float *words; /* scales of A, B and D, and an amax, on the device */
    struct gemm_args args;
};

#define SCALE_A 0.5f
#define SCALE_B 0.25f

static float scale_d(const struct gemm_case *c)
{
    return (float)(test_fp8_max(c->d == GEMM_E4M3 ? FP8PIPE_E4M3 : FP8PIPE_E5M2) /
                   (8.0 * sqrt((double)c->k)));
}

static enum fp8pipe_dtype dtype_of(enum gemm_type type)
{
    return type == GEMM_FP32 ? FP8PIPE_FP32 : type == GEMM_BF16 ? FP8PIPE_BF16 : FP8PIPE_FP16;
}

/* Scales and the amax, each 16 bytes from the one before, as cuBLASLt demands. */
enum { WORD_A = 0, WORD_B = 4, WORD_D = 8, WORD_AMAX = 12, WORDS = 16 };

static struct gemm_run run_make(struct rig *rig, const struct gemm_case *c, struct test_rng *rng)
{
    const bool fp8 = gemm_type_is_fp8((int)c->a), to_fp8 = gemm_type_is_fp8((int)c->d);
    const int64_t pad = c->padded ? 16 : 0;
    const double deviation = 0.3 * sqrt((double)c->k);
    const enum gemm_type bias_type = to_fp8 || (fp8 && c->d == GEMM_FP32) ? GEMM_BF16 : c->d;
    const enum gemm_type side = to_fp8 ? GEMM_BF16 : c->d;
    const float words[WORDS] = {
        [WORD_A] = SCALE_A, [WORD_B] = SCALE_B, [WORD_D] = to_fp8 ? scale_d(c) : 1};
    struct gemm_run run = {
        .a = operand_make(rig, c->a, c->m, c->k, c->k + pad, fp8 ? 2 : 1, rng),
        .b = operand_make(rig, c->b, c->n, c->k, c->k + 2 * pad, fp8 ? 4 : 1, rng),
        .d = operand_make(rig, c->d, c->m, c->n, c->n + 3 * pad,
                          c->added == ADDED_D ? deviation : 0, rng),
        .residual = operand_make(rig, side, c->m, c->n, c->n + 2 * pad, deviation, rng),
        .bias = operand_make(rig, bias_type, 1, c->n, c->n, deviation, rng),
        .words = device_copy(rig, words, sizeof(words)),
    };

    run.args = (struct gemm_args){
        .m = c->m,
        .n = c->n,
        .k = c->k,
        .a = {run.a.device, run.a.stride, c->a, false, fp8 ? &run.words[WORD_A] : NULL},
        .b = {run.b.device, run.b.stride, c->b, false, fp8 ? &run.words[WORD_B] : NULL},
        .d = run.d.device,
        .d_stride = run.d.stride,
        .d_dtype = dtype_of(c->d),
        .bias = c->bias ? run.bias.device : NULL,
        .bias_dtype = dtype_of(bias_type),
        .accumulate = c->added == ADDED_D,
        .fast = c->fast,
        .residual = c->added == ADDED_RESIDUAL ? run.residual.device : NULL,
        .residual_stride = run.residual.stride,
        .activation = c->gelu ? FP8PIPE_ACTIVATION_GELU_TANH : FP8PIPE_ACTIVATION_NONE,
    };
    if (to_fp8) {
        run.args.d_scale = &run.words[WORD_D];
        run.args.d_format = c->d == GEMM_E4M3 ? FP8PIPE_E4M3 : FP8PIPE_E5M2;
        run.args.d_amax = (uint32_t *)(void *)&run.words[WORD_AMAX];
    }
    return run;
}

static void run_free(struct rig *rig, struct gemm_run *run)
{
    operand_free(rig, &run->a);
    operand_free(rig, &run->b);
    operand_free(rig, &run->d);
    operand_free(rig, &run->residual);
    operand_free(rig, &run->bias);
    device_free(rig, run->words);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

/* D in float64, before it is scaled. */
static void reference(const struct gemm_case *c, const struct gemm_run *run, double *d)
{
    struct test_operand a = {run->a.values, c->k, 1}, b = {run->b.values, c->k, 1};
    const double scale = gemm_type_is_fp8((int)c->a) ? (double)SCALE_A * (double)SCALE_B : 1;

    test_gemm64(c->m, c->n, c->k, a, b, d);
    for (int64_t i = 0; i < c->m * c->n; i++) {
        d[i] = d[i] * scale + (c->bias ? run->bias.values[i % c->n] : 0);
        if (c->gelu)
            d[i] = gelu(d[i]);
        if (c->added == ADDED_RESIDUAL)
            d[i] += run->residual.values[i];
        if (c->added == ADDED_D)
            d[i] += run->d.values[i];
    }
}

/* An operand's elements now; false if anything between its rows was written. */
static bool elements_now(struct rig *rig, const struct operand *operand, double *values)
{
    const size_t element = gemm_type_bytes((int)operand->type);
    uint8_t *copy = operand_download(rig, operand);
    bool intact = true;

    for (int64_t row = 0; row < operand->rows; row++)
        for (int64_t col = 0; col < operand->stride; col++) {
            const uint8_t *at = copy + (size_t)(row * operand->stride + col) * element;

            if (col < operand->cols)
                values[row * operand->cols + col] = element_get(operand->type, at);
            else
                for (size_t i = 0; i < element; i++)
                    intact &= at[i] == POISON || at[i] == 0;
        }
    free(copy);
    return intact;
}

/* What a sum of k terms and one rounding to the type may miss, norm over norm. */
static double allowed(const struct gemm_case *c, enum gemm_type type)
{
    double sum = gemm_type_is_fp8((int)c->a) && c->fast ? 3e-3 : 5e-4;

    switch (type) {
    case GEMM_FP32:
        break;
    case GEMM_BF16:
        sum += c->added != ADDED_NOTHING || c->gelu ? 4e-3 : 2e-3;
        break;
    case GEMM_FP16:
        sum += 5e-4;
        break;
    case GEMM_E4M3:
        sum += 3.2e-2;
        break;
    case GEMM_E5M2:
        sum += 6.4e-2;
        break;
    }
    /* cuBLASLt's tanh has few digits. */
    return sum + (c->gelu ? 2e-3 : 0);
}

/* Whether what the GEMM wrote is right. */
static bool run_is_right(struct rig *rig, const struct gemm_case *c, const struct gemm_run *run)
{
    const int64_t count = c->m * c->n;
    double *want = test_calloc((size_t)count, sizeof(double));
    double *got = test_calloc((size_t)count, sizeof(double));
    const bool to_fp8 = gemm_type_is_fp8((int)c->d);
    bool right, intact = elements_now(rig, &run->d, got);
    double error, largest = 0;

    reference(c, run, want);
    for (int64_t i = 0; i < count && to_fp8; i++) {
        largest = fmax(largest, fabs(want[i]));
        got[i] /= (double)scale_d(c);
    }
    error = test_relative_error(count, got, want);
    right = intact && error <= allowed(c, c->d);
    if (!right)
        diag("%s: D: error %.2e, allowed %.2e%s", case_name(c), error, allowed(c, c->d),
             intact ? "" : ", wrote between rows");
    if (to_fp8) {
        float words[WORDS];

        must(backend_cuda_ops.memory_copy(rig->backend, words, run->words, sizeof(words)));
        if (!(fabs((double)words[WORD_AMAX] / largest - 1) < 5e-3)) {
            diag("%s: amax %g, wanted %g", case_name(c), (double)words[WORD_AMAX], largest);
            right = false;
        }
    }
    free(want);
    free(got);
    return right;
}

/* Runs it once. *refused: with ENOTSUP, which is to have no effect. */
static bool case_holds(struct rig *rig, const struct gemm_case *c, struct test_rng *rng,
                       bool *refused)
{
    struct gemm_run run = run_make(rig, c, rng);
    enum fp8pipe_status status = backend_cuda_ops.gemm(rig->backend, rig->stream, &run.args);
    bool holds;

    rig_finish(rig);
    *refused = status == FP8PIPE_ENOTSUP;
    if (*refused)
        holds =
            (c->added == ADDED_D || operand_is_poison(rig, &run.d)) && status_sentence()[0] != '\0';
    else
        holds = status == FP8PIPE_OK && run_is_right(rig, c, &run);
    if (!holds)
        diag("%s: %s: %s", case_name(c), fp8pipe_status_name(status), status_sentence());
    run_free(rig, &run);
    return holds;
}

/* ---- Epilogues ----------------------------------------------------------------------------- */

/* Without an epilogue all goes through, and residuals and FP8 results of FP8 operands do on
 * Hopper. */
static bool is_required(const struct gemm_case *c)
{
    const bool fp8 = gemm_type_is_fp8((int)c->a), to_fp8 = gemm_type_is_fp8((int)c->d);

    if (c->gelu)
        return fp8 && c->d == GEMM_BF16 && c->a == c->b && c->added == ADDED_NOTHING;
    if (to_fp8)
        return fp8 && c->added == ADDED_NOTHING && (c->d == GEMM_E4M3 || c->a != c->b);
    if (c->added == ADDED_RESIDUAL)
        return fp8 ? c->d != GEMM_FP16 : c->a == c->d;
    return true;
}

static void test_types(struct rig *rig, enum gemm_type a, enum gemm_type b)
{
    static const int64_t shapes[][3] = {{48, 64, 96}, {80, 144, 528}, {264, 96, 272}};
    struct test_rng rng = {(uint64_t)a * 8 + (uint64_t)b + 1};
    int wrong = 0, missing = 0, ran = 0, refusals = 0;

    for (int i = 0; i < 5 * 3 * 4 * 3 * 2; i++) {
        const int64_t *shape = shapes[i / 4 / 3 / 5 % 3];
        struct gemm_case c = {
            .m = shape[0],
            .n = shape[1],
            .k = shape[2],
            .a = a,
            .b = b,
            .d = (enum gemm_type)(i / 4 / 3 % 5),
            .added = (enum added)(i / 4 % 3),
            .bias = i & 1,
            .gelu = i >> 1 & 1,
            .fast = i >= 5 * 3 * 4 * 3,
            .padded = i % 7 > 3,
        };
        bool refused;

        wrong += !case_holds(rig, &c, &rng, &refused);
        refusals += refused;
        ran += !refused;
        if (refused && is_required(&c)) {
            diag("%s: refused: %s", case_name(&c), status_sentence());
            missing++;
        }
    }
    is_int(wrong, 0, "%s . %s: %d GEMMs with epilogues are right, %d are refused with no effect",
           type_names[a], type_names[b], ran, refusals);
    is_int(missing, 0, "%s . %s: none that is needed is refused", type_names[a], type_names[b]);
}

/* What an FP8 D makes of values that are not finite, told to whoever reads. */
static void note_nonfinite(struct rig *rig)
{
    const struct gemm_case c = {
        .m = 64, .n = 64, .k = 64, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = GEMM_E4M3, .bias = true};
    static const uint16_t specials[] = {0x7F80, 0x7FC0};
    struct test_rng rng = {77};
    struct gemm_run run = run_make(rig, &c, &rng);

    for (int i = 0; i < 2; i++) {
        uint8_t *d;
        float words[WORDS];

        must(backend_cuda_ops.memory_copy(rig->backend, run.bias.device, &specials[i], 2));
        must(backend_cuda_ops.gemm(rig->backend, rig->stream, &run.args));
        rig_finish(rig);
        must(backend_cuda_ops.memory_copy(rig->backend, words, run.words, sizeof(words)));
        d = operand_download(rig, &run.d);
        note("a bias of %s: byte %02x, amax %g", i == 0 ? "inf" : "NaN", d[0],
             (double)words[WORD_AMAX]);
        free(d);
    }
    run_free(rig, &run);
}

static void test_epilogues(void)
{
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    ok(cuda_stream_of(rig.stream)->workspace == NULL, "a stream without GEMMs has no workspace");
    test_types(&rig, GEMM_E4M3, GEMM_E4M3);
    test_types(&rig, GEMM_E4M3, GEMM_E5M2);
    test_types(&rig, GEMM_E5M2, GEMM_E4M3);
    test_types(&rig, GEMM_BF16, GEMM_BF16);
    test_types(&rig, GEMM_FP16, GEMM_FP16);
    test_types(&rig, GEMM_FP32, GEMM_FP32);
    note_nonfinite(&rig);
    rig_close(&rig);
}

/* ---- Borrowing and fixed plans ------------------------------------------------------------- */

static int64_t await_refined(struct rig *rig)
{
    const int64_t start = test_now_ns();

    while (rig_stats(rig).refined < rig_stats(rig).borrowed &&
           test_now_ns() - start < INT64_C(5000000000))
        usleep(200);
    return test_now_ns() - start;
}

static void test_borrowing(void)
{
    struct gemm_case c = {.m = 1024,
                          .n = 256,
                          .k = 512,
                          .a = GEMM_E4M3,
                          .b = GEMM_E4M3,
                          .d = GEMM_BF16,
                          .fast = true};
    struct backend_plan_stats stats;
    struct test_rng rng = {12};
    int wrong = 0, again = 0;
    bool refused;
    int64_t took;
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_REFINED, NULL);
    wrong += !case_holds(&rig, &c, &rng, &refused);
    is_int(rig_stats(&rig).borrowed, 0, "the first shape asks the heuristic");
    for (int i = 0; i < 40; i++) {
        c.m = 16 + 61 * i;
        wrong += !case_holds(&rig, &c, &rng, &refused);
    }
    stats = rig_stats(&rig);
    ok(stats.borrowed >= 35, "shapes of other tokens borrow: %d of 40", (int)stats.borrowed);
    took = await_refined(&rig);
    stats = rig_stats(&rig);
    ok(stats.refined == stats.borrowed && took < INT64_C(100000000),
       "all are refined within 100 ms of the last: %.1f ms", (double)took * 1e-6);
    /* wgrads: the tokens are k. */
    c = (struct gemm_case){.m = 128,
                           .n = 256,
                           .k = 1024,
                           .a = GEMM_E5M2,
                           .b = GEMM_E4M3,
                           .d = GEMM_FP32,
                           .added = ADDED_D};
    wrong += !case_holds(&rig, &c, &rng, &refused);
    for (int i = 0; i < 20; i++) {
        c.k = 16 + 112 * i;
        wrong += !case_holds(&rig, &c, &rng, &refused);
    }
    ok(rig_stats(&rig).borrowed >= stats.borrowed + 15, "so do wgrads: %d of 20",
       (int)(rig_stats(&rig).borrowed - stats.borrowed));
    is_int(wrong, 0, "results by borrowed algorithms are right");
    await_refined(&rig);
    for (int i = 0; i < 20; i++) {
        c.k = 16 + 112 * i;
        again += !case_holds(&rig, &c, &rng, &refused);
    }
    is_int(again, 0, "and so are those by refined ones");
    rig_close(&rig);
}

/* The bytes of D of GEMMs in an order, the same inputs for the same number. */
static uint64_t bits_of(struct rig *rig, int number)
{
    const struct gemm_case c = {
        .m = 16 + 48 * number, .n = 512, .k = 4096, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = GEMM_FP32};
    struct test_rng rng = {(uint64_t)number};
    struct gemm_run run = run_make(rig, &c, &rng);
    uint64_t hash = 0;
    uint8_t *d;

    must(backend_cuda_ops.gemm(rig->backend, rig->stream, &run.args));
    rig_finish(rig);
    d = operand_download(rig, &run.d);
    for (size_t i = 0; i < run.d.bytes; i++)
        hash = (hash ^ d[i]) * UINT64_C(0x100000001b3);
    free(d);
    run_free(rig, &run);
    return hash;
}

static void test_fixed(void)
{
    uint64_t forth[12];
    int differs = 0;
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    for (int i = 0; i < 12; i++)
        forth[i] = bits_of(&rig, i);
    is_int(rig_stats(&rig).borrowed, 0, "fixed plans borrow nothing");
    rig_close(&rig);
    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    for (int i = 11; i >= 0; i--)
        differs += bits_of(&rig, i) != forth[i];
    is_int(differs, 0, "and give the same bits, whichever shape comes first");
    rig_close(&rig);
}

/* ---- Tuning -------------------------------------------------------------------------------- */

static char folder[] = "/tmp/fp8pipe-plans-XXXXXX";
static char file[64];

static const struct fp8pipe_tune_shape shapes[] = {
    {.m = 1024,
     .n = 1024,
     .k = 1024,
     .a = FP8PIPE_GEMM_E4M3,
     .b = FP8PIPE_GEMM_E4M3,
     .d = FP8PIPE_GEMM_BF16,
     .fast = 1},
    {.m = 240,
     .n = 1024,
     .k = 4096,
     .a = FP8PIPE_GEMM_E4M3,
     .b = FP8PIPE_GEMM_E4M3,
     .d = FP8PIPE_GEMM_E4M3,
     .bias = 1,
     .fast = 1},
    {.m = 2048,
     .n = 1024,
     .k = 1920,
     .a = FP8PIPE_GEMM_E5M2,
     .b = FP8PIPE_GEMM_E4M3,
     .d = FP8PIPE_GEMM_FP32,
     .residual = 2},
    {.m = 512,
     .n = 512,
     .k = 512,
     .a = FP8PIPE_GEMM_BF16,
     .b = FP8PIPE_GEMM_BF16,
     .d = FP8PIPE_GEMM_BF16,
     .residual = 1,
     .b_transposed = 1},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static const struct gemm_case tuned_case = {
    .m = 1024, .n = 1024, .k = 1024, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = GEMM_BF16, .fast = true};

/* The plan that a GEMM of the first shape gets. */
static struct plan tuned_plan(struct rig *rig)
{
    struct test_rng rng = {3};
    struct gemm_run run = run_make(rig, &tuned_case, &rng);
    struct plan *plan, copy;

    must(plan_get(cuda_backend_of(rig->backend), cuda_stream_of(rig->stream), &run.args, &plan));
    copy = *plan;
    run_free(rig, &run);
    return copy;
}

static void test_tuning(void)
{
    struct backend_tune tune = {.shapes = shapes,
                                .shape_count = SHAPES,
                                .file = file,
                                .candidates = 16,
                                .deadline_ns = EC_FOREVER};
    struct test_rng rng = {5};
    struct plan tuned, loaded;
    int64_t start;
    struct rig rig;
    bool refused;
    FILE *text;

    rig_open(&rig, FP8PIPE_PLANS_REFINED, NULL);
    start = test_now_ns();
    is_int(backend_cuda_ops.tune(rig.backend, &tune), FP8PIPE_OK, "%d shapes are timed: %s",
           (int)SHAPES, status_sentence());
    note("%.1f ms a shape", (double)(test_now_ns() - start) * 1e-6 / SHAPES);
    is_int(rig_stats(&rig).cached, SHAPES, "each has a plan");
    tuned = tuned_plan(&rig);
    ok(tuned.tuned && rig_stats(&rig).cached == SHAPES, "which an op of that shape gets");
    ok(case_holds(&rig, &tuned_case, &rng, &refused) && !refused, "and is right");
    rig_close(&rig);

    rig_open(&rig, FP8PIPE_PLANS_REFINED, file);
    is_int(rig.warnings, 0, "the file is loaded without a warning");
    loaded = tuned_plan(&rig);
    ok(loaded.tuned && memcmp(&loaded.algo, &tuned.algo, sizeof(loaded.algo)) == 0,
       "the next pipe has the same algorithm");
    ok(case_holds(&rig, &tuned_case, &rng, &refused) && !refused, "which is right there too");
    /* Whatever ran: the plans of the cache. */
    tune.shapes = NULL;
    tune.shape_count = 0;
    tune.untuned = true;
    is_int(backend_cuda_ops.tune(rig.backend, &tune), FP8PIPE_OK, "what is tuned is left alone");
    rig_close(&rig);

    text = fopen(file, "r+");
    if (text == NULL || fseek(text, 100, SEEK_SET) != 0 || fputc('x', text) == EOF ||
        fclose(text) != 0)
        bail("%s: %s", file, strerror(errno));
    rig_open(&rig, FP8PIPE_PLANS_FIXED, file);
    is_int(rig.warnings, 1, "a damaged file is ignored with one warning: %s", rig.warning);
    ok(!tuned_plan(&rig).tuned, "and nothing of it is taken");
    unlink(file);
    rig_close(&rig);
    rig_open(&rig, FP8PIPE_PLANS_FIXED, file);
    is_int(rig.warnings, 1, "so is one that is missing: %s", rig.warning);
    rig_close(&rig);
}

/* Reads the file's one section, whatever its card. */
static struct tune_table file_table(struct tune_card *card)
{
    struct tune_table table = {NULL, 0, 0};
    unsigned long long library;
    FILE *text = fopen(file, "r");

    memset(card, 0, sizeof(*card));
    if (text == NULL || fscanf(text, "fp8pipe tune file 1\ncard %llu %u %u %95[^\n]", &library,
                               &card->capability, &card->multiprocessors, card->name) != 4)
        bail("%s: no card", file);
    fclose(text);
    card->library = library;
    must(tune_file_read(file, card, &table));
    return table;
}

/* In a right file an algorithm of another GEMM, or none: it is checked, and then replaced. */
static void test_wrong_algorithms(void)
{
    const struct fp8pipe_tune_shape two[] = {shapes[0], shapes[SHAPES - 1]};
    struct backend_tune tune = {
        .shapes = two,
        .shape_count = 2,
        .file = file,
        .candidates = 4,
        .deadline_ns = EC_FOREVER,
    };
    struct test_rng rng = {8};
    struct tune_entry first, second;
    struct tune_table table;
    struct tune_card card;
    int wrong = 0;
    bool refused, damaged;
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    must(backend_cuda_ops.tune(rig.backend, &tune));
    rig_close(&rig);
    table = file_table(&card);
    if (table.count != 2)
        bail("%s: %zu plans", file, table.count);
    first = table.entries[0];
    second = table.entries[1];
    for (int i = 0; i < 2; i++) {
        memcpy(table.entries[0].algo, second.algo, sizeof(first.algo));
        memcpy(table.entries[1].algo, first.algo, sizeof(first.algo));
        if (i == 1) {
            memset(table.entries[0].algo, 0, sizeof(first.algo));
            memset(table.entries[1].algo, 0, sizeof(first.algo));
        }
        must(tune_file_write(file, &card, &table, &damaged));
        rig_open(&rig, FP8PIPE_PLANS_FIXED, file);
        wrong += !case_holds(&rig, &tuned_case, &rng, &refused) || refused;
        ok(!tuned_plan(&rig).tuned, "an algorithm %s is not taken",
           i == 0 ? "of another GEMM" : "of zeros");
        rig_close(&rig);
    }
    is_int(wrong, 0, "the heuristic's is, and is right");
    tune_table_free(&table);
    unlink(file);
}

/* By the public API: FP8PIPE_TUNE tunes what ran when the pipe is closed. */
static void test_tune_at_close(void)
{
    struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct test_rng rng = {6};
    struct fp8pipe_tune_options wanted = FP8PIPE_TUNE_OPTIONS_INIT;
    struct test_matrix a, b, d;
    struct fp8pipe *pipe;
    fp8pipe_ticket ticket;

    setenv("FP8PIPE_TUNE", "1", 1);
    setenv("FP8PIPE_TUNE_FILE", file, 1);
    options.log_level = FP8PIPE_LOG_NONE;
    pipe = test_open(FP8PIPE_BACKEND_CUDA, &options);
    a = test_matrix_random(pipe, FP8PIPE_BF16, 128, 256, 0, 0, 1, &rng, NULL);
    b = test_matrix_random(pipe, FP8PIPE_BF16, 512, 256, 0, 0, 1, &rng, NULL);
    d = test_matrix_make(pipe, FP8PIPE_BF16, 128, 512, 0, 0);
    op.a = a.view;
    op.b = b.view;
    op.d = d.view;
    must(fp8pipe_gemm(pipe, &op, &ticket));
    test_wait(pipe, ticket);
    test_matrix_free(&a);
    test_matrix_free(&b);
    test_matrix_free(&d);
    ok(access(file, F_OK) != 0, "nothing is written while a pipe runs");
    must(fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS));
    is_int(access(file, F_OK), 0, "with FP8PIPE_TUNE, its close writes the tune file");
    unsetenv("FP8PIPE_TUNE");
    pipe = test_open(FP8PIPE_BACKEND_CUDA, &options);
    wanted.shapes = shapes;
    wanted.shape_count = 1;
    is_int(fp8pipe_tune(pipe, &wanted), FP8PIPE_OK, "fp8pipe_tune without a file: %s",
           fp8pipe_last_error());
    wanted.file = "/no/such/folder/plans";
    is_int(fp8pipe_tune(pipe, &wanted), FP8PIPE_EINVAL, "and with one that cannot be written: %s",
           fp8pipe_last_error());
    test_close(pipe);
    unsetenv("FP8PIPE_TUNE_FILE");
    unlink(file);
}

int main(void)
{
    const struct test_backends *backends = test_backends();
    char command[128];

    if (backends->count == 0 || backends->list[backends->count - 1] != FP8PIPE_BACKEND_CUDA)
        return done_testing();
    if (mkdtemp(folder) == NULL)
        bail("mkdtemp: %s", strerror(errno));
    snprintf(file, sizeof(file), "%s/plans", folder);
    unsetenv("FP8PIPE_TUNE");
    unsetenv("FP8PIPE_TUNE_FILE");
    test_epilogues();
    test_borrowing();
    test_fixed();
    test_tuning();
    test_wrong_algorithms();
    test_tune_at_close();
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        diag("%s: not removed", folder);
    return done_testing();
}
