/* Public entry point of a linear's forward. */
#include <ck_pr.h>

#include "layer_draft.h"

static enum fp8pipe_status bind_forward(struct draft *draft, void *arg)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct fp8pipe_linear *linear = layer->linear;
    struct op_forward *forward = &draft->entry.op.u.forward;
    enum fp8pipe_status status;

    status = check_apart("y", &op->y, "weight", &linear->current->weight);
    if (status != FP8PIPE_OK) {
        return status;
    }
    forward->version = linear->current;
    status = layer_bind_version(draft, linear->current);
    if (status == FP8PIPE_OK && op->x_tensor != NULL) {
        status = layer_bind_shared(draft, "x_tensor", op->x_tensor, op->y.rows, linear->in_features,
                                   linear->scaling->formats[linear->slot_x], true,
                                   op->keep == FP8PIPE_KEEP_ALL, &forward->x_filling);
        if (draft->last_use) {
            tensor_may_end(draft, op->x_tensor);
        }
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    layer_bind(draft, linear);
    if (op->saved != NULL) {
        tensor_may_end(draft, op->saved);
    }
    draft_use(draft, layer->kept);
    return FP8PIPE_OK;
}

static void commit_forward(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct fp8pipe_linear *linear = layer->linear;
    struct fp8pipe_tensor *saved = op->saved;
    struct filling *x_filling = draft->entry.op.u.forward.x_filling;

    layer_commit(draft, linear, ticket);
    if (op->keep != FP8PIPE_KEEP_NOTHING) {
        tensor_let_go(draft, saved);
        saved->version = linear->current;
        saved->weight = linear->current->filling;
        saved->kept_by = linear;
        saved->kept_count = &linear->kept;
        saved->kept_ticket = ticket;
        saved->kept_rewrites = linear_rewrites(linear);
        filling_hold(saved->weight);
        ck_pr_inc_32(&linear->kept);
        if (layer->kept != NULL) {
            layer->kept->filled_by = ticket;
            saved->filling = layer->kept;
        } else if (op->keep == FP8PIPE_KEEP_ALL && x_filling != NULL) {
            saved->filling = x_filling;
            filling_hold(x_filling);
        }
    }
    if (draft->last_use && op->x_tensor != NULL) {
        tensor_let_go(draft, op->x_tensor);
    }
}

static enum fp8pipe_status check_forward(const struct fp8pipe_linear *linear,
                                         const struct fp8pipe_forward_op *op)
{
    enum fp8pipe_status status = check_matrix_shape("y", &op->y, -1, linear->out_features);

    if (status == FP8PIPE_OK) {
        status = check_enum("keep", (int)op->keep, FP8PIPE_KEEP_ALL);
    }
    if (status == FP8PIPE_OK) {
        status = check_enum("accumulation", (int)op->accumulation, FP8PIPE_ACCUMULATION_SPLIT);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if ((op->keep != FP8PIPE_KEEP_NOTHING) != (op->saved != NULL)) {
        return status_fail(FP8PIPE_EINVAL, "saved = %p: with keep = %d it is %s", (void *)op->saved,
                           (int)op->keep, op->saved != NULL ? "NULL" : "needed");
    }
    if (op->x_tensor != NULL) {
        if (linear->scaling == NULL) {
            return status_fail(FP8PIPE_EINVAL, "x_tensor = %p: an unquantized linear takes x",
                               (void *)op->x_tensor);
        }
        return !check_given(&op->x)
                   ? FP8PIPE_OK
                   : status_fail(FP8PIPE_EINVAL, "x.data = %p: X is x_tensor", op->x.data);
    }
    status = check_matrix_shape("x", &op->x, op->y.rows, linear->in_features);
    if (status == FP8PIPE_OK) {
        status = layer_dtype("x", &op->x, linear);
    }
    return status != FP8PIPE_OK ? status : check_apart("y", &op->y, "x", &op->x);
}

enum fp8pipe_status fp8pipe_linear_forward(struct fp8pipe_linear *linear,
                                           const struct fp8pipe_forward_op *op,
                                           fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_forward_op defaults = FP8PIPE_FORWARD_OP_INIT;
    static const struct draft_calls calls = {bind_forward, commit_forward};
    struct layer_draft layer = {.linear = linear};
    struct fp8pipe_forward_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = layer_check(linear);

    if (status == FP8PIPE_OK) {
        status = options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    layer.op.forward = op = given;
    status = draft_begin(&draft, linear->object.pipe, &op->submit, OP_FORWARD,
                         sizeof(struct op_forward), FP8PIPE_LAST_USE | FP8PIPE_NO_AMAX);
    if (status == FP8PIPE_OK) {
        status = check_forward(linear, op);
    }
    if (status == FP8PIPE_OK) {
        status = layer_object(&draft, linear);
    }
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "x_tensor", op->x_tensor);
    }
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "saved", op->saved);
    }
    if (status == FP8PIPE_OK && linear->scaling != NULL && op->keep == FP8PIPE_KEEP_ALL &&
        op->x_tensor == NULL) {
        status = draft_filling(&draft, &layer.kept);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (layer.kept != NULL) {
        filling_shape(layer.kept, op->x.rows, op->x.cols, linear->scaling->formats[linear->slot_x],
                      false, true);
    }
    draft.entry.op.u.forward = (struct op_forward){
        .linear = linear,
        .x = op->x,
        .y = op->y,
        .kept = layer.kept,
    };
    draft.entry.op.flags |= (uint8_t)(layer_fast(op->accumulation, true) |
                                      (op->keep != FP8PIPE_KEEP_NOTHING ? OP_KEEPS : 0u));
    status = draft_submit(&draft, &calls, &layer, ticket);
    if (status != FP8PIPE_OK && layer.kept != NULL) {
        filling_put(layer.kept);
    }
    return status;
}
