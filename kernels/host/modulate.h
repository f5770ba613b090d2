/*
 * What the host kernels of modulate and its backward share: rows in pieces of at most a segment, by
 * the rules of kernels/modulate.h.
 */
#ifndef KERNELS_HOST_MODULATE_H
#define KERNELS_HOST_MODULATE_H

#include <stdbool.h>

#include "kernels/host/convert.h"
#include "kernels/host/quantize.h"
#include "kernels/kernels.h"

_Static_assert(MODULATE_SEGMENT >= QUANTIZE_TILE_COLS, "a piece is at most a segment");

/* Columns col .. col + count - 1 of a row. */
struct modulate_place {
    int64_t row;
    int64_t col;
    int64_t count;
};

static inline void *view_at(const struct kernel_view *view, int64_t row, int64_t col)
{
    return (char *)view->data + (size_t)(row * view->stride + col) * dtype_bytes(view->dtype);
}

/* A piece as float32, of row `row` rather than at's; false, and nothing read, if it is absent. */
static inline bool view_load(float *to, const struct kernel_view *view, int64_t row,
                             const struct modulate_place *at)
{
    if (view->data == NULL) {
        return false;
    }
    row_load(to, view_at(view, row, at->col), view->dtype, at->count);
    return true;
}

static inline void view_store(const struct kernel_view *view, const struct modulate_place *at,
                              const float *values)
{
    if (view->data != NULL) {
        row_store(view_at(view, at->row, at->col), view->dtype, values, at->count);
    }
}

static inline int64_t row_of(const int32_t *rows_of, int64_t row)
{
    return rows_of != NULL ? rows_of[row] : row;
}

/* The sum of a segment's values, of which there are `count`. */
float modulate_segment_sum(const float *values, int64_t count);

#endif
