/*
 * Owns the algorithms that were timed, by this pipe or by whoever wrote its tune file. Any thread;
 * tuning is one thread's at a time, others wait.
 */
#ifndef LIB_CUDA_TUNE_H
#define LIB_CUDA_TUNE_H

#include "internal.h"
#include "plan_key.h"

struct tuner;

/*
 * backend->tuner. Needs backend->lt and the device current. file: NULL, or a tune file to load,
 * which is ignored with one warning if it cannot be used.
 */
enum fp8pipe_status tuner_create(struct cuda_backend *backend, const char *file);
/* Takes NULL. */
void tuner_destroy(struct tuner *tuner);

/* The timed algorithm of a key, if there is one; it is yet to be checked. */
bool tuner_find(struct tuner *tuner, const struct plan_key *key, cublasLtMatmulAlgo_t *algo);

/* See lib/backend.h. */
enum fp8pipe_status cuda_tune(struct backend *base, const struct backend_tune *tune);

#endif
