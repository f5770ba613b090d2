#include "check.h"

enum fp8pipe_status check_enum_refuse(const char *field, int value, int last)
{
    return last == 1
               ? status_fail(FP8PIPE_EINVAL, "%s = %d: it is 0 or 1", field, value)
               : status_fail(FP8PIPE_EINVAL, "%s = %d: it is one of 0 to %d", field, value, last);
}

static enum fp8pipe_status refuse_size(const char *field, const char *member, int64_t given,
                                       struct check_size size)
{
    return status_fail(FP8PIPE_EINVAL, "%s.%s = %lld: it is %s = %lld", field, member,
                       (long long)given, size.of, (long long)size.is);
}

static enum fp8pipe_status check_data(const char *field, const void *data, bool empty,
                                      enum fp8pipe_dtype dtype)
{
    if (data == NULL && !empty) {
        return status_fail(FP8PIPE_EINVAL, "%s.data = NULL: it is not empty", field);
    }
    if ((uintptr_t)data % (uintptr_t)check_element_bytes(dtype) != 0) {
        return status_fail(FP8PIPE_EINVAL, "%s.data = %p: it is aligned to its %d-byte elements",
                           field, data, (int)check_element_bytes(dtype));
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status check_matrix_rules(const char *field, const struct fp8pipe_matrix *matrix,
                                       struct check_size rows, struct check_size cols)
{
    if (!check_fits(rows, matrix->rows)) {
        return refuse_size(field, "rows", matrix->rows, rows);
    }
    if (!check_fits(cols, matrix->cols)) {
        return refuse_size(field, "cols", matrix->cols, cols);
    }
    if ((unsigned)matrix->dtype > FP8PIPE_FP16) {
        return status_fail(FP8PIPE_EINVAL, "%s.dtype = %d: it is FP32, BF16 or FP16", field,
                           (int)matrix->dtype);
    }
    if (matrix->rows < 0 || matrix->cols < 0) {
        return status_fail(FP8PIPE_EINVAL, "%s.%s = %lld: it is >= 0", field,
                           matrix->rows < 0 ? "rows" : "cols",
                           (long long)(matrix->rows < 0 ? matrix->rows : matrix->cols));
    }
    if (matrix->stride < matrix->cols) {
        return status_fail(FP8PIPE_EINVAL, "%s.stride = %lld: it is >= cols = %lld", field,
                           (long long)matrix->stride, (long long)matrix->cols);
    }
    if (!check_size_holds(matrix->rows, matrix->stride)) {
        return status_fail(FP8PIPE_EINVAL, "%s.rows = %lld, stride = %lld: the size overflows",
                           field, (long long)matrix->rows, (long long)matrix->stride);
    }
    if (matrix->reserved != 0) {
        return status_fail(FP8PIPE_EINVAL, "%s.reserved = %d: it is 0", field, matrix->reserved);
    }
    return check_data(field, matrix->data, matrix->rows == 0 || matrix->cols == 0, matrix->dtype);
}

enum fp8pipe_status check_vector(const char *field, const struct fp8pipe_vector *vector,
                                 struct check_size count)
{
    if (vector->data == NULL && vector->count == 0) {
        return FP8PIPE_OK;
    }
    if ((unsigned)vector->dtype > FP8PIPE_FP16) {
        return status_fail(FP8PIPE_EINVAL, "%s.dtype = %d: it is FP32, BF16 or FP16", field,
                           (int)vector->dtype);
    }
    if (!check_fits(count, vector->count)) {
        return refuse_size(field, "count", vector->count, count);
    }
    if (vector->count < 0 || vector->count > CHECK_ELEMENTS_MAX) {
        return status_fail(FP8PIPE_EINVAL, "%s.count = %lld: %s", field, (long long)vector->count,
                           vector->count < 0 ? "it is >= 0" : "the size overflows");
    }
    if (vector->reserved != 0) {
        return status_fail(FP8PIPE_EINVAL, "%s.reserved = %d: it is 0", field, vector->reserved);
    }
    return check_data(field, vector->data, vector->count == 0, vector->dtype);
}

enum fp8pipe_status check_sums_given(const char *field, const struct fp8pipe_vector *vector,
                                     struct check_size count)
{
    enum fp8pipe_status status = check_vector(field, vector, count);

    if (status == FP8PIPE_OK && vector->data != NULL && vector->dtype != FP8PIPE_FP32) {
        status =
            status_fail(FP8PIPE_EINVAL, "%s.dtype = %d: sums are FP32", field, (int)vector->dtype);
    }
    return status;
}

static uintptr_t matrix_end(const struct fp8pipe_matrix *matrix)
{
    return (uintptr_t)matrix->data +
           (uintptr_t)(((matrix->rows - 1) * matrix->stride + matrix->cols) *
                       check_element_bytes(matrix->dtype));
}

/* Whether two matrices are different columns of one buffer: equal distances between rows, and at no
 * row a byte in common. */
static bool columns_apart(const struct fp8pipe_matrix *a, const struct fp8pipe_matrix *b)
{
    uintptr_t pitch = (uintptr_t)(a->stride * check_element_bytes(a->dtype));
    uintptr_t a_bytes = (uintptr_t)(a->cols * check_element_bytes(a->dtype));
    uintptr_t b_bytes = (uintptr_t)(b->cols * check_element_bytes(b->dtype));
    uintptr_t from_a;

    if (pitch != (uintptr_t)(b->stride * check_element_bytes(b->dtype))) {
        return false;
    }
    from_a = (uintptr_t)b->data >= (uintptr_t)a->data
                 ? ((uintptr_t)b->data - (uintptr_t)a->data) % pitch
                 : (pitch - ((uintptr_t)a->data - (uintptr_t)b->data) % pitch) % pitch;
    return from_a >= a_bytes && from_a + b_bytes <= pitch;
}

enum fp8pipe_status check_apart_close(const char *out_field, const struct fp8pipe_matrix *out,
                                      const char *in_field, const struct fp8pipe_matrix *in)
{
    if (out->rows == 0 || out->cols == 0 || in->rows == 0 || in->cols == 0) {
        return FP8PIPE_OK;
    }
    if ((uintptr_t)out->data < matrix_end(in) && (uintptr_t)in->data < matrix_end(out) &&
        !columns_apart(out, in)) {
        return status_fail(FP8PIPE_EINVAL, "%s.data = %p: it overlaps %s", out_field, out->data,
                           in_field);
    }
    return FP8PIPE_OK;
}

static struct fp8pipe_matrix row_of(const struct fp8pipe_vector *vector)
{
    return (struct fp8pipe_matrix){vector->data, 1, vector->count, vector->count, vector->dtype, 0};
}

enum fp8pipe_status check_sums_apart_given(const char *out_field, const struct fp8pipe_vector *sums,
                                           const char *field, const struct fp8pipe_matrix *matrix)
{
    struct fp8pipe_matrix row = row_of(sums);

    return check_apart(out_field, &row, field, matrix);
}

enum fp8pipe_status check_apart_vector_given(const char *out_field,
                                             const struct fp8pipe_matrix *out, const char *field,
                                             const struct fp8pipe_vector *vector)
{
    struct fp8pipe_matrix row = row_of(vector);

    return check_apart(out_field, out, field, &row);
}

enum fp8pipe_status check_arg(const void *arg, size_t bytes)
{
    if (bytes > FP8PIPE_ARG_MAX) {
        return status_fail(FP8PIPE_EINVAL, "arg_bytes = %zu: it is at most %d", bytes,
                           FP8PIPE_ARG_MAX);
    }
    return bytes == 0 || arg != NULL
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "arg = NULL: %zu bytes of it are to be copied", bytes);
}
