/*
 * Other shapes of the quantize kernels than the library's, for bench/kernels to compare: bf16 to
 * E4M3, aligned. The best of them becomes the library's, in kernels/quantize.cuh.
 */
#ifndef BENCH_QUANTIZE_VARIANTS_H
#define BENCH_QUANTIZE_VARIANTS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUANTIZE_ROW_VARIANTS 10
#define QUANTIZE_TILE_VARIANTS 16

/* As kernel_quantize_cuda, in variant 0 .. VARIANTS-1. */
int quantize_rows_variant(int variant, const struct kernel_quantize_args *args,
                          struct CUstream_st *stream);
int quantize_tiles_variant(int variant, const struct kernel_quantize_args *args,
                           struct CUstream_st *stream);
const char *quantize_rows_variant_name(int variant);
const char *quantize_tiles_variant_name(int variant);

#ifdef __cplusplus
}
#endif

#endif
