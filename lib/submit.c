#include "submit.h"

#include <assert.h>
#include <ck_pr.h>
#include <string.h>

#include "thread.h"

_Static_assert(sizeof(struct op) + (DRAFT_NAMED + DRAFT_ORDER) * sizeof(fp8pipe_ticket) +
                       DRAFT_ENDED * sizeof(struct filling *) <=
                   RING_ENTRY_BYTES_MAX,
               "the longest lists fit behind the largest payload");

/* A ticket this close to its ring's head is the lane's latest op. */
#define SUBMIT_LATEST RING_ENTRY_SLOTS_MAX

/* Nor is one of the op's own lane, this close to its head, likely to be done. Its marks are not
 * looked at, whose cache lines launchers write: named, it costs the lane's launcher nothing. Of so
 * few ops no failure is forgotten. */
#define SUBMIT_RECENT 64

/* Continues the lane of a predecessor that is that lane's latest op, else takes the shorter queue
 * of two lanes. */
static uint32_t choose_lane(struct fp8pipe *pipe, const struct fp8pipe_submit *submit)
{
    uint32_t a, b;

    if (pipe->lanes == 1) {
        return 0;
    }
    for (uint32_t i = submit->after_count; i > 0; i--) {
        fp8pipe_ticket ticket = submit->after[i - 1];
        uint32_t lane = ticket_lane(ticket);

        if (ticket != 0 &&
            ring_head(&pipe->ports[lane].ring) - ticket_position(ticket) <= SUBMIT_LATEST) {
            return lane;
        }
    }
    a = ck_pr_faa_32(&pipe->next_lane, 1) % pipe->lanes;
    b = (a + 1) % pipe->lanes;
    return ring_head(&pipe->ports[b].ring) - ring_tail(&pipe->ports[b].ring) <
                   ring_head(&pipe->ports[a].ring) - ring_tail(&pipe->ports[a].ring)
               ? b
               : a;
}

static enum fp8pipe_status check_submit(const struct fp8pipe *pipe,
                                        const struct fp8pipe_submit *submit, uint32_t extra_flags)
{
    uint32_t known = FP8PIPE_NONBLOCK | FP8PIPE_RESUME | extra_flags;

    if (submit->lane < FP8PIPE_LANE_AUTO || submit->lane >= (int32_t)pipe->lanes) {
        return status_fail(FP8PIPE_EINVAL,
                           "submit.lane = %d: it is 0 to %d, or "
                           "FP8PIPE_LANE_AUTO",
                           submit->lane, (int)pipe->lanes - 1);
    }
    if ((submit->flags & ~known) != 0) {
        return status_fail(FP8PIPE_EINVAL, "submit.flags = %#x: this op takes %#x", submit->flags,
                           known);
    }
    if ((submit->flags & FP8PIPE_RESUME) != 0 && submit->lane == FP8PIPE_LANE_AUTO) {
        return status_fail(FP8PIPE_EINVAL,
                           "submit.flags = %#x: FP8PIPE_RESUME needs a lane given "
                           "by number",
                           submit->flags);
    }
    if (submit->after_count > FP8PIPE_AFTER_MAX) {
        return status_fail(FP8PIPE_EINVAL, "submit.after_count = %u: it is at most %d",
                           submit->after_count, FP8PIPE_AFTER_MAX);
    }
    if (submit->reserved != 0 || submit->reserved2[0] != 0 || submit->reserved2[1] != 0) {
        return status_fail(FP8PIPE_EINVAL, "submit.reserved = %u, %llu, %llu: they are 0",
                           submit->reserved, (unsigned long long)submit->reserved2[0],
                           (unsigned long long)submit->reserved2[1]);
    }
    if (submit->event != NULL && pipe->backend != FP8PIPE_BACKEND_CUDA) {
        return status_fail(FP8PIPE_EINVAL, "submit.event = %p: a host pipe takes no events",
                           submit->event);
    }
    for (uint32_t i = 0; i < submit->after_count; i++) {
        if (submit->after[i] != 0) {
            enum fp8pipe_status status = pipe_check_ticket(pipe, "submit.after", submit->after[i]);

            if (status != FP8PIPE_OK) {
                return status;
            }
        }
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status draft_begin(struct draft *draft, struct fp8pipe *pipe,
                                const struct fp8pipe_submit *submit, enum op_kind kind,
                                size_t payload_bytes, uint32_t extra_flags)
{
    struct op *op = &draft->entry.op;
    enum fp8pipe_status status = pipe_check_inside(false);

    if (status == FP8PIPE_OK) {
        status = pipe_check(pipe);
    }
    if (status == FP8PIPE_OK) {
        status = check_submit(pipe, submit, extra_flags);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (fault_status(&pipe->fault) != FP8PIPE_OK) {
        return fault_refuse(&pipe->fault);
    }
    draft->pipe = pipe;
    draft->nonblock = (submit->flags & FP8PIPE_NONBLOCK) != 0 || thread_inside() == THREAD_DEFER;
    draft->last_use = (submit->flags & FP8PIPE_LAST_USE) != 0;
    draft->lane =
        submit->lane == FP8PIPE_LANE_AUTO ? choose_lane(pipe, submit) : (uint32_t)submit->lane;
    draft->named_count = 0;
    draft->order_count = 0;
    draft->use_count = 0;
    draft->ended_room = 0;
    draft->ended_count = 0;
    draft->object_count = 0;
    draft_payload(draft, payload_bytes);
    op->kind = (uint8_t)kind;
    op->flags = (uint8_t)((submit->lane == FP8PIPE_LANE_AUTO ? 0u : OP_NUMBERED) |
                          ((submit->flags & FP8PIPE_RESUME) != 0 ? OP_RESUME : 0u) |
                          ((submit->flags & FP8PIPE_NO_AMAX) != 0 ? 0u : OP_FOLD));
    op->event = submit->event;
    op->enqueued_ns = ck_pr_load_32(&pipe->tracing) != 0 ? ec_now_ns() : 0;
    memset(op->name, 0, sizeof(op->name));
    if (submit->name != NULL) {
        memccpy(op->name, submit->name, '\0', FP8PIPE_NAME_MAX);
    }
    for (uint32_t i = 0; i < submit->after_count && status == FP8PIPE_OK; i++) {
        status = draft_after(draft, submit->after[i]);
    }
    draft->own_named = draft->named_count;
    return status;
}

void draft_copy_arg(struct draft *draft, const void *arg, size_t bytes)
{
    if (bytes > 0) {
        memcpy(draft->entry.bytes + draft->payload_end, arg, bytes);
        draft->payload_end += (bytes + 7) / 8 * 8;
    }
}

enum fp8pipe_status draft_object(struct draft *draft, const char *field, struct object *object)
{
    if (object == NULL) {
        return FP8PIPE_OK;
    }
    if (object->pipe != draft->pipe) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it is of pipe %u, this op is for pipe %u",
                           field, (void *)object, object->pipe->number, draft->pipe->number);
    }
    assert(draft->object_count < DRAFT_OBJECTS);
    draft->object_count = object_set_add(draft->objects, draft->object_count, object);
    return FP8PIPE_OK;
}

static bool is_recent(const struct draft *draft, fp8pipe_ticket ticket)
{
    return ticket_lane(ticket) == draft->lane &&
           ring_head(&draft->pipe->ports[draft->lane].ring) - ticket_position(ticket) <=
               SUBMIT_RECENT;
}

static void name(struct draft *draft, fp8pipe_ticket ticket)
{
    assert(draft->named_count < DRAFT_NAMED);
    draft->named[draft->named_count++] = ticket;
}

enum fp8pipe_status draft_after(struct draft *draft, fp8pipe_ticket ticket)
{
    struct ticket_failure failure;
    struct port *port;

    if (ticket == 0) {
        return FP8PIPE_OK;
    }
    if (is_recent(draft, ticket)) {
        name(draft, ticket);
        return FP8PIPE_OK;
    }
    port = &draft->pipe->ports[ticket_lane(ticket)];
    if (ticket_position(ticket) < port_too_old(port)) {
        return status_fail(FP8PIPE_ETOOOLD,
                           "ticket = %#llx: it is older than the last %d failures "
                           "of its lane",
                           (unsigned long long)ticket, TICKET_FAILURES);
    }
    if (port_done(port) > ticket_position(ticket) &&
        !port_failure_find(port, ticket_position(ticket), &failure)) {
        return FP8PIPE_OK;
    }
    name(draft, ticket);
    return FP8PIPE_OK;
}

void draft_order(struct draft *draft, fp8pipe_ticket ticket)
{
    uint32_t lane = ticket_lane(ticket);

    if (ticket == 0 || lane == draft->lane ||
        (draft->order_count > 0 && draft->order[draft->order_count - 1] == ticket) ||
        port_done(&draft->pipe->ports[lane]) > ticket_position(ticket)) {
        return;
    }
    assert(draft->order_count < DRAFT_ORDER);
    draft->order[draft->order_count++] = ticket;
}

void draft_use(struct draft *draft, struct filling *filling)
{
    if (filling != NULL) {
        assert(draft->use_count < DRAFT_USES);
        draft->uses[draft->use_count++] = filling;
    }
}

void draft_may_end(struct draft *draft, uint32_t fillings)
{
    draft->ended_room += fillings;
    assert(draft->ended_room <= DRAFT_ENDED);
}

void tensor_may_end(struct draft *draft, const struct fp8pipe_tensor *tensor)
{
    draft_may_end(draft,
                  (tensor->filling != NULL) + (tensor->part != NULL) + (tensor->version != NULL));
}

void draft_end(struct draft *draft, struct filling *filling)
{
    assert(draft->ended_count < draft->ended_room);
    draft->ended[draft->ended_count++] = filling;
}

/* Commit: drops a hold; the op sees to the memory if it was the last. */
static void draft_drop(struct draft *draft, struct filling *filling)
{
    if (filling_drop(filling)) {
        draft_end(draft, filling);
    }
}

enum fp8pipe_status draft_filling(struct draft *draft, uint32_t copies, struct filling **filling)
{
    *filling = filling_get(&draft->pipe->pool, copies == (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED));
    return *filling != NULL ? FP8PIPE_OK
                            : status_fail(FP8PIPE_ENOMEM, "a filling's host memory is not to be "
                                                          "had");
}

void draft_use_scaling(struct draft *draft, struct fp8pipe_scaling *scaling)
{
    draft_order(draft, scaling->writer);
}

void draft_used_scaling(struct draft *draft, struct fp8pipe_scaling *scaling, fp8pipe_ticket ticket)
{
    scaling->users[draft->lane] = ticket;
}

void draft_write_scaling(struct draft *draft, struct fp8pipe_scaling *scaling)
{
    draft_order(draft, scaling->writer);
    for (uint32_t i = 0; i < draft->pipe->lanes; i++) {
        draft_order(draft, scaling->users[i]);
    }
}

void draft_wrote_scaling(struct draft *draft, struct fp8pipe_scaling *scaling,
                         fp8pipe_ticket ticket)
{
    scaling->writer = ticket;
    memset(scaling->users, 0, draft->pipe->lanes * sizeof(*scaling->users));
}

enum fp8pipe_status draft_read_tensor(struct draft *draft, const struct fp8pipe_tensor *tensor,
                                      bool rowwise)
{
    struct filling *filling = tensor->filling;

    draft_use(draft, filling);
    if (rowwise) {
        draft_use(draft, tensor->part);
    }
    if (!is_recent(draft, filling->filled_by) && ck_pr_load_32(&filling->ready) != 0) {
        draft_order(draft, filling->filled_by);
        return FP8PIPE_OK;
    }
    return draft_after(draft, filling->filled_by);
}

void tensor_let_go(struct draft *draft, struct fp8pipe_tensor *tensor)
{
    struct filling *held[TENSOR_HOLDS];

    if (tensor->filling == NULL && tensor->version == NULL) {
        return;
    }
    tensor_empty(tensor, held);
    for (int i = 0; i < TENSOR_HOLDS; i++) {
        if (held[i] != NULL) {
            draft_drop(draft, held[i]);
        }
    }
}

void draft_fill(struct draft *draft, const struct fp8pipe_tensor *tensor, struct filling *filling)
{
    tensor_may_end(draft, tensor);
    draft_use(draft, filling);
    draft_use(draft, filling->part);
}

void draft_filled(struct draft *draft, struct fp8pipe_tensor *tensor, struct filling *filling,
                  fp8pipe_ticket ticket)
{
    filling->filled_by = ticket;
    tensor_let_go(draft, tensor);
    tensor->filling = filling;
    tensor->part = filling->part;
}

/* Appends the lists to the payload; the size of the entry. */
static size_t finish_entry(struct draft *draft)
{
    struct op *op = &draft->entry.op;
    uint64_t *lists = (uint64_t *)(void *)(draft->entry.bytes + draft->payload_end);

    op->lists_at = (uint16_t)draft->payload_end;
    op->named = (uint8_t)draft->named_count;
    op->order = (uint8_t)draft->order_count;
    op->ended = (uint8_t)draft->ended_room;
    for (uint32_t i = 0; i < draft->named_count; i++) {
        *lists++ = draft->named[i];
    }
    for (uint32_t i = 0; i < draft->order_count; i++) {
        *lists++ = draft->order[i];
    }
    lists += draft->ended_room;
    return (size_t)((unsigned char *)lists - draft->entry.bytes);
}

static void mark_uses(struct draft *draft, uint64_t position)
{
    for (uint32_t i = 0; i < draft->object_count; i++) {
        draft->objects[i]->uses[draft->lane] = position + 1;
    }
    for (uint32_t i = 0; i < draft->use_count; i++) {
        filling_use(draft->uses[i], draft->lane, position);
    }
}

/* Writes down what commit let go of; the op is as long as binding foresaw. */
static void finish_ended(struct draft *draft)
{
    struct op *op = &draft->entry.op;
    struct filling **ended = (struct filling **)(void *)(op_order(op) + op->order);

    for (uint32_t i = 0; i < draft->ended_count; i++) {
        ended[i] = draft->ended[i];
    }
    op->ended = (uint8_t)draft->ended_count;
}

/* One try: everything under the words. RING_FULL: try again. */
static enum fp8pipe_status try_submit(struct draft *draft, const struct draft_calls *calls,
                                      void *arg, fp8pipe_ticket *ticket, uint32_t *slots,
                                      enum ring_claim *claim)
{
    struct port *port = &draft->pipe->ports[draft->lane];
    enum fp8pipe_status status = FP8PIPE_OK;
    uint64_t position;
    size_t bytes;

    *claim = RING_IS_CLOSED;
    object_set_lock(draft->objects, draft->object_count);
    draft->named_count = draft->own_named;
    draft->order_count = 0;
    draft->use_count = 0;
    draft->ended_room = 0;
    for (uint32_t i = 0; i < draft->object_count; i++) {
        if (draft->objects[i]->closed) {
            goto unlock;
        }
    }
    if (calls != NULL) {
        status = calls->bind(draft, arg);
    }
    if (status != FP8PIPE_OK) {
        goto unlock;
    }
    bytes = finish_entry(draft);
    *slots = ring_slots_for(bytes);
    draft->entry.op.slots = (uint8_t)*slots;
    *claim = ring_claim(&port->ring, *slots, &position);
    if (*claim == RING_CLAIMED) {
        *ticket = ticket_make(draft->pipe->number, draft->lane, position);
        mark_uses(draft, position);
        if (calls != NULL) {
            calls->commit(draft, arg, *ticket);
            finish_ended(draft);
        }
        ring_publish(&port->ring, position, draft->entry.bytes, bytes);
    }
unlock:
    object_set_unlock(draft->objects, draft->object_count);
    return status;
}

static enum fp8pipe_status submit_async(struct draft *draft, const struct draft_calls *calls,
                                        void *arg, fp8pipe_ticket *ticket)
{
    struct port *port = &draft->pipe->ports[draft->lane];

    for (;;) {
        enum ring_claim claim;
        uint32_t slots = 0;
        enum fp8pipe_status status = try_submit(draft, calls, arg, ticket, &slots, &claim);

        if (status != FP8PIPE_OK || claim == RING_CLAIMED) {
            return status;
        }
        if (claim == RING_IS_CLOSED) {
            return status_fail(FP8PIPE_ECLOSED, "pipe %u is closed", draft->pipe->number);
        }
        if (draft->nonblock) {
            return status_fail(FP8PIPE_EAGAIN, "submit.lane = %u: its ring is full", draft->lane);
        }
        ring_wait_room(&port->ring, slots);
    }
}

/* Under the port's lock from the claim to the issue: the ring is empty at both ends of it. */
static enum fp8pipe_status submit_inline(struct draft *draft, const struct draft_calls *calls,
                                         void *arg, fp8pipe_ticket *ticket)
{
    struct fp8pipe *pipe = draft->pipe;
    struct port *port = &pipe->ports[draft->lane];
    enum fp8pipe_status status = FP8PIPE_OK;
    struct backend_scope scope;
    struct backend *backend;

    pthread_mutex_lock(&port->inline_mutex);
    if ((ck_pr_load_64(&port->ring.head) & RING_CLOSED) != 0) {
        status = status_fail(FP8PIPE_ECLOSED, "pipe %u is closed", pipe->number);
        goto unlock;
    }
    backend = pipe->crew->backend;
    backend->ops->enter(backend, &scope);
    if (pipe->native_streams) {
        status = backend->ops->stream_check(backend, pipe->crew->lanes[draft->lane].stream);
    }
    if (status == FP8PIPE_OK) {
        status = submit_async(draft, calls, arg, ticket);
    }
    if (status == FP8PIPE_OK) {
        lane_run(&pipe->crew->lanes[draft->lane]);
    }
    backend->ops->leave(backend, &scope);
unlock:
    pthread_mutex_unlock(&port->inline_mutex);
    return status;
}

enum fp8pipe_status draft_submit(struct draft *draft, const struct draft_calls *calls, void *arg,
                                 fp8pipe_ticket *ticket)
{
    enum fp8pipe_status status;
    fp8pipe_ticket own;

    status = draft->pipe->mode == FP8PIPE_INLINE ? submit_inline(draft, calls, arg, &own)
                                                 : submit_async(draft, calls, arg, &own);
    if (status == FP8PIPE_OK && ticket != NULL) {
        *ticket = own;
    }
    return status;
}
