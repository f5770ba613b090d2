/* Public entry points of the ops that touch no object, and of fp8pipe_gemm. */
#include "fp8pipe_cuda.h"

#include "function.h"
#include "submit.h"
#include "thread.h"

enum fp8pipe_status fp8pipe_copy(struct fp8pipe *pipe, const struct fp8pipe_copy_op *op,
                                 fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_copy_op defaults = FP8PIPE_COPY_OP_INIT;
    struct fp8pipe_copy_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status =
        options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = draft_begin(&draft, pipe, &op->submit, OP_COPY, sizeof(struct op_copy), 0);
    if (status != FP8PIPE_OK) {
        return status;
    }
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
    struct fp8pipe_call_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status =
        options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = draft_begin(&draft, pipe, &op->submit, OP_CALL, sizeof(struct op_call), 0);
    if (status != FP8PIPE_OK) {
        return status;
    }
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
    struct fp8pipe_host_call_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status =
        options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = draft_begin(&draft, pipe, &op->submit, OP_HOST_CALL, sizeof(struct op_host_call), 0);
    if (status != FP8PIPE_OK) {
        return status;
    }
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

/* ---- GEMM ---------------------------------------------------------------------------------- */

struct gemm_draft {
    const struct fp8pipe_gemm_op *op;
};

/* One quantized operand: [rows, k] as the product sees it. */
static enum fp8pipe_status bind_operand(struct draft *draft, const char *field,
                                        struct fp8pipe_tensor *tensor, int32_t transposed,
                                        int64_t rows, struct filling **filling)
{
    struct filling *current = tensor->filling;

    if (current == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s: it is empty", field);
    }
    if (!(transposed ? current->transposed : current->rowwise)) {
        return status_fail(FP8PIPE_EINVAL, "%s: it has no %s copy", field,
                           transposed ? "transposed" : "row-wise");
    }
    if ((transposed ? current->cols : current->rows) != rows) {
        return status_fail(FP8PIPE_EINVAL, "%s: it has %lld x %lld entries, d wants %lld of them",
                           field, (long long)current->rows, (long long)current->cols,
                           (long long)rows);
    }
    *filling = current;
    return draft_read_filling(draft, current);
}

static enum fp8pipe_status bind_gemm(struct draft *draft, void *arg)
{
    const struct fp8pipe_gemm_op *op = ((struct gemm_draft *)arg)->op;
    struct op_gemm *gemm = &draft->entry.op.u.gemm;
    enum fp8pipe_status status;
    int64_t a_k, b_k;

    status = bind_operand(draft, "a_tensor", op->a_tensor, op->a_transposed, op->d.rows,
                          &gemm->a_filling);
    if (status == FP8PIPE_OK) {
        status = bind_operand(draft, "b_tensor", op->b_tensor, op->b_transposed, op->d.cols,
                              &gemm->b_filling);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    a_k = op->a_transposed ? gemm->a_filling->rows : gemm->a_filling->cols;
    b_k = op->b_transposed ? gemm->b_filling->rows : gemm->b_filling->cols;
    if (a_k != b_k) {
        return status_fail(FP8PIPE_EINVAL, "b_tensor: K = %lld, a_tensor has K = %lld",
                           (long long)b_k, (long long)a_k);
    }
    if (gemm->a_filling->format == FP8PIPE_E5M2 && gemm->b_filling->format == FP8PIPE_E5M2) {
        return status_fail(FP8PIPE_EINVAL, "b_tensor: its format is E5M2, as a_tensor's: one of "
                                           "them is E4M3");
    }
    if (draft->last_use) {
        tensor_may_end(draft, op->a_tensor);
        tensor_may_end(draft, op->b_tensor);
    }
    return FP8PIPE_OK;
}

static void commit_gemm(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct fp8pipe_gemm_op *op = ((struct gemm_draft *)arg)->op;

    (void)ticket;
    if (draft->last_use) {
        tensor_let_go(draft, op->a_tensor);
        tensor_let_go(draft, op->b_tensor);
    }
}

static enum fp8pipe_status check_gemm_matrices(const struct fp8pipe_gemm_op *op)
{
    int64_t k = op->a_transposed ? op->a.rows : op->a.cols;
    enum fp8pipe_status status;

    status = op->a_transposed ? check_matrix_shape("a", &op->a, -1, op->d.rows)
                              : check_matrix_shape("a", &op->a, op->d.rows, -1);
    if (status == FP8PIPE_OK) {
        status = op->b_transposed ? check_matrix_shape("b", &op->b, k, op->d.cols)
                                  : check_matrix_shape("b", &op->b, op->d.cols, k);
    }
    if (status == FP8PIPE_OK && op->a.dtype != op->b.dtype) {
        status = status_fail(FP8PIPE_EINVAL, "b.dtype = %d: it is a's, %d", (int)op->b.dtype,
                             (int)op->a.dtype);
    }
    if (status == FP8PIPE_OK) {
        status = check_apart("d", &op->d, "a", &op->a);
    }
    return status != FP8PIPE_OK ? status : check_apart("d", &op->d, "b", &op->b);
}

static enum fp8pipe_status check_gemm(const struct fp8pipe_gemm_op *op)
{
    enum fp8pipe_status status = check_matrix("d", &op->d);

    if (status == FP8PIPE_OK) {
        status = check_vector("bias", &op->bias, op->d.cols);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("a_transposed", op->a_transposed);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("b_transposed", op->b_transposed);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("accumulate", op->accumulate);
    }
    if (status == FP8PIPE_OK) {
        status = check_enum("accumulation", (int)op->accumulation, FP8PIPE_ACCUMULATION_SPLIT);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if ((op->a_tensor == NULL) != (op->b_tensor == NULL)) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: both operands are quantized, or neither",
                           op->a_tensor == NULL ? "a_tensor" : "b_tensor");
    }
    if (op->a_tensor != NULL && (check_given(&op->a) || check_given(&op->b))) {
        return status_fail(FP8PIPE_EINVAL, "%s.data = %p: the operands are tensors",
                           check_given(&op->a) ? "a" : "b",
                           check_given(&op->a) ? op->a.data : op->b.data);
    }
    return op->a_tensor != NULL ? FP8PIPE_OK : check_gemm_matrices(op);
}

enum fp8pipe_status fp8pipe_gemm(struct fp8pipe *pipe, const struct fp8pipe_gemm_op *op,
                                 fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_gemm_op defaults = FP8PIPE_GEMM_OP_INIT;
    static const struct draft_calls calls = {bind_gemm, commit_gemm};
    struct gemm_draft gemm;
    struct fp8pipe_gemm_op room;
    const void *given;
    struct draft draft;
    struct op_gemm *payload = &draft.entry.op.u.gemm;
    enum fp8pipe_status status =
        options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    gemm.op = op = given;
    status = draft_begin(&draft, pipe, &op->submit, OP_GEMM, sizeof(*payload), FP8PIPE_LAST_USE);
    if (status == FP8PIPE_OK) {
        status = check_gemm(op);
    }
    if (status == FP8PIPE_OK && op->a_tensor != NULL) {
        status = draft_object(&draft, "a_tensor", &op->a_tensor->object);
        if (status == FP8PIPE_OK) {
            status = draft_object(&draft, "b_tensor", &op->b_tensor->object);
        }
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    *payload = (struct op_gemm){
        .a = op->a,
        .b = op->b,
        .d = op->d,
        .bias = op->bias,
        .a_transposed = (uint8_t)op->a_transposed,
        .b_transposed = (uint8_t)op->b_transposed,
    };
    draft.entry.op.flags |=
        (uint8_t)((op->accumulate ? OP_ACCUMULATE : 0u) |
                  (op->accumulation != FP8PIPE_ACCUMULATION_SPLIT ? OP_FAST : 0u));
    return draft_submit(&draft, op->a_tensor != NULL ? &calls : NULL, &gemm, ticket);
}
