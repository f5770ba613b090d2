/* Public entry points of the ops that touch no object. */
#include "fp8pipe_cuda.h"

#include "function.h"
#include "submit.h"

enum fp8pipe_status fp8pipe_copy(struct fp8pipe *pipe, const struct fp8pipe_copy_op *op,
                                 fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_copy_op defaults = FP8PIPE_COPY_OP_INIT;
    static const struct draft_kind kind = {OP_COPY, 0, sizeof(struct op_copy), &defaults,
                                           sizeof(defaults)};
    struct fp8pipe_copy_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    if (op->bytes > 0 && (op->to == NULL || op->from == NULL)) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: %zu bytes are to be copied",
                           op->to == NULL ? "to" : "from", op->bytes);
    }
    if (op->bytes > PTRDIFF_MAX) {
        return status_fail(FP8PIPE_EINVAL, "bytes = %zu: it overflows", op->bytes);
    }
    if ((uintptr_t)op->to < (uintptr_t)op->from + op->bytes &&
        (uintptr_t)op->from < (uintptr_t)op->to + op->bytes) {
        return status_fail(FP8PIPE_EINVAL, "to = %p: it overlaps from = %p", op->to, op->from);
    }
    draft.entry.op.u.copy = (struct op_copy){op->to, op->from, op->bytes};
    return draft_submit(&draft, NULL, NULL, ticket);
}

enum fp8pipe_status fp8pipe_call(struct fp8pipe *pipe, const struct fp8pipe_call_op *op,
                                 fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_call_op defaults = FP8PIPE_CALL_OP_INIT;
    static const struct draft_kind kind = {OP_CALL, 0, sizeof(struct op_call), &defaults,
                                           sizeof(defaults)};
    struct fp8pipe_call_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    if (op->fn == NULL) {
        return status_fail(FP8PIPE_EINVAL, "fn = NULL: it is needed");
    }
    status = check_arg(op->arg, op->arg_bytes);
    if (status != FP8PIPE_OK) {
        return status;
    }
    draft.entry.op.u.call = (struct op_call){op->fn, op->arg, op->arg_bytes};
    draft_copy_arg(&draft, op->arg, op->arg_bytes);
    return draft_submit(&draft, NULL, NULL, ticket);
}

enum fp8pipe_status fp8pipe_host_call(struct fp8pipe *pipe, const struct fp8pipe_host_call_op *op,
                                      fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_host_call_op defaults = FP8PIPE_HOST_CALL_OP_INIT;
    static const struct draft_kind kind = {OP_HOST_CALL, 0, sizeof(struct op_host_call), &defaults,
                                           sizeof(defaults)};
    struct fp8pipe_host_call_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    if (op->fn == NULL) {
        return status_fail(FP8PIPE_EINVAL, "fn = NULL: it is needed");
    }
    draft.entry.op.u.host_call = (struct op_host_call){op->fn, op->arg};
    return draft_submit(&draft, NULL, NULL, ticket);
}

/* ---- Inside a call ------------------------------------------------------------------------- */

enum fp8pipe_backend fp8pipe_stream_backend(const struct fp8pipe_stream *stream)
{
    return stream == NULL ? FP8PIPE_BACKEND_AUTO : stream->backend->ops->kind;
}

enum fp8pipe_status fp8pipe_host_enqueue(struct fp8pipe_stream *stream, fp8pipe_work_fn *work,
                                         void *arg)
{
    if (stream == NULL || work == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed",
                           stream == NULL ? "stream" : "work");
    }
    if (stream->backend->ops->kind != FP8PIPE_BACKEND_HOST) {
        return status_fail(FP8PIPE_ENOTSUP, "stream = %p: it is not of the host backend",
                           (void *)stream);
    }
    return function_host_enqueue(stream, work, arg);
}

struct CUstream_st *fp8pipe_stream_cuda(const struct fp8pipe_stream *stream)
{
    return stream == NULL ? NULL : backend_cuda_native(stream);
}
