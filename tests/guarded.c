#include "guarded.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tap.h"

#define GUARD 64

struct block block_make(int64_t bytes)
{
    struct block block = {NULL, (size_t)bytes};
    void *memory;

    if (posix_memalign(&memory, GUARD, block.bytes + 2 * GUARD) != 0) {
        bail("no memory");
    }
    memset(memory, BLOCK_POISON, block.bytes + 2 * GUARD);
    block.start = (uint8_t *)memory + GUARD;
    return block;
}

int block_touched(const struct block *block)
{
    for (size_t i = 0; i < GUARD; i++) {
        if (block->start[-1 - (ptrdiff_t)i] != BLOCK_POISON ||
            block->start[block->bytes + i] != BLOCK_POISON) {
            return 1;
        }
    }
    return 0;
}

void block_free(struct block *block)
{
    free(block->start - GUARD);
}

struct fp8pipe_matrix matrix_make(struct block *block, enum fp8pipe_dtype dtype, int64_t rows,
                                  int64_t cols, int64_t stride, int64_t offset)
{
    size_t element = test_dtype_bytes(dtype);
    struct fp8pipe_matrix matrix = {NULL, rows, cols, stride, dtype, 0};

    *block = block_make((offset + rows * stride) * (int64_t)element);
    matrix.data = block->start + (size_t)offset * element;
    return matrix;
}

void *matrix_at(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    return (char *)matrix->data +
           (size_t)(row * matrix->stride + col) * test_dtype_bytes(matrix->dtype);
}

float matrix_get(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    return (float)test_element_get(matrix->dtype, matrix_at(matrix, row, col));
}

void matrix_fill(struct fp8pipe_matrix *matrix, enum content content, struct test_rng *rng)
{
    static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e-45, -1e-40, 65504, 1};

    for (int64_t row = 0; row < matrix->rows; row++) {
        for (int64_t col = 0; col < matrix->cols; col++) {
            uint64_t bits = test_random(rng);
            double value = test_random_normal(rng);

            if (content == CONTENT_SPECIAL && bits % 16 < 9) {
                value = special[bits % 16];
            }
            test_element_set(matrix->dtype, matrix_at(matrix, row, col), value);
            if (content == CONTENT_BITS) {
                memcpy(matrix_at(matrix, row, col), &bits, test_dtype_bytes(matrix->dtype));
            }
        }
    }
}

int64_t round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

int same_float(float a, float b)
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

int matrix_wrong_partials(const struct fp8pipe_matrix *x, const float *partials)
{
    int wrong = 0;

    for (int64_t tile = 0; tile * KERNEL_SUM_ROWS < x->rows; tile++) {
        for (int64_t col = 0; col < x->cols; col++) {
            double sum = 0, magnitude = 0;
            int64_t row = tile * KERNEL_SUM_ROWS;

            for (; row < (tile + 1) * KERNEL_SUM_ROWS && row < x->rows; row++) {
                sum += (double)matrix_get(x, row, col);
                magnitude += fabs((double)matrix_get(x, row, col));
            }
            wrong += !near_sum(partials[tile * x->cols + col], sum, magnitude, KERNEL_SUM_ROWS);
        }
    }
    return wrong;
}

static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130, 255, 256, 257, 300};

struct shape shape_random(struct test_rng *rng)
{
    struct shape shape;

    shape.rows = sizes[test_random_range(rng, 0, 12)];
    shape.cols = sizes[test_random_range(rng, 0, 16)];
    return shape;
}

struct fp8pipe_matrix matrix_random(struct block *block, struct test_rng *rng)
{
    struct shape shape = shape_random(rng);
    enum fp8pipe_dtype dtype = (enum fp8pipe_dtype)test_random_range(rng, 0, 2);
    struct fp8pipe_matrix x =
        matrix_make(block, dtype, shape.rows, shape.cols, shape.cols + test_random_range(rng, 0, 3),
                    test_random_range(rng, 0, 3));

    matrix_fill(&x, (enum content)test_random_range(rng, 0, 2), rng);
    return x;
}
