/* Public entry points of a linear's dgrad and wgrad. */
#include "epilogue_draft.h"
#include "layer_draft.h"

/* ---- dgrad --------------------------------------------------------------------------------- */

static enum fp8pipe_status bind_dgrad(struct draft *draft, void *arg)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_dgrad_op *op = layer->op.dgrad;
    struct fp8pipe_linear *linear = layer->linear;
    struct op_dgrad *dgrad = &draft->entry.op.u.dgrad;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (op->saved != NULL && op->saved->kept_by != linear) {
        return status_fail(FP8PIPE_EINVAL, "saved = %p: it keeps nothing of this linear",
                           (void *)op->saved);
    }
    if (op->saved != NULL && op->saved->kept_rewrites != linear_rewrites(linear)) {
        return status_fail(FP8PIPE_EINVAL,
                           "saved = %p: an optimizer has rewritten the weight since the forward "
                           "that kept it",
                           (void *)op->saved);
    }
    dgrad->version = op->saved != NULL ? op->saved->version : linear->current;
    status = layer_apart(draft, "dx", &op->dx, dgrad->version);
    if (status == FP8PIPE_OK) {
        status = layer_bind_version(draft, dgrad->version);
    }
    if (status == FP8PIPE_OK && op->saved != NULL) {
        status = draft_after(draft, "saved", op->saved->kept_ticket);
    }
    if (status == FP8PIPE_OK && op->dy_tensor != NULL) {
        struct layer_shared shared = {"dy_tensor",
                                      check_is(op->dx.rows, "dx.rows"),
                                      check_is(linear->out_features, "out_features"),
                                      linear->scaling->formats[linear->slot_dy],
                                      true,
                                      false};

        status = layer_bind_shared(draft, op->dy_tensor, &shared, &dgrad->dy_filling);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    layer_bind(draft, linear);
    if (draft->last_use && op->saved != NULL) {
        tensor_may_end(draft, op->saved);
    }
    if (draft->last_use && op->dy_tensor != NULL) {
        tensor_may_end(draft, op->dy_tensor);
    }
    if (op->dy_saved != NULL) {
        tensor_may_end(draft, op->dy_saved);
    }
    draft_use(draft, layer->kept);
    return FP8PIPE_OK;
}

static void commit_dgrad(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_dgrad_op *op = layer->op.dgrad;
    struct fp8pipe_linear *linear = layer->linear;

    layer_commit(draft, linear, ticket);
    if (draft->last_use && op->saved != NULL) {
        tensor_let_go(draft, op->saved);
    }
    if (draft->last_use && op->dy_tensor != NULL) {
        tensor_let_go(draft, op->dy_tensor);
    }
    if (op->dy_saved != NULL) {
        tensor_let_go(draft, op->dy_saved);
        if (layer->kept != NULL) {
            layer->kept->filled_by = ticket;
            op->dy_saved->filling = layer->kept;
        }
    }
}

static enum fp8pipe_status check_dgrad(const struct fp8pipe_linear *linear,
                                       const struct fp8pipe_dgrad_op *op)
{
    enum fp8pipe_status status = check_matrix_shape("dx", &op->dx, check_any(),
                                                    check_is(linear->in_features, "in_features"));

    if (status == FP8PIPE_OK) {
        status = check_enum("accumulation", (int)op->accumulation, FP8PIPE_ACCUMULATION_SPLIT);
    }
    if (status == FP8PIPE_OK) {
        status =
            check_sums("bias_grad", &op->bias_grad, check_is(linear->out_features, "out_features"));
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("bias_grad_accumulate", op->bias_grad_accumulate);
    }
    if (status == FP8PIPE_OK) {
        status = check_sums_apart("bias_grad", &op->bias_grad, "dx", &op->dx);
    }
    if (status == FP8PIPE_OK && check_given(&op->residual)) {
        status = epilogue_check_residual("residual", &op->residual, "dx", &op->dx);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (op->dy_tensor != NULL) {
        if (linear->scaling == NULL) {
            return status_fail(FP8PIPE_EINVAL, "dy_tensor = %p: an unquantized linear takes dy",
                               (void *)op->dy_tensor);
        }
        if (check_given(&op->dy)) {
            return status_fail(FP8PIPE_EINVAL, "dy.data = %p: dY is dy_tensor", op->dy.data);
        }
        if (op->dy_saved != NULL || op->bias_grad.data != NULL) {
            return status_fail(FP8PIPE_EINVAL, "%s = %p: it needs dy, dY is dy_tensor",
                               op->dy_saved != NULL ? "dy_saved" : "bias_grad.data",
                               op->dy_saved != NULL ? (void *)op->dy_saved : op->bias_grad.data);
        }
        return FP8PIPE_OK;
    }
    status = check_matrix_shape("dy", &op->dy, check_is(op->dx.rows, "dx.rows"),
                                check_is(linear->out_features, "out_features"));
    if (status == FP8PIPE_OK) {
        status = layer_dtype("dy", &op->dy, linear);
    }
    return status != FP8PIPE_OK ? status : check_apart("dx", &op->dx, "dy", &op->dy);
}

enum fp8pipe_status fp8pipe_linear_dgrad(struct fp8pipe_linear *linear,
                                         const struct fp8pipe_dgrad_op *op, fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_dgrad_op defaults = FP8PIPE_DGRAD_OP_INIT;
    static const struct draft_kind kind = {OP_DGRAD, FP8PIPE_LAST_USE | FP8PIPE_NO_AMAX,
                                           offsetof(struct op_dgrad, residual), &defaults,
                                           sizeof(defaults)};
    static const struct draft_calls calls = {bind_dgrad, commit_dgrad};
    struct layer_draft layer = {.linear = linear};
    struct fp8pipe_dgrad_op room;
    const void *given;
    struct draft draft;
    struct op_dgrad *dgrad = &draft.entry.op.u.dgrad;
    enum fp8pipe_status status = layer_begin(&draft, linear, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    layer.op.dgrad = op = given;
    status = check_dgrad(linear, op);
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "dy_tensor", op->dy_tensor);
    }
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "saved", op->saved);
    }
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "dy_saved", op->dy_saved);
    }
    if (status == FP8PIPE_OK && linear->scaling != NULL && op->dy_saved != NULL) {
        status = draft_filling(&draft, FP8PIPE_TRANSPOSED, &layer.kept);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (layer.kept != NULL) {
        filling_shape(layer.kept, op->dy.rows, op->dy.cols,
                      linear->scaling->formats[linear->slot_dy], false, true);
    }
    dgrad->linear = linear;
    dgrad->dy = op->dy;
    dgrad->dy_filling = NULL;
    dgrad->dx = op->dx;
    dgrad->kept = layer.kept;
    dgrad->sums = op->bias_grad.data;
    if (op->residual.data != NULL) {
        dgrad->residual = op->residual;
        draft.entry.op.flags |= (uint8_t)OP_EPILOGUE;
        draft_payload(&draft, sizeof(*dgrad));
    }
    draft.entry.op.flags |= (uint8_t)(layer_fast(op->accumulation, false) |
                                      (op->bias_grad_accumulate ? OP_SUMS_ACCUMULATE : 0u));
    status = draft_submit(&draft, &calls, &layer, ticket);
    if (status != FP8PIPE_OK && layer.kept != NULL) {
        filling_undo(layer.kept);
    }
    return status;
}

/* ---- wgrad --------------------------------------------------------------------------------- */

static enum fp8pipe_status bind_wgrad(struct draft *draft, void *arg)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_wgrad_op *op = layer->op.wgrad;
    struct fp8pipe_linear *linear = layer->linear;
    struct op_wgrad *wgrad = &draft->entry.op.u.wgrad;
    enum fp8pipe_status status = FP8PIPE_OK;
    struct check_size rows = op->dy_tensor != NULL ? check_any() : check_is(op->dy.rows, "dy.rows");

    status = layer_apart(draft, "dw", &op->dw, linear->current);
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (linear->scaling != NULL) {
        if (op->saved->kept_by != linear) {
            return status_fail(FP8PIPE_EINVAL, "saved = %p: it keeps nothing of this linear",
                               (void *)op->saved);
        }
        if (op->dy_tensor != NULL) {
            struct layer_shared shared = {"dy_tensor",
                                          check_given(&op->dy) ? check_is(op->dy.rows, "dy.rows")
                                                               : check_any(),
                                          check_is(linear->out_features, "out_features"),
                                          linear->scaling->formats[linear->slot_dy],
                                          false,
                                          true};

            status = layer_bind_shared(draft, op->dy_tensor, &shared, &wgrad->dy_filling);
            if (status == FP8PIPE_OK) {
                rows = check_is(wgrad->dy_filling->rows, "dy_tensor's rows");
            }
        }
        if (status == FP8PIPE_OK) {
            struct layer_shared shared = {"saved",
                                          rows,
                                          check_is(linear->in_features, "in_features"),
                                          linear->scaling->formats[linear->slot_x],
                                          false,
                                          true};

            status = layer_bind_shared(draft, op->saved, &shared, &wgrad->x_filling);
        }
        if (status == FP8PIPE_OK) {
            status = draft_after(draft, "saved", op->saved->kept_ticket);
        }
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    layer_bind(draft, linear);
    if (draft->last_use && op->saved != NULL) {
        tensor_may_end(draft, op->saved);
    }
    if (draft->last_use && op->dy_tensor != NULL) {
        tensor_may_end(draft, op->dy_tensor);
    }
    return FP8PIPE_OK;
}

static void commit_wgrad(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_wgrad_op *op = layer->op.wgrad;

    layer_commit(draft, layer->linear, ticket);
    if (draft->last_use && op->saved != NULL) {
        tensor_let_go(draft, op->saved);
    }
    if (draft->last_use && op->dy_tensor != NULL) {
        tensor_let_go(draft, op->dy_tensor);
    }
}

static enum fp8pipe_status check_wgrad_sources(const struct fp8pipe_linear *linear,
                                               const struct fp8pipe_wgrad_op *op)
{
    bool quantized = linear->scaling != NULL;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (quantized && op->saved == NULL) {
        return status_fail(FP8PIPE_EINVAL, "saved = NULL: X is what the forward kept");
    }
    if (!quantized || op->dy_tensor == NULL || check_given(&op->dy)) {
        status = check_matrix_shape("dy", &op->dy, check_any(),
                                    check_is(linear->out_features, "out_features"));
        if (status == FP8PIPE_OK) {
            status = layer_dtype("dy", &op->dy, linear);
        }
        if (status == FP8PIPE_OK) {
            status = check_apart("dw", &op->dw, "dy", &op->dy);
        }
    }
    if (status == FP8PIPE_OK && op->bias_grad.data != NULL && quantized && op->dy_tensor != NULL &&
        !check_given(&op->dy)) {
        status =
            status_fail(FP8PIPE_EINVAL, "bias_grad.data = %p: it needs dy", op->bias_grad.data);
    }
    if (status == FP8PIPE_OK && quantized && check_given(&op->x)) {
        status = status_fail(FP8PIPE_EINVAL, "x.data = %p: X is what the forward kept in saved",
                             op->x.data);
    }
    if (status != FP8PIPE_OK || quantized) {
        return status;
    }
    status = check_matrix_shape("x", &op->x, check_is(op->dy.rows, "dy.rows"),
                                check_is(linear->in_features, "in_features"));
    if (status == FP8PIPE_OK) {
        status = layer_dtype("x", &op->x, linear);
    }
    return status != FP8PIPE_OK ? status : check_apart("dw", &op->dw, "x", &op->x);
}

static enum fp8pipe_status check_wgrad(const struct fp8pipe_linear *linear,
                                       const struct fp8pipe_wgrad_op *op)
{
    enum fp8pipe_status status =
        check_matrix_shape("dw", &op->dw, check_is(linear->out_features, "out_features"),
                           check_is(linear->in_features, "in_features"));

    if (status == FP8PIPE_OK) {
        status = check_enum("accumulation", (int)op->accumulation, FP8PIPE_ACCUMULATION_SPLIT);
    }
    if (status == FP8PIPE_OK) {
        status =
            check_sums("bias_grad", &op->bias_grad, check_is(linear->out_features, "out_features"));
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("accumulate", op->accumulate);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("bias_grad_accumulate", op->bias_grad_accumulate);
    }
    if (status == FP8PIPE_OK) {
        status = check_sums_apart("bias_grad", &op->bias_grad, "dw", &op->dw);
    }
    if (status == FP8PIPE_OK && op->reserved != 0) {
        status = status_fail(FP8PIPE_EINVAL, "reserved = %d: it is 0", op->reserved);
    }
    return status != FP8PIPE_OK ? status : check_wgrad_sources(linear, op);
}

enum fp8pipe_status fp8pipe_linear_wgrad(struct fp8pipe_linear *linear,
                                         const struct fp8pipe_wgrad_op *op, fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_wgrad_op defaults = FP8PIPE_WGRAD_OP_INIT;
    static const struct draft_kind kind = {OP_WGRAD, FP8PIPE_LAST_USE | FP8PIPE_NO_AMAX,
                                           sizeof(struct op_wgrad), &defaults, sizeof(defaults)};
    static const struct draft_calls calls = {bind_wgrad, commit_wgrad};
    struct layer_draft layer = {.linear = linear};
    struct fp8pipe_wgrad_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = layer_begin(&draft, linear, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    layer.op.wgrad = op = given;
    status = check_wgrad(linear, op);
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "dy_tensor", op->dy_tensor);
    }
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "saved", op->saved);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    draft.entry.op.u.wgrad = (struct op_wgrad){
        .linear = linear,
        .dy = op->dy,
        .x = op->x,
        .dw = op->dw,
        .sums = op->bias_grad.data,
    };
    draft.entry.op.flags |=
        (uint8_t)(layer_fast(op->accumulation, false) | (op->accumulate ? OP_ACCUMULATE : 0u) |
                  (op->bias_grad_accumulate ? OP_SUMS_ACCUMULATE : 0u));
    return draft_submit(&draft, &calls, &layer, ticket);
}
