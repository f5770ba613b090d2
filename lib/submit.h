/*
 * The caller's part of an op: check, copy, publish, wake.
 *
 * A draft is an op being put together on the caller's stack. draft_begin checks what all ops share
 * and chooses the lane; the entry point checks its descriptor and fills the payload; draft_submit
 * then, under the words of the objects that the draft names: calls `bind`, which reads the objects
 * and adds edges and uses (it may be called again, and changes nothing); claims the ring
 * position; calls `commit`, which changes the objects and cannot fail; publishes.
 *
 * No allocation, no backend call (but in INLINE), no lock but the words.
 */
#ifndef LIB_SUBMIT_H
#define LIB_SUBMIT_H

#include "check.h"
#include "linear.h"
#include "op.h"
#include "options.h"
#include "pipe.h"
#include "scaling.h"
#include "tensor.h"

#define DRAFT_OBJECTS 6
#define DRAFT_NAMED (FP8PIPE_AFTER_MAX + 4)
#define DRAFT_ORDER (FP8PIPE_LANES_MAX + 4)
#define DRAFT_USES 6
#define DRAFT_ENDED 8

/* The shortest struct that an older header can have had. */
#define DRAFT_LEAST (sizeof(size_t) + sizeof(struct fp8pipe_submit))

struct draft {
    struct fp8pipe *pipe;
    uint32_t lane;
    bool nonblock;
    bool last_use;
    uint32_t own_named; /* from the descriptor's `after` */
    uint32_t named_count;
    uint32_t order_count;
    uint32_t use_count;
    uint32_t ended_room; /* fillings that commit may let go of */
    uint32_t ended_count;
    uint32_t object_count;
    size_t payload_end;
    struct object *objects[DRAFT_OBJECTS];
    fp8pipe_ticket named[DRAFT_NAMED];
    fp8pipe_ticket order[DRAFT_ORDER];
    struct filling *uses[DRAFT_USES];
    struct filling *ended[DRAFT_ENDED];
    union {
        struct op op;
        unsigned char bytes[RING_ENTRY_BYTES_MAX];
        uint64_t aligned;
    } entry;
};

/* Extra flags that an op allows besides NONBLOCK and RESUME. */
enum fp8pipe_status draft_begin(struct draft *draft, struct fp8pipe *pipe,
                                const struct fp8pipe_submit *submit, enum op_kind kind,
                                size_t payload_bytes, uint32_t extra_flags);

/* Copies bytes of the caller's, checked by check_arg, behind the payload. */
void draft_copy_arg(struct draft *draft, const void *arg, size_t bytes);

/* The payload is longer than draft_begin was told: `bytes`. */
static inline void draft_payload(struct draft *draft, size_t bytes)
{
    draft->payload_end = (offsetof(struct op, u) + bytes + 7) / 8 * 8;
}

/* An object that the op touches; NULL is ignored. EINVAL if it is of another pipe, ECLOSED. */
enum fp8pipe_status draft_object(struct draft *draft, const char *field, struct object *object);

/* A predecessor that cancels. Dropped if known to be done and OK. ETOOOLD. */
enum fp8pipe_status draft_after(struct draft *draft, fp8pipe_ticket ticket);

/* A predecessor that only orders; 0 and the draft's own lane are dropped. */
void draft_order(struct draft *draft, fp8pipe_ticket ticket);

/* A filling that the op uses, held by an object of the draft; NULL is ignored. */
void draft_use(struct draft *draft, struct filling *filling);

/* Binding: commit may let go of what the tensor, or of one filling that something, holds. */
void draft_may_end(struct draft *draft, uint32_t fillings);
void tensor_may_end(struct draft *draft, const struct fp8pipe_tensor *tensor);

/* Commit: a filling without holders, to whose memory the op sees. */
void draft_end(struct draft *draft, struct filling *filling);

/* Commit: the tensor becomes empty. */
void tensor_let_go(struct draft *draft, struct fp8pipe_tensor *tensor);

/* A new filling for the op to write, from the pool, with the one holder that its tensor will be;
 * copies: FP8PIPE_ROWWISE, FP8PIPE_TRANSPOSED. ENOMEM. Given back with filling_undo if the submit
 * is refused. */
enum fp8pipe_status draft_filling(struct draft *draft, uint32_t copies, struct filling **filling);

/* Binding and commit of an op that writes a new filling into a tensor, letting go of what that
 * held. */
void draft_fill(struct draft *draft, const struct fp8pipe_tensor *tensor, struct filling *filling);
void draft_filled(struct draft *draft, struct fp8pipe_tensor *tensor, struct filling *filling,
                  fp8pipe_ticket ticket);

/* Orders the op as a user of a scaling (after its last writer), or as a writer (after all users).
 */
void draft_use_scaling(struct draft *draft, struct fp8pipe_scaling *scaling);
void draft_write_scaling(struct draft *draft, struct fp8pipe_scaling *scaling);
void draft_used_scaling(struct draft *draft, struct fp8pipe_scaling *scaling,
                        fp8pipe_ticket ticket);
void draft_wrote_scaling(struct draft *draft, struct fp8pipe_scaling *scaling,
                         fp8pipe_ticket ticket);

/* The op reads the filling that a tensor has, and the row-wise bytes that it then holds if it says
 * so: order and use. */
enum fp8pipe_status draft_read_tensor(struct draft *draft, const struct fp8pipe_tensor *tensor,
                                      bool rowwise);

struct draft_calls {
    enum fp8pipe_status (*bind)(struct draft *draft, void *arg);
    void (*commit)(struct draft *draft, void *arg, fp8pipe_ticket ticket);
};

/* calls: NULL if the op touches no objects. ticket may be NULL. */
enum fp8pipe_status draft_submit(struct draft *draft, const struct draft_calls *calls, void *arg,
                                 fp8pipe_ticket *ticket);

#endif
