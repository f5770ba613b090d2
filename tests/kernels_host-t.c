/*
 * The host's quantize and amax, and the scale update, against the meaning that kernels/kernels.h
 * gives them, written naively, on random shapes, strides and alignments, with bytes outside of the
 * outputs watched.
 */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "guarded.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"
#include "tap.h"

static struct test_rng rng = {20240601};

/* Bits of |x| widened exactly to float32. */
static uint32_t magnitude_bits(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    uint32_t wide;
    uint16_t narrow;

    if (matrix->dtype == FP8PIPE_FP32) {
        memcpy(&wide, matrix_at(matrix, row, col), sizeof(wide));
        return wide & 0x7fffffffu;
    }
    memcpy(&narrow, matrix_at(matrix, row, col), sizeof(narrow));
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
    *x = matrix_random(&test->x, &rng);
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
        if (block->start[i] != BLOCK_POISON) {
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
    return fp8_from_float(matrix_get(x, row, col) * test->want_scale, test->args.format);
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
            float value = matrix_get(x, row, col);
            float scaled = value * test->want_scale;

            saturated += fabs((double)scaled) > most;
            flushed += !same_float(value, 0.0f) && !same_float(value, -0.0f) &&
                       fabs((double)scaled) <= least / 2;
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

    wrong += !same_float(test->scale_inv, 1.0f / test->want_scale);
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
    wrong += args->partials != NULL && matrix_wrong_partials(x, args->partials);
    wrong += block_touched(&test->row) + block_touched(&test->transposed) +
             block_touched(&test->partials);
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
                float x = matrix_get(&args.x, 0, i);

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
    uint8_t byte = BLOCK_POISON;
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
    ok(inv == 0.25f && amax == 7 && byte == BLOCK_POISON,
       "quantize of no rows only writes scale_inv");
}

/* ---- amax --------------------------------------------------------------------------------- */

static void test_amax_kernel(void)
{
    int wrong = 0;

    for (int i = 0; i < 200; i++) {
        struct block block;
        struct fp8pipe_matrix x = matrix_random(&block, &rng);
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
                     !same_float(scale[i * KERNEL_SCALE_STRIDE], slots[i].scale) ||
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

int main(void)
{
    static const int histories[] = {1, 2, 3, 16};

    plan(13);
    test_quantize_kernel();
    test_quantize_values();
    test_quantize_empty();
    test_amax_kernel();
    test_amax_shared();
    for (size_t i = 0; i < sizeof(histories) / sizeof(histories[0]); i++) {
        is_int(update_wrong(histories[i], FP8PIPE_AMAX_MAX), 0,
               "scale_update: MAX over a history of %d", histories[i]);
        is_int(update_wrong(histories[i], FP8PIPE_AMAX_MOST_RECENT), 0,
               "scale_update: MOST_RECENT with a history of %d", histories[i]);
    }
    return done_testing();
}
