/*
 * What a GEMM plan depends on, as plain words: the key of the plan cache and of tune files.
 * Includes nothing of CUDA's. Device, cuBLASLt's version and the workspace's size are not in it:
 * they are one for all keys of a backend. A tune file has the first two in front of its plans, and
 * an algorithm that needs more workspace than there is does not pass the check.
 *
 * Any thread. A change of struct plan_key is a new format of tune files (lib/tune_file.c).
 */
#ifndef LIB_CUDA_PLAN_KEY_H
#define LIB_CUDA_PLAN_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"

/* cuBLASLt's own highest alignment, and its default. */
#define PLAN_ALIGN_MAX 256
/* What FP8 kernels and biases need: the heuristic is not told of the latter's alignment and may
 * pick kernels that fault on less. */
#define PLAN_ALIGN_MIN 16

/* Alignments are logarithms, of data and rows, in bytes, up to PLAN_ALIGN_MAX. */
struct plan_key {
    int64_t m;
    int64_t n;
    int64_t k;
    int64_t a_stride;
    int64_t b_stride;
    int64_t d_stride;
    int64_t residual_stride; /* 0: none */
    uint8_t a_type;          /* enum gemm_type, as those that follow */
    uint8_t b_type;
    uint8_t d_type;
    uint8_t bias_type; /* PLAN_NO_BIAS: none */
    uint8_t a_transposed;
    uint8_t b_transposed;
    uint8_t accumulate;
    uint8_t fast; /* FP8 operands only */
    uint8_t activation;
    uint8_t amax; /* of an FP8 D */
    uint8_t a_align;
    uint8_t b_align;
    uint8_t d_align;
    uint8_t residual_align;
    uint8_t bias_aligned; /* to PLAN_ALIGN_MIN */
    uint8_t zero[9];      /* up to a multiple of 16 bytes, as plan_cache.h demands */
};
_Static_assert(sizeof(struct plan_key) == 80, "the key has no padding, as comparisons need");

#define PLAN_NO_BIAS 0xFF

void plan_key_make(struct plan_key *key, const struct gemm_args *args);

/* Whether cuBLASLt has kernels for these types at all, and none that fault. */
bool plan_key_is_direct(const struct plan_key *key);

/* Whether the result is finished by anything but a bias or a sum in D's place: then the way through
 * fp32 is no way. */
bool plan_key_has_epilogue(const struct plan_key *key);

/* What the way through fp32 is built on; there is no other way for it. */
bool plan_key_is_plain(const struct plan_key *key);

/* "GEMM 8 x 16 x 32, e4m3 . e4m3 to bf16 with bias" */
#define PLAN_KEY_NAME_BYTES 160
const char *plan_key_name(char name[PLAN_KEY_NAME_BYTES], const struct plan_key *key);

/*
 * Families of the plan cache: keys that differ in the number of tokens, and in the strides and
 * alignments that come with it. Tokens are m in a forward and a dgrad (family 0), k in a wgrad
 * (family 1). An algorithm that takes PLAN_ALIGN_MIN takes more.
 */
uint64_t plan_key_family(const struct plan_key *key, int family);
/* How far apart in tokens; UINT64_MAX: not of one family. */
uint64_t plan_key_distance(const struct plan_key *key, const struct plan_key *other, int family);

static inline bool gemm_type_is_fp8(int type)
{
    return type == GEMM_E4M3 || type == GEMM_E5M2;
}

static inline size_t gemm_type_bytes(int type)
{
    return type == GEMM_FP32 ? 4 : gemm_type_is_fp8(type) ? 1 : 2;
}

static inline enum gemm_type gemm_type_of_dtype(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? GEMM_FP32 : dtype == FP8PIPE_BF16 ? GEMM_BF16 : GEMM_FP16;
}

#endif
