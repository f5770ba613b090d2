/*
 * libfp8pipe: tuning GEMM plans. The conventions of fp8pipe.h hold.
 */
#ifndef FP8PIPE_TUNE_H
#define FP8PIPE_TUNE_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fp8pipe_gemm_type {
    FP8PIPE_GEMM_FP32 = 0,
    FP8PIPE_GEMM_BF16 = 1,
    FP8PIPE_GEMM_FP16 = 2,
    FP8PIPE_GEMM_E4M3 = 3,
    FP8PIPE_GEMM_E5M2 = 4
};

/* One GEMM: D[m,n] = A[m,k] . B[n,k]^T, dense, 256-byte aligned; m, n, k >= 1. Types go together
 * as in fp8pipe_gemm. */
struct fp8pipe_tune_shape {
    int64_t m;
    int64_t n;
    int64_t k;
    enum fp8pipe_gemm_type a;
    enum fp8pipe_gemm_type b;
    enum fp8pipe_gemm_type d;
    int32_t bias;                       /* 1: with a bias of D's dtype (of BF16 for an FP8 D and,
                                           with FP8 operands, for an FP32 D) */
    int32_t residual;                   /* 1: D += another matrix; 2: D += itself */
    int32_t fast;                       /* FP8 operands: 1: ACCUMULATION_FAST */
    int32_t a_transposed;               /* 1: stored as [k,m]; not with FP8 operands */
    int32_t b_transposed;               /* 1: stored as [k,n]; not with FP8 operands */
    enum fp8pipe_activation activation; /* NONE or GELU_TANH */
};

/*
 * Times cuBLASLt's candidates for shapes, on random finite data in memory of its own, keeps the
 * fastest for the pipe's later ops, and where `file` is given writes all that the pipe has timed or
 * loaded into it: merged with what is in it for other cards and versions, replaced atomically,
 * under a lock on FILE.lock, so that many processes on a shared disk may do so at once. A file that
 * is damaged is replaced, with a warning; one that is no tune file, or of another format, is not.
 *
 * shapes NULL: every shape that the pipe has plans for, that is, what ran so far. To be called
 * while nothing else runs on the device, or the times mean little. With FP8PIPE_TUNE=1 in the
 * environment, and a tune file named (options or FP8PIPE_TUNE_FILE), fp8pipe_close does this for
 * whatever the pipe has run and neither timed nor loaded before; ops run as usual until then.
 * Returns    ENOTSUP on the host backend, or if cuBLASLt has no algorithm for a shape; ELAUNCH or
 *            ENOMEM if a shape could not be run; what was timed before is kept, and written.
 *            EINVAL, also if `file` cannot be written; ESTATE if it is no tune file, or of another
 *            format; ETIMEDOUT if another process holds its lock for 30 seconds.
 * Blocks     some tens of milliseconds a shape. Memory: up to twice the device's cache and the
 *            shape's matrices thrice.
 */
struct fp8pipe_tune_options {
    size_t size;
    const struct fp8pipe_tune_shape *shapes;
    size_t shape_count;
    const char *file;   /* NULL: not written */
    int32_t candidates; /* at most, for each shape, 1 to 64; 0: 16 */
    int32_t reserved;   /* 0 */
};
#define FP8PIPE_TUNE_OPTIONS_INIT { sizeof(struct fp8pipe_tune_options), NULL, 0, NULL, 0, 0 }
FP8PIPE_API enum fp8pipe_status fp8pipe_tune(struct fp8pipe *pipe,
                                             const struct fp8pipe_tune_options *options);

#ifdef __cplusplus
}
#endif

#endif
