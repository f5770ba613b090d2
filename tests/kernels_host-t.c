/*
 * Every host kernel against the meaning that kernels/kernels.h gives it, written naively, on random
 * shapes, strides and alignments, with bytes outside of the outputs watched.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/activation.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"
#include "numbers.h"
#include "tap.h"

#define POISON 0xa5

static struct test_rng rng = {20240601};

/* ---- Memory with guards ------------------------------------------------------------------- */

#define GUARD 64

struct block {
    uint8_t *start;
    size_t bytes; /* between the guards */
};

/* 64-byte aligned between guards of GUARD bytes; all poison. */
static struct block block_make(int64_t bytes)
{
    struct block block = {NULL, (size_t)bytes};
    void *memory;

    if (posix_memalign(&memory, GUARD, block.bytes + 2 * GUARD) != 0) {
        bail("no memory");
    }
    memset(memory, POISON, block.bytes + 2 * GUARD);
    block.start = (uint8_t *)memory + GUARD;
    return block;
}

static int guards_touched(const struct block *block)
{
    for (size_t i = 0; i < GUARD; i++) {
        if (block->start[-1 - (ptrdiff_t)i] != POISON || block->start[block->bytes + i] != POISON) {
            return 1;
        }
    }
    return 0;
}

static void block_free(struct block *block)
{
    free(block->start - GUARD);
}

/* ---- Matrices ----------------------------------------------------------------------------- */

enum content { CONTENT_NORMAL, CONTENT_BITS, CONTENT_SPECIAL };

/* A matrix whose rows start `offset` elements into the block; what lies between stays poison. */
static struct fp8pipe_matrix matrix_make(struct block *block, enum fp8pipe_dtype dtype,
                                         int64_t rows, int64_t cols, int64_t stride, int64_t offset)
{
    size_t element = test_dtype_bytes(dtype);
    struct fp8pipe_matrix matrix = {NULL, rows, cols, stride, dtype, 0};

    *block = block_make((offset + rows * stride) * (int64_t)element);
    matrix.data = block->start + (size_t)offset * element;
    return matrix;
}

static void *at(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    return (char *)matrix->data +
           (size_t)(row * matrix->stride + col) * test_dtype_bytes(matrix->dtype);
}

static float get(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    return (float)test_element_get(matrix->dtype, at(matrix, row, col));
}

static void matrix_fill(struct fp8pipe_matrix *matrix, enum content content)
{
    static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e-45, -1e-40, 65504, 1};

    for (int64_t row = 0; row < matrix->rows; row++) {
        for (int64_t col = 0; col < matrix->cols; col++) {
            uint64_t bits = test_random(&rng);
            double value = test_random_normal(&rng);

            if (content == CONTENT_SPECIAL && bits % 16 < 9) {
                value = special[bits % 16];
            }
            test_element_set(matrix->dtype, at(matrix, row, col), value);
            if (content == CONTENT_BITS) {
                memcpy(at(matrix, row, col), &bits, test_dtype_bytes(matrix->dtype));
            }
        }
    }
}

/* Bits of |x| widened exactly to float32. */
static uint32_t magnitude_bits(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    uint32_t wide;
    uint16_t narrow;

    if (matrix->dtype == FP8PIPE_FP32) {
        memcpy(&wide, at(matrix, row, col), sizeof(wide));
        return wide & 0x7fffffffu;
    }
    memcpy(&narrow, at(matrix, row, col), sizeof(narrow));
    narrow &= 0x7fff;
    if (matrix->dtype == FP8PIPE_BF16) {
        return (uint32_t)narrow << 16;
    }
    if (narrow >= 0x7c00) {
        return 0x7f800000u | (uint32_t)(narrow & 0x3ff) << 13;
    }
    return test_float_bits((float)test_fp16_to_double(narrow));
}

static uint32_t amax_of(const struct fp8pipe_matrix *x, uint32_t amax)
{
    for (int64_t row = 0; row < x->rows; row++) {
        for (int64_t col = 0; col < x->cols; col++) {
            uint32_t bits = magnitude_bits(x, row, col);

            amax = bits > amax ? bits : amax;
        }
    }
    return amax;
}

static int64_t round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Equal bits, or both NaN. */
static int same(float a, float b)
{
    return test_float_bits(a) == test_float_bits(b) || (isnan(a) && isnan(b));
}

/* A float32 sum of `count` terms, in any order, may be this far from the exact one. */
static int near_sum(float got, double want, double magnitude, int64_t count)
{
    if (!isfinite(want)) {
        return isnan(want) ? isnan(got) : (double)got == want;
    }
    /* Terms near FLT_MAX may overflow on the way to a finite sum. */
    if (magnitude > (double)FLT_MAX / 2) {
        return 1;
    }
    return fabs((double)got - want) <= (double)count * (double)FLT_EPSILON * magnitude;
}

static int wrong_partials(const struct fp8pipe_matrix *x, const float *partials)
{
    int wrong = 0;

    for (int64_t tile = 0; tile * KERNEL_SUM_ROWS < x->rows; tile++) {
        for (int64_t col = 0; col < x->cols; col++) {
            double sum = 0, magnitude = 0;
            int64_t row = tile * KERNEL_SUM_ROWS;

            for (; row < (tile + 1) * KERNEL_SUM_ROWS && row < x->rows; row++) {
                sum += (double)get(x, row, col);
                magnitude += fabs((double)get(x, row, col));
            }
            wrong += !near_sum(partials[tile * x->cols + col], sum, magnitude, KERNEL_SUM_ROWS);
        }
    }
    return wrong;
}

/* ---- Shapes ------------------------------------------------------------------------------- */

struct shape {
    int64_t rows;
    int64_t cols;
};

static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130, 255, 256, 257, 300};

static struct shape shape_random(void)
{
    struct shape shape;

    shape.rows = sizes[test_random_range(&rng, 0, 12)];
    shape.cols = sizes[test_random_range(&rng, 0, 16)];
    return shape;
}

static struct fp8pipe_matrix input_random(struct block *block)
{
    struct shape shape = shape_random();
    enum fp8pipe_dtype dtype = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2);
    struct fp8pipe_matrix x =
        matrix_make(block, dtype, shape.rows, shape.cols,
                    shape.cols + test_random_range(&rng, 0, 3), test_random_range(&rng, 0, 3));

    matrix_fill(&x, (enum content)test_random_range(&rng, 0, 2));
    return x;
}

/* ---- quantize ----------------------------------------------------------------------------- */

struct quantize_case {
    struct kernel_quantize_args args;
    struct block x, row, transposed, partials;
    float scale;
    int32_t has_scale;
    uint32_t own_amax;
    float scale_inv;
    uint32_t amax;
    uint32_t amax_before;
    float want_scale;
    uint64_t extremes[2];
};

static void scale_choose(struct quantize_case *test)
{
    static const uint32_t amaxes[] = {0,          1,          0x00800000, 0x3f800000,
                                      0x7f7fffff, 0x7f800000, 0x7fc00001};
    uint32_t amax = amaxes[test_random_range(&rng, 0, 6)];
    double quotient;

    test->scale =
        (float)ldexp(1 + test_random_uniform(&rng), (int)test_random_range(&rng, -20, 20));
    test->has_scale = (int32_t)test_random_range(&rng, 0, 1);
    test->own_amax = amax;
    test->args.scale_numerator = 448;
    test->args.scale = &test->scale;
    test->args.has_scale = &test->has_scale;
    test->args.own_amax = &test->own_amax;
    if (test_random_range(&rng, 0, 2) == 0) {
        test->args.own_amax = NULL;
        test->has_scale = 1;
    }
    test->want_scale = test->scale;
    if (!test->has_scale) {
        quotient = 448.0 / (double)test_float_from_bits(amax);
        test->want_scale = amax == 0 || amax >= 0x7f800000u ? 1.0f
                           : quotient > (double)FLT_MAX     ? FLT_MAX
                           : quotient < (double)FLT_MIN     ? FLT_MIN
                                                            : (float)quotient;
    }
}

static void quantize_make(struct quantize_case *test)
{
    struct fp8pipe_matrix *x = &test->args.x;
    int64_t tiles;

    memset(test, 0, sizeof(*test));
    *x = input_random(&test->x);
    tiles = round_up(x->rows, KERNEL_SUM_ROWS) / KERNEL_SUM_ROWS;
    test->args.format = (enum fp8pipe_format)test_random_range(&rng, 0, 1);
    test->args.row_stride = round_up(x->cols, 16) + 16 * test_random_range(&rng, 0, 1);
    test->args.transposed_stride = round_up(x->rows, 16) + 16 * test_random_range(&rng, 0, 1);
    test->row = block_make(x->rows * test->args.row_stride);
    test->transposed = block_make(x->cols * test->args.transposed_stride);
    test->partials = block_make(tiles * x->cols * (int64_t)sizeof(float));
    test->amax = test_random_range(&rng, 0, 1) ? 0x40000000 : 0;
    test->amax_before = test->amax;
    test->args.scale_inv = &test->scale_inv;
    test->args.row = test_random_range(&rng, 0, 2) ? test->row.start : NULL;
    test->args.transposed = test_random_range(&rng, 0, 2) ? test->transposed.start : NULL;
    test->args.partials = test_random_range(&rng, 0, 1) ? (float *)test->partials.start : NULL;
    test->args.amax = test_random_range(&rng, 0, 2) ? &test->amax : NULL;
    test->extremes[0] = UINT64_C(0xffffffff);
    test->extremes[1] = 7;
    test->args.extremes = test_random_range(&rng, 0, 1) ? test->extremes : NULL;
    scale_choose(test);
}

static int all_poison(const struct block *block)
{
    for (size_t i = 0; i < block->bytes; i++) {
        if (block->start[i] != POISON) {
            return 0;
        }
    }
    return 1;
}

static uint8_t quantized(const struct quantize_case *test, int64_t row, int64_t col)
{
    const struct fp8pipe_matrix *x = &test->args.x;

    if (row >= x->rows || col >= x->cols) {
        return 0; /* padding */
    }
    return fp8_from_float(get(x, row, col) * test->want_scale, test->args.format);
}

/* Counted from the codes' definition: beyond the largest, or closer to zero than to the least. */
static int wrong_extremes(const struct quantize_case *test)
{
    const struct fp8pipe_matrix *x = &test->args.x;
    const bool e5m2 = test->args.format == FP8PIPE_E5M2;
    const double most = e5m2 ? 57344.0 : 448.0;
    const double least = e5m2 ? 0x1p-16 : 0x1p-9;
    uint64_t saturated = UINT64_C(0xffffffff), flushed = 7;

    for (int64_t row = 0; test->args.extremes != NULL && row < x->rows; row++) {
        for (int64_t col = 0; col < x->cols; col++) {
            float value = get(x, row, col);
            float scaled = value * test->want_scale;

            saturated += fabs((double)scaled) > most;
            flushed +=
                !same(value, 0.0f) && !same(value, -0.0f) && fabs((double)scaled) <= least / 2;
        }
    }
    return (test->extremes[0] != saturated) + (test->extremes[1] != flushed);
}

static int quantize_wrong(const struct quantize_case *test)
{
    const struct kernel_quantize_args *args = &test->args;
    const struct fp8pipe_matrix *x = &args->x;
    uint32_t amax = args->amax != NULL ? amax_of(x, test->amax_before) : test->amax_before;
    int wrong = 0;

    wrong += !same(test->scale_inv, 1.0f / test->want_scale);
    wrong += test->amax != amax;
    wrong += wrong_extremes(test);
    for (int64_t row = 0; row < x->rows; row++) {
        for (int64_t col = 0; args->row != NULL && col < args->row_stride; col++) {
            wrong += test->row.start[row * args->row_stride + col] != quantized(test, row, col);
        }
    }
    for (int64_t col = 0; col < x->cols; col++) {
        for (int64_t row = 0; args->transposed != NULL && row < args->transposed_stride; row++) {
            wrong += test->transposed.start[col * args->transposed_stride + row] !=
                     quantized(test, row, col);
        }
    }
    wrong += args->row == NULL && !all_poison(&test->row);
    wrong += args->transposed == NULL && !all_poison(&test->transposed);
    wrong += args->partials == NULL && !all_poison(&test->partials);
    wrong += args->partials != NULL && wrong_partials(x, args->partials);
    wrong += guards_touched(&test->row) + guards_touched(&test->transposed) +
             guards_touched(&test->partials);
    return wrong;
}

static void quantize_free(struct quantize_case *test)
{
    block_free(&test->x);
    block_free(&test->row);
    block_free(&test->transposed);
    block_free(&test->partials);
}

static void test_quantize_kernel(void)
{
    int wrong = 0;

    for (int i = 0; i < 400 && wrong == 0; i++) {
        struct quantize_case test;

        quantize_make(&test);
        kernel_quantize_host(&test.args);
        wrong = quantize_wrong(&test);
        if (wrong) {
            diag("case %d: %lld x %lld, dtype %d, format %d: %d wrong", i,
                 (long long)test.args.x.rows, (long long)test.args.x.cols, test.args.x.dtype,
                 test.args.format, wrong);
        }
        quantize_free(&test);
    }
    is_int(wrong, 0, "quantize: bytes, padding, scale, amax, partial sums, nothing else");
}

static void test_quantize_values(void)
{
    enum { COUNT = 65536 };
    static float values[COUNT];
    static uint8_t out[COUNT], narrow[COUNT];
    static uint16_t codes[COUNT];
    float one = 1, inv;
    int32_t has_scale = 1;
    int wrong = 0;

    for (int i = 0; i < COUNT; i++) {
        codes[i] = (uint16_t)i;
        values[i] =
            test_float_from_bits((uint32_t)i << 16 | (uint32_t)(test_random(&rng) & 0xffff));
    }
    for (int format = 0; format < 2; format++) {
        for (int dtype = 0; dtype < 3; dtype++) {
            struct kernel_quantize_args args = {.x = {values, 1, COUNT, COUNT, FP8PIPE_FP32, 0},
                                                .format = (enum fp8pipe_format)format,
                                                .scale = &one,
                                                .has_scale = &has_scale,
                                                .scale_inv = &inv,
                                                .row = dtype == FP8PIPE_FP32 ? out : narrow,
                                                .row_stride = COUNT};

            args.x.dtype = (enum fp8pipe_dtype)dtype;
            args.x.data = dtype == FP8PIPE_FP32 ? (void *)values : (void *)codes;
            kernel_quantize_host(&args);
            for (int i = 0; i < COUNT; i++) {
                float x = get(&args.x, 0, i);

                wrong += args.row[i] != fp8_from_float(x, args.format);
            }
        }
    }
    is_int(wrong, 0, "quantize: every bf16 and fp16 value as one conversion alone gives it");
}

static void test_quantize_empty(void)
{
    float scale = 4, inv = 0;
    int32_t has_scale = 1;
    uint32_t amax = 7;
    uint8_t byte = POISON;
    struct kernel_quantize_args args = {.x = {NULL, 0, 5, 5, FP8PIPE_BF16, 0},
                                        .scale = &scale,
                                        .has_scale = &has_scale,
                                        .scale_inv = &inv,
                                        .row = &byte,
                                        .row_stride = 16,
                                        .transposed = &byte,
                                        .transposed_stride = 0,
                                        .amax = &amax};

    kernel_quantize_host(&args);
    ok(inv == 0.25f && amax == 7 && byte == POISON, "quantize of no rows only writes scale_inv");
}

/* ---- amax --------------------------------------------------------------------------------- */

static void test_amax_kernel(void)
{
    int wrong = 0;

    for (int i = 0; i < 200; i++) {
        struct block block;
        struct fp8pipe_matrix x = input_random(&block);
        uint32_t before = (uint32_t)(test_random(&rng) & 0x3fffffff);
        uint32_t amax = before;
        int32_t skip_flag = (int32_t)test_random_range(&rng, 0, 1);
        int has_flag = (int)test_random_range(&rng, 0, 1);
        struct kernel_amax_args args = {x, has_flag ? &skip_flag : NULL, &amax};

        kernel_amax_host(&args);
        wrong += amax != (has_flag && skip_flag ? before : amax_of(&x, before));
        block_free(&block);
    }
    is_int(wrong, 0, "amax: the largest bits of |x|, what was there, or nothing when skipped");
}

static void *fold_many(void *arg)
{
    uint32_t *amax = arg;

    for (int i = 0; i < 2000; i++) {
        float value = (float)(i + 1);
        struct kernel_amax_args args = {{&value, 1, 1, 1, FP8PIPE_FP32, 0}, NULL, amax};

        kernel_amax_host(&args);
    }
    return NULL;
}

static void test_amax_shared(void)
{
    uint32_t amax = 0;
    pthread_t threads[2];

    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, fold_many, &amax) != 0) {
            bail("no thread");
        }
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    ok(test_float_from_bits(amax) == 2000.0f, "amax: two threads fold into one slot");
}

/* ---- transpose, partials, column_sums ----------------------------------------------------- */

static int transpose_wrong(void)
{
    struct shape shape = shape_random();
    int64_t in_stride = round_up(shape.cols, 16) + 16 * test_random_range(&rng, 0, 1);
    int64_t out_stride = round_up(shape.rows, 16) + 16 * test_random_range(&rng, 0, 1);
    struct block in = block_make(shape.rows * in_stride);
    struct block out = block_make(shape.cols * out_stride);
    const float scale = 48.0f;
    uint32_t own = test_float_bits(-3.0f),
             amax = test_float_bits((float)test_random_range(&rng, 0, 5));
    uint32_t want_amax = amax > test_float_bits(3.0f) ? amax : test_float_bits(3.0f);
    bool captures = test_random(&rng) & 1;
    float scale_inv = 7;
    struct kernel_transpose_args args = {
        .in = in.start,
        .out = out.start,
        .rows = shape.rows,
        .cols = shape.cols,
        .in_stride = in_stride,
        .out_stride = out_stride,
    };
    int wrong = 0;

    if (captures)
        args.capture = (struct kernel_capture_args){&scale, &scale_inv, &own, &amax};
    else
        want_amax = amax;

    for (size_t i = 0; i < in.bytes; i++) {
        in.start[i] = (uint8_t)test_random(&rng);
    }
    kernel_transpose_host(&args);
    for (int64_t col = 0; col < shape.cols; col++) {
        for (int64_t row = 0; row < out_stride; row++) {
            uint8_t want = row < shape.rows ? in.start[row * in_stride + col] : 0;

            wrong += out.start[col * out_stride + row] != want;
        }
    }
    if (shape.rows > 0 && shape.cols > 0)
        wrong += scale_inv != (captures ? 1.0f / 48.0f : 7.0f) || amax != want_amax;
    wrong += guards_touched(&out);
    block_free(&in);
    block_free(&out);
    return wrong;
}

static int capture_wrong(void)
{
    const float scale = 3.0f;
    uint32_t own = 0xffc00000u, amax = 0; /* a NaN with its sign */
    float scale_inv = 0;
    struct kernel_capture_args args = {&scale, &scale_inv, &own, NULL};
    int wrong;

    kernel_capture_host(&args);
    wrong = scale_inv != 1.0f / 3.0f || amax != 0;
    args.amax = &amax;
    kernel_capture_host(&args);
    return wrong + (amax != 0x7fc00000u);
}

static int sums_wrong(void)
{
    struct block block, sums_block;
    struct fp8pipe_matrix x = input_random(&block);
    int64_t tiles = round_up(x.rows, KERNEL_SUM_ROWS) / KERNEL_SUM_ROWS;
    struct block partials = block_make(tiles * x.cols * (int64_t)sizeof(float));
    struct kernel_partials_args args = {x, (float *)partials.start};
    struct fp8pipe_matrix sums = matrix_make(&sums_block, FP8PIPE_FP32, 1, x.cols, x.cols, 0);
    struct kernel_column_sums_args sums_args = {args.partials, tiles, x.cols, sums.data,
                                                (int32_t)test_random_range(&rng, 0, 1)};
    float want[300]; /* the largest of sizes */
    int wrong = 0;

    kernel_partials_host(&args);
    wrong += wrong_partials(&x, args.partials) + guards_touched(&partials);
    matrix_fill(&sums, CONTENT_NORMAL);
    for (int64_t col = 0; col < x.cols; col++) {
        float sum = 0;

        for (int64_t tile = 0; tile < tiles; tile++) {
            sum += args.partials[tile * x.cols + col];
        }
        want[col] = sums_args.accumulate ? get(&sums, 0, col) + sum : sum;
    }
    kernel_column_sums_host(&sums_args);
    for (int64_t col = 0; col < x.cols; col++) {
        wrong += !same(get(&sums, 0, col), want[col]);
    }
    wrong += guards_touched(&sums_block);
    block_free(&block);
    block_free(&partials);
    block_free(&sums_block);
    return wrong;
}

static void test_sums_empty(void)
{
    float out[2] = {3, -0.0f};
    struct kernel_column_sums_args args = {NULL, 0, 2, out, 1};

    kernel_column_sums_host(&args);
    ok(out[0] == 3 && signbit(out[1]), "column_sums: no rows leave an accumulated sum alone");
    args.accumulate = 0;
    kernel_column_sums_host(&args);
    ok(out[0] == 0 && out[1] == 0, "column_sums: no rows give zeros");
}

/* ---- store -------------------------------------------------------------------------------- */

static uint32_t element_bits(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    uint32_t bits = 0;

    memcpy(&bits, at(matrix, row, col), test_dtype_bytes(matrix->dtype));
    return bits;
}

static float activated(enum fp8pipe_activation activation, float value)
{
    switch (activation) {
    case FP8PIPE_ACTIVATION_GELU_TANH:
        return activation_gelu_tanh(value);
    case FP8PIPE_ACTIVATION_GELU_ERF:
        return activation_gelu_erf(value);
    case FP8PIPE_ACTIVATION_SILU:
        return activation_silu(value);
    default:
        return value;
    }
}

static int store_wrong(void)
{
    struct block to_block, from_block, bias_block, want_block;
    struct shape shape = shape_random();
    enum fp8pipe_dtype dtype = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2);
    enum fp8pipe_dtype other = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2);
    enum content content = (enum content)test_random_range(&rng, 0, 2);
    int64_t stride = shape.cols + test_random_range(&rng, 0, 3);
    struct fp8pipe_matrix to = matrix_make(&to_block, dtype, shape.rows, shape.cols, stride, 1);
    struct fp8pipe_matrix want = matrix_make(&want_block, dtype, shape.rows, shape.cols, stride, 1);
    struct fp8pipe_matrix from =
        matrix_make(&from_block, other, shape.rows, shape.cols, shape.cols + 1, 1);
    struct fp8pipe_matrix bias = matrix_make(&bias_block, other, 1, shape.cols, shape.cols, 1);
    int has_from = (int)test_random_range(&rng, 0, 2); /* 2: `to` itself */
    int has_bias = (int)test_random_range(&rng, 0, 1);
    int has_residual = (int)test_random_range(&rng, 0, 2); /* 2: `to` itself */
    struct block residual_block;
    struct fp8pipe_matrix residual =
        matrix_make(&residual_block, dtype, shape.rows, shape.cols, shape.cols + 2, 1);
    struct kernel_store_args args = {
        .to = to,
        .from = from,
        .accumulate = (int32_t)test_random_range(&rng, 0, 1),
        .activation = (enum fp8pipe_activation)test_random_range(&rng, 0, FP8PIPE_ACTIVATION_SILU),
    };
    int wrong = 0;

    matrix_fill(&to, content);
    matrix_fill(&from, content);
    matrix_fill(&bias, content);
    if (has_from == 0) {
        args.from.data = NULL;
    } else if (has_from == 2) {
        args.from = to;
    }
    if (has_bias) {
        args.bias = (struct fp8pipe_vector){bias.data, bias.cols, other, 0};
    }
    matrix_fill(&residual, content);
    if (has_residual) {
        args.residual = has_residual == 2 ? to : residual;
    }
    for (int64_t row = 0; row < shape.rows; row++) {
        for (int64_t col = 0; col < shape.cols; col++) {
            float value = args.accumulate ? get(&to, row, col) : 0.0f;

            /* An absent term is not added: -0 stays. */
            if (has_from) {
                value += get(&args.from, row, col);
            }
            if (has_bias) {
                value += get(&bias, 0, col);
            }
            value = activated(args.activation, value);
            if (has_residual) {
                value += get(&args.residual, row, col);
            }
            test_element_set(dtype, at(&want, row, col), (double)value);
        }
    }
    kernel_store_host(&args);
    for (int64_t row = 0; row < shape.rows; row++) {
        for (int64_t col = 0; col < shape.cols; col++) {
            wrong += element_bits(&to, row, col) != element_bits(&want, row, col) &&
                     !(isnan(get(&to, row, col)) && isnan(get(&want, row, col)));
        }
        for (int64_t col = shape.cols; col < stride; col++) {
            uint32_t poison = dtype == FP8PIPE_FP32 ? 0xa5a5a5a5 : 0xa5a5;

            wrong += element_bits(&to, row, col) != poison;
        }
    }
    wrong += guards_touched(&to_block);
    block_free(&to_block);
    block_free(&from_block);
    block_free(&bias_block);
    block_free(&residual_block);
    block_free(&want_block);
    return wrong;
}

/* ---- scale_update ------------------------------------------------------------------------- */

enum { SLOTS = 3, HISTORY_MAX = 16 };

/* history[0] is this step's, history[1] the step before, ... */
struct slot_reference {
    uint32_t history[HISTORY_MAX];
    float scale;
    int has_scale;
    int nonfinite;
};

static void reference_update(struct slot_reference *slot, int history, enum fp8pipe_amax algorithm,
                             float numerator)
{
    uint32_t last = slot->history[0];
    uint32_t amax = last;
    float scale;

    slot->nonfinite = last >= 0x7f800000u;
    if (last == 0) {
        return;
    }
    if (slot->nonfinite) {
        slot->history[0] = 0;
        return;
    }
    for (int i = 1; algorithm == FP8PIPE_AMAX_MAX && i < history; i++) {
        amax = slot->history[i] > amax ? slot->history[i] : amax;
    }
    for (int i = history - 1; i > 0; i--) {
        slot->history[i] = slot->history[i - 1];
    }
    slot->history[0] = 0;
    scale = numerator / test_float_from_bits(amax);
    slot->scale = isinf(scale) ? FLT_MAX : scale < FLT_MIN ? FLT_MIN : scale;
    slot->has_scale = 1;
}

static uint32_t amax_random(void)
{
    static const uint32_t special[] = {0, 0, 1, 0x00000100, 0x7f7fffff, 0x7f800000, 0x7fc00000};
    int64_t pick = test_random_range(&rng, 0, 20);

    if (pick < 7) {
        return special[pick];
    }
    return test_float_bits((float)exp(test_random_normal(&rng)));
}

static int update_wrong(int history, enum fp8pipe_amax algorithm)
{
    struct slot_reference slots[SLOTS];
    float numerator[SLOTS] = {448, 57344, 448.0f / 1024};
    float scale[SLOTS * KERNEL_SCALE_STRIDE] = {0};
    int32_t has_scale[SLOTS] = {0}, nonfinite[SLOTS], any = -1;
    uint32_t amax[SLOTS], window[SLOTS * HISTORY_MAX] = {0}, cursor[SLOTS] = {0}, scratch[2] = {0};
    struct kernel_scale_update_args args = {SLOTS,     history, algorithm, numerator, scale,
                                            has_scale, amax,    window,    cursor,    nonfinite,
                                            &any,      scratch, NULL};
    int32_t skip;
    int wrong = 0;

    memset(slots, 0, sizeof(slots));
    for (int step = 0; step < 2000; step++) {
        int any_want = 0;

        skip = step % 5 == 4;
        args.skip_if = step % 3 == 0 ? NULL : &skip;
        for (int i = 0; i < SLOTS; i++) {
            amax[i] = slots[i].history[0] = amax_random();
            if (args.skip_if != NULL && skip)
                slots[i].history[0] = 0;
            else
                reference_update(&slots[i], history, algorithm, numerator[i]);
            any_want |= slots[i].nonfinite;
        }
        kernel_scale_update_host(&args);
        wrong += any != any_want || scratch[0] != 0 || scratch[1] != 0;
        for (int i = 0; i < SLOTS; i++) {
            wrong += amax[i] != slots[i].history[0] ||
                     !same(scale[i * KERNEL_SCALE_STRIDE], slots[i].scale) ||
                     has_scale[i] != slots[i].has_scale || nonfinite[i] != slots[i].nonfinite;
            for (int age = 1; age < history; age++) {
                int entries = history - 1;
                int place = ((int)cursor[i] + entries - age) % entries;

                wrong += window[i * entries + place] != slots[i].history[age];
            }
        }
    }
    return wrong;
}

/* Runs `wrong` many times, stops at the first that is. */
static int repeat(int (*wrong)(void), int times)
{
    for (int i = 0; i < times; i++) {
        int count = wrong();

        if (count != 0) {
            diag("case %d: %d wrong", i, count);
            return count;
        }
    }
    return 0;
}

int main(void)
{
    static const int histories[] = {1, 2, 3, 16};

    plan(19);
    test_quantize_kernel();
    test_quantize_values();
    test_quantize_empty();
    test_amax_kernel();
    test_amax_shared();
    is_int(repeat(transpose_wrong, 100), 0,
           "transpose: bytes, padding, what it captures, nothing else");
    is_int(capture_wrong(), 0, "capture: inverse scale and amax, a NaN too");
    is_int(repeat(sums_wrong, 100), 0, "partials and column_sums: sums, nothing else");
    test_sums_empty();
    is_int(repeat(store_wrong, 300), 0, "store: sum, rounding, nothing between the rows");
    for (size_t i = 0; i < sizeof(histories) / sizeof(histories[0]); i++) {
        is_int(update_wrong(histories[i], FP8PIPE_AMAX_MAX), 0,
               "scale_update: MAX over a history of %d", histories[i]);
        is_int(update_wrong(histories[i], FP8PIPE_AMAX_MOST_RECENT), 0,
               "scale_update: MOST_RECENT with a history of %d", histories[i]);
    }
    return done_testing();
}
