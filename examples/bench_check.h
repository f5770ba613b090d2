/*
 * Is the backward right? Compares the gradients of a float32 model with finite differences of its
 * loss, for each parameter of each block along a direction of its own. For small models: two
 * passes a parameter.
 */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include "bench_model.h"

struct bench_check_result {
    double worst; /* |difference| over the expected change, of the worst parameter */
    char where[64];
    int64_t compared;
};

/* How far apart gradients and differences may be. */
#define BENCH_CHECK_BOUND 0.01

void bench_check_gradients(struct bench_chain *chain, struct bench_model *model,
                           struct bench_check_result *result);

#endif
