/*
 * Times plans of one key against each other, in a stream and on memory of its own: random finite
 * values, D and the second operand from beyond the device's cache, as weights come. Used by one
 * thread at a time, inside `enter`.
 */
#ifndef LIB_CUDA_TUNE_BENCH_H
#define LIB_CUDA_TUNE_BENCH_H

#include "plan.h"

struct tune_bench;

/* l2_bytes: of the device's cache. ENOMEM, ELAUNCH. */
enum fp8pipe_status tune_bench_create(struct cuda_backend *backend, int32_t l2_bytes,
                                      struct tune_bench **bench);
/* Takes NULL. */
void tune_bench_destroy(struct tune_bench *bench);

/* *best: the fastest of the 1 to PLAN_CANDIDATES_MAX plans, or the first, if none is faster by a
 * hundredth. ENOMEM; ELAUNCH if none runs; EDEVICE. */
enum fp8pipe_status tune_bench_choose(struct tune_bench *bench, const struct plan_key *key,
                                      struct plan *plans, int count, struct plan **best);

#endif
