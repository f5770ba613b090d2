#include "exec.h"

#include <ck_pr.h>

#include "epilogue.h"
#include "function.h"
#include "linear.h"
#include "modulate.h"
#include "optimizer.h"
#include "quantize.h"
#include "scaling.h"
#include "target.h"

static enum fp8pipe_status exec_tensor_call(struct issue *issue, const struct op *op)
{
    const struct op_tensor_call *call = &op->u.tensor_call;
    struct fp8pipe_quantize_target target;
    enum fp8pipe_status status =
        target_begin(issue, &call->out, op->flags, call->rows, call->cols, &target);

    if (status == FP8PIPE_OK && call->rows > 0 && call->cols > 0) {
        status = function_tensor_call(issue, op, &target);
    }
    return status != FP8PIPE_OK ? status : target_end(issue, &call->out, op->flags, &target);
}

static enum fp8pipe_status exec_quantize(struct issue *issue, const struct op *op)
{
    const struct op_quantize *quantize = &op->u.quantize;
    struct quantize_request request = {
        .scaling = quantize->out.scaling,
        .slot = quantize->out.slot,
        .fold = (op->flags & OP_FOLD) != 0,
        .x = quantize->x,
        .kept = quantize->out.filling,
        .row = quantize->out.filling->rowwise,
        .transposed = quantize->out.filling->transposed,
        .sums = quantize->out.sums,
        .sums_accumulate = (op->flags & OP_SUMS_ACCUMULATE) != 0,
    };

    return quantize_run(issue, &request, NULL);
}

static enum fp8pipe_status exec_activation(struct issue *issue, const struct op *op)
{
    const struct op_activation *activation = &op->u.activation;
    struct kernel_activation_args args = {
        .x = activation->x,
        .dy = activation->dy,
        .result = activation->result,
        .bias = activation->bias,
        .activation = (enum fp8pipe_activation)activation->activation,
        .backward = activation->backward,
    };
    enum fp8pipe_status status = target_begin(issue, &activation->out, op->flags, activation->rows,
                                              activation->cols, &args.target);

    if (status == FP8PIPE_OK && activation->rows > 0 && activation->cols > 0) {
        status = issue->backend->ops->activation(issue->backend, issue->stream, &args);
    }
    return status != FP8PIPE_OK ? status
                                : target_end(issue, &activation->out, op->flags, &args.target);
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
    return (op->flags & OP_EPILOGUE) != 0
               ? epilogue_run(issue, &request, &gemm->epilogue, op->flags)
               : gemm_run(issue, &request);
}

enum fp8pipe_status exec_op(struct issue *issue, const struct op *op, fp8pipe_ticket ticket)
{
    struct backend *backend = issue->backend;
    struct filling *filled = NULL, *result = NULL;
    enum fp8pipe_status status = FP8PIPE_EINVAL;

    switch ((enum op_kind)op->kind) {
    case OP_COPY:
        status = op->u.copy.bytes == 0 ? FP8PIPE_OK
                                       : backend->ops->copy(backend, issue->stream, op->u.copy.to,
                                                            op->u.copy.from, op->u.copy.bytes);
        break;
    case OP_CALL:
        status = function_call(issue, op);
        break;
    case OP_HOST_CALL:
        status = function_host_call(issue, &op->u.host_call);
        break;
    case OP_UPDATE:
        status = scaling_update(op->u.scaling.scaling, op->u.scaling.skip_if, issue, ticket);
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
        filled = op->u.quantize.out.filling;
        break;
    case OP_READ:
        status = exec_read(issue, &op->u.read);
        break;
    case OP_GEMM:
        status = exec_gemm(issue, op);
        result = (op->flags & OP_EPILOGUE) != 0 ? op->u.gemm.epilogue.out.filling : NULL;
        break;
    case OP_FORWARD:
        status = linear_forward(issue, op);
        filled = op->u.forward.kept;
        result = (op->flags & OP_EPILOGUE) != 0 ? op->u.forward.epilogue.out.filling : NULL;
        break;
    case OP_DGRAD:
        status = linear_dgrad(issue, op);
        filled = op->u.dgrad.kept;
        break;
    case OP_PREPARE:
        status = linear_prepare(issue, op);
        break;
    case OP_WGRAD:
        status = linear_wgrad(issue, op);
        break;
    case OP_TENSOR_CALL:
        status = exec_tensor_call(issue, op);
        filled = op->u.tensor_call.out.filling;
        break;
    case OP_MODULATE:
        status = modulate_run(issue, op);
        filled = op->u.modulate.out.filling;
        break;
    case OP_MODULATE_BACKWARD:
        status = modulate_run_backward(issue, op);
        filled = op->u.modulate_backward.out.filling;
        break;
    case OP_ACTIVATION:
        status = exec_activation(issue, op);
        filled = op->u.activation.out.filling;
        break;
    case OP_ADAMW:
        status = optimizer_adamw(issue, &op->u.adamw);
        break;
    case OP_GRADIENT_NORM:
        status = optimizer_gradient_norm(issue, &op->u.gradient_norm);
        break;
    case OP_STEPS_READ:
        status = optimizer_steps_read(issue, &op->u.steps);
        break;
    case OP_STEPS_WRITE:
        status = optimizer_steps_write(issue, &op->u.steps);
        break;
    }
    issue_end(issue);
    if (status == FP8PIPE_OK && filled != NULL) {
        ck_pr_store_32(&filled->ready, 1);
    }
    if (status == FP8PIPE_OK && result != NULL) {
        ck_pr_store_32(&result->ready, 1);
    }
    return status;
}
