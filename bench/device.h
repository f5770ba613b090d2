/*
 * The GPU that a benchmark of CUDA needs. device_find is for its main, before anything of CUDA's:
 * without a GPU the program ends with a sentence that says so.
 */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

static inline void device_find(const char *program)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);

    if (error != cudaSuccess || count == 0) {
        fprintf(stderr, "%s: it needs an NVIDIA GPU with its driver, and CUDA finds none: %s\n",
                program, cudaGetErrorString(error != cudaSuccess ? error : cudaErrorNoDevice));
        exit(1);
    }
}

#endif
