/*
 * Other shapes of modulate's rows kernel than the library's, for bench/kernels to compare, and its
 * panels kernel. The best becomes the library's, in kernels/modulate_rows.cuh.
 */
#ifndef BENCH_MODULATE_VARIANTS_H
#define BENCH_MODULATE_VARIANTS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MODULATE_VARIANTS 9

/* As kernel_modulate_cuda, in variant 0 .. VARIANTS-1. */
int modulate_variant(int variant, const struct kernel_modulate_args *args,
                     struct CUstream_st *stream);
const char *modulate_variant_name(int variant);

#ifdef __cplusplus
}
#endif

#endif
