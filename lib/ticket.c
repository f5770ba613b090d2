#include "ticket.h"

#include <ck_pr.h>
#include <stdio.h>
#include <stdlib.h>

enum fp8pipe_status port_init(struct port *port, uint32_t ring_slots, uint64_t start,
                              int64_t spin_ns)
{
    enum fp8pipe_status status = ring_init(&port->ring, ring_slots, start, spin_ns);

    if (status != FP8PIPE_OK) {
        return status;
    }
    port->failures = calloc(TICKET_FAILURES, sizeof(*port->failures));
    if (port->failures == NULL) {
        ring_free_slots(&port->ring);
        return status_fail(FP8PIPE_ENOMEM, "a lane's failure records: %zu bytes are not to be had",
                           TICKET_FAILURES * sizeof(*port->failures));
    }
    pthread_mutex_init(&port->inline_mutex, NULL);
    pthread_mutex_init(&port->lock, NULL);
    ec_init(&port->finished);
    port->start = start;
    port->done = start;
    port->too_old = 0;
    port->failed = 0;
    return FP8PIPE_OK;
}

void port_retire(struct port *port)
{
    ring_free_slots(&port->ring);
    /* A late submit may still look for its predecessors' failures. */
    pthread_mutex_lock(&port->lock);
    free(port->failures);
    port->failures = NULL;
    pthread_mutex_unlock(&port->lock);
}

uint64_t port_done(const struct port *port)
{
    uint64_t done = ck_pr_load_64(&port->done);

    ck_pr_fence_acquire();
    return done;
}

void port_done_set(struct port *port, uint64_t done)
{
    ck_pr_fence_release();
    ck_pr_store_64(&port->done, done);
    ec_wake(&port->finished);
}

uint64_t port_too_old(const struct port *port)
{
    return ck_pr_load_64(&port->too_old);
}

void port_failure_keep(struct port *port, uint64_t position, uint32_t slots,
                       const struct ticket_failure *failure)
{
    struct ticket_failure *last, *next;
    uint64_t failed = port->failed;

    pthread_mutex_lock(&port->lock);
    last = failed == 0 ? NULL : &port->failures[(failed - 1) % TICKET_FAILURES];
    if (last != NULL && failure->outcome == FP8PIPE_OUTCOME_CANCELLED && last->to == position &&
        last->root == failure->root && last->outcome == failure->outcome &&
        last->status == failure->status) {
        last->to = position + slots;
    } else {
        next = &port->failures[failed % TICKET_FAILURES];
        *next = *failure;
        next->from = position;
        next->to = position + slots;
        failed++;
        if (failed > TICKET_FAILURES) {
            ck_pr_store_64(&port->too_old, port->failures[failed % TICKET_FAILURES].from);
        }
        ck_pr_fence_release();
        ck_pr_store_64(&port->failed, failed);
    }
    pthread_mutex_unlock(&port->lock);
}

bool port_failure_find(struct port *port, uint64_t position, struct ticket_failure *failure)
{
    bool found = false;
    uint64_t failed = ck_pr_load_64(&port->failed);
    uint64_t low, high;

    if (failed == 0) {
        return false;
    }
    pthread_mutex_lock(&port->lock);
    failed = port->failed;
    if (port->failures == NULL) {
        goto unlock; /* the pipe is closed: the ring refuses whatever comes of this */
    }
    if (position < port->too_old) {
        *failure = (struct ticket_failure){
            .outcome = FP8PIPE_OUTCOME_CANCELLED, .status = FP8PIPE_ETOOOLD, .too_old = true};
        snprintf(failure->sentence, sizeof(failure->sentence), "%s",
                 fp8pipe_strerror(FP8PIPE_ETOOOLD));
        found = true;
        goto unlock;
    }
    /* The last range that starts at or before the position, if any. */
    low = failed > TICKET_FAILURES ? failed - TICKET_FAILURES : 0;
    high = failed;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (port->failures[middle % TICKET_FAILURES].from <= position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low > (failed > TICKET_FAILURES ? failed - TICKET_FAILURES : 0)) {
        const struct ticket_failure *range = &port->failures[(low - 1) % TICKET_FAILURES];

        if (position < range->to) {
            *failure = *range;
            found = true;
        }
    }
unlock:
    pthread_mutex_unlock(&port->lock);
    return found;
}
