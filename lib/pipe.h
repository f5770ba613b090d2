/*
 * Opening and closing a pipe, entering and leaving it, waiting on it, making and destroying its
 * objects: what the public entry points build on. See lib/handle.h for who may touch what of a pipe
 * when.
 */
#ifndef LIB_PIPE_H
#define LIB_PIPE_H

#include <stdbool.h>

#include "handle.h"

/* As fp8pipe_open, on the given backend (tests decorate one). */
enum fp8pipe_status pipe_open_on(const struct fp8pipe_options *options,
                                 const struct backend_ops *ops, struct fp8pipe **pipe);

/* Whether a handle is fit for any call: EINVAL (NULL), EFORKED, ECLOSED. */
enum fp8pipe_status pipe_check(const struct fp8pipe *pipe);

/* pipe_check, then keeps close from freeing anything until pipe_leave. */
enum fp8pipe_status pipe_enter(struct fp8pipe *pipe);
void pipe_leave(struct fp8pipe *pipe);

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

/* As fp8pipe_trace_start and fp8pipe_trace_stop, between pipe_enter and pipe_leave. */
enum fp8pipe_status pipe_trace_start(struct fp8pipe *pipe, uint32_t ops);
enum fp8pipe_status pipe_trace_stop(struct fp8pipe *pipe, const char *file);

/* For open: starts the trace that the environment asks for. A trace that cannot be is one warning.
 * For close, once all ops are done and the launchers are gone: writes it. */
void pipe_trace_environment(struct fp8pipe *pipe);
void pipe_trace_close(struct fp8pipe *pipe);

/* For calls that make an object: pipe_enter, once `out`, which takes it and is called `field`, is
 * given. EDEADLK inside a function of the caller's. */
enum fp8pipe_status pipe_enter_create(struct fp8pipe *pipe, const char *field, const void *out);

/* Puts a new object into the pipe's list, for close. Between pipe_enter and pipe_leave. */
void pipe_object_add(struct fp8pipe *pipe, struct object *object);

/* How objects of one kind end. */
struct pipe_ending {
    const char *field;
    /* EBUSY while something else than ops needs the object: under its word, on an open pipe. NULL:
     * nothing does. */
    enum fp8pipe_status (*refuse)(struct object *object);
    /* Frees it; nobody uses it any more. closed: the pipe is, and has retired the object. */
    void (*free)(struct object *object, bool closed);
};

/* What every destroy does; of NULL nothing. EBUSY while something uses the object, while the pipe
 * is closing, and for ever after a close that timed out. EDEADLK as for creates. */
enum fp8pipe_status pipe_object_destroy(struct object *object, const struct pipe_ending *ending);

/* Drops a hold from a caller's thread. NULL is allowed. */
void pipe_filling_drop(struct fp8pipe *pipe, struct filling *filling);

/* Frees an object's device memory: one function for each kind, and the call of it. By close, and
 * by destroys of objects that keep no memory for ops. Under its word, or by its last user. */
void scaling_retire(struct object *object, struct backend *backend);
void linear_retire(struct object *object, struct backend *backend);
void tensor_retire(struct object *object, struct backend *backend);
void optimizer_retire(struct object *object, struct backend *backend);
void pipe_object_retire(struct object *object);

/* By close, once nothing runs any more: retires all objects. */
void pipe_objects_retire(struct fp8pipe *pipe);

#endif
