/* The median of dit_bench's numbers. */
#ifndef BENCH_MEDIAN_H
#define BENCH_MEDIAN_H

#include <stdint.h>

double bench_median(double *values, int64_t count); /* sorts them; at least one */

#endif
