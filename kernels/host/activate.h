/* The activations that a GEMM's epilogue has, over a piece of a row: for the host's store and GEMM. */
#ifndef KERNELS_HOST_ACTIVATE_H
#define KERNELS_HOST_ACTIVATE_H

#include "kernels/activation.h"
#include "kernels/kernels.h"

/* values = activation(values). Not SWIGLU. */
static inline void row_activate(float *values, enum fp8pipe_activation activation, int64_t count)
{
    if (activation == FP8PIPE_ACTIVATION_GELU_TANH) {
        for (int64_t i = 0; i < count; i++) {
            values[i] = activation_gelu_tanh(values[i]);
        }
    } else if (activation == FP8PIPE_ACTIVATION_GELU_ERF) {
        for (int64_t i = 0; i < count; i++) {
            values[i] = activation_gelu_erf(values[i]);
        }
    } else if (activation == FP8PIPE_ACTIVATION_SILU) {
        for (int64_t i = 0; i < count; i++) {
            values[i] = activation_silu(values[i]);
        }
    }
}

#endif
