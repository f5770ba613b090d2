/* A pipe's objects: made, destroyed, and retired at close. */
#include <ck_pr.h>

#include "crew.h"
#include "pipe.h"

enum fp8pipe_status pipe_enter_create(struct fp8pipe *pipe, const char *field, const void *out)
{
    enum fp8pipe_status status = pipe_check_inside(false);

    if (status == FP8PIPE_OK && out == NULL) {
        status = status_fail(FP8PIPE_EINVAL, "%s = NULL: it takes the new object", field);
    }
    return status != FP8PIPE_OK ? status : pipe_enter(pipe);
}

void pipe_object_add(struct fp8pipe *pipe, struct object *object)
{
    pthread_mutex_lock(&pipe->objects_lock);
    object->next = pipe->objects;
    if (object->next != NULL) {
        object->next->previous = object;
    }
    pipe->objects = object;
    pthread_mutex_unlock(&pipe->objects_lock);
}

static void remove_object(struct fp8pipe *pipe, struct object *object)
{
    pthread_mutex_lock(&pipe->objects_lock);
    if (object->next != NULL) {
        object->next->previous = object->previous;
    }
    if (object->previous != NULL) {
        object->previous->next = object->next;
    } else {
        pipe->objects = object->next;
    }
    pthread_mutex_unlock(&pipe->objects_lock);
}

void pipe_filling_drop(struct fp8pipe *pipe, struct filling *filling)
{
    if (filling != NULL && filling_drop(filling)) {
        completion_bury(&pipe->crew->completion, filling);
    }
}

/* ---- Destroy ------------------------------------------------------------------------------- */

/* As pipe_enter; on a closed pipe *closed is set. */
static enum fp8pipe_status enter_destroy(struct fp8pipe *pipe, bool *closed)
{
    enum fp8pipe_status status = pipe_enter(pipe);

    *closed = false;
    if (status == FP8PIPE_ECLOSED) {
        if (ck_pr_load_32(&pipe->state) != PIPE_CLOSED) {
            return status_fail(FP8PIPE_EBUSY, "pipe %u is closing, or its close timed out",
                               pipe->number);
        }
        *closed = true;
        status = FP8PIPE_OK;
    }
    return status;
}

/* Whether an op in flight uses the object. Under its word; between pipe_enter and pipe_leave. */
static bool is_busy(struct fp8pipe *pipe, const struct object *object)
{
    struct backend *backend = pipe->crew->backend;
    struct backend_scope scope;
    bool busy = false;

    backend->ops->enter(backend, &scope);
    for (uint32_t i = 0; i < pipe->lanes && !busy; i++) {
        if (object->uses[i] != 0 && port_done(&pipe->ports[i]) < object->uses[i]) {
            event_ring_reap(&pipe->crew->rings[i]);
            /* A pipe that has failed sees nothing done any more, but its launchers go on to the end
             * of their rings. */
            busy = fault_status(&pipe->fault) == FP8PIPE_OK
                       ? port_done(&pipe->ports[i]) < object->uses[i]
                       : ring_tail(&pipe->ports[i].ring) < object->uses[i];
        }
    }
    backend->ops->leave(backend, &scope);
    return busy;
}

/* On an open pipe, under the object's word. */
static enum fp8pipe_status check_unused(struct object *object, const struct pipe_ending *ending)
{
    enum fp8pipe_status status = ending->refuse != NULL ? ending->refuse(object) : FP8PIPE_OK;

    if (status == FP8PIPE_OK && is_busy(object->pipe, object)) {
        status = status_fail(FP8PIPE_EBUSY, "%s = %p: ops in flight use it", ending->field,
                             (void *)object);
    }
    return status;
}

enum fp8pipe_status pipe_object_destroy(struct object *object, const struct pipe_ending *ending)
{
    enum fp8pipe_status status = pipe_check_inside(false);
    struct fp8pipe *pipe;
    bool closed;

    if (status != FP8PIPE_OK || object == NULL) {
        return status;
    }
    pipe = object->pipe;
    status = enter_destroy(pipe, &closed);
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (!closed) {
        object_lock(object);
        status = check_unused(object, ending);
        object_unlock(object);
    }
    if (status == FP8PIPE_OK) {
        remove_object(pipe, object);
        ending->free(object, closed);
    }
    if (!closed) {
        pipe_leave(pipe);
    }
    return status;
}

/* ---- Retire -------------------------------------------------------------------------------- */

static void (*const retire[])(struct object *, struct backend *) = {
    [OBJECT_SCALING] = scaling_retire,
    [OBJECT_LINEAR] = linear_retire,
    [OBJECT_TENSOR] = tensor_retire,
    [OBJECT_OPTIMIZER] = optimizer_retire,
};

void pipe_object_retire(struct object *object)
{
    struct backend *backend = object->pipe->crew->backend;
    struct backend_scope scope;

    backend->ops->enter(backend, &scope);
    retire[object->kind](object, backend);
    backend->ops->leave(backend, &scope);
}

void pipe_objects_retire(struct fp8pipe *pipe)
{
    struct backend *backend = pipe->crew->backend;
    struct backend_scope scope;

    backend->ops->enter(backend, &scope);
    /* On a pipe that has failed, ops that were issued may run still. */
    crew_streams_end(pipe->crew);
    pthread_mutex_lock(&pipe->objects_lock);
    for (struct object *object = pipe->objects; object != NULL; object = object->next) {
        object_lock(object);
        retire[object->kind](object, backend);
        object->closed = true;
        object_unlock(object);
    }
    pthread_mutex_unlock(&pipe->objects_lock);
    backend->ops->leave(backend, &scope);
}
