/*
 * The caller's part of an op: check, copy, publish, wake.
 *
 * A draft is an op being put together on the caller's stack. draft_begin checks what all ops share
 * and chooses the lane, draft_open reads the op's struct before that; the entry point checks its
 * descriptor and fills the payload; draft_submit then, under the words of the objects that the
 * draft names: calls `bind`, which reads the objects and adds edges and uses (it may be called
 * again, and changes nothing); claims the ring position; calls `commit`, which changes the objects
 * and cannot fail; publishes.
 *
 * No allocation, no backend call (but in INLINE), no lock but the words.
 */
#ifndef LIB_SUBMIT_H
#define LIB_SUBMIT_H

#include <assert.h>
#include <ck_pr.h>
#include <string.h>

#include "cache.h"
#include "check.h"
#include "linear.h"
#include "op.h"
#include "options.h"
#include "pipe.h"
#include "scaling.h"
#include "tensor.h"
#include "thread.h"

#define DRAFT_OBJECTS 6
#define DRAFT_NAMED (FP8PIPE_AFTER_MAX + 4)
#define DRAFT_ORDER (FP8PIPE_LANES_MAX + 4)
#define DRAFT_USES 6
#define DRAFT_ENDED 8

/* An op of the draft's own lane, this close to its head, is not likely to be done. Its marks are
 * not looked at, whose cache lines launchers write: named, it costs the lane's launcher nothing.
 * So few ops do not make a lane forget its outcome. Nor do those that claim meanwhile: where so
 * many have come that they might, the draft looks at the marks after all before it claims. */
#define DRAFT_RECENT 64

/* How the structs of all ops start: the shortest that an older header can have had. */
struct draft_head {
    size_t size;
    struct fp8pipe_submit submit;
};

#define DRAFT_LEAST sizeof(struct draft_head)

struct draft {
    struct fp8pipe *pipe;
    struct ring *ring; /* of the lane */
    uint32_t lane;
    bool nonblock;
    bool last_use;
    uint64_t recent;    /* DRAFT_RECENT; 0 once the marks of all are to be looked at */
    uint64_t last;      /* position that the op may have: see draft_name_recent */
    uint32_t own_named; /* from the descriptor's `after` */
    const struct fp8pipe_submit *submit; /* with own_named: the descriptor's, for sentences */
    uint32_t object_count;
    uint32_t use_count;
    uint32_t ended_count;
    size_t payload_end;
    struct object *objects[DRAFT_OBJECTS];
    fp8pipe_ticket named[DRAFT_NAMED];
    fp8pipe_ticket order[DRAFT_ORDER];
    struct filling *uses[DRAFT_USES];
    struct filling *ended[DRAFT_ENDED];
    /* Binding counts its lists in the op: `ended` is what commit may let go of, until it has. */
    union {
        struct op op;
        unsigned char bytes[RING_ENTRY_BYTES_MAX];
        uint64_t aligned;
    } entry;
};

/* The payload is longer than draft_begin was told: `bytes`. */
static inline void draft_payload(struct draft *draft, size_t bytes)
{
    draft->payload_end = (offsetof(struct op, u) + bytes + 7) / 8 * 8;
}

/* What most submits are: all rules for one hold, and nothing is asked beyond that.
 * The fault is looked at for itself, not for what was written before it. */
static inline bool draft_plain(const struct fp8pipe *pipe, const struct fp8pipe_submit *submit,
                               uint32_t known)
{
    return thread_inside() == THREAD_OUTSIDE && pipe != NULL &&
           ck_pr_load_32(&pipe->state) == PIPE_OPEN && pipe->generation == table_fork_generation &&
           (uint32_t)submit->lane < pipe->lanes && (submit->flags & ~known) == 0 &&
           (submit->reserved2[0] | submit->reserved2[1] | (uintptr_t)submit->event |
            submit->reserved | submit->after_count | ck_pr_load_32(&pipe->tracing) |
            ck_pr_load_32(&pipe->fault.status)) == 0;
}

/* All but the name and the predecessors. */
static inline void draft_start(struct draft *draft, struct fp8pipe *pipe,
                               const struct fp8pipe_submit *submit, enum op_kind kind,
                               size_t payload_bytes, uint32_t lane, bool numbered)
{
    uint32_t flags = submit->flags;
    struct op *op = &draft->entry.op;

    draft->pipe = pipe;
    draft->ring = &pipe->ports[lane].ring;
    draft->lane = lane;
    draft->nonblock = (flags & FP8PIPE_NONBLOCK) != 0;
    draft->last_use = (flags & FP8PIPE_LAST_USE) != 0;
    draft->recent = DRAFT_RECENT;
    draft->last = UINT64_MAX;
    draft->own_named = 0;
    draft->entry.op.named = 0;
    draft->object_count = 0;
    draft_payload(draft, payload_bytes);
    op->kind = (uint8_t)kind;
    op->flags =
        (uint8_t)((numbered ? OP_NUMBERED : 0u) | ((flags & FP8PIPE_RESUME) != 0 ? OP_RESUME : 0u) |
                  ((flags & FP8PIPE_NO_AMAX) != 0 ? 0u : OP_FOLD));
    op->event = submit->event;
    op->enqueued_ns = 0;
    memset(op->name, 0, sizeof(op->name));
}

/* draft_begin of any submit; known: all flags that the op allows. */
enum fp8pipe_status draft_begin_checked(struct draft *draft, struct fp8pipe *pipe,
                                        const struct fp8pipe_submit *submit, enum op_kind kind,
                                        size_t payload_bytes, uint32_t known);

/* Its name; OK. */
enum fp8pipe_status draft_copy_name(struct draft *draft, const char *name);

/* Extra flags that an op allows besides NONBLOCK and RESUME. */
static inline enum fp8pipe_status draft_begin(struct draft *draft, struct fp8pipe *pipe,
                                              const struct fp8pipe_submit *submit,
                                              enum op_kind kind, size_t payload_bytes,
                                              uint32_t extra_flags)
{
    uint32_t known = FP8PIPE_NONBLOCK | FP8PIPE_RESUME | extra_flags;

    if (!draft_plain(pipe, submit, known)) {
        return draft_begin_checked(draft, pipe, submit, kind, payload_bytes, known);
    }
    draft_start(draft, pipe, submit, kind, payload_bytes, (uint32_t)submit->lane, true);
    return submit->name == NULL ? FP8PIPE_OK : draft_copy_name(draft, submit->name);
}

/* An op, for draft_open. */
struct draft_kind {
    enum op_kind kind;
    uint32_t flags;       /* that it takes besides those of all ops */
    size_t payload_bytes; /* of the shortest payload */
    const void *defaults; /* of the op's struct */
    size_t bytes;
};

/* Reads the op's struct as by options_read, and begins its draft. */
static inline enum fp8pipe_status draft_open(struct draft *draft, struct fp8pipe *pipe,
                                             const struct draft_kind *kind, const void *op,
                                             void *room, const void **given)
{
    enum fp8pipe_status status =
        options_read("op", op, kind->defaults, kind->bytes, DRAFT_LEAST, room, given);

    return status != FP8PIPE_OK
               ? status
               : draft_begin(draft, pipe, &((const struct draft_head *)*given)->submit, kind->kind,
                             kind->payload_bytes, kind->flags);
}

/* Copies bytes of the caller's, checked by check_arg, behind the payload. */
void draft_copy_arg(struct draft *draft, const void *arg, size_t bytes);

/* Refuses an object of another pipe. */
enum fp8pipe_status draft_object_refuse(const struct draft *draft, const char *field,
                                        const struct object *object);

/* An object that the op touches; NULL is ignored. EINVAL if it is of another pipe, ECLOSED. */
enum fp8pipe_status draft_object(struct draft *draft, const char *field, struct object *object);

/* The first two, which are of the draft's pipe and not the same; b may be NULL. */
static inline void draft_objects(struct draft *draft, struct object *a, struct object *b)
{
    bool swap = (uintptr_t)a > (uintptr_t)b && b != NULL;

    draft->objects[0] = swap ? b : a;
    draft->objects[1] = swap ? a : b;
    draft->object_count = b != NULL ? 2 : 1;
}

/* draft_after of a ticket that is not recent. */
enum fp8pipe_status draft_after_old(struct draft *draft, const char *field, fp8pipe_ticket ticket);

static inline bool draft_recent(const struct draft *draft, fp8pipe_ticket ticket)
{
    return ticket_lane(ticket) == draft->lane &&
           ring_head(draft->ring) - ticket_position(ticket) <= draft->recent;
}

static inline enum fp8pipe_status draft_name(struct draft *draft, fp8pipe_ticket ticket)
{
    assert(draft->entry.op.named < DRAFT_NAMED);
    draft->named[draft->entry.op.named++] = ticket;
    return FP8PIPE_OK;
}

/* Up to there no more ranges can have failed since than the lane remembers beside its own. */
static inline enum fp8pipe_status draft_name_recent(struct draft *draft, fp8pipe_ticket ticket)
{
    uint64_t last = ticket_position(ticket) + TICKET_FAILURES;

    draft->last = last < draft->last ? last : draft->last;
    return draft_name(draft, ticket);
}

/* A predecessor that cancels. Dropped if known to be done and OK. ETOOOLD, with a sentence that
 * names the field which brought it. */
static inline enum fp8pipe_status draft_after(struct draft *draft, const char *field,
                                              fp8pipe_ticket ticket)
{
    if (ticket == 0) {
        return FP8PIPE_OK;
    }
    return draft_recent(draft, ticket) ? draft_name_recent(draft, ticket)
                                       : draft_after_old(draft, field, ticket);
}

/* The first two: a tensor that the op fills, and a scaling. EINVAL if one is of another pipe. */
static inline enum fp8pipe_status
draft_filled_objects(struct draft *draft, const char *tensor_field, struct fp8pipe_tensor *tensor,
                     const char *scaling_field, struct fp8pipe_scaling *scaling)
{
    if (tensor->object.pipe != draft->pipe) {
        return draft_object_refuse(draft, tensor_field, &tensor->object);
    }
    if (scaling->object.pipe != draft->pipe) {
        return draft_object_refuse(draft, scaling_field, &scaling->object);
    }
    draft_objects(draft, &tensor->object, &scaling->object);
    return FP8PIPE_OK;
}

/* draft_order of a ticket of another lane. */
void draft_order_lane(struct draft *draft, fp8pipe_ticket ticket);

/* A predecessor that only orders; 0 and the draft's own lane are dropped. */
static inline void draft_order(struct draft *draft, fp8pipe_ticket ticket)
{
    if (ticket != 0 && ticket_lane(ticket) != draft->lane) {
        draft_order_lane(draft, ticket);
    }
}

/* A filling that the op uses, held by an object of the draft; NULL is ignored. */
static inline void draft_use(struct draft *draft, struct filling *filling)
{
    if (filling != NULL) {
        assert(draft->use_count < DRAFT_USES);
        draft->uses[draft->use_count++] = filling;
        cache_fetch(&filling->holders); /* marked once the position is claimed */
    }
}

/* Binding: commit may let go of what the tensor, or of one filling that something, holds. */
static inline void draft_may_end(struct draft *draft, uint32_t fillings)
{
    draft->entry.op.ended = (uint8_t)(draft->entry.op.ended + fillings);
    assert(draft->entry.op.ended <= DRAFT_ENDED);
}

static inline void tensor_may_end(struct draft *draft, const struct fp8pipe_tensor *tensor)
{
    draft_may_end(draft,
                  (tensor->filling != NULL) + (tensor->part != NULL) + (tensor->version != NULL));
}

/* Commit: a filling without holders, to whose memory the op sees. */
static inline void draft_end(struct draft *draft, struct filling *filling)
{
    assert(draft->ended_count < draft->entry.op.ended);
    draft->ended[draft->ended_count++] = filling;
}

/* Commit: the tensor becomes empty. */
void tensor_let_go(struct draft *draft, struct fp8pipe_tensor *tensor);

/* ENOMEM. */
enum fp8pipe_status draft_filling_refuse(void);

/* A new filling for the op to write, from the pool, with the one holder that its tensor will be;
 * copies: FP8PIPE_ROWWISE, FP8PIPE_TRANSPOSED. ENOMEM. Given back with filling_undo if the submit
 * is refused. */
static inline enum fp8pipe_status draft_filling(struct draft *draft, uint32_t copies,
                                                struct filling **filling)
{
    *filling = filling_get(&draft->pipe->pool, copies == (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED));
    return *filling != NULL ? FP8PIPE_OK : draft_filling_refuse();
}

/* Binding and commit of an op that writes a new filling into a tensor, letting go of what that
 * held. */
static inline void draft_fill(struct draft *draft, const struct fp8pipe_tensor *tensor,
                              struct filling *filling)
{
    tensor_may_end(draft, tensor);
    draft_use(draft, filling);
    draft_use(draft, filling->part);
}

static inline void draft_filled(struct draft *draft, struct fp8pipe_tensor *tensor,
                                struct filling *filling, fp8pipe_ticket ticket)
{
    filling->filled_by = ticket;
    if (tensor->filling != NULL || tensor->version != NULL) {
        tensor_let_go(draft, tensor);
    }
    tensor->filling = filling;
    tensor->part = filling->part;
}

/* Orders the op as a user of a scaling (after its last writer), or as a writer (after all users).
 */
static inline void draft_use_scaling(struct draft *draft, struct fp8pipe_scaling *scaling)
{
    draft_order(draft, scaling->writer);
}

static inline void draft_used_scaling(struct draft *draft, struct fp8pipe_scaling *scaling,
                                      fp8pipe_ticket ticket)
{
    scaling->users[draft->lane] = ticket;
}

void draft_write_scaling(struct draft *draft, struct fp8pipe_scaling *scaling);
void draft_wrote_scaling(struct draft *draft, struct fp8pipe_scaling *scaling,
                         fp8pipe_ticket ticket);

/* Orders the op after the one that fills a filling. */
enum fp8pipe_status draft_after_filled_old(struct draft *draft, const char *field,
                                           const struct filling *filling);

/* The op reads the filling that a tensor has, and the row-wise bytes that it then holds if it says
 * so: order and use. */
static inline enum fp8pipe_status draft_read_tensor(struct draft *draft, const char *field,
                                                    const struct fp8pipe_tensor *tensor,
                                                    bool rowwise)
{
    struct filling *filling = tensor->filling;

    draft_use(draft, filling);
    if (rowwise) {
        draft_use(draft, tensor->part);
    }
    return draft_recent(draft, filling->filled_by) ? draft_name_recent(draft, filling->filled_by)
                                                   : draft_after_filled_old(draft, field, filling);
}

struct draft_calls {
    enum fp8pipe_status (*bind)(struct draft *draft, void *arg);
    void (*commit)(struct draft *draft, void *arg, fp8pipe_ticket ticket);
};

/* calls: NULL if the op touches no objects. ticket may be NULL. */
enum fp8pipe_status draft_submit(struct draft *draft, const struct draft_calls *calls, void *arg,
                                 fp8pipe_ticket *ticket);

#endif
