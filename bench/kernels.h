/*
 * The cases of bench/kernels. A case is one kernel with its choice of outputs; bench/kernels.c has
 * the table of all, and times and checks them. To add a kernel: a bench/<family>_cases.c with its
 * functions, its lines in a table there, and that table in bench/kernels.c.
 */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

struct bench_case {
    const char *name;
    /*
     * A set of operands and outputs in device memory, for `rows` x `cols` elements of 16 bits (or
     * as near to as many bytes as the kernel has it), filled with finite random data: never zeros,
     * which some kernels and all memories treat too well.
     */
    void *(*make)(const struct bench_case *self, int64_t rows, int64_t cols);
    void (*free)(void *set);
    /* Launches once; 0 or a cudaError_t. */
    int (*run)(void *set, cudaStream_t stream);
    /* Bytes that must move: each operand once, each output once. */
    int64_t (*bytes)(const void *set);
    /* After one run: whether the outputs are the host twin's. */
    bool (*check)(void *set);
    const void *choice; /* the family's own */
};

/* Ends the program with a sentence. */
void bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
#define bench_must(call)                                                                           \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess)                                                                 \
            bench_fail("%s: %s", #call, cudaGetErrorString(error_));                               \
    } while (0)

/* Device memory; bench_download: to host memory, given back by free(). */
void *bench_alloc(size_t bytes);
void *bench_download(const void *device, size_t bytes);

/* Fills device memory with normal bf16 or float32 values times `deviation`, from a fixed seed. */
void bench_fill_bf16(void *device, int64_t count, float deviation);
void bench_fill_fp32(void *device, int64_t count, float deviation);

/* How many partial sums a column of so many rows has, and a count with its padding. */
static inline int64_t part_count(int64_t rows)
{
    return (rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
}

static inline int64_t padded(int64_t count)
{
    return (count + KERNEL_FP8_PAD - 1) / KERNEL_FP8_PAD * KERNEL_FP8_PAD;
}

/* Tables end with an entry whose name is NULL. */
extern const struct bench_case quantize_cases[];
extern const struct bench_case activation_cases[];
extern const struct bench_case adamw_cases[];
extern const struct bench_case modulate_cases[];
/* The shapes under comparison, of --variants. Made at the first call, by one thread. */
const struct bench_case *quantize_variant_cases(void);
const struct bench_case *modulate_variant_cases(void);
const struct bench_case *activation_variant_cases(void);
const struct bench_case *adamw_variant_cases(void);

#endif
