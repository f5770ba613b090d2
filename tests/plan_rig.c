#include "plan_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/plan.h"
#include "kernels/convert.h"
#include "kernels/fp8.h"

#define POISON 0xFF

bool rig_is_wanted(void)
{
    const struct test_backends *backends = test_backends();
    const bool wanted =
        backends->count > 0 && backends->list[backends->count - 1] == FP8PIPE_BACKEND_CUDA;

    if (!wanted && !backends->cuda_missing) {
        skip(1, "cuda: FP8PIPE_TEST_BACKEND names another backend");
    }
    return wanted;
}

/* ---- A backend and its memory ------------------------------------------------------------- */

static void log_warning(void *arg, enum fp8pipe_log_level level, const char *line)
{
    struct rig *rig = arg;

    if (level == FP8PIPE_LOG_WARN) {
        rig->warnings++;
        snprintf(rig->warning, sizeof(rig->warning), "%s", line);
    }
}

void rig_open(struct rig *rig, enum fp8pipe_plans plans, const char *tune_file)
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

void rig_close(struct rig *rig)
{
    backend_cuda_ops.event_destroy(rig->backend, rig->event);
    backend_cuda_ops.stream_destroy(rig->backend, rig->stream);
    backend_cuda_ops.leave(rig->backend, &rig->scope);
    backend_cuda_ops.close(rig->backend);
}

void rig_finish(struct rig *rig)
{
    bool done = false;

    must(backend_cuda_ops.event_record(rig->backend, rig->event, rig->stream));
    while (!done)
        must(backend_cuda_ops.event_query(rig->backend, rig->event, &done));
}

struct backend_plan_stats rig_stats(struct rig *rig)
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

uint8_t *operand_download(struct rig *rig, const struct operand *operand)
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

const char *const gemm_type_names[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2"};

const char *case_name(const struct gemm_case *c)
{
    static char name[160];

    snprintf(name, sizeof(name), "%lld x %lld x %lld, %s . %s to %s%s%s%s%s", (long long)c->m,
             (long long)c->n, (long long)c->k, gemm_type_names[c->a], gemm_type_names[c->b],
             gemm_type_names[c->d], c->bias ? ", bias" : "", c->gelu ? ", gelu" : "",
             c->added == ADDED_RESIDUAL ? ", residual" : "",
             c->added == ADDED_D ? ", accumulate" : "");
    return name;
}

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

struct gemm_run run_make(struct rig *rig, const struct gemm_case *c, struct test_rng *rng)
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

void run_free(struct rig *rig, struct gemm_run *run)
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

bool case_holds(struct rig *rig, const struct gemm_case *c, struct test_rng *rng, bool *refused)
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
