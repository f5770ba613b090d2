/*
 * dit_bench's runs: warm up, check, time, check again. A run that fails says why in the chain's
 * status and sentence; one that was not finite in `fault`.
 */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "bench_cosine.h"
#include "bench_floor.h"
#include "bench_model.h"
#include "bench_shapes.h"

#define BENCH_FAULT_BYTES 160

struct bench_result {
    char fault[BENCH_FAULT_BYTES]; /* empty: output, loss and gradients were finite */
    struct bench_device device;
    enum fp8pipe_backend backend;
    int64_t parameters;
    double ms_mean; /* an iteration, by the clock on the wall */
    double ms_median;
    double stream_ms_mean; /* from the end of one iteration to the end of the next, on the stream */
    double stream_ms_median;
    double caller_cpu_ms; /* CPU time of the thread that submits, an iteration's submits alone */
    double launcher_cpu_ms;
    double idle_ms;      /* of lane 0 an iteration; < 0: not measured */
    double first_ms;     /* from before open to the end of the first iteration */
    double memory_bytes; /* the most that the pipe held */
    double needed_bytes; /* what was expected before */
    double ops;          /* an iteration */
    double loss;         /* training: the last timed iteration's; a loss run's mean of the last */
    double plans;
    double plans_borrowed;
    double plans_refined;
    double replays; /* recorded GEMM calls, those of them that made room, GEMM calls issued so */
    double replays_evicted;
    double replayed;
    struct bench_first first; /* of a dynamic run */
    bool has_cosine;
    struct bench_cosine cosine;
    bool has_floor;
    struct bench_floor floor;
};

/* The timed iterations, and with --profile one more in a trace. opened_ns: when the run began. */
void bench_run_timed(struct bench_chain *chain, struct bench_model *model, int64_t opened_ns,
                     struct bench_result *result);

/* Steps on fresh batches; the mean loss of the last BENCH_LOSS_WINDOW. */
#define BENCH_LOSS_WINDOW 50
void bench_run_losses(struct bench_chain *chain, struct bench_model *model,
                      struct bench_result *result);

/* Runs a checked pass and says in result->fault what of it, or of the passes before, was not
 * finite. */
void bench_run_check(struct bench_chain *chain, struct bench_model *model, int64_t rows,
                     struct bench_result *result);

#endif
