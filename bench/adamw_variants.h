/*
 * Other shapes of the adamw kernel than the library's, for bench/kernels to compare. The best of
 * them becomes the library's, in kernels/adamw.cu.
 */
#ifndef BENCH_ADAMW_VARIANTS_H
#define BENCH_ADAMW_VARIANTS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ADAMW_VARIANTS 6

/* As kernel_adamw_cuda, a step, in variant 0 .. VARIANTS-1. */
int adamw_variant(int variant, const struct kernel_adamw_args *args, struct CUstream_st *stream);
const char *adamw_variant_name(int variant);

#ifdef __cplusplus
}
#endif

#endif
