#include "event_ring.h"

#include <ck_pr.h>
#include <stdlib.h>

/* How long a launcher sleeps between looks at a stream that it cannot go on without. */
#define EVENT_RING_NAP_NS 50000

enum fp8pipe_status event_ring_init(struct event_ring *ring, struct backend *backend,
                                    struct port *port, struct fault *fault, uint32_t slots)
{
    ring->backend = backend;
    ring->port = port;
    ring->fault = fault;
    ring->mask = slots - 1;
    ring->done_ops = 0;
    ring->wanted = EVENT_RING_NOBODY;
    ring->events = calloc(slots, sizeof(*ring->events));
    ring->slots = calloc(slots, sizeof(*ring->slots));
    if (ring->events == NULL || ring->slots == NULL) {
        free(ring->events);
        free(ring->slots);
        ring->events = NULL;
        ring->slots = NULL;
        return status_fail(FP8PIPE_ENOMEM, "ring_slots = %u: a lane's events are not to be had",
                           slots);
    }
    pthread_mutex_init(&ring->reap, NULL);
    return backend->ops->event_create(backend, &ring->spare);
}

/* The event of an issued position. */
static struct backend_event *event_of(const struct event_ring *ring, uint64_t position)
{
    struct backend_event *event = ring->events[position & ring->mask];

    return event != NULL ? event : ring->spare;
}

void event_ring_free(struct event_ring *ring)
{
    for (uint64_t i = 0; i <= ring->mask; i++) {
        if (ring->events[i] != NULL) {
            ring->backend->ops->event_destroy(ring->backend, ring->events[i]);
        }
    }
    if (ring->spare != NULL) {
        ring->backend->ops->event_destroy(ring->backend, ring->spare);
    }
    free(ring->events);
    free(ring->slots);
    pthread_mutex_destroy(&ring->reap);
}

/* Until all before `end` is done. */
static enum fp8pipe_status wait_done(struct event_ring *ring, uint64_t end)
{
    while (port_done(ring->port) < end) {
        event_ring_reap(ring);
        if (fault_status(ring->fault) != FP8PIPE_OK) {
            return fault_refuse(ring->fault);
        }
        if (port_done(ring->port) < end) {
            ec_nap(&ring->port->finished, ec_deadline_ns(EVENT_RING_NAP_NS));
        }
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status event_ring_prepare(struct event_ring *ring, uint64_t position, uint32_t slots)
{
    struct backend *backend = ring->backend;
    struct backend_event **event = &ring->events[position & ring->mask];

    if (position > ring->mask) {
        enum fp8pipe_status status = wait_done(ring, position - ring->mask);

        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    ring->slots[position & ring->mask] = (uint8_t)slots;
    /* Without an event of its own the op has the spare one: recorded again by another, it stands
     * for more work, never for less. */
    if (*event == NULL && backend->ops->event_create(backend, event) != FP8PIPE_OK) {
        *event = NULL;
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status event_ring_record(struct event_ring *ring, uint64_t position,
                                      struct fp8pipe_stream *stream)
{
    return ring->backend->ops->event_record(ring->backend, event_of(ring, position), stream);
}

enum fp8pipe_status event_ring_wait(struct event_ring *ring, uint64_t position,
                                    struct fp8pipe_stream *stream)
{
    if (port_done(ring->port) > position) {
        return FP8PIPE_OK;
    }
    return ring->backend->ops->stream_wait(ring->backend, stream, event_of(ring, position));
}

enum fp8pipe_status event_ring_wait_here(struct event_ring *ring, uint64_t position)
{
    return wait_done(ring, position + 1);
}

enum fp8pipe_status event_ring_wait_native(struct event_ring *ring, uint64_t position,
                                           void *native_stream)
{
    return ring->backend->ops->native_wait(ring->backend, native_stream, event_of(ring, position));
}

/* The last of `*ops` ops from a position on, or the last issued one; *ops becomes how many. */
static uint64_t ops_ahead(const struct event_ring *ring, uint64_t position, uint64_t issued,
                          uint64_t *ops)
{
    for (uint64_t i = 1; i < *ops; i++) {
        uint64_t next = position + ring->slots[position & ring->mask];

        if (next >= issued) {
            *ops = i;
            break;
        }
        position = next;
    }
    return position;
}

void event_ring_reap(struct event_ring *ring)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    uint64_t issued, done, step = 1, most = UINT64_MAX; /* ops that may have finished */

    pthread_mutex_lock(&ring->reap);
    issued = ring_tail(&ring->port->ring);
    done = ring->port->done;
    /* An event stands for all before it: steps that double until one is too long, and then halve
     * what is left, ask for far fewer events than have passed. */
    while (done < issued && most > 0 && fault_status(ring->fault) == FP8PIPE_OK) {
        int64_t look_ns = ring->timed ? ec_now_ns() : 0;
        uint64_t last = ops_ahead(ring, done, issued, &step);
        bool finished = false;

        status = ring->backend->ops->event_query(ring->backend, event_of(ring, last), &finished);
        if (status != FP8PIPE_OK || !finished) {
            ck_pr_store_64(&ring->busy_ns, (uint64_t)look_ns);
        }
        if (status != FP8PIPE_OK) {
            break;
        }
        if (finished) {
            done = last + ring->slots[last & ring->mask];
            ck_pr_store_64(&ring->done_ops, ring->done_ops + step);
            most -= most == UINT64_MAX ? 0 : step;
        } else {
            most = step - 1;
        }
        step = most == UINT64_MAX ? step * 2 : (most + 1) / 2;
    }
    if (done != ring->port->done) {
        port_done_set(ring->port, done);
    }
    pthread_mutex_unlock(&ring->reap);
    if (status != FP8PIPE_OK) {
        fault_raise(ring->fault, status_sentence());
    }
}

bool event_ring_finished(struct event_ring *ring, uint64_t position, int64_t *busy_ns)
{
    bool finished = port_done(ring->port) > position;

    /* An error is the reap's to find. */
    if (!finished && ring->backend->ops->event_query(ring->backend, event_of(ring, position),
                                                     &finished) != FP8PIPE_OK) {
        finished = false;
    }
    *busy_ns = (int64_t)ck_pr_load_64(&ring->busy_ns);
    return finished;
}

void event_ring_want(struct event_ring *ring, uint64_t position)
{
    uint64_t wanted = ck_pr_load_64(&ring->wanted);

    while (position < wanted && !ck_pr_cas_64_value(&ring->wanted, wanted, position, &wanted)) {
    }
    ck_pr_fence_memory();
}

bool event_ring_reached(struct event_ring *ring)
{
    uint64_t wanted = ck_pr_load_64(&ring->wanted);
    bool reached = true;

    if (wanted == EVENT_RING_NOBODY || ring_tail(&ring->port->ring) <= wanted) {
        return false;
    }
    /* Under the lock the place of what is not done is not reused. An error is the waiter's to
     * find. */
    pthread_mutex_lock(&ring->reap);
    if (ring->port->done <= wanted &&
        ring->backend->ops->event_query(ring->backend, event_of(ring, wanted), &reached) !=
            FP8PIPE_OK) {
        reached = true;
    }
    pthread_mutex_unlock(&ring->reap);
    if (reached) {
        ck_pr_cas_64(&ring->wanted, wanted, EVENT_RING_NOBODY);
    }
    return reached;
}

void event_ring_look(struct event_ring *ring, uint64_t position, struct look *look)
{
    *look = (struct look){.issued = ring_tail(&ring->port->ring) > position,
                          .done = port_done(ring->port) > position};

    if (!look->done && fault_status(ring->fault) != FP8PIPE_OK) {
        look->issued = true;
        look->done = true;
        look->failed = true;
        look->failure.outcome = FP8PIPE_OUTCOME_FAILED;
        look->failure.status = FP8PIPE_EDEVICE;
        fault_sentence(ring->fault, look->failure.sentence, sizeof(look->failure.sentence));
    } else if (look->issued) {
        look->failed = port_failure_find(ring->port, position, &look->failure);
    }
}
