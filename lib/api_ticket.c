/* Public entry points about tickets, and what a pipe tells of itself. */
#include <ck_pr.h>
#include <stdio.h>

#include "fp8pipe_cuda.h"
#include "options.h"
#include "pipe.h"
#include "thread.h"

/* Enters, and checks a ticket that is not 0; leaves again when it is refused. */
static enum fp8pipe_status enter_with(struct fp8pipe *pipe, fp8pipe_ticket ticket)
{
    enum fp8pipe_status status = pipe_enter(pipe);

    if (status == FP8PIPE_OK && ticket != 0) {
        status = pipe_check_ticket(pipe, "ticket", ticket);
        if (status != FP8PIPE_OK) {
            pipe_leave(pipe);
        }
    }
    return status;
}

static enum fp8pipe_status check_mark(enum fp8pipe_mark mark)
{
    if (mark != FP8PIPE_ISSUED && mark != FP8PIPE_DONE) {
        return status_fail(FP8PIPE_EINVAL, "mark = %d: it is ISSUED or DONE", (int)mark);
    }
    return FP8PIPE_OK;
}

static void look_at(struct fp8pipe *pipe, fp8pipe_ticket ticket, struct look *look)
{
    struct event_ring *ring = &pipe->crew->rings[ticket_lane(ticket)];
    struct backend *backend = pipe->crew->backend;
    struct backend_scope scope;

    event_ring_look(ring, ticket_position(ticket), look);
    if (look->issued && !look->done) {
        backend->ops->enter(backend, &scope);
        event_ring_reap(ring);
        backend->ops->leave(backend, &scope);
        event_ring_look(ring, ticket_position(ticket), look);
    }
}

enum fp8pipe_status fp8pipe_state_get(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                      struct fp8pipe_state *state)
{
    struct fp8pipe_state filled = FP8PIPE_STATE_INIT;
    struct look look = {.issued = true, .done = true};
    enum fp8pipe_status status = options_check_out("state", state, sizeof(filled));

    if (status == FP8PIPE_OK) {
        status = enter_with(pipe, ticket);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (ticket != 0) {
        look_at(pipe, ticket, &look);
    }
    pipe_leave(pipe);
    if (look.failed && look.failure.too_old) {
        return status_fail(FP8PIPE_ETOOOLD,
                           "ticket = %#llx: it is older than the last %d failures "
                           "of its lane",
                           (unsigned long long)ticket, TICKET_FAILURES);
    }
    filled.issued = look.issued;
    filled.done = look.done;
    filled.outcome = look.failed ? look.failure.outcome : FP8PIPE_OUTCOME_OK;
    filled.status = look.failed ? look.failure.status : FP8PIPE_OK;
    filled.root = look.failed ? look.failure.root : 0;
    options_write(state, &filled, sizeof(filled));
    return FP8PIPE_OK;
}

enum fp8pipe_status fp8pipe_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                 enum fp8pipe_mark mark, int64_t timeout_ns)
{
    int64_t deadline_ns = ec_deadline_ns(timeout_ns);
    enum fp8pipe_status status = pipe_check_inside(true);

    if (status == FP8PIPE_OK) {
        status = check_mark(mark);
    }
    if (status == FP8PIPE_OK) {
        status = enter_with(pipe, ticket);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (ticket != 0) {
        status = pipe_wait(pipe, ticket, mark, deadline_ns);
    }
    pipe_leave(pipe);
    return status;
}

enum fp8pipe_status fp8pipe_drain(struct fp8pipe *pipe, int64_t timeout_ns)
{
    int64_t deadline_ns = ec_deadline_ns(timeout_ns);
    enum fp8pipe_status status = pipe_check_inside(true);
    uint64_t heads[FP8PIPE_LANES_MAX];
    struct look look;

    if (status == FP8PIPE_OK) {
        status = pipe_enter(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        heads[i] = ring_head(&pipe->ports[i].ring);
    }
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        if (heads[i] > pipe->ports[i].start &&
            !pipe_reach(pipe, ticket_make(pipe->number, i, heads[i] - 1), FP8PIPE_DONE, deadline_ns,
                        &look)) {
            status = status_fail(FP8PIPE_ETIMEDOUT, "timeout_ns = %lld: lane %u has not drained",
                                 (long long)timeout_ns, i);
            break;
        }
    }
    if (fault_status(&pipe->fault) != FP8PIPE_OK) {
        status = fault_refuse(&pipe->fault);
    }
    pipe_leave(pipe);
    return status;
}

enum fp8pipe_status fp8pipe_error_get(struct fp8pipe *pipe, fp8pipe_ticket ticket, char *buffer,
                                      size_t bytes)
{
    struct look look = {0};
    enum fp8pipe_status status;

    if (buffer == NULL || bytes == 0) {
        return status_fail(FP8PIPE_EINVAL,
                           "buffer = %p, bytes = %zu: it takes at least the "
                           "terminator",
                           (void *)buffer, bytes);
    }
    status = enter_with(pipe, ticket);
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (ticket != 0) {
        event_ring_look(&pipe->crew->rings[ticket_lane(ticket)], ticket_position(ticket), &look);
    }
    pipe_leave(pipe);
    snprintf(buffer, bytes, "%s", look.failed ? look.failure.sentence : "");
    return FP8PIPE_OK;
}

enum fp8pipe_status fp8pipe_defer(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                  enum fp8pipe_mark mark, fp8pipe_defer_fn *fn, void *arg,
                                  unsigned flags)
{
    enum fp8pipe_status status = pipe_check_inside(false);
    bool nonblock = (flags & FP8PIPE_NONBLOCK) != 0 || thread_inside() == THREAD_DEFER;

    if (status == FP8PIPE_OK) {
        status = check_mark(mark);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (fn == NULL) {
        return status_fail(FP8PIPE_EINVAL, "fn = NULL: it is needed");
    }
    if ((flags & ~FP8PIPE_NONBLOCK) != 0) {
        return status_fail(FP8PIPE_EINVAL, "flags = %#x: only FP8PIPE_NONBLOCK is known", flags);
    }
    status = enter_with(pipe, ticket);
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = completion_defer(&pipe->crew->completion, ticket, mark, fn, arg, nonblock);
    pipe_leave(pipe);
    return status;
}

enum fp8pipe_status fp8pipe_stream_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                        struct CUstream_st *stream)
{
    enum fp8pipe_status status = pipe_check_inside(true), outcome = FP8PIPE_OK;
    struct backend_scope scope;
    struct backend *backend;

    if (status == FP8PIPE_OK) {
        status = enter_with(pipe, ticket);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    backend = pipe->crew->backend;
    if (backend->ops->kind != FP8PIPE_BACKEND_CUDA) {
        status = status_fail(FP8PIPE_ENOTSUP, "stream = %p: a host pipe takes no streams",
                             (void *)stream);
    } else if (ticket != 0) {
        outcome = pipe_wait(pipe, ticket, FP8PIPE_ISSUED, EC_FOREVER);
        backend->ops->enter(backend, &scope);
        status = event_ring_wait_native(&pipe->crew->rings[ticket_lane(ticket)],
                                        ticket_position(ticket), stream);
        backend->ops->leave(backend, &scope);
    }
    pipe_leave(pipe);
    return status != FP8PIPE_OK ? status : outcome;
}

/* ---- What a pipe tells of itself ----------------------------------------------------------- */

enum fp8pipe_status fp8pipe_backend_get(struct fp8pipe *pipe, enum fp8pipe_backend *backend)
{
    enum fp8pipe_status status = pipe_check(pipe);

    if (status == FP8PIPE_OK && backend == NULL) {
        status = status_fail(FP8PIPE_EINVAL, "backend = NULL: it takes the answer");
    }
    if (status == FP8PIPE_OK) {
        *backend = pipe->backend;
    }
    return status;
}

enum fp8pipe_status fp8pipe_lanes_get(struct fp8pipe *pipe, int32_t *lanes)
{
    enum fp8pipe_status status = pipe_check(pipe);

    if (status == FP8PIPE_OK && lanes == NULL) {
        status = status_fail(FP8PIPE_EINVAL, "lanes = NULL: it takes the answer");
    }
    if (status == FP8PIPE_OK) {
        *lanes = (int32_t)pipe->lanes;
    }
    return status;
}

/* Inside `enter`. */
static void add_lane(struct fp8pipe *pipe, uint32_t index, struct fp8pipe_stats *stats)
{
    struct backend *backend = pipe->crew->backend;
    const struct lane *lane = &pipe->crew->lanes[index];
    const struct event_ring *events = &pipe->crew->rings[index];
    const struct ring *ring = &pipe->ports[index].ring;
    uint64_t tail = ring_tail(ring);
    struct backend_replay_stats replays;

    backend->ops->replay_stats(backend, lane->stream, &replays);
    stats->replays += replays.kept;
    stats->replays_evicted += replays.evicted;
    stats->replayed += replays.issued;
    stats->submitted += ck_pr_load_64(&ring->entries);
    stats->issued += ck_pr_load_64(&lane->issued);
    stats->done += ck_pr_load_64(&events->done_ops);
    stats->failed += ck_pr_load_64(&lane->failed);
    stats->cancelled += ck_pr_load_64(&lane->cancelled);
    stats->parked += ck_pr_load_64(&ring->parks);
    stats->full += ck_pr_load_64(&ring->full);
    stats->rescues += ck_pr_load_64(&ring->rescues);
    stats->queue_depth += ring_head(ring) - tail;
    stats->idle_ns += ck_pr_load_64(&lane->idle_ns);
    if (lane->started) {
        stats->launcher_cpu_ns += thread_cpu_ns(lane->thread);
    }
}

enum fp8pipe_status fp8pipe_stats_get(struct fp8pipe *pipe, int32_t lane,
                                      struct fp8pipe_stats *stats)
{
    struct fp8pipe_stats sum = FP8PIPE_STATS_INIT;
    struct backend_plan_stats plans = {0};
    struct backend_memory_stats memory = {0};
    enum fp8pipe_status status = options_check_out("stats", stats, sizeof(sum));
    struct backend_scope scope;
    struct backend *backend;

    if (status == FP8PIPE_OK) {
        status = pipe_enter(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (lane < -1 || lane >= (int32_t)pipe->lanes) {
        status = status_fail(FP8PIPE_EINVAL, "lane = %d: it is 0 to %u, or -1 for all", lane,
                             pipe->lanes - 1);
        goto leave;
    }
    backend = pipe->crew->backend;
    backend->ops->enter(backend, &scope);
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        if (lane == -1 || lane == (int32_t)i) {
            event_ring_reap(&pipe->crew->rings[i]);
            add_lane(pipe, i, &sum);
        }
    }
    backend->ops->plan_stats(backend, &plans);
    backend->ops->memory_stats(backend, &memory);
    backend->ops->leave(backend, &scope);
    sum.rescues += ck_pr_load_64(&pipe->crew->completion.rescues);
    sum.plans = plans.cached;
    sum.plans_evicted = plans.evicted;
    sum.plans_borrowed = plans.borrowed;
    sum.plans_refined = plans.refined;
    sum.memory_bytes = memory.bytes;
    sum.memory_peak_bytes = memory.peak_bytes;
    options_write(stats, &sum, sizeof(sum));
leave:
    pipe_leave(pipe);
    return status;
}
