/*
 * One launcher: takes the oldest op of its ring, waits until the ops that it depends on are issued,
 * makes the stream wait for them, executes, records the op's event, publishes its outcome and its
 * issued mark.
 *
 * In ASYNC each lane has a thread that does this; in INLINE the submitting thread does, holding the
 * port's inline_mutex. Either way a lane is run by one thread at a time, which owns `stream`,
 * `lane_broken`, `previous`, `idle_from_ns` and the counters (read by stats without a lock).
 *
 * Waiting for another lane's issued mark cannot deadlock: an op only depends on ops that claimed
 * their ring positions before it did, and launchers never submit.
 */
#ifndef LIB_LANE_H
#define LIB_LANE_H

#include <pthread.h>
#include <stdbool.h>

#include "completion.h"
#include "event_ring.h"
#include "log.h"
#include "op.h"
#include "trace.h"

struct lane {
    struct crew *crew;
    uint32_t index;
    struct port *port;
    struct fp8pipe_stream *stream;
    uint32_t *own_amax;  /* device word for tensors without a scale */
    uint32_t *gemm_amax; /* of the same memory: the word for what GEMMs write in FP8 */
    bool lane_broken;    /* an op submitted by number failed, and none resumed */
    struct ticket_failure broken_by;
    uint64_t issued;
    uint64_t failed;
    uint64_t cancelled;
    uint64_t idle_ns; /* a counter; with measure_idle */
    bool measure_idle;
    uint64_t previous;    /* position of the latest op, 0: none */
    int64_t idle_from_ns; /* when the latest issue ended */
    uint64_t trace_until; /* see lib/trace.h */
    pthread_t thread;
    bool started;
};

/* The lanes of a pipe and what they share. */
struct crew {
    struct backend *backend;
    uint32_t pipe; /* number, for tickets */
    uint32_t count;
    struct port *ports;
    struct event_ring *rings;
    struct lane *lanes;
    struct fault *fault;
    struct completion completion;
    const struct log *log;
    struct trace trace;
    uint32_t cancel; /* close's CANCEL: what is not issued is cancelled */
    char *tune_file; /* FP8PIPE_TUNE: close times the plans of what ran, for this file; else NULL */
};

/* Issues all that is in the ring. INLINE, under the port's inline_mutex, inside `enter`. */
void lane_run(struct lane *lane);

/* Starts the lane's launcher. */
enum fp8pipe_status lane_start(struct lane *lane, int cpu);

#endif
