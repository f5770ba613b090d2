/*
 * The host's transpose, capture, sums over rows and store against the meaning that
 * kernels/kernels.h gives them, written naively, on random shapes, strides and alignments, with
 * bytes outside of the outputs watched.
 */
#include <math.h>
#include <string.h>

#include "guarded.h"
#include "kernels/activation.h"
#include "kernels/kernels.h"
#include "tap.h"

static struct test_rng rng = {20240601};

/* ---- transpose, partials, column_sums ----------------------------------------------------- */

static int transpose_wrong(void)
{
    struct shape shape = shape_random(&rng);
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
        wrong += scale_inv != (captures ? 1.0f / 48.0f : 7.0f) || amax != want_amax ||
                 (own == 0) != captures;
    wrong += block_touched(&out);
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
    wrong = scale_inv != 1.0f / 3.0f || amax != 0 || own != 0xffc00000u;
    args.amax = &amax;
    kernel_capture_host(&args);
    return wrong + (amax != 0x7fc00000u || own != 0);
}

static int sums_wrong(void)
{
    struct block block, sums_block;
    struct fp8pipe_matrix x = matrix_random(&block, &rng);
    int64_t tiles = round_up(x.rows, KERNEL_SUM_ROWS) / KERNEL_SUM_ROWS;
    struct block partials = block_make(tiles * x.cols * (int64_t)sizeof(float));
    struct kernel_partials_args args = {x, (float *)partials.start};
    struct fp8pipe_matrix sums = matrix_make(&sums_block, FP8PIPE_FP32, 1, x.cols, x.cols, 0);
    struct kernel_column_sums_args sums_args = {args.partials, tiles, x.cols, sums.data,
                                                (int32_t)test_random_range(&rng, 0, 1)};
    float want[SHAPE_COLS_MAX];
    int wrong = 0;

    kernel_partials_host(&args);
    wrong += matrix_wrong_partials(&x, args.partials) + block_touched(&partials);
    matrix_fill(&sums, CONTENT_NORMAL, &rng);
    for (int64_t col = 0; col < x.cols; col++) {
        float sum = 0;

        for (int64_t tile = 0; tile < tiles; tile++) {
            sum += args.partials[tile * x.cols + col];
        }
        want[col] = sums_args.accumulate ? matrix_get(&sums, 0, col) + sum : sum;
    }
    kernel_column_sums_host(&sums_args);
    for (int64_t col = 0; col < x.cols; col++) {
        wrong += !same_float(matrix_get(&sums, 0, col), want[col]);
    }
    wrong += block_touched(&sums_block);
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

    memcpy(&bits, matrix_at(matrix, row, col), test_dtype_bytes(matrix->dtype));
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
    struct shape shape = shape_random(&rng);
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

    matrix_fill(&to, content, &rng);
    matrix_fill(&from, content, &rng);
    matrix_fill(&bias, content, &rng);
    if (has_from == 0) {
        args.from.data = NULL;
    } else if (has_from == 2) {
        args.from = to;
    }
    if (has_bias) {
        args.bias = (struct fp8pipe_vector){bias.data, bias.cols, other, 0};
    }
    matrix_fill(&residual, content, &rng);
    if (has_residual) {
        args.residual = has_residual == 2 ? to : residual;
    }
    for (int64_t row = 0; row < shape.rows; row++) {
        for (int64_t col = 0; col < shape.cols; col++) {
            float value = args.accumulate ? matrix_get(&to, row, col) : 0.0f;

            /* An absent term is not added: -0 stays. */
            if (has_from) {
                value += matrix_get(&args.from, row, col);
            }
            if (has_bias) {
                value += matrix_get(&bias, 0, col);
            }
            value = activated(args.activation, value);
            if (has_residual) {
                value += matrix_get(&args.residual, row, col);
            }
            test_element_set(dtype, matrix_at(&want, row, col), (double)value);
        }
    }
    kernel_store_host(&args);
    for (int64_t row = 0; row < shape.rows; row++) {
        for (int64_t col = 0; col < shape.cols; col++) {
            wrong += element_bits(&to, row, col) != element_bits(&want, row, col) &&
                     !(isnan(matrix_get(&to, row, col)) && isnan(matrix_get(&want, row, col)));
        }
        for (int64_t col = shape.cols; col < stride; col++) {
            uint32_t poison = dtype == FP8PIPE_FP32 ? 0xa5a5a5a5 : 0xa5a5;

            wrong += element_bits(&to, row, col) != poison;
        }
    }
    wrong += block_touched(&to_block);
    block_free(&to_block);
    block_free(&from_block);
    block_free(&bias_block);
    block_free(&residual_block);
    block_free(&want_block);
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
    plan(6);
    is_int(repeat(transpose_wrong, 100), 0,
           "transpose: bytes, padding, what it captures, nothing else");
    is_int(capture_wrong(), 0, "capture: inverse scale and amax, a NaN too");
    is_int(repeat(sums_wrong, 100), 0, "partials and column_sums: sums, nothing else");
    test_sums_empty();
    is_int(repeat(store_wrong, 300), 0, "store: sum, rounding, nothing between the rows");
    return done_testing();
}
