/*
 * How near are FP8's weight gradients to bf16's? The cosine between the two of each layer, in the
 * first step from the same parameters and data.
 */
#ifndef BENCH_COSINE_H
#define BENCH_COSINE_H

#include "bench_model.h"

struct bench_cosine {
    double median;
    double worst;
    char where[64]; /* the worst is */
    double medians[BENCH_LAYERS];
};

/* Makes both models of `options`, one after the other, on the chain's pipe; FP8's gradients wait in
 * the host's memory. */
void bench_cosine_measure(struct bench_chain *chain, const struct bench_options *options,
                          struct bench_cosine *cosine);

#endif
