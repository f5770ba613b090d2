/*
 * GEMM of the host backend against float64 on the operands' own values: every type and storage,
 * with scales, bias and accumulation; epilogues; what it refuses; exit() and fork() in the middle.
 */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "kernels/activation.h"
#include "kernels/fp8.h"
#include "status.h"
#include "util.h"

static const struct backend_ops *const ops = &backend_host_ops;
static struct backend *backend;
static struct fp8pipe_stream *stream;
static struct test_rng rng = {11};

static void backend_start(void)
{
    struct backend_options options = {0};

    must(ops->open(&options, &backend));
    must(ops->stream_create(backend, NULL, &stream));
}

/* The results are there once the stream is destroyed. */
static void backend_stop(void)
{
    ops->stream_destroy(backend, stream);
    ops->close(backend);
}

/* ---- Operands ----------------------------------------------------------------------------- */

struct operand {
    struct gemm_operand gemm;
    float scale_inv;
    double *values; /* [rows, k], dense, without the scale */
};

static size_t type_bytes(enum gemm_type type)
{
    return type == GEMM_FP32 ? 4 : type == GEMM_BF16 || type == GEMM_FP16 ? 2 : 1;
}

static double element_put(enum gemm_type type, void *element, double value)
{
    static const enum fp8pipe_dtype dtypes[] = {FP8PIPE_FP32, FP8PIPE_BF16, FP8PIPE_FP16};
    enum fp8pipe_format format = type == GEMM_E5M2 ? FP8PIPE_E5M2 : FP8PIPE_E4M3;
    uint8_t code;

    if (type <= GEMM_FP16) {
        test_element_set(dtypes[type], element, value);
        return test_element_get(dtypes[type], element);
    }
    code = fp8_from_float((float)value * 8, format);
    memcpy(element, &code, 1);
    return test_fp8_value(format, code);
}

/* Normal values; what lies between the stored rows is NaN, which must not be read. */
static struct operand operand_make(enum gemm_type type, bool transposed, int64_t rows, int64_t k,
                                   int64_t gap)
{
    struct operand operand = {.gemm = {.type = type, .transposed = transposed},
                              .scale_inv = 0.125f};
    int64_t stored_rows = transposed ? k : rows;
    int64_t stored_cols = transposed ? rows : k;
    size_t bytes = (size_t)(stored_rows * (stored_cols + gap)) * type_bytes(type);
    char *data = test_calloc(bytes, 1);

    memset(data, 0xff, bytes);
    operand.gemm.data = data;
    operand.gemm.stride = stored_cols + gap;
    operand.values = test_calloc((size_t)(rows * k), sizeof(double));
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < k; i++) {
            int64_t place =
                transposed ? i * operand.gemm.stride + row : row * operand.gemm.stride + i;

            operand.values[row * k + i] = element_put(type, data + (size_t)place * type_bytes(type),
                                                      test_random_normal(&rng));
        }
    }
    return operand;
}

static void operand_free(struct operand *operand)
{
    free((void *)operand->gemm.data);
    free(operand->values);
}

/* ---- Against float64 ---------------------------------------------------------------------- */

struct gemm_case {
    struct gemm_args args;
    struct operand a, b;
    char *d, *bias;
    double *want; /* what D should be, from before the call */
};

static char *element_at(const struct gemm_case *test, int64_t row, int64_t col)
{
    return test->d +
           (size_t)(row * test->args.d_stride + col) * test_dtype_bytes(test->args.d_dtype);
}

/* Case `number` of CASES: each output type, with and without accumulation, bias, transposition. */
enum { CASES = 3 * 2 * 2 * 2 * 2 };

static void case_make(struct gemm_case *test, enum gemm_type a_type, enum gemm_type b_type,
                      int number)
{
    struct gemm_args *args = &test->args;
    bool fp8 = a_type >= GEMM_E4M3;
    int64_t gap = test_random_range(&rng, 0, 2) * (fp8 ? KERNEL_FP8_PAD : 1);

    memset(test, 0, sizeof(*test));
    args->m = test_random_range(&rng, 1, 40);
    args->n = fp8 ? 16 * test_random_range(&rng, 1, 4) : test_random_range(&rng, 1, 50);
    args->n += number % 8 == 7 ? 256 : 0;
    args->k = fp8 ? 16 * test_random_range(&rng, 1, 5) : test_random_range(&rng, 1, 80);
    args->d_dtype = (enum fp8pipe_dtype)(number % 3);
    args->d_stride = args->n + 16 * test_random_range(&rng, 0, 1);
    args->accumulate = number / 3 % 2;
    args->bias_dtype = fp8 && args->d_dtype == FP8PIPE_FP32 ? FP8PIPE_BF16 : args->d_dtype;
    test->a = operand_make(a_type, !fp8 && number / 12 % 2, args->m, args->k, gap);
    test->b = operand_make(b_type, !fp8 && number / 24 % 2, args->n, args->k, gap);
    args->a = test->a.gemm;
    args->b = test->b.gemm;
    if (fp8) {
        args->a.scale_inv = &test->a.scale_inv;
        args->b.scale_inv = &test->b.scale_inv;
    }
    test->bias = test_calloc((size_t)args->n, 4);
    args->bias = number / 6 % 2 ? test->bias : NULL;
    test->d = test_calloc((size_t)(args->m * args->d_stride), 4);
    args->d = test->d;
    test->want = test_calloc((size_t)(args->m * args->n), sizeof(double));
}

static void case_fill(struct gemm_case *test)
{
    const struct gemm_args *args = &test->args;
    size_t bias_bytes = test_dtype_bytes(args->bias_dtype);
    double scale = 1;

    if (args->a.scale_inv != NULL) {
        scale = (double)test->a.scale_inv * (double)test->b.scale_inv;
    }
    memset(test->d, 0xff, (size_t)(args->m * args->d_stride) * test_dtype_bytes(args->d_dtype));
    test_gemm64(args->m, args->n, args->k, (struct test_operand){test->a.values, args->k, 1},
                (struct test_operand){test->b.values, args->k, 1}, test->want);
    for (int64_t col = 0; col < args->n; col++) {
        test_element_set(args->bias_dtype, test->bias + (size_t)col * bias_bytes,
                         test_random_normal(&rng));
    }
    for (int64_t row = 0; row < args->m; row++) {
        for (int64_t col = 0; col < args->n; col++) {
            double *want = &test->want[row * args->n + col];

            *want *= scale;
            if (args->bias != NULL) {
                *want += test_element_get(args->bias_dtype, test->bias + (size_t)col * bias_bytes);
            }
            if (args->accumulate) {
                test_element_set(args->d_dtype, element_at(test, row, col),
                                 test_random_normal(&rng));
                *want += test_element_get(args->d_dtype, element_at(test, row, col));
            }
        }
    }
}

/* The error of D, or inf if a byte between its rows was written. */
static double case_error(const struct gemm_case *test)
{
    const struct gemm_args *args = &test->args;
    double *got = test_calloc((size_t)(args->m * args->n), sizeof(double));
    double error = 0;

    for (int64_t row = 0; row < args->m; row++) {
        const char *gap = element_at(test, row, args->n);

        for (int64_t col = 0; col < args->n; col++) {
            got[row * args->n + col] = test_element_get(args->d_dtype, element_at(test, row, col));
        }
        for (; gap < element_at(test, row, args->d_stride); gap++) {
            error = *gap == (char)0xff ? error : INFINITY;
        }
    }
    error += test_relative_error(args->m * args->n, got, test->want);
    free(got);
    return error;
}

static void case_free(struct gemm_case *test)
{
    operand_free(&test->a);
    operand_free(&test->b);
    free(test->d);
    free(test->bias);
    free(test->want);
}

/* Half a unit in the last place, and float32 sums of up to 100 terms. */
static double bound(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? 1e-6 : dtype == FP8PIPE_BF16 ? 3e-3 : 4e-4;
}

static void test_types(enum gemm_type a_type, enum gemm_type b_type, const char *name)
{
    struct gemm_case cases[CASES];
    int wrong = 0;

    backend_start();
    for (int i = 0; i < CASES; i++) {
        case_make(&cases[i], a_type, b_type, i);
        case_fill(&cases[i]);
        must(ops->gemm(backend, stream, &cases[i].args));
    }
    backend_stop();
    for (int i = 0; i < CASES; i++) {
        const struct gemm_args *args = &cases[i].args;
        double error = case_error(&cases[i]);

        if (!(error <= bound(args->d_dtype))) {
            diag("%s: %lld x %lld x %lld, d_dtype %d, transposed %d %d, bias %d, accumulate %d: %g",
                 name, (long long)args->m, (long long)args->n, (long long)args->k, args->d_dtype,
                 args->a.transposed, args->b.transposed, args->bias != NULL, args->accumulate,
                 error);
            wrong++;
        }
        case_free(&cases[i]);
    }
    is_int(wrong, 0, "%s: shapes, strides, storage, bias, accumulation", name);
}

/* ---- Scales, NaN, refusals ---------------------------------------------------------------- */

static void test_scales(void)
{
    /* The last two products are below the smallest normal float32, and below the smallest. */
    static const float scales[][2] = {
        {1e30f, 1e-30f},       {1e-30f, 1e30f},  {FLT_MAX, 0x1p-128f},
        {0x1p-149f, 0x1p127f}, {1e-20f, 1e-21f}, {1e-25f, 1e-25f},
    };
    enum { COUNT = sizeof(scales) / sizeof(scales[0]) };
    struct gemm_case cases[COUNT];
    int wrong = 0;

    backend_start();
    for (int i = 0; i < COUNT; i++) {
        case_make(&cases[i], GEMM_E4M3, GEMM_E4M3, 0);
        cases[i].a.scale_inv = scales[i][0];
        cases[i].b.scale_inv = scales[i][1];
        case_fill(&cases[i]);
        must(ops->gemm(backend, stream, &cases[i].args));
    }
    backend_stop();
    for (int i = 0; i < COUNT; i++) {
        double first = test_element_get(FP8PIPE_FP32, element_at(&cases[i], 0, 0));

        wrong += i < COUNT - 1 ? !(case_error(&cases[i]) <= bound(FP8PIPE_FP32)) : first != 0;
        case_free(&cases[i]);
    }
    is_int(wrong, 0, "one inverse scale huge and the other tiny, both tiny");
}

/* A NaN or inf in A meets zeros of B: NaN in its row of D, and in no other. */
static void test_nonfinite(void)
{
    static const int64_t shapes[][3] = {{1, 1, 1},  {1, 1, 33}, {1, 9, 40},
                                        {7, 1, 40}, {5, 6, 17}, {40, 48, 64}};
    enum { COUNT = sizeof(shapes) / sizeof(shapes[0]) };
    float *a[COUNT], *b[COUNT], *d[COUNT];
    int wrong = 0;

    backend_start();
    for (int i = 0; i < COUNT; i++) {
        int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        struct gemm_args args = {
            .m = m, .n = n, .k = k, .a = {.stride = k}, .b = {.stride = k}, .d_stride = n};

        args.a.data = a[i] = test_calloc((size_t)(m * k), sizeof(float));
        args.b.data = b[i] = test_calloc((size_t)(n * k), sizeof(float));
        args.d = d[i] = test_calloc((size_t)(m * n), sizeof(float));
        a[i][k - 1] = i % 2 ? NAN : INFINITY;
        must(ops->gemm(backend, stream, &args));
    }
    backend_stop();
    for (int i = 0; i < COUNT; i++) {
        for (int64_t j = 0; j < shapes[i][0] * shapes[i][1]; j++) {
            wrong += j < shapes[i][1] ? !isnan(d[i][j]) : d[i][j] != 0;
        }
        free(a[i]);
        free(b[i]);
        free(d[i]);
    }
    is_int(wrong, 0, "NaN and inf times zero is NaN, in its own row only");
}

static void test_refusals(void)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
        {"m", offsetof(struct gemm_args, m)},
        {"n", offsetof(struct gemm_args, n)},
        {"k", offsetof(struct gemm_args, k)},
        {"stride of A", offsetof(struct gemm_args, a.stride)},
        {"stride of B", offsetof(struct gemm_args, b.stride)},
        {"stride of D", offsetof(struct gemm_args, d_stride)},
    };
    float one[1] = {1};
    struct gemm_args args = {
        .m = 1,
        .n = 1,
        .k = 1,
        .a = {.data = one, .stride = 1},
        .b = {.data = one, .stride = 1},
        .d = one,
        .d_stride = 1,
    };

    backend_start();
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        struct gemm_args bad = args;
        int64_t value = (int64_t)INT_MAX + 1;
        enum fp8pipe_status status;

        memcpy((char *)&bad + fields[i].offset, &value, sizeof(value));
        status = ops->gemm(backend, stream, &bad);
        ok(status == FP8PIPE_EINVAL && strstr(status_sentence(), fields[i].name) != NULL,
           "%s above INT_MAX is refused by name", fields[i].name);
    }
    args.m = args.k = INT_MAX;
    args.a.type = args.b.type = GEMM_BF16;
    is_int(ops->gemm(backend, stream, &args), FP8PIPE_ENOMEM, "a scratch that cannot be is ENOMEM");
    backend_stop();
    ok(one[0] == 1, "a refused GEMM writes nothing");
}

/* ---- exit() and fork() while GEMMs run ----------------------------------------------------- */

/* Kept where a leak checker finds them. */
static struct fp8pipe_stream *busy[2];

/* Two streams with more work than is finished when the process ends. */
static void busy_start(void)
{
    enum { SIZE = 192, COUNT = 100 };
    float *memory = test_calloc(3 * SIZE * SIZE, sizeof(float));

    backend_start();
    busy[0] = stream;
    must(ops->stream_create(backend, NULL, &busy[1]));
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < COUNT; j++) {
            struct gemm_args args = {
                .m = SIZE,
                .n = SIZE,
                .k = SIZE,
                .a = {.data = memory, .stride = SIZE},
                .b = {.data = memory, .stride = SIZE},
                .d = memory + (i + 1) * SIZE * SIZE,
                .d_stride = SIZE,
            };

            must(ops->gemm(backend, busy[i], &args));
        }
    }
}

static void sleep_us(long us)
{
    struct timespec time = {0, us * 1000};

    nanosleep(&time, NULL);
}

/* Whether fn(arg), run in a child that alarm() ends if it hangs, leaves with status 0. */
static bool child_ends(void (*fn)(int arg), int arg)
{
    int status = -1;
    pid_t child = fork();

    if (child < 0) {
        bail("no child");
    }
    if (child == 0) {
        alarm(20);
        fn(arg);
        exit(0);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void exit_busy(int us)
{
    busy_start();
    sleep_us(us);
}

static void end(int arg)
{
    (void)arg;
}

static void fork_busy(int us)
{
    busy_start();
    sleep_us(us);
    if (!child_ends(end, 0)) {
        exit(1);
    }
    ops->stream_destroy(backend, busy[1]);
    backend_stop();
}

static void test_process(void)
{
    int failed[2] = {0, 0};

    for (int us = 0; us < 16000; us += 2000) {
        failed[0] += !child_ends(exit_busy, us);
        failed[1] += !child_ends(fork_busy, us);
    }
    is_int(failed[0], 0, "exit without close, in the middle of GEMMs, ends");
    is_int(failed[1], 0, "fork in the middle of GEMMs goes on in the parent and ends in the child");
}

/* ---- Epilogues ---------------------------------------------------------------------------- */

/*
 * One GEMM into float32, without an epilogue, and the same into D with one: that is made of the
 * first's result by float32 operations in a given order, so the bits are known.
 */
static int epilogue_wrong(int number)
{
    bool quantizes = number % 4 == 3;
    float product[40 * 64] = {0}, scale = 3.25f;
    uint16_t residual[40 * 64], d[40 * 64];
    uint8_t codes[40 * 64];
    uint32_t amax = 0, largest = 0;
    struct gemm_case test;
    struct gemm_args args;
    int wrong = 0;

    case_make(&test, GEMM_E4M3, GEMM_E4M3, 6);
    args = test.args;
    args.d = product;
    args.d_stride = args.n;
    args.bias = NULL;
    args.d_dtype = FP8PIPE_FP32;
    args.accumulate = false;
    for (int i = 0; i < 40 * 64; i++) {
        residual[i] = test_bf16_from_double(test_random_normal(&rng));
    }
    backend_start();
    must(ops->gemm(backend, stream, &args));
    args.activation = number & 1 ? FP8PIPE_ACTIVATION_GELU_TANH : FP8PIPE_ACTIVATION_NONE;
    args.d_dtype = FP8PIPE_BF16;
    args.d = d;
    if (quantizes) {
        args.d = codes;
        args.d_scale = &scale;
        args.d_format = number & 8 ? FP8PIPE_E5M2 : FP8PIPE_E4M3;
        args.d_amax = number & 16 ? NULL : &amax;
    } else {
        args.residual = number & 2 ? residual : NULL;
        args.residual_stride = args.n;
    }
    must(ops->gemm(backend, stream, &args));
    backend_stop();
    for (int64_t i = 0; i < args.m * args.n; i++) {
        float value = number & 1 ? activation_gelu_tanh(product[i]) : product[i];
        uint32_t bits = test_float_bits(fabsf(value));

        largest = bits > largest ? bits : largest;
        if (quantizes) {
            wrong += codes[i] != fp8_from_float(value * scale, args.d_format);
            continue;
        }
        if (args.residual != NULL) { /* what is absent is not added: -0 stays */
            value += (float)test_bf16_to_double(residual[i]);
        }
        wrong += d[i] != test_bf16_from_double((double)value);
    }
    wrong += args.d_amax != NULL && amax != largest;
    case_free(&test);
    return wrong;
}

static void test_epilogues(void)
{
    int wrong = 0;

    for (int i = 0; i < 64; i++) {
        wrong += epilogue_wrong(i % 32);
    }
    is_int(wrong, 0, "activation, residual, FP8 with its amax: the bits");
}

int main(void)
{
    plan(2 + 6 + 2 + 8 + 1);
    test_process(); /* first, while this process has one thread */
    test_types(GEMM_FP32, GEMM_FP32, "fp32");
    test_types(GEMM_BF16, GEMM_BF16, "bf16");
    test_types(GEMM_FP16, GEMM_FP16, "fp16");
    test_types(GEMM_E4M3, GEMM_E4M3, "E4M3");
    test_types(GEMM_E4M3, GEMM_E5M2, "E4M3 by E5M2");
    test_types(GEMM_E5M2, GEMM_E4M3, "E5M2 by E4M3");
    test_scales();
    test_nonfinite();
    test_refusals();
    test_epilogues();
    return done_testing();
}
