/*
 * Other shapes of the activation kernels than the library's, for bench/kernels to compare: bf16
 * without a bias, aligned. The best of them becomes the library's, in kernels/activation.cuh.
 */
#ifndef BENCH_ACTIVATION_VARIANTS_H
#define BENCH_ACTIVATION_VARIANTS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of the tanh GELU's backward, SWIGLU's backward, and the tanh GELU. */
enum activation_family { ACTIVATION_DGELU, ACTIVATION_DSWIGLU, ACTIVATION_GELU };

#define ACTIVATION_VARIANTS 24

/* As kernel_activation_cuda, in variant 0 .. ACTIVATION_VARIANTS-1, with a scale. */
int activation_variant(int variant, const struct kernel_activation_args *args,
                       struct CUstream_st *stream);
const char *activation_variant_name(int variant);
enum activation_family activation_variant_family(int variant);

#ifdef __cplusplus
}
#endif

#endif
