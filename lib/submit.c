#include "submit.h"

#include <ck_pr.h>
#include <string.h>

_Static_assert(sizeof(struct op) + (DRAFT_NAMED + DRAFT_ORDER) * sizeof(fp8pipe_ticket) +
                       DRAFT_ENDED * sizeof(struct filling *) <=
                   RING_ENTRY_BYTES_MAX,
               "the longest lists fit behind the largest payload");

/* A ticket this close to its ring's head is the lane's latest op. */
#define SUBMIT_LATEST RING_ENTRY_SLOTS_MAX

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

/* Their names in sentences. */
static const char *const after_fields[FP8PIPE_AFTER_MAX] = {
    "submit.after[0]", "submit.after[1]", "submit.after[2]", "submit.after[3]",
    "submit.after[4]", "submit.after[5]", "submit.after[6]", "submit.after[7]",
};
_Static_assert(FP8PIPE_AFTER_MAX == 8, "each has its name");

/* The rules of draft_begin, each with its sentence. */
static enum fp8pipe_status check_submit(const struct fp8pipe *pipe,
                                        const struct fp8pipe_submit *submit, uint32_t known)
{
    enum fp8pipe_status status = pipe_check_inside(false);

    if (status == FP8PIPE_OK) {
        status = pipe_check(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
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
            status = pipe_check_ticket(pipe, after_fields[i], submit->after[i]);
            if (status != FP8PIPE_OK) {
                return status;
            }
        }
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status draft_copy_name(struct draft *draft, const char *name)
{
    memcpy(draft->entry.op.name, name, strnlen(name, FP8PIPE_NAME_MAX));
    return FP8PIPE_OK;
}

enum fp8pipe_status draft_begin_checked(struct draft *draft, struct fp8pipe *pipe,
                                        const struct fp8pipe_submit *submit, enum op_kind kind,
                                        size_t payload_bytes, uint32_t known)
{
    bool numbered = submit->lane != FP8PIPE_LANE_AUTO;
    enum fp8pipe_status status = check_submit(pipe, submit, known);

    if (status != FP8PIPE_OK) {
        return status;
    }
    if (fault_status(&pipe->fault) != FP8PIPE_OK) {
        return fault_refuse(&pipe->fault);
    }
    draft_start(draft, pipe, submit, kind, payload_bytes,
                numbered ? (uint32_t)submit->lane : choose_lane(pipe, submit), numbered);
    if (ck_pr_load_32(&pipe->tracing) != 0) {
        draft->entry.op.enqueued_ns = ec_now_ns();
    }
    if (submit->name != NULL) {
        draft_copy_name(draft, submit->name);
    }
    for (uint32_t i = 0; i < submit->after_count && status == FP8PIPE_OK; i++) {
        status = draft_after(draft, after_fields[i], submit->after[i]);
    }
    draft->submit = submit;
    draft->own_named = draft->entry.op.named;
    return status;
}

void draft_copy_arg(struct draft *draft, const void *arg, size_t bytes)
{
    if (bytes > 0) {
        memcpy(draft->entry.bytes + draft->payload_end, arg, bytes);
        draft->payload_end += (bytes + 7) / 8 * 8;
    }
}

enum fp8pipe_status draft_object_refuse(const struct draft *draft, const char *field,
                                        const struct object *object)
{
    return status_fail(FP8PIPE_EINVAL, "%s = %p: it is of pipe %u, this op is for pipe %u", field,
                       (const void *)object, object->pipe->number, draft->pipe->number);
}

enum fp8pipe_status draft_object(struct draft *draft, const char *field, struct object *object)
{
    if (object == NULL) {
        return FP8PIPE_OK;
    }
    if (object->pipe != draft->pipe) {
        return draft_object_refuse(draft, field, object);
    }
    assert(draft->object_count < DRAFT_OBJECTS);
    draft->object_count = object_set_add(draft->objects, draft->object_count, object);
    return FP8PIPE_OK;
}

enum fp8pipe_status draft_after_old(struct draft *draft, const char *field, fp8pipe_ticket ticket)
{
    struct port *port = &draft->pipe->ports[ticket_lane(ticket)];
    struct ticket_failure failure;

    if (ticket_position(ticket) < port_too_old(port)) {
        return status_fail(FP8PIPE_ETOOOLD,
                           "%s: its ticket %#llx is older than the last %d failures of its lane",
                           field, (unsigned long long)ticket, TICKET_FAILURES);
    }
    if (port_done(port) > ticket_position(ticket) &&
        !port_failure_find(port, ticket_position(ticket), &failure)) {
        return FP8PIPE_OK;
    }
    return draft_name(draft, ticket);
}

void draft_order_lane(struct draft *draft, fp8pipe_ticket ticket)
{
    if ((draft->entry.op.order > 0 && draft->order[draft->entry.op.order - 1] == ticket) ||
        port_done(&draft->pipe->ports[ticket_lane(ticket)]) > ticket_position(ticket)) {
        return;
    }
    assert(draft->entry.op.order < DRAFT_ORDER);
    draft->order[draft->entry.op.order++] = ticket;
}

/* Commit: drops a hold; the op sees to the memory if it was the last. NULL is ignored. */
static inline void draft_drop(struct draft *draft, struct filling *filling)
{
    if (filling != NULL && filling_drop(filling)) {
        draft_end(draft, filling);
    }
}

void tensor_let_go(struct draft *draft, struct fp8pipe_tensor *tensor)
{
    struct filling *held[TENSOR_HOLDS];

    tensor_empty(tensor, held);
    for (int i = 0; i < TENSOR_HOLDS; i++) {
        draft_drop(draft, held[i]);
    }
}

enum fp8pipe_status draft_filling_refuse(void)
{
    return status_fail(FP8PIPE_ENOMEM, "a filling's host memory is not to be had");
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

enum fp8pipe_status draft_after_filled_old(struct draft *draft, const char *field,
                                           const struct filling *filling)
{
    if (ck_pr_load_32(&filling->ready) != 0) {
        draft_order(draft, filling->filled_by);
        return FP8PIPE_OK;
    }
    return draft_after(draft, field, filling->filled_by);
}

/* Takes the words; whether all objects are open. */
static inline bool lock_objects(const struct draft *draft)
{
    unsigned closed = 0;

    for (uint32_t i = 0; i < draft->object_count; i++) {
        object_lock(draft->objects[i]);
        closed |= draft->objects[i]->closed;
    }
    return closed == 0;
}

/* Appends the lists to the payload; the size of the entry. */
static inline size_t finish_entry(struct draft *draft)
{
    struct op *op = &draft->entry.op;
    uint64_t *lists = (uint64_t *)(void *)(draft->entry.bytes + draft->payload_end);
    uint32_t named = op->named, order = op->order;
    size_t bytes = draft->payload_end + (named + order + op->ended) * sizeof(*lists);

    op->lists_at = (uint16_t)draft->payload_end;
    op->slots = (uint8_t)ring_slots_for(bytes);
    for (uint32_t i = 0; i < named; i++) {
        lists[i] = draft->named[i];
    }
    for (uint32_t i = 0; i < order; i++) {
        lists[named + i] = draft->order[i];
    }
    return bytes;
}

static __attribute__((noinline)) void mark_fillings(const struct draft *draft, uint64_t position)
{
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

/* With a claimed position: the op is in the ring when it returns, and the words are dropped. */
static inline void enqueue(struct draft *draft, const struct draft_calls *calls, void *arg,
                           uint64_t position, size_t bytes, fp8pipe_ticket *ticket)
{
    uint32_t lane = draft->lane;
    fp8pipe_ticket own = ticket_make(draft->pipe->number, lane, position);
    struct object **end = draft->objects + draft->object_count;

    if (ticket != NULL) {
        *ticket = own;
    }
    if (calls != NULL) {
        mark_fillings(draft, position);
        calls->commit(draft, arg, own);
        if (draft->entry.op.ended > 0) {
            finish_ended(draft);
        }
    }
    ring_publish(draft->ring, position, draft->entry.bytes, bytes);
    for (struct object **object = draft->objects; object < end; object++) {
        (*object)->uses[lane] = position + 1;
        object_unlock(*object);
    }
}

/* One try: everything under the words. RING_FULL, RING_IS_PAST: try again. */
static inline enum fp8pipe_status try_submit(struct draft *draft, const struct draft_calls *calls,
                                             void *arg, fp8pipe_ticket *ticket,
                                             enum ring_claim *claim)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    uint64_t position;
    size_t bytes;

    *claim = RING_IS_CLOSED;
    draft->entry.op.named = (uint8_t)draft->own_named;
    draft->entry.op.order = 0;
    draft->entry.op.ended = 0;
    draft->use_count = 0;
    draft->ended_count = 0;
    if (!lock_objects(draft)) {
        goto unlock;
    }
    if (calls != NULL) {
        status = calls->bind(draft, arg);
        if (status != FP8PIPE_OK) {
            goto unlock;
        }
    }
    bytes = finish_entry(draft);
    *claim = ring_claim_until(draft->ring, draft->entry.op.slots, draft->last, &position);
    if (*claim == RING_CLAIMED) {
        enqueue(draft, calls, arg, position, bytes, ticket);
        return FP8PIPE_OK;
    }
unlock:
    object_set_unlock(draft->objects, draft->object_count);
    return status;
}

static const char *after_field(const struct draft *draft, fp8pipe_ticket ticket)
{
    uint32_t i = 0;

    while (draft->submit->after[i] != ticket) {
        i++;
    }
    return after_fields[i];
}

/* Time has passed: looks at the marks of what the descriptor names, and lets binding do so. */
static enum fp8pipe_status name_again(struct draft *draft)
{
    uint32_t count = draft->own_named;
    enum fp8pipe_status status = FP8PIPE_OK;

    draft->recent = 0;
    draft->last = UINT64_MAX;
    draft->entry.op.named = 0;
    for (uint32_t i = 0; i < count && status == FP8PIPE_OK; i++) {
        status = draft_after(draft, after_field(draft, draft->named[i]), draft->named[i]);
    }
    draft->own_named = draft->entry.op.named;
    return status;
}

/* What is to be done about a claim that failed: OK: try again. */
CACHE_RARE static enum fp8pipe_status await_room(struct draft *draft, enum ring_claim claim)
{
    enum fp8pipe_status status;

    if (claim == RING_IS_CLOSED) {
        return status_fail(FP8PIPE_ECLOSED, "pipe %u is closed", draft->pipe->number);
    }
    if (claim == RING_FULL && (draft->nonblock || thread_inside() == THREAD_DEFER)) {
        return status_fail(FP8PIPE_EAGAIN, "submit.lane = %u: its ring is full", draft->lane);
    }
    status = name_again(draft);
    if (status == FP8PIPE_OK && claim == RING_FULL) {
        ring_wait_room(draft->ring, draft->entry.op.slots);
    }
    return status;
}

static enum fp8pipe_status submit_async(struct draft *draft, const struct draft_calls *calls,
                                        void *arg, fp8pipe_ticket *ticket)
{
    for (;;) {
        enum ring_claim claim;
        enum fp8pipe_status status = try_submit(draft, calls, arg, ticket, &claim);

        if (status != FP8PIPE_OK || claim == RING_CLAIMED) {
            return status;
        }
        status = await_room(draft, claim);
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
}

/* Under the port's lock from the claim to the issue: the ring is empty at both ends of it. */
CACHE_RARE static enum fp8pipe_status submit_inline(struct draft *draft,
                                                    const struct draft_calls *calls, void *arg,
                                                    fp8pipe_ticket *ticket)
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
    return draft->pipe->mode == FP8PIPE_INLINE ? submit_inline(draft, calls, arg, ticket)
                                               : submit_async(draft, calls, arg, ticket);
}
