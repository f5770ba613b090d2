/*
 * Enqueuing dit_bench's ops: a chain on lane 0, in the order of the submits, and weight gradients
 * that may run on lane 1.
 *
 * The first refusal or failure is kept in `status` with its sentence; after it nothing is enqueued
 * any more, so that callers look once an iteration. One thread at a time.
 */
#ifndef BENCH_CHAIN_H
#define BENCH_CHAIN_H

#include "bench_kernels.h"

#define BENCH_SENTENCE_BYTES 320

enum bench_lane { BENCH_LANE_CHAIN, BENCH_LANE_WGRAD };

struct bench_chain {
    struct fp8pipe *pipe;
    enum fp8pipe_status status;
    char sentence[BENCH_SENTENCE_BYTES];
    uint64_t enqueued;
    fp8pipe_ticket last;       /* the newest op of the chain */
    fp8pipe_ticket last_wgrad; /* the newest weight gradient on lane 1, or 0 */
    fp8pipe_ticket updated;    /* the newest optimizer step, or 0 */
};

struct fp8pipe_submit bench_chain_submit(enum bench_lane lane, const char *name);

/* Counts a submit, or keeps why it was refused. */
void bench_chain_submitted(struct bench_chain *chain, enum fp8pipe_status status, const char *name);
/* Keeps why another call was refused. */
void bench_chain_keep(struct bench_chain *chain, enum fp8pipe_status status, const char *what);

void bench_chain_call(struct bench_chain *chain, const char *name, const struct bench_op *op);
/* Values [rows, cols]; out NULL: they are not quantized. */
void bench_chain_values(struct bench_chain *chain, const char *name, int64_t rows, int64_t cols,
                        const struct bench_values *values, const struct fp8pipe_quantized *out);

/* Waits until the op is done, and keeps its failure. */
void bench_chain_wait(struct bench_chain *chain, fp8pipe_ticket ticket);
/* Waits until all ops are done. */
void bench_chain_drain(struct bench_chain *chain);

/* Blocking, after all ops: copies memory of the backend's to the host. */
void bench_chain_read(struct bench_chain *chain, void *to, const void *from, size_t bytes);

#endif
