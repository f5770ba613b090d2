/*
 * What the machine allows: the model's GEMMs alone, on operands prepared before, each many times in
 * a row; and the least memory traffic of all that lies between them, at the bandwidth of a copy.
 */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#include "bench_model.h"

enum bench_gemm { BENCH_GEMM_FORWARD, BENCH_GEMM_DGRAD, BENCH_GEMM_WGRAD, BENCH_GEMMS };

struct bench_floor {
    double gemm_us[BENCH_LAYERS][BENCH_GEMMS];
    double gemms_ms;         /* of all blocks */
    double traffic_bytes;    /* between them, optimizer included */
    double copy_bytes_per_s; /* read and written */
    double ms;
};

/*
 * Measures it for the shapes and data types of `options`, whose model may be gone by then: this
 * takes memory of its own. With --tune the GEMMs are tuned first.
 */
void bench_floor_measure(struct bench_chain *chain, const struct bench_options *options,
                         enum fp8pipe_backend backend, struct bench_floor *floor);

/* Bytes that an iteration has to move outside of its GEMMs, each tensor read and written once. */
double bench_floor_traffic(const struct bench_options *options);

#endif
