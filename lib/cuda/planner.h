/*
 * Owns the thread that does later what a launcher has no time for: it takes keys out of a bounded
 * queue, one after the other, and runs a function on each. Parked while there are none.
 *
 * Knows nothing of what a key is, nor of CUDA. Any thread may push.
 */
#ifndef LIB_CUDA_PLANNER_H
#define LIB_CUDA_PLANNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"

struct planner;

/* pushed_ns: when the key was, by ec_now_ns. */
typedef void planner_fn(void *context, const void *key, int64_t pushed_ns);

/* ENOMEM. */
enum fp8pipe_status planner_create(size_t key_bytes, uint32_t capacity, planner_fn *fn,
                                   void *context, struct planner **planner);
/* Takes NULL. Waits for the key that is being worked on; forgets the others. */
void planner_destroy(struct planner *planner);

/* Copies the key into the queue; false if it is full. */
bool planner_push(struct planner *planner, const void *key);

/* For the function: sleeps, less than a second, which destroy waits for. False: it is to end, for
 * the planner is being destroyed. */
bool planner_sleep(struct planner *planner, int64_t ns);

#endif
