/*
 * A quantize of values that are made as it goes, tile by tile, for the host twins of fused kernels:
 * what kernel_quantize_host() does with a matrix that is there already.
 */
#ifndef KERNELS_HOST_QUANTIZE_H
#define KERNELS_HOST_QUANTIZE_H

#include <stdbool.h>

#include "kernels/kernels.h"

/* Values are worked on in tiles of KERNEL_SUM_ROWS x this many columns, so that a tile of bytes is
 * still in the first-level cache when it is transposed. */
#define QUANTIZE_TILE_COLS 256

/* ---- Values computed a piece of a row at a time -------------------------------------------- */

/* Columns col .. col + count - 1 of a row, at most QUANTIZE_TILE_COLS. */
struct quantize_place {
    int64_t row;
    int64_t col;
    int64_t count;
    bool writes; /* false in the pass in front that finds the own amax: nothing else is written */
};
typedef void quantize_piece_fn(void *arg, const struct quantize_place *at, float *values);

/* All that the target asks for, the pass for its own amax too. Pieces come in tiles, the rows of a
 * tile in order. A target without outputs has its pieces computed all the same. */
void quantize_pieces(const struct fp8pipe_quantize_target *target, quantize_piece_fn *piece,
                     void *arg);

/* ---- Values given tile by tile ------------------------------------------------------------- */

struct quantize_pass {
    const struct fp8pipe_quantize_target *target;
    bool quantizes; /* the target has outputs */
    float scale;
    int32_t largest; /* bits of |values| */
    uint64_t extremes[2];
};

/* Finds the scale (own_amax is complete), writes its inverse. */
void quantize_begin(struct quantize_pass *pass, const struct fp8pipe_quantize_target *target);

/* The tile x, of any dtype, at [row, col] of the target; row and col are multiples of a tile's, and
 * only the last tiles are smaller. Each tile once, in any order. */
void quantize_tile(struct quantize_pass *pass, const struct fp8pipe_matrix *x, int64_t row,
                   int64_t col);

/* Writes the padding, folds the amax. */
void quantize_end(struct quantize_pass *pass);

#endif
