#include <ck_pr.h>

#include "pipe.h"

/* The longest sleep between looks at a backend that is polled. */
#define WAIT_POLL_NS_MAX INT64_C(1000000)

/* Between looks while spinning: about a microsecond. */
#define WAIT_PAUSES_MAX 32u

enum fp8pipe_status pipe_check_ticket(const struct fp8pipe *pipe, const char *field,
                                      fp8pipe_ticket ticket)
{
    uint64_t position = ticket_position(ticket);
    const struct port *port;

    if (ticket_pipe(ticket) != pipe->number) {
        return status_fail(FP8PIPE_EINVAL, "%s = %#llx: it is a ticket of pipe %u, this is pipe %u",
                           field, (unsigned long long)ticket, ticket_pipe(ticket), pipe->number);
    }
    if (ticket_lane(ticket) >= pipe->lanes) {
        return status_fail(FP8PIPE_EINVAL, "%s = %#llx: it names lane %u of %u", field,
                           (unsigned long long)ticket, ticket_lane(ticket), pipe->lanes);
    }
    port = &pipe->ports[ticket_lane(ticket)];
    if (position < port->start) {
        return status_fail(FP8PIPE_ECLOSED,
                           "%s = %#llx: it is a ticket of an earlier pipe, which "
                           "is closed",
                           field, (unsigned long long)ticket);
    }
    if (position >= ring_head(&port->ring)) {
        return status_fail(FP8PIPE_EINVAL, "%s = %#llx: it was not given out yet", field,
                           (unsigned long long)ticket);
    }
    if (position < port_too_old(port)) {
        return status_fail(FP8PIPE_ETOOOLD,
                           "%s = %#llx: it is older than the last %d failures of "
                           "its lane",
                           field, (unsigned long long)ticket, TICKET_FAILURES);
    }
    return FP8PIPE_OK;
}

struct mark_wait {
    struct event_ring *ring;
    uint64_t position;
};

/* Whether the op is issued or done in the sense of event_ring_look, without its outcome: a failed
 * pipe speaks for every op. */
static bool issued_ready(void *arg)
{
    struct mark_wait *wait = arg;

    return ring_tail(&wait->ring->port->ring) > wait->position ||
           fault_status(wait->ring->fault) != FP8PIPE_OK;
}

static bool is_done(const struct mark_wait *wait)
{
    return port_done(wait->ring->port) > wait->position ||
           fault_status(wait->ring->fault) != FP8PIPE_OK;
}

/* Reaps itself: the completion thread may be inside a defer for any time. But not before the op is
 * issued: a device's answers cost its launcher, which is in the driver at the same time. */
static bool done_ready(struct mark_wait *wait)
{
    if (!is_done(wait) && ring_tail(&wait->ring->port->ring) > wait->position) {
        event_ring_reap(wait->ring);
    }
    return is_done(wait);
}

/* Looks in ever longer steps, for each takes from the launcher the cache lines of its marks. */
static bool spin_done(struct mark_wait *wait, int64_t end_ns)
{
    uint32_t pauses = 1;
    bool done;

    while (!(done = done_ready(wait)) && ec_now_ns() < end_ns) {
        for (uint32_t i = 0; i < pauses; i++) {
            ck_pr_stall();
        }
        pauses = pauses < WAIT_PAUSES_MAX ? pauses * 2 : pauses;
    }
    return done;
}

/* True when it is done. Inside `enter`. */
static bool wait_done(struct fp8pipe *pipe, struct mark_wait *wait, int64_t deadline_ns)
{
    struct port *port = wait->ring->port;
    int64_t poll_ns = pipe->crew->backend->ops->poll_ns;
    int64_t spin_end = ec_deadline_ns(port->ring.spin_ns);
    bool done;

    if (spin_end > deadline_ns) {
        spin_end = deadline_ns;
    }
    done = spin_done(wait, spin_end);
    if (poll_ns > 0) {
        while (!done && ec_now_ns() < deadline_ns) {
            int64_t nap_end = ec_deadline_ns(poll_ns);

            ec_nap(&port->finished, nap_end < deadline_ns ? nap_end : deadline_ns);
            done = done_ready(wait);
            /* Long waits need not be noticed that soon. */
            poll_ns = poll_ns * 2 < WAIT_POLL_NS_MAX ? poll_ns * 2 : WAIT_POLL_NS_MAX;
        }
    } else if (!done) {
        done =
            completion_await_done(&pipe->crew->completion, wait->ring, wait->position, deadline_ns);
    }
    return done;
}

bool pipe_reach(struct fp8pipe *pipe, fp8pipe_ticket ticket, enum fp8pipe_mark mark,
                int64_t deadline_ns, struct look *look)
{
    struct crew *crew = pipe->crew;
    struct mark_wait wait = {&crew->rings[ticket_lane(ticket)], ticket_position(ticket)};
    struct backend_scope scope;
    bool reached;

    event_ring_look(wait.ring, wait.position, look);
    reached = mark == FP8PIPE_ISSUED ? look->issued : look->done;
    if (!reached && mark == FP8PIPE_ISSUED) {
        struct ring *ring = &wait.ring->port->ring;

        reached = ec_await(&ring->consumed, issued_ready, &wait, ring->spin_ns, deadline_ns,
                           &ring->rescues);
    } else if (!reached) {
        crew->backend->ops->enter(crew->backend, &scope);
        reached = wait_done(pipe, &wait, deadline_ns);
        crew->backend->ops->leave(crew->backend, &scope);
    }
    if (reached) {
        event_ring_look(wait.ring, wait.position, look);
    }
    return reached;
}

enum fp8pipe_status pipe_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket, enum fp8pipe_mark mark,
                              int64_t deadline_ns)
{
    struct look look;

    if (!pipe_reach(pipe, ticket, mark, deadline_ns, &look)) {
        return status_fail(FP8PIPE_ETIMEDOUT, "ticket = %#llx: it did not reach the mark in time",
                           (unsigned long long)ticket);
    }
    if (look.failed && look.failure.outcome == FP8PIPE_OUTCOME_CANCELLED &&
        look.failure.root != 0) {
        return status_fail(look.failure.status,
                           "ticket = %#llx: cancelled, ticket %#llx failed: %s",
                           (unsigned long long)ticket, (unsigned long long)look.failure.root,
                           look.failure.sentence);
    }
    if (look.failed) {
        return status_fail(look.failure.status, "ticket = %#llx: %s", (unsigned long long)ticket,
                           look.failure.sentence);
    }
    return FP8PIPE_OK;
}
