/*
 * A pipe's handle, and who is inside of it.
 *
 * The handle (shell) with its ports is never freed nor handed out twice. `crew`, with everything
 * that a running pipe needs, lives from open to close. It may be touched
 *   - between pipe_enter and pipe_leave (`users`: close waits until it is 0), or
 *   - after a successful claim in a ring, until the op is published (close waits for the ring to
 *     drain), or, in INLINE, holding a port's inline_mutex while its ring is not closed.
 * Submits use only the latter, and so touch no shared counter.
 *
 *   state   OPEN -> CLOSING -> CLOSED or ABANDONED, written by open and close; a full barrier
 *           separates its change from close's look at `users`, as one does in pipe_enter.
 */
#ifndef LIB_PIPE_H
#define LIB_PIPE_H

#include <pthread.h>
#include <stdbool.h>

#include "backend.h"
#include "fault.h"
#include "lane.h"
#include "log.h"
#include "object.h"
#include "tensor.h"

/* ABANDONED: close timed out; what the threads left behind use is never freed. */
enum pipe_state { PIPE_OPEN, PIPE_CLOSING, PIPE_CLOSED, PIPE_ABANDONED };

struct fp8pipe {
    uint32_t state;
    uint32_t number;
    uint32_t lanes;
    uint32_t generation; /* of fork() */
    enum fp8pipe_mode mode;
    enum fp8pipe_backend backend;
    bool native_streams;
    struct crew *crew;
    struct fault fault;
    struct log log;
    struct filling_pool pool;
    pthread_mutex_t objects_lock;
    struct object *objects;
    struct fp8pipe *opened_before; /* in the table of pipes */
    uint32_t users __attribute__((aligned(64)));
    struct ec idle; /* close waits here for users to leave */
    uint32_t next_lane __attribute__((aligned(64)));
    struct port ports[] __attribute__((aligned(64)));
};

/* As fp8pipe_open, on the given backend (tests decorate one). */
enum fp8pipe_status pipe_open_on(const struct fp8pipe_options *options,
                                 const struct backend_ops *ops, struct fp8pipe **pipe);

/* Whether a handle is fit for any call: EINVAL (NULL), EFORKED, ECLOSED. */
enum fp8pipe_status pipe_check(const struct fp8pipe *pipe);

/* pipe_check, then keeps close from freeing anything until pipe_leave. */
enum fp8pipe_status pipe_enter(struct fp8pipe *pipe);
void pipe_leave(struct fp8pipe *pipe);

/* For destroys: as pipe_enter; on a closed pipe *closed is set, and the object has no device memory
 * any more. EBUSY while the pipe is closing, and for ever after a close that timed out. */
enum fp8pipe_status pipe_enter_destroy(struct fp8pipe *pipe, bool *closed);
void pipe_leave_destroy(struct fp8pipe *pipe, bool closed);

/* EDEADLK inside a function of the caller's; with `defers`, inside a defer too. */
enum fp8pipe_status pipe_check_inside(bool defers);

/* Whether a ticket of this pipe was given out: EINVAL, ECLOSED, ETOOOLD. Not 0. field: its name. */
enum fp8pipe_status pipe_check_ticket(const struct fp8pipe *pipe, const char *field,
                                      fp8pipe_ticket ticket);

/* Waits for a mark, whatever the op's outcome; false at the deadline. Between pipe_enter and
 * pipe_leave, or by close. */
bool pipe_reach(struct fp8pipe *pipe, fp8pipe_ticket ticket, enum fp8pipe_mark mark,
                int64_t deadline_ns, struct look *look);

/* Waits for a mark and tells the outcome. Between pipe_enter and pipe_leave. As fp8pipe_wait. */
enum fp8pipe_status pipe_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket, enum fp8pipe_mark mark,
                              int64_t deadline_ns);

/* The pipe's list of objects, for close. */
void pipe_object_add(struct fp8pipe *pipe, struct object *object);
void pipe_object_remove(struct fp8pipe *pipe, struct object *object);

/* Whether an op in flight uses the object. Under its word; between pipe_enter and pipe_leave. */
bool pipe_object_busy(struct fp8pipe *pipe, const struct object *object);

/* Drops a hold from a caller's thread. NULL is allowed. */
void pipe_filling_drop(struct fp8pipe *pipe, struct filling *filling);

/* What close does with an object: frees its device memory. Under its word. */
void scaling_retire(struct object *object, struct backend *backend);
void linear_retire(struct object *object, struct backend *backend);
void tensor_retire(struct object *object, struct backend *backend);

#endif
