/*
 * Helpers for tests of ordering, failure and hanging: a watchdog, gates that hold a launcher or a
 * stream, captured log lines, pipes on the chaos backend, short submits.
 *
 * Promises: like util.h, helpers that cannot fail unless the library is broken bail out. Gates and
 * log lines outlive the pipe that uses them.
 */
#ifndef TESTS_ASYNC_H
#define TESTS_ASYNC_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "util.h"

/* Within a second: what must not hang is answered by then. Sanitizers get more. */
#define A_SECOND_NS (INT64_C(1000000000) * (TEST_SANITIZED ? 10 : 1))
#define MS_NS INT64_C(1000000)

/* The whole process bails out unless it has ended, or this has been called again, by then. */
void watchdog(const char *what, unsigned seconds);

void sleep_ns(int64_t ns);

/* Starts a thread, or bails out. */
pthread_t test_thread(void *(*fn)(void *), void *arg);
void test_join(pthread_t thread);

/* ---- Gates -------------------------------------------------------------------------------- */

struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool open;
    int arrived; /* how many have come to it so far */
};

#define GATE_INIT                                                                                  \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0                              \
    }

void gate_open(struct gate *gate);
/* Waits until `count` have come to the gate; bails out after TEST_TIMEOUT_NS. */
void gate_await(struct gate *gate, int count);
/* Bodies for host_call (holds the stream) and call (holds the launcher): wait until it is open. */
void gate_work(void *gate);
enum fp8pipe_status gate_call(struct fp8pipe_stream *stream, void *gate);

/* ---- Log ---------------------------------------------------------------------------------- */

#define LOG_LINES_MAX 64
#define LOG_LINE_BYTES 512

struct log_lines {
    pthread_mutex_t mutex;
    int count; /* all lines, also those that are not kept */
    enum fp8pipe_log_level level[LOG_LINES_MAX];
    char line[LOG_LINES_MAX][LOG_LINE_BYTES];
};

#define LOG_LINES_INIT                                                                             \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, 0, {FP8PIPE_LOG_DEFAULT},                                       \
        {                                                                                          \
            {                                                                                      \
                0                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

/* The fp8pipe_log_fn. */
void log_lines_add(void *lines, enum fp8pipe_log_level level, const char *line);
int log_lines_count(struct log_lines *lines);
/* True if a kept line holds `text`. */
bool log_lines_hold(struct log_lines *lines, const char *text);
void log_lines_clear(struct log_lines *lines);

/* ---- Pipes -------------------------------------------------------------------------------- */

/* `log` may be NULL: no lines at all, so that expected failures do not fill the test's output. */
struct fp8pipe_options async_options(enum fp8pipe_mode mode, int32_t lanes, uint32_t ring_slots,
                                     struct log_lines *log);

struct fp8pipe *async_open(enum fp8pipe_backend backend, enum fp8pipe_mode mode, int32_t lanes,
                           uint32_t ring_slots, struct log_lines *log);

/* The same on the chaos backend (tests/chaos.h) around `backend`; resets its controls. */
struct fp8pipe *chaos_open_pipe(enum fp8pipe_backend backend, const struct fp8pipe_options *options,
                                int64_t poll_ns);

/* Is OK unless something of a chaos pipe is left, or a promise of backend.h was broken. */
void chaos_check(const char *what);

const char *mode_name(enum fp8pipe_mode mode);

/* ---- Submits ------------------------------------------------------------------------------ */

/* Lane and up to two tickets. */
#define ON(lane) test_submit(lane, 0, 0, 0)
#define AFTER(lane, ticket) test_submit(lane, 0, ticket, 0)

enum fp8pipe_status try_call(struct fp8pipe *pipe, struct fp8pipe_submit submit,
                             fp8pipe_call_fn *fn, void *arg, fp8pipe_ticket *ticket);
enum fp8pipe_status try_host_call(struct fp8pipe *pipe, struct fp8pipe_submit submit,
                                  fp8pipe_work_fn *fn, void *arg, fp8pipe_ticket *ticket);
enum fp8pipe_status try_copy(struct fp8pipe *pipe, struct fp8pipe_submit submit, void *to,
                             const void *from, size_t bytes, fp8pipe_ticket *ticket);

/* Bail out unless OK. */
fp8pipe_ticket submit_call(struct fp8pipe *pipe, struct fp8pipe_submit submit, fp8pipe_call_fn *fn,
                           void *arg);
fp8pipe_ticket submit_host_call(struct fp8pipe *pipe, struct fp8pipe_submit submit,
                                fp8pipe_work_fn *fn, void *arg);

/* A call that does nothing. */
enum fp8pipe_status call_nothing(struct fp8pipe_stream *stream, void *arg);
/* A call that fails with the status that arg points to. */
enum fp8pipe_status call_fails(struct fp8pipe_stream *stream, void *status);
/* A host_call that adds 1 to the (relaxed atomic) int that arg points to; and that does nothing. */
void work_count(void *counter);
void work_nothing(void *arg);

/* The state, bails out unless it is given. */
struct fp8pipe_state state_of(struct fp8pipe *pipe, fp8pipe_ticket ticket);
struct fp8pipe_stats stats_of(struct fp8pipe *pipe, int32_t lane);

/* ---- Waiting elsewhere -------------------------------------------------------------------- */

/* A thread's wait for a ticket's mark (ticket 0: drain), without limit. */
struct waiter {
    struct fp8pipe *pipe;
    fp8pipe_ticket ticket;
    enum fp8pipe_mark mark;
    enum fp8pipe_status status; /* what it returned */
};
void *waiter_wait(void *waiter);

/* ---- Defers ------------------------------------------------------------------------------- */

/* What a defer has been told; `calls` is read and written atomically. */
struct answer {
    int calls;
    fp8pipe_ticket ticket;
    enum fp8pipe_status status;
    pthread_t thread;
};
void answer_take(void *answer, fp8pipe_ticket ticket, enum fp8pipe_status status);
/* Waits until it was called; false after TEST_TIMEOUT_NS. */
bool answer_await(struct answer *answer);

#endif
