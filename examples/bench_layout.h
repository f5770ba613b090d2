/*
 * Where dit_bench's model has its matrices: all of them in one allocation, some of them one after
 * the other in the same place. Needs no pipe, so that sizes are known before anything is allocated.
 */
#ifndef BENCH_LAYOUT_H
#define BENCH_LAYOUT_H

#include "bench_model.h"

/* Sets all that is known without memory. blocks is the caller's to free; false: it is NULL. */
bool bench_layout_plan(const struct bench_options *options, int64_t passes,
                       struct bench_model *model);

/* Places the matrices in memory, or at NULL; returns how many bytes they take. */
size_t bench_layout_place(struct bench_model *model, void *memory);

/* Device memory that a model of these options takes, the library's own included, and how many
 * numbers its parameters are. */
double bench_layout_bytes(const struct bench_options *options, int64_t *parameters);

#endif
