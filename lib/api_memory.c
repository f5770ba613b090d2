/* Public blocking helpers for memory of the pipe's backend. */
#include "pipe.h"

enum memory_verb { MEMORY_ALLOC, MEMORY_FREE, MEMORY_COPY, MEMORY_FILL };

struct memory_call {
    enum memory_verb verb;
    void *to;
    const void *from;
    void **data;
    int value;
    size_t bytes;
};

static enum fp8pipe_status run(struct fp8pipe *pipe, const struct memory_call *call)
{
    enum fp8pipe_status status = pipe_check_inside(false);
    struct backend_scope scope;
    struct backend *backend;

    if (status == FP8PIPE_OK) {
        status = pipe_enter(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    backend = pipe->crew->backend;
    backend->ops->enter(backend, &scope);
    switch (call->verb) {
    case MEMORY_ALLOC:
        status = backend->ops->memory_alloc(backend, call->bytes, call->data);
        break;
    case MEMORY_FREE:
        status = backend->ops->memory_free(backend, call->to);
        break;
    case MEMORY_COPY:
        status = backend->ops->memory_copy(backend, call->to, call->from, call->bytes);
        break;
    case MEMORY_FILL:
        status = backend->ops->memory_fill(backend, call->to, call->value, call->bytes);
        break;
    }
    backend->ops->leave(backend, &scope);
    pipe_leave(pipe);
    return status;
}

static enum fp8pipe_status check_range(const char *field, const void *data, size_t bytes)
{
    if (bytes > PTRDIFF_MAX) {
        return status_fail(FP8PIPE_EINVAL, "bytes = %zu: it overflows", bytes);
    }
    if (data == NULL && bytes > 0) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it has %zu bytes", field, bytes);
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status fp8pipe_alloc(struct fp8pipe *pipe, size_t bytes, void **data)
{
    struct memory_call call = {.verb = MEMORY_ALLOC, .bytes = bytes, .data = data};

    if (data == NULL) {
        return status_fail(FP8PIPE_EINVAL, "data = NULL: it takes the address");
    }
    if (bytes > PTRDIFF_MAX) {
        return status_fail(FP8PIPE_EINVAL, "bytes = %zu: it overflows", bytes);
    }
    return run(pipe, &call);
}

enum fp8pipe_status fp8pipe_free(struct fp8pipe *pipe, void *data)
{
    struct memory_call call = {.verb = MEMORY_FREE, .to = data};

    return run(pipe, &call);
}

static enum fp8pipe_status copy(struct fp8pipe *pipe, void *to, const void *from, size_t bytes)
{
    struct memory_call call = {.verb = MEMORY_COPY, .to = to, .from = from, .bytes = bytes};
    enum fp8pipe_status status = check_range("to", to, bytes);

    if (status == FP8PIPE_OK) {
        status = check_range("from", from, bytes);
    }
    return status != FP8PIPE_OK ? status : run(pipe, &call);
}

enum fp8pipe_status fp8pipe_upload(struct fp8pipe *pipe, void *to, const void *from, size_t bytes)
{
    return copy(pipe, to, from, bytes);
}

enum fp8pipe_status fp8pipe_download(struct fp8pipe *pipe, void *to, const void *from, size_t bytes)
{
    return copy(pipe, to, from, bytes);
}

enum fp8pipe_status fp8pipe_fill(struct fp8pipe *pipe, void *data, int value, size_t bytes)
{
    struct memory_call call = {.verb = MEMORY_FILL, .to = data, .value = value, .bytes = bytes};
    enum fp8pipe_status status = check_range("data", data, bytes);

    return status != FP8PIPE_OK ? status : run(pipe, &call);
}
