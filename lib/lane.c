#include "lane.h"

#include <ck_pr.h>
#include <stdio.h>

#include "ec.h"
#include "exec.h"
#include "thread.h"

static fp8pipe_ticket own_ticket(const struct lane *lane, uint64_t position)
{
    return ticket_make(lane->crew->pipe, lane->index, position);
}

/* Parks until the op of a ticket is issued. */
static void wait_issued(struct lane *lane, fp8pipe_ticket ticket)
{
    struct port *port = &lane->crew->ports[ticket_lane(ticket)];

    if (port != lane->port) {
        ring_wait_consumed(&port->ring, ticket_position(ticket), EC_FOREVER);
    }
}

/* Waits for all predecessors to be issued; true if a named one failed. */
static bool named_failed(struct lane *lane, const struct op *op, struct ticket_failure *failure)
{
    const fp8pipe_ticket *named = op_named(op), *order = op_order(op);
    bool failed = false;

    for (uint32_t i = 0; i < op->order; i++) {
        wait_issued(lane, order[i]);
    }
    for (uint32_t i = 0; i < op->named; i++) {
        wait_issued(lane, named[i]);
        failed = failed || port_failure_find(&lane->crew->ports[ticket_lane(named[i])],
                                             ticket_position(named[i]), failure);
    }
    return failed;
}

/* Makes the stream wait for a predecessor, if that is of another lane. */
static enum fp8pipe_status wait_for(struct lane *lane, fp8pipe_ticket ticket)
{
    uint32_t index = ticket_lane(ticket);

    return index == lane->index
               ? FP8PIPE_OK
               : event_ring_wait(&lane->crew->rings[index], ticket_position(ticket), lane->stream);
}

/*
 * The library's own edges. Objects remember their last writer alone, so a writer's event stands for
 * all that it came after, whatever becomes of the writer: an edge that the stream cannot be made to
 * wait for is waited for here.
 */
static enum fp8pipe_status wait_for_order(struct lane *lane, const struct op *op)
{
    const fp8pipe_ticket *order = op_order(op);
    enum fp8pipe_status status = FP8PIPE_OK;

    for (uint32_t i = 0; i < op->order; i++) {
        if (wait_for(lane, order[i]) != FP8PIPE_OK) {
            enum fp8pipe_status waited = event_ring_wait_here(
                &lane->crew->rings[ticket_lane(order[i])], ticket_position(order[i]));

            status = status != FP8PIPE_OK ? status : waited;
        }
    }
    return status;
}

/* Makes the stream wait for what comes before the op. */
static enum fp8pipe_status wait_on_stream(struct lane *lane, const struct op *op, bool cancelled)
{
    struct backend *backend = lane->crew->backend;
    const fp8pipe_ticket *named = op_named(op);
    enum fp8pipe_status status = wait_for_order(lane, op);

    if (cancelled) {
        return status;
    }
    for (uint32_t i = 0; i < op->named && status == FP8PIPE_OK; i++) {
        status = wait_for(lane, named[i]);
    }
    if (status == FP8PIPE_OK && op->event != NULL) {
        status = backend->ops->stream_wait_native(backend, lane->stream, op->event);
    }
    return status;
}

static struct ticket_failure failure_of(struct lane *lane, const struct op *op, uint64_t position,
                                        enum fp8pipe_status status)
{
    struct ticket_failure failure = {
        .outcome = FP8PIPE_OUTCOME_FAILED,
        .status = status,
        .root = own_ticket(lane, position),
    };

    snprintf(failure.sentence, sizeof(failure.sentence), "%s: %s", op_label(op), status_sentence());
    return failure;
}

/* Whether the op must not run, and why. */
static bool must_cancel(struct lane *lane, const struct op *op, struct ticket_failure *failure)
{
    bool cancel = named_failed(lane, op, failure);

    if (!cancel && lane->lane_broken && (op->flags & OP_NUMBERED) != 0 &&
        (op->flags & OP_RESUME) == 0) {
        *failure = lane->broken_by;
        cancel = true;
    }
    if (!cancel && ck_pr_load_32(&lane->crew->cancel) != 0) {
        *failure = (struct ticket_failure){.status = FP8PIPE_ECANCELED};
        snprintf(failure->sentence, sizeof(failure->sentence), "%s",
                 fp8pipe_strerror(FP8PIPE_ECANCELED));
        cancel = true;
    }
    failure->outcome = FP8PIPE_OUTCOME_CANCELLED;
    failure->too_old = false; /* of the predecessor, not of this op */
    return cancel;
}

/* Lane order: what this op's outcome means for the next ones submitted to the lane by number. */
static void follow_lane_order(struct lane *lane, const struct op *op, bool failed,
                              const struct ticket_failure *failure)
{
    if ((op->flags & OP_NUMBERED) == 0) {
        return;
    }
    if (failed) {
        lane->lane_broken = true;
        lane->broken_by = *failure;
    } else {
        lane->lane_broken = false;
    }
}

/* Gives back what the op's submit let go of. */
static void release_ended(struct lane *lane, const struct op *op, struct issue *issue)
{
    struct filling *const *ended = op_ended(op);

    for (uint32_t i = 0; i < op->ended; i++) {
        /* Waiting here for other lanes' uses would hold up this lane's next ops. */
        if (filling_uses(ended[i], issue) == FILLING_DONE) {
            filling_release(ended[i], issue);
        } else {
            completion_bury(&lane->crew->completion, ended[i]);
        }
    }
}

static void count(uint64_t *counter)
{
    ck_pr_store_64(counter, *counter + 1);
}

static void keep_failure(struct lane *lane, const struct op *op, uint64_t position,
                         const struct ticket_failure *failure)
{
    port_failure_keep(lane->port, position, op->slots, failure);
    if (failure->outcome == FP8PIPE_OUTCOME_CANCELLED) {
        count(&lane->cancelled);
        return;
    }
    count(&lane->failed);
    log_line(lane->crew->log, FP8PIPE_LOG_ERROR, "ticket %#llx (lane %u) failed: %s: %s",
             (unsigned long long)failure->root, lane->index, fp8pipe_status_name(failure->status),
             failure->sentence);
}

/*
 * Adds, before an op is issued, the time in which the stream may have had nothing to do: since the
 * previous issue, or since somebody last saw the stream busy.
 */
static void count_idle(struct lane *lane)
{
    struct event_ring *ring = &lane->crew->rings[lane->index];
    int64_t from_ns, now_ns;

    if (!lane->measure_idle || lane->previous == 0 ||
        !event_ring_finished(ring, lane->previous, &from_ns)) {
        return;
    }
    now_ns = ec_now_ns();
    from_ns = from_ns > lane->idle_from_ns ? from_ns : lane->idle_from_ns;
    if (now_ns > from_ns) {
        ck_pr_store_64(&lane->idle_ns, lane->idle_ns + (uint64_t)(now_ns - from_ns));
    }
}

static void end_issue(struct lane *lane, uint64_t position, struct trace_record *record,
                      const struct ticket_failure *failure)
{
    if (lane->measure_idle) {
        lane->previous = position;
        lane->idle_from_ns = ec_now_ns();
    }
    if (record != NULL) {
        record->outcome = (uint8_t)failure->outcome;
        record->status = (uint8_t)failure->status;
        record->issued_ns = ec_now_ns();
    }
}

static void issue_op(struct lane *lane, const struct op *op, uint64_t position)
{
    struct crew *crew = lane->crew;
    struct event_ring *ring = &crew->rings[lane->index];
    struct ticket_failure failure = {0};
    struct issue issue = {
        .backend = crew->backend,
        .stream = lane->stream,
        .lane = lane->index,
        .lanes = crew->count,
        .position = position,
        .rings = crew->rings,
        .own_amax = lane->own_amax,
        .gemm_amax = lane->gemm_amax,
    };
    struct trace_record *record =
        trace_op(&crew->trace, &lane->trace_until, op, own_ticket(lane, position));
    enum fp8pipe_status status;
    bool failed;

    status = event_ring_prepare(ring, position, op->slots);
    failed = must_cancel(lane, op, &failure);
    count_idle(lane);
    if (record != NULL) {
        record->ready_ns = ec_now_ns();
    }
    crew->backend->ops->range_push(crew->backend, op_label(op));
    if (status == FP8PIPE_OK && fault_status(crew->fault) != FP8PIPE_OK) {
        status = fault_refuse(crew->fault);
    }
    if (status == FP8PIPE_OK) {
        status = wait_on_stream(lane, op, failed);
    }
    if (!failed) {
        if (status == FP8PIPE_OK) {
            trace_start(record, crew->backend, lane->stream);
            status = exec_op(&issue, op, own_ticket(lane, position));
            trace_end(record, crew->backend, lane->stream);
        }
        if (status != FP8PIPE_OK) {
            failed = true;
            failure = failure_of(lane, op, position, status);
        }
    }
    if (fault_status(crew->fault) == FP8PIPE_OK &&
        event_ring_record(ring, position, lane->stream) != FP8PIPE_OK) {
        fault_raise(crew->fault, status_sentence());
    }
    /* Once the pipe has failed, the fault speaks for every op that is not done. */
    if (failed && fault_status(crew->fault) == FP8PIPE_OK) {
        keep_failure(lane, op, position, &failure);
    }
    follow_lane_order(lane, op, failed, &failure);
    release_ended(lane, op, &issue);
    crew->backend->ops->range_pop(crew->backend);
    end_issue(lane, position, record, failed ? &failure : &(struct ticket_failure){0});
    count(&lane->issued);
    ring_advance(&lane->port->ring, op->slots);
    completion_notify(&crew->completion);
}

void lane_run(struct lane *lane)
{
    const struct op *op;

    while ((op = ring_peek(&lane->port->ring)) != NULL) {
        issue_op(lane, op, lane->port->ring.tail);
    }
}

static void *lane_main(void *arg)
{
    struct lane *lane = arg;
    struct backend *backend = lane->crew->backend;
    struct backend_scope scope;

    backend->ops->enter(backend, &scope);
    while (!ring_drained(&lane->port->ring)) {
        lane_run(lane);
        ring_wait_entry(&lane->port->ring);
    }
    backend->ops->leave(backend, &scope);
    return NULL;
}

enum fp8pipe_status lane_start(struct lane *lane, int cpu)
{
    enum fp8pipe_status status;
    char name[16];

    snprintf(name, sizeof(name), "fp8pipe-%u", lane->index);
    status = thread_start(&lane->thread, name, cpu, lane_main, lane);
    lane->started = status == FP8PIPE_OK;
    return status;
}
