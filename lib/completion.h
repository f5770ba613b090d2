/*
 * The thread that sees ops done, runs defers, and gives back memory that a caller let go of.
 *
 * It sleeps while nobody is interested. `interest` counts the outstanding defers and the fillings
 * to release; launchers (after an issued mark) and a notifying backend (after an event) wake it
 * when it is not 0. Backends that do not notify are polled while defers are outstanding.
 *
 * On a backend that notifies, who waits for done marks sleeps on the same event count, and looks
 * himself: `waiters` counts them. They are woken when what a lane's event ring has as wanted is
 * reached, not at every op before it.
 *
 * Defers run here with no lock held. The lists are under `lock`; the marks are read once for a
 * round, done before issued, so that a ticket's ISSUED defers run before its DONE ones.
 */
#ifndef LIB_COMPLETION_H
#define LIB_COMPLETION_H

#include <pthread.h>
#include <stdbool.h>

#include "event_ring.h"
#include "issue.h"
#include "tensor.h"

struct defer;

struct defer_list {
    struct defer *first;
    struct defer **end;
};

struct completion {
    struct backend *backend;
    struct event_ring *rings;
    uint32_t lanes;
    struct fault *fault;
    struct ec ec;
    uint64_t interest;
    uint64_t waiters;
    pthread_mutex_t lock;
    struct defer_list issued;
    struct defer_list done;
    uint32_t outstanding;
    uint32_t limit;
    struct ec room; /* defers that wait for the limit sleep here */
    ck_spinlock_fas_t dead_word;
    struct filling *dead;
    struct filling *waiting;       /* the thread's own: dead, with uses that are not issued */
    struct fp8pipe_stream *stream; /* for freeing only */
    uint32_t stop;
    uint64_t rescues;
    pthread_t thread;
    bool started;
};

enum fp8pipe_status completion_start(struct completion *completion, struct backend *backend,
                                     struct event_ring *rings, uint32_t lanes, struct fault *fault,
                                     uint32_t limit);

/* Lets it finish all defers and frees, then joins it; false at the deadline. */
bool completion_stop(struct completion *completion, int64_t deadline_ns);

/* After an issued mark, or a finished event: wakes the thread, and who waits, if there is cause. */
void completion_notify(void *completion);

/* Sleeps until the op at a position is done; false at the deadline. Where the backend notifies;
 * inside `enter`. */
bool completion_await_done(struct completion *completion, struct event_ring *ring,
                           uint64_t position, int64_t deadline_ns);

/* Takes a defer. EAGAIN (nonblock), ENOMEM. Blocks at the limit. */
enum fp8pipe_status completion_defer(struct completion *completion, fp8pipe_ticket ticket,
                                     enum fp8pipe_mark mark, fp8pipe_defer_fn *fn, void *arg,
                                     bool nonblock);

/* Takes a filling without holders, to give its memory back after all its uses. */
void completion_bury(struct completion *completion, struct filling *filling);

#endif
