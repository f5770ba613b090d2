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

/* Whether no size computed of so many rows overflows. Neither is negative. */
static inline bool check_size_holds(int64_t rows, int64_t stride)
{
    int64_t elements;

    return (uint64_t)(rows | stride) >> 28 == 0 ||
           (!__builtin_mul_overflow(stride, rows, &elements) && elements <= CHECK_ELEMENTS_MAX &&
            rows <= CHECK_ELEMENTS_MAX && stride <= CHECK_ELEMENTS_MAX);
}

/* What most matrices are: all rules for one hold. Below 2^28 nothing is negative or overflows. */
static inline bool check_matrix_plain(const struct fp8pipe_matrix *matrix)
{
    uint64_t sizes = (uint64_t)(matrix->rows | matrix->cols | matrix->stride);
    uint64_t type = (uint64_t)(uint32_t)matrix->reserved << 32 | (uint32_t)matrix->dtype;

    return sizes >> 28 == 0 && matrix->stride >= matrix->cols && type <= FP8PIPE_FP16 &&
           matrix->data != NULL &&
           ((uintptr_t)matrix->data & (type == FP8PIPE_FP32 ? 3u : 1u)) == 0;
}

/* What a number of rows, columns or entries has to be, and of what it is the number: a sentence
 * that names one of two which differ leaves open which of them was meant otherwise. */
struct check_size {
    int64_t is; /* -1: any */
    const char *of;
};

static inline struct check_size check_is(int64_t is, const char *of)
{
    return (struct check_size){is, of};
}

static inline struct check_size check_any(void)
{
    return (struct check_size){-1, ""};
}

static inline bool check_fits(struct check_size size, int64_t given)
{
    return size.is < 0 || size.is == given;
}

/* The rules for a matrix of rows x cols. The refusal names the first that it breaks. */
enum fp8pipe_status check_matrix_rules(const char *field, const struct fp8pipe_matrix *matrix,
                                       struct check_size rows, struct check_size cols);

/* A matrix of rows x cols. `field` names it in the sentence. */
static inline enum fp8pipe_status check_matrix_shape(const char *field,
                                                     const struct fp8pipe_matrix *matrix,
                                                     struct check_size rows, struct check_size cols)
{
    return check_fits(rows, matrix->rows) && check_fits(cols, matrix->cols) &&
                   check_matrix_plain(matrix)
               ? FP8PIPE_OK
               : check_matrix_rules(field, matrix, rows, cols);
}

/* A matrix of any shape. */
static inline enum fp8pipe_status check_matrix(const char *field,
                                               const struct fp8pipe_matrix *matrix)
{
    return check_matrix_shape(field, matrix, check_any(), check_any());
}

/* A vector of count entries, or absent. */
enum fp8pipe_status check_vector(const char *field, const struct fp8pipe_vector *vector,
                                 struct check_size count);

/* check_sums of a vector that may be given. */
enum fp8pipe_status check_sums_given(const char *field, const struct fp8pipe_vector *vector,
                                     struct check_size count);

/* A vector of sums: FP32, or absent. */
static inline enum fp8pipe_status check_sums(const char *field, const struct fp8pipe_vector *vector,
                                             struct check_size count)
{
    return vector->data == NULL && vector->count == 0 ? FP8PIPE_OK
                                                      : check_sums_given(field, vector, count);
}

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

/* check_sums_apart of sums that are given. */
enum fp8pipe_status check_sums_apart_given(const char *out_field, const struct fp8pipe_vector *sums,
                                           const char *field, const struct fp8pipe_matrix *matrix);

/* The same for sums, which are checked already and may be absent. */
static inline enum fp8pipe_status check_sums_apart(const char *out_field,
                                                   const struct fp8pipe_vector *sums,
                                                   const char *field,
                                                   const struct fp8pipe_matrix *matrix)
{
    return sums->data == NULL ? FP8PIPE_OK : check_sums_apart_given(out_field, sums, field, matrix);
}

/* check_apart_vector of a vector that is given. */
enum fp8pipe_status check_apart_vector_given(const char *out_field,
                                             const struct fp8pipe_matrix *out, const char *field,
                                             const struct fp8pipe_vector *vector);

/* That an output does not overlap a vector that is read, which may be absent. Both are checked
 * already. */
static inline enum fp8pipe_status check_apart_vector(const char *out_field,
                                                     const struct fp8pipe_matrix *out,
                                                     const char *field,
                                                     const struct fp8pipe_vector *vector)
{
    return vector->data == NULL ? FP8PIPE_OK
                                : check_apart_vector_given(out_field, out, field, vector);
}

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
static inline bool check_given(const struct fp8pipe_matrix *matrix)
{
    return ((uintptr_t)matrix->data | (uint64_t)(matrix->rows | matrix->cols | matrix->stride)) !=
           0;
}

#endif
