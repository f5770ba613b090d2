#include "exec.h"

#include <ck_pr.h>
#include <stdlib.h>

#include "gemm.h"
#include "linear.h"
#include "quantize.h"
#include "scaling.h"
#include "thread.h"

struct host_work {
    struct fault *fault;
    fp8pipe_work_fn *fn;
    void *arg;
};

static void run_host_work(void *arg)
{
    struct host_work *work = arg;

    if (fault_status(work->fault) == FP8PIPE_OK) {
        enum thread_inside before = thread_inside_set(THREAD_FUNCTION);

        work->fn(work->arg);
        thread_inside_set(before);
    }
    free(work);
}

static enum fp8pipe_status enqueue_host_work(struct backend *backend, struct fp8pipe_stream *stream,
                                             struct fault *fault, fp8pipe_work_fn *fn, void *arg)
{
    struct host_work *work = malloc(sizeof(*work));
    enum fp8pipe_status status;

    if (work == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "host work: %zu bytes are not to be had", sizeof(*work));
    }
    *work = (struct host_work){fault, fn, arg};
    status = backend->ops->host_call(backend, stream, run_host_work, work);
    if (status != FP8PIPE_OK) {
        free(work);
    }
    return status;
}

/* The `call` that the thread is inside of. */
static _Thread_local const struct issue *call_issue;

enum fp8pipe_status exec_host_enqueue(struct fp8pipe_stream *stream, fp8pipe_work_fn *fn, void *arg)
{
    if (call_issue == NULL || call_issue->stream != stream) {
        return status_fail(FP8PIPE_EINVAL, "stream = %p: this thread is not inside a call on it",
                           (void *)stream);
    }
    return enqueue_host_work(call_issue->backend, stream, call_issue->rings[call_issue->lane].fault,
                             fn, arg);
}

static enum fp8pipe_status exec_call(struct issue *issue, const struct op_call *call)
{
    enum thread_inside before = thread_inside_set(THREAD_FUNCTION);
    struct backend_scope scope;
    enum fp8pipe_status status;

    call_issue = issue;
    /* fn may make another device current. */
    issue->backend->ops->enter(issue->backend, &scope);
    status = call->fn(issue->stream, call->arg);
    issue->backend->ops->leave(issue->backend, &scope);
    call_issue = NULL;
    thread_inside_set(before);
    if (!status_known(status)) {
        return status_fail(FP8PIPE_ECALL, "the function of a call returned %d, which is no status",
                           (int)status);
    }
    if (status != FP8PIPE_OK) {
        status_fail(status, "the function of a call returned %s: %s", fp8pipe_status_name(status),
                    fp8pipe_strerror(status));
    }
    return status;
}

static enum fp8pipe_status exec_quantize(struct issue *issue, const struct op *op)
{
    const struct op_quantize *quantize = &op->u.quantize;
    struct quantize_request request = {
        .scaling = quantize->scaling,
        .slot = quantize->slot,
        .fold = (op->flags & OP_FOLD) != 0,
        .x = quantize->x,
        .kept = quantize->filling,
        .row = quantize->filling->rowwise,
        .transposed = quantize->filling->transposed,
        .sums = quantize->sums,
        .sums_accumulate = (op->flags & OP_SUMS_ACCUMULATE) != 0,
    };

    return quantize_run(issue, &request, NULL);
}

static enum fp8pipe_status exec_read(struct issue *issue, const struct op_read *read)
{
    const struct filling *filling = read->filling;
    struct backend *backend = issue->backend;
    size_t rows = (size_t)filling->rows, cols = (size_t)filling->cols;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (read->rowwise != NULL && rows > 0 && cols > 0) {
        status = backend->ops->copy_2d(backend, issue->stream, read->rowwise, cols, filling->row,
                                       (size_t)filling->row_stride, cols, rows);
    }
    if (status == FP8PIPE_OK && read->transposed != NULL && rows > 0 && cols > 0) {
        status = backend->ops->copy_2d(backend, issue->stream, read->transposed, rows,
                                       filling->transposed_data, (size_t)filling->transposed_stride,
                                       rows, cols);
    }
    if (status == FP8PIPE_OK && read->scale_inv != NULL) {
        status = backend->ops->copy(backend, issue->stream, read->scale_inv, filling->scale_inv,
                                    sizeof(float));
    }
    return status;
}

static enum fp8pipe_status exec_gemm(struct issue *issue, const struct op *op)
{
    const struct op_gemm *gemm = &op->u.gemm;
    struct gemm_request request = {
        .d = gemm->d,
        .bias = gemm->bias,
        .accumulate = (op->flags & OP_ACCUMULATE) != 0,
        .fast = (op->flags & OP_FAST) != 0,
    };

    if (gemm->a_filling != NULL) {
        request.k = gemm->a_transposed ? gemm->a_filling->rows : gemm->a_filling->cols;
        request.a = gemm->a_transposed ? quantize_transposed_of(gemm->a_filling)
                                       : quantize_row_of(gemm->a_filling);
        request.b = gemm->b_transposed ? quantize_transposed_of(gemm->b_filling)
                                       : quantize_row_of(gemm->b_filling);
    } else {
        request.k = gemm->a_transposed ? gemm->a.rows : gemm->a.cols;
        request.a = gemm_operand_of(&gemm->a, gemm->a_transposed);
        request.b = gemm_operand_of(&gemm->b, gemm->b_transposed);
    }
    return gemm_run(issue, &request);
}

enum fp8pipe_status exec_op(struct issue *issue, const struct op *op, fp8pipe_ticket ticket)
{
    struct backend *backend = issue->backend;
    struct filling *filled = NULL;
    enum fp8pipe_status status = FP8PIPE_EINVAL;

    switch ((enum op_kind)op->kind) {
    case OP_COPY:
        status = op->u.copy.bytes == 0 ? FP8PIPE_OK
                                       : backend->ops->copy(backend, issue->stream, op->u.copy.to,
                                                            op->u.copy.from, op->u.copy.bytes);
        break;
    case OP_CALL:
        status = exec_call(issue, &op->u.call);
        break;
    case OP_HOST_CALL:
        status = enqueue_host_work(backend, issue->stream, issue->rings[issue->lane].fault,
                                   op->u.host_call.fn, op->u.host_call.arg);
        break;
    case OP_UPDATE:
        status = scaling_update(op->u.scaling.scaling, issue, ticket);
        break;
    case OP_SKIP:
        status = scaling_skip(op->u.scaling.scaling, issue);
        break;
    case OP_STATE_READ:
        status = scaling_read(op->u.scaling.scaling, op->u.scaling.image, issue);
        break;
    case OP_STATE_WRITE:
        status = scaling_write(op->u.scaling.scaling, op->u.scaling.image, issue);
        break;
    case OP_SLOT_READ:
        status = scaling_read_slot(op->u.scaling.scaling, op->u.scaling.image, issue);
        break;
    case OP_QUANTIZE:
        status = exec_quantize(issue, op);
        filled = op->u.quantize.filling;
        break;
    case OP_READ:
        status = exec_read(issue, &op->u.read);
        break;
    case OP_GEMM:
        status = exec_gemm(issue, op);
        break;
    case OP_FORWARD:
        status = linear_forward(issue, op);
        filled = op->u.forward.kept;
        break;
    case OP_DGRAD:
        status = linear_dgrad(issue, op);
        filled = op->u.dgrad.kept;
        break;
    case OP_WGRAD:
        status = linear_wgrad(issue, op);
        break;
    }
    issue_end(issue);
    if (status == FP8PIPE_OK && filled != NULL) {
        ck_pr_store_32(&filled->ready, 1);
    }
    return status;
}
