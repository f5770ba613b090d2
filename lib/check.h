/*
 * The rules for what callers pass in: each refusal is EINVAL with a sentence that names the field,
 * its value and the rule. Called at the API's edge only.
 */
#ifndef LIB_CHECK_H
#define LIB_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "status.h"

/* Bytes of an element of a valid dtype. */
static inline int64_t check_element_bytes(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? 4 : 2;
}

/* Four bytes an element and a margin for padding: no size computed of a matrix overflows. */
#define CHECK_ELEMENTS_MAX (INT64_MAX / 64)

/* The rules for a matrix, in the order in which the refusal names them. */
static inline bool check_matrix_holds(const struct fp8pipe_matrix *matrix)
{
    int64_t elements;

    return (unsigned)matrix->dtype <= FP8PIPE_FP16 && (matrix->rows | matrix->cols) >= 0 &&
           matrix->stride >= matrix->cols && matrix->reserved == 0 &&
           /* The first is the short answer for all matrices that there are. */
           ((uint64_t)(matrix->rows | matrix->stride) >> 28 == 0 ||
            (!__builtin_mul_overflow(matrix->stride, matrix->rows, &elements) &&
             elements <= CHECK_ELEMENTS_MAX && matrix->rows <= CHECK_ELEMENTS_MAX &&
             matrix->stride <= CHECK_ELEMENTS_MAX)) &&
           (matrix->data != NULL || matrix->rows == 0 || matrix->cols == 0) &&
           ((uintptr_t)matrix->data & (uintptr_t)(check_element_bytes(matrix->dtype) - 1)) == 0;
}

/* The refusal of a matrix that breaks a rule, or is not rows x cols. */
enum fp8pipe_status check_matrix_refuse(const char *field, const struct fp8pipe_matrix *matrix,
                                        int64_t rows, int64_t cols);

/* A matrix of rows x cols; -1: any. `field` names it in the sentence. */
static inline enum fp8pipe_status check_matrix_shape(const char *field,
                                                     const struct fp8pipe_matrix *matrix,
                                                     int64_t rows, int64_t cols)
{
    return (rows < 0 || matrix->rows == rows) && (cols < 0 || matrix->cols == cols) &&
                   check_matrix_holds(matrix)
               ? FP8PIPE_OK
               : check_matrix_refuse(field, matrix, rows, cols);
}

/* A matrix of any shape. */
static inline enum fp8pipe_status check_matrix(const char *field,
                                               const struct fp8pipe_matrix *matrix)
{
    return check_matrix_shape(field, matrix, -1, -1);
}

/* A vector of count entries, or absent. */
enum fp8pipe_status check_vector(const char *field, const struct fp8pipe_vector *vector,
                                 int64_t count);

/* A vector of sums: FP32, or absent. */
enum fp8pipe_status check_sums(const char *field, const struct fp8pipe_vector *vector,
                               int64_t count);

/* check_apart of matrices whose ranges of memory may meet. */
enum fp8pipe_status check_apart_close(const char *out_field, const struct fp8pipe_matrix *out,
                                      const char *in_field, const struct fp8pipe_matrix *in);

/* No lower than the end of a checked matrix's memory. */
static inline uintptr_t check_matrix_bound(const struct fp8pipe_matrix *matrix)
{
    return (uintptr_t)matrix->data +
           (uintptr_t)(matrix->rows * matrix->stride * check_element_bytes(matrix->dtype));
}

/* Whether the memory of two matrices may meet: for most it is far apart. */
static inline bool check_may_meet(const struct fp8pipe_matrix *a, const struct fp8pipe_matrix *b)
{
    return (uintptr_t)a->data < check_matrix_bound(b) && (uintptr_t)b->data < check_matrix_bound(a);
}

/* That an output does not overlap an input. Both are checked already. */
static inline enum fp8pipe_status check_apart(const char *out_field,
                                              const struct fp8pipe_matrix *out,
                                              const char *in_field, const struct fp8pipe_matrix *in)
{
    return check_may_meet(out, in) ? check_apart_close(out_field, out, in_field, in) : FP8PIPE_OK;
}

/* The same for sums, which may be absent. */
enum fp8pipe_status check_sums_apart(const char *out_field, const struct fp8pipe_vector *sums,
                                     const char *field, const struct fp8pipe_matrix *matrix);

/* The argument of a function of the caller's, of which `bytes` are copied. */
enum fp8pipe_status check_arg(const void *arg, size_t bytes);

enum fp8pipe_status check_enum_refuse(const char *field, int value, int last);

/* An enum value, 0 to last. */
static inline enum fp8pipe_status check_enum(const char *field, int value, int last)
{
    return value >= 0 && value <= last ? FP8PIPE_OK : check_enum_refuse(field, value, last);
}

/* An int that is a flag, 0 or 1. */
static inline enum fp8pipe_status check_flag(const char *field, int32_t value)
{
    return check_enum(field, value, 1);
}

/* Whether a matrix was given at all (the _NONE initialiser was not). */
bool check_given(const struct fp8pipe_matrix *matrix);

#endif
