/*
 * GEMM of the host backend, through CBLAS: FP8, bf16 and fp16 operands are widened to float32
 * exactly, products are summed in float32, the scales, the bias, the old D and the epilogue come in
 * afterwards.
 *
 * Everything that can fail does so in prepare, on the enqueuing thread; run cannot. The process's
 * BLAS settings (threads) are left as they are.
 *
 * OpenBLAS joins its threads when the process exits or forks, and waits for ever if a call is using
 * them. So calls hold a lock for reading, which exit takes for good and fork until it is over: both
 * wait for the calls that run, and calls that come later wait for them.
 */
#ifndef LIB_HOST_GEMM_H
#define LIB_HOST_GEMM_H

#include "backend.h"

/* The value of every FP8 byte. */
struct host_gemm_tables {
    float e4m3[256];
    float e5m2[256];
};

struct host_gemm_work {
    struct gemm_args args;
    const struct host_gemm_tables *tables; /* must outlive the work */
    float *a;                              /* widened operands; NULL: used where they are */
    float *b;
    float *product; /* NULL: D itself */
};

/* Before anything else here. ENOMEM. */
enum fp8pipe_status host_gemm_open(struct host_gemm_tables *tables);

/*
 * Takes the scratch memory that the work needs. Returns EINVAL for sizes that CBLAS cannot take,
 * ENOMEM. Scratch of work that waits in a queue costs address space only: its pages are first
 * touched when it runs.
 */
enum fp8pipe_status host_gemm_prepare(const struct gemm_args *args,
                                      const struct host_gemm_tables *tables,
                                      struct host_gemm_work *work);
/* Computes and gives the scratch back. */
void host_gemm_run(struct host_gemm_work *work);

#endif
