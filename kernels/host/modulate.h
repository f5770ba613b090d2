/*
 * What the host kernels of modulate and its backward share: rows in pieces of one segment, by the
 * rules of kernels/modulate.h.
 */
#ifndef KERNELS_HOST_MODULATE_H
#define KERNELS_HOST_MODULATE_H

#include <stdbool.h>

#include "kernels/host/convert.h"
#include "kernels/host/result.h"
#include "kernels/kernels.h"

_Static_assert(MODULATE_SEGMENT == RESULT_COLS, "a piece of a row is a segment");

static inline void *view_at(const struct kernel_view *view, int64_t row, int64_t col)
{
    return (char *)view->data + (size_t)(row * view->stride + col) * dtype_bytes(view->dtype);
}

/* A piece as float32; false, and nothing read, if the view is absent. */
static inline bool view_load(float *to, const struct kernel_view *view, int64_t row, int64_t col,
                             int64_t count)
{
    if (view->data == NULL) {
        return false;
    }
    row_load(to, view_at(view, row, col), view->dtype, count);
    return true;
}

static inline void view_store(const struct kernel_view *view, int64_t row, int64_t col,
                              const float *values, int64_t count)
{
    if (view->data != NULL) {
        row_store(view_at(view, row, col), view->dtype, values, count);
    }
}

static inline int64_t row_of(const int32_t *rows_of, int64_t row)
{
    return rows_of != NULL ? rows_of[row] : row;
}

/* The sum of a segment's values, of which there are `count`. */
float modulate_segment_sum(const float *values, int64_t count);

#endif
