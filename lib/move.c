#include "move.h"

#include "pipe.h"

/* Inside `enter`. */
static enum fp8pipe_status run(struct fp8pipe *pipe, const struct move *move, void *arg)
{
    struct backend *backend = pipe->crew->backend;
    fp8pipe_ticket ticket;
    void *image;
    enum fp8pipe_status status = backend->ops->pinned_alloc(backend, move->bytes, &image);

    if (status != FP8PIPE_OK) {
        return status;
    }
    status = move->submit(arg, image, &ticket);
    if (status == FP8PIPE_OK) {
        status = pipe_wait(pipe, ticket, FP8PIPE_DONE, EC_FOREVER);
        if (status == FP8PIPE_OK && move->take != NULL) {
            move->take(arg, image);
        }
        /* On a failed device the copy may still come: the image is left to it. */
        if (fault_status(&pipe->fault) != FP8PIPE_OK) {
            return status;
        }
    }
    backend->ops->pinned_free(backend, image);
    return status;
}

enum fp8pipe_status move_run(struct fp8pipe *pipe, const struct move *move, void *arg)
{
    enum fp8pipe_status status = pipe_check_inside(true);
    struct backend_scope scope;

    if (status == FP8PIPE_OK) {
        status = pipe_enter(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    pipe->crew->backend->ops->enter(pipe->crew->backend, &scope);
    status = run(pipe, move, arg);
    pipe->crew->backend->ops->leave(pipe->crew->backend, &scope);
    pipe_leave(pipe);
    return status;
}
