/* Public entry points of fused ops whose values come from functions of the caller's. */
#include "fp8pipe_fused.h"

#include "function.h"
#include "out_draft.h"

/* The longest argument fits beside the longest lists. */
_Static_assert(offsetof(struct op, u) + sizeof(struct op_tensor_call) + FP8PIPE_ARG_MAX +
                       sizeof(uint64_t) * (DRAFT_NAMED + DRAFT_ORDER + DRAFT_ENDED) <=
                   RING_ENTRY_BYTES_MAX,
               "a tensor_call fits into an entry of the ring");

static enum fp8pipe_status check_tensor_call(const struct fp8pipe_tensor_call_op *op)
{
    if (op->fn == NULL) {
        return status_fail(FP8PIPE_EINVAL, "fn = NULL: it is needed");
    }
    if (op->rows < 0 || op->cols < 0) {
        return status_fail(FP8PIPE_EINVAL, "%s = %lld: it is >= 0", op->rows < 0 ? "rows" : "cols",
                           (long long)(op->rows < 0 ? op->rows : op->cols));
    }
    if (!check_size_holds(op->rows, op->cols)) {
        return status_fail(FP8PIPE_EINVAL, "rows = %lld, cols = %lld: the size overflows",
                           (long long)op->rows, (long long)op->cols);
    }
    return check_arg(op->arg, op->arg_bytes);
}

enum fp8pipe_status fp8pipe_tensor_call(struct fp8pipe *pipe,
                                        const struct fp8pipe_tensor_call_op *op,
                                        fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_tensor_call_op defaults = FP8PIPE_TENSOR_CALL_OP_INIT;
    static const struct draft_kind kind = {OP_TENSOR_CALL, FP8PIPE_NO_AMAX,
                                           sizeof(struct op_tensor_call), &defaults,
                                           sizeof(defaults)};
    struct fp8pipe_tensor_call_op room;
    const void *given;
    struct draft draft;
    struct op_tensor_call *payload = &draft.entry.op.u.tensor_call;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = check_tensor_call(op);
    if (status == FP8PIPE_OK) {
        status = out_draft_check(&draft, &op->out, check_is(op->cols, "cols"));
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    *payload = (struct op_tensor_call){
        .fn = op->fn,
        .arg = op->arg,
        .arg_bytes = op->arg_bytes,
        .rows = op->rows,
        .cols = op->cols,
    };
    draft_copy_arg(&draft, op->arg, op->arg_bytes);
    return out_draft_submit(&draft, &op->out, op->rows, op->cols, &payload->out, ticket);
}

enum fp8pipe_status fp8pipe_quantize_host(struct fp8pipe_stream *stream,
                                          const struct fp8pipe_quantize_target *target,
                                          fp8pipe_values_fn *values, void *arg, size_t arg_bytes)
{
    enum fp8pipe_status status = check_arg(arg, arg_bytes);

    if (stream == NULL || target == NULL || values == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed",
                           stream == NULL   ? "stream"
                           : target == NULL ? "target"
                                            : "values");
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (stream->backend->ops->kind != FP8PIPE_BACKEND_HOST) {
        return status_fail(FP8PIPE_ENOTSUP, "stream = %p: it is not of the host backend",
                           (void *)stream);
    }
    return function_quantize_host(stream, target, values, arg, arg_bytes);
}
