/*
 * The chaos backend: a decorator over another backend's table that fails, delays and counts calls.
 *
 * Owns one set of controls for the process (every pipe opened on chaos_ops() shares them) and one
 * wrapper for each backend and event; streams are the inner backend's own objects. The controls may
 * be changed from any thread at any time, also from inside a `call`, which places a failure exactly
 * before the next op of that lane.
 *
 * It also watches how the table is used: a function called outside `enter`, and a stream used by
 * two threads at once, count as violations. Its counters are relaxed atomics, so that it adds no
 * order between threads that ThreadSanitizer would take for the library's.
 */
#ifndef TESTS_CHAOS_H
#define TESTS_CHAOS_H

#include <stdint.h>

#include "backend.h"

/* X(upper, lower): each entry that returns a status; work is what goes to a stream. */
#define CHAOS_KERNELS(X)                                                                           \
    X(AMAX, amax)                                                                                  \
    X(QUANTIZE, quantize)                                                                          \
    X(CAPTURE, capture)                                                                            \
    X(TRANSPOSE, transpose)                                                                        \
    X(PARTIALS, partials)                                                                          \
    X(COLUMN_SUMS, column_sums)                                                                    \
    X(STORE, store)                                                                                \
    X(ACTIVATION, activation)                                                                      \
    X(SCALE_UPDATE, scale_update)                                                                  \
    X(ADAMW, adamw)                                                                                \
    X(GRADIENT_NORM, gradient_norm)

#define CHAOS_WORK_TABLE(X)                                                                        \
    X(ALLOC, alloc)                                                                                \
    X(COPY, copy)                                                                                  \
    X(COPY_2D, copy_2d)                                                                            \
    X(FILL, fill)                                                                                  \
    X(HOST_CALL, host_call)                                                                        \
    X(GEMM, gemm)                                                                                  \
    CHAOS_KERNELS(X)

#define CHAOS_TABLE(X)                                                                             \
    CHAOS_WORK_TABLE(X)                                                                            \
    X(OPEN, open)                                                                                  \
    X(STREAM_CREATE, stream_create)                                                                \
    X(STREAM_CHECK, stream_check)                                                                  \
    X(EVENT_CREATE, event_create)                                                                  \
    X(EVENT_RECORD, event_record)                                                                  \
    X(EVENT_QUERY, event_query)                                                                    \
    X(STREAM_WAIT, stream_wait)                                                                    \
    X(STREAM_WAIT_NATIVE, stream_wait_native)                                                      \
    X(TIMER_CREATE, timer_create)                                                                  \
    X(TIMER_RECORD, timer_record)                                                                  \
    X(TIMER_NOW, timer_now)                                                                        \
    X(TIMER_ELAPSED, timer_elapsed)                                                                \
    X(NATIVE_WAIT, native_wait)                                                                    \
    X(PINNED_ALLOC, pinned_alloc)                                                                  \
    X(MEMORY_ALLOC, memory_alloc)                                                                  \
    X(MEMORY_FREE, memory_free)                                                                    \
    X(MEMORY_COPY, memory_copy)                                                                    \
    X(MEMORY_FILL, memory_fill)

enum chaos_call {
#define CHAOS_ENUM(upper, lower) CHAOS_##upper,
    CHAOS_TABLE(CHAOS_ENUM)
#undef CHAOS_ENUM
        CHAOS_CALLS,
    CHAOS_WORK = CHAOS_CALLS /* any of CHAOS_WORK_TABLE */
};

/*
 * A table whose open opens `inner` and wraps it. poll_ns > 0: that of the table, and the inner
 * backend's notify is not passed on; 0: the inner table's. One inner table at a time: open no pipe
 * on the former result afterwards.
 */
const struct backend_ops *chaos_ops(const struct backend_ops *inner, int64_t poll_ns);

/* No failures, no delays, no device error, all counts but the live ones 0. */
void chaos_reset(void);

/*
 * The nth (1: the next) following call of `call` returns `status` with a sentence that holds
 * "chaos", once; stream NULL: on any stream. Up to 16 such orders stand at once.
 */
void chaos_fail(enum chaos_call call, const struct fp8pipe_stream *stream, unsigned nth,
                enum fp8pipe_status status);

/* Takes back what chaos_fail ordered and has not happened. */
void chaos_disarm(void);

/* How many failures have been given since chaos_reset(). */
unsigned chaos_failures(void);

/*
 * Random delays of up to max_ns before calls, and as work in the streams; with poll_ns > 0 an
 * event also answers 'not done' a few times more than it has to. max_ns 0: none.
 */
void chaos_delays(uint64_t seed, int64_t max_ns);

/* From now on (until chaos_reset) every event_query answers EDEVICE. */
void chaos_device_error(void);

/* Calls of one kind (CHAOS_WORK: of all work) since chaos_reset(). */
uint64_t chaos_count(enum chaos_call call);

struct chaos_live {
    int64_t backends;
    int64_t streams;
    int64_t events;
    int64_t timers;
    int64_t allocs; /* of the stream-ordered pool */
    int64_t alloc_bytes;
    int64_t pinned;
};

/* What exists now. All 0 once every pipe is closed, unless the library leaks. */
struct chaos_live chaos_live(void);

/* Calls that break the promises on which lib/backend.h rests, since chaos_reset(). */
uint64_t chaos_violations(void);

#endif
