/*
 * How many tokens each of dit_bench's iterations has, and what the first iteration at a shape costs
 * over the later ones.
 */
#ifndef BENCH_SHAPES_H
#define BENCH_SHAPES_H

#include "bench_options.h"

/* The most shapes that a run has. Aspect ratios of as many tokens are one shape. */
#define BENCH_SHAPES 12

struct bench_first {
    int64_t shapes;      /* that were met more than once; 0: none, and the rest is 0 */
    double ms_median;    /* of the first iterations at each */
    double ratio_median; /* of first / the median of the later ones at the same shape */
    double ratio_worst;
    int64_t rows_worst; /* tokens where that was */
};

/* Tokens of the batch in timed iteration i: in a dynamic run all aspect ratios in turn, shuffled
 * anew each time. */
int64_t bench_shapes_rows(const struct bench_options *options, int64_t i);

/*
 * Iteration i had rows[i] tokens and took ms[i], alone. That of `warm` tokens was met before, and
 * is left out. Returns 0, or -1 when memory is out.
 */
int bench_shapes_first(const int64_t *rows, const double *ms, int64_t count, int64_t warm,
                       struct bench_first *first);

#endif
