/* Memory between guards, and random matrices in it, for tests of the host's kernels. */
#ifndef TESTS_GUARDED_H
#define TESTS_GUARDED_H

#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "numbers.h"

/* What all memory holds at first. */
#define BLOCK_POISON 0xa5

struct block {
    uint8_t *start; /* 64-byte aligned */
    size_t bytes;   /* between the guards */
};

struct block block_make(int64_t bytes);
void block_free(struct block *block);
/* 1 if a guard was written to. */
int block_touched(const struct block *block);

/* A matrix whose rows start `offset` elements into the block; what lies between stays poison. */
struct fp8pipe_matrix matrix_make(struct block *block, enum fp8pipe_dtype dtype, int64_t rows,
                                  int64_t cols, int64_t stride, int64_t offset);
void *matrix_at(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col);
float matrix_get(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col);

enum content { CONTENT_NORMAL, CONTENT_BITS, CONTENT_SPECIAL };
void matrix_fill(struct fp8pipe_matrix *matrix, enum content content, struct test_rng *rng);

/* Rows and columns on both sides of what kernels take at once. */
struct shape {
    int64_t rows;
    int64_t cols;
};
#define SHAPE_COLS_MAX 300
struct shape shape_random(struct test_rng *rng);

/* A matrix of any shape, type, stride, alignment and content. */
struct fp8pipe_matrix matrix_random(struct block *block, struct test_rng *rng);

/* How many partial sums of x are not what KERNEL_SUM_ROWS of its rows add up to. */
int matrix_wrong_partials(const struct fp8pipe_matrix *x, const float *partials);

int64_t round_up(int64_t value, int64_t multiple);
/* Equal bits, or both NaN. */
int same_float(float a, float b);

#endif
