/* Public entry points of a linear's ops: forward, dgrad, wgrad. */
#include <ck_pr.h>

#include "submit.h"

/* What the three have in common while they are put together. */
struct layer_draft {
    struct fp8pipe_linear *linear;
    union {
        const struct fp8pipe_forward_op *forward;
        const struct fp8pipe_dgrad_op *dgrad;
        const struct fp8pipe_wgrad_op *wgrad;
    } op;
    struct filling *kept; /* new, or NULL */
};

static enum fp8pipe_status check_linear(const struct fp8pipe_linear *linear)
{
    return linear != NULL ? FP8PIPE_OK : status_fail(FP8PIPE_EINVAL, "linear = NULL: it is needed");
}

static enum fp8pipe_status draft_linear(struct draft *draft, struct fp8pipe_linear *linear)
{
    enum fp8pipe_status status = draft_object(draft, "linear", &linear->object);

    return status != FP8PIPE_OK || linear->scaling == NULL
               ? status
               : draft_object(draft, "scaling", &linear->scaling->object);
}

/* A tensor, or NULL; none of an op's tensors is another one too. */
static enum fp8pipe_status draft_tensor(struct draft *draft, const char *field,
                                        struct fp8pipe_tensor *tensor)
{
    uint32_t count = draft->object_count;
    enum fp8pipe_status status;

    if (tensor == NULL) {
        return FP8PIPE_OK;
    }
    status = draft_object(draft, field, &tensor->object);
    if (status == FP8PIPE_OK && draft->object_count == count) {
        status = status_fail(FP8PIPE_EINVAL, "%s = %p: it is another tensor of the op too", field,
                             (void *)tensor);
    }
    return status;
}

static uint8_t fast_flag(enum fp8pipe_accumulation accumulation, bool fast_by_default)
{
    return accumulation == FP8PIPE_ACCUMULATION_FAST ||
                   (accumulation == FP8PIPE_ACCUMULATION_DEFAULT && fast_by_default)
               ? OP_FAST
               : 0;
}

/* X or dY of an unquantized layer is of its weight's dtype. */
static enum fp8pipe_status check_dtype(const char *field, const struct fp8pipe_matrix *matrix,
                                       const struct fp8pipe_linear *linear)
{
    if (linear->scaling == NULL && matrix->dtype != linear->weight_dtype) {
        return status_fail(FP8PIPE_EINVAL,
                           "%s.dtype = %d: an unquantized linear's is its "
                           "weight's, %d",
                           field, (int)matrix->dtype, (int)linear->weight_dtype);
    }
    return FP8PIPE_OK;
}

/* The op uses a version: after its writer, holding it. */
static enum fp8pipe_status bind_version(struct draft *draft, struct version *version)
{
    uint32_t named = draft->named_count;
    enum fp8pipe_status status = draft_after(draft, version->written);

    if (status == FP8PIPE_OK && draft->named_count == named) {
        version->written = 0; /* known to be done */
    }
    draft_use(draft, version->filling);
    return status;
}

/* Every op on the linear sees to the version before the current one, if that was left to it. */
static void bind_linear(struct draft *draft, const struct fp8pipe_linear *linear)
{
    if (linear->scaling != NULL) {
        draft_use_scaling(draft, linear->scaling);
    }
    draft_may_end(draft, linear->retired != NULL);
}

static void commit_linear(struct draft *draft, struct fp8pipe_linear *linear, fp8pipe_ticket ticket)
{
    if (linear->scaling != NULL) {
        draft_used_scaling(draft, linear->scaling, ticket);
    }
    if (linear->retired != NULL) {
        draft_end(draft, linear->retired);
        linear->retired = NULL;
    }
}

/* A shared quantized operand of rows x cols. */
static enum fp8pipe_status bind_shared(struct draft *draft, const char *field,
                                       const struct fp8pipe_tensor *tensor, int64_t rows,
                                       int64_t cols, enum fp8pipe_format format, bool rowwise,
                                       bool transposed, struct filling **filling)
{
    struct filling *current = tensor->filling;

    if (current == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it is empty", field, (const void *)tensor);
    }
    if ((rows >= 0 && current->rows != rows) || current->cols != cols) {
        return status_fail(FP8PIPE_EINVAL, "%s: it has %lld x %lld entries, here are %lld x %lld",
                           field, (long long)current->rows, (long long)current->cols,
                           (long long)rows, (long long)cols);
    }
    if (current->format != format) {
        return status_fail(FP8PIPE_EINVAL, "%s: its format is %s, here it is %s", field,
                           current->format == FP8PIPE_E4M3 ? "E4M3" : "E5M2",
                           format == FP8PIPE_E4M3 ? "E4M3" : "E5M2");
    }
    if ((rowwise && !current->rowwise) || (transposed && !current->transposed)) {
        return status_fail(FP8PIPE_EINVAL, "%s: it has no %s copy", field,
                           rowwise && !current->rowwise ? "row-wise" : "transposed");
    }
    *filling = current;
    return draft_read_filling(draft, current);
}

/* ---- Forward ------------------------------------------------------------------------------- */

static enum fp8pipe_status bind_forward(struct draft *draft, void *arg)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct fp8pipe_linear *linear = layer->linear;
    struct op_forward *forward = &draft->entry.op.u.forward;
    enum fp8pipe_status status;

    forward->version = linear->current;
    status = bind_version(draft, linear->current);
    if (status == FP8PIPE_OK && op->x_tensor != NULL) {
        status = bind_shared(draft, "x_tensor", op->x_tensor, op->y.rows, linear->in_features,
                             linear->scaling->formats[linear->slot_x], true,
                             op->keep == FP8PIPE_KEEP_ALL, &forward->x_filling);
        if (draft->last_use) {
            tensor_may_end(draft, op->x_tensor);
        }
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    bind_linear(draft, linear);
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

    commit_linear(draft, linear, ticket);
    if (op->keep != FP8PIPE_KEEP_NOTHING) {
        tensor_let_go(draft, saved);
        saved->version = linear->current;
        saved->weight = linear->current->filling;
        saved->kept_by = linear;
        saved->kept_count = &linear->kept;
        saved->kept_ticket = ticket;
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
        status = check_dtype("x", &op->x, linear);
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
    enum fp8pipe_status status = check_linear(linear);

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
        status = draft_linear(&draft, linear);
    }
    if (status == FP8PIPE_OK) {
        status = draft_tensor(&draft, "x_tensor", op->x_tensor);
    }
    if (status == FP8PIPE_OK) {
        status = draft_tensor(&draft, "saved", op->saved);
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
    draft.entry.op.flags |= (uint8_t)(fast_flag(op->accumulation, true) |
                                      (op->keep != FP8PIPE_KEEP_NOTHING ? OP_KEEPS : 0u));
    status = draft_submit(&draft, &calls, &layer, ticket);
    if (status != FP8PIPE_OK && layer.kept != NULL) {
        filling_put(layer.kept);
    }
    return status;
}

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
    dgrad->version = op->saved != NULL ? op->saved->version : linear->current;
    status = bind_version(draft, dgrad->version);
    if (status == FP8PIPE_OK && op->saved != NULL) {
        status = draft_after(draft, op->saved->kept_ticket);
    }
    if (status == FP8PIPE_OK && op->dy_tensor != NULL) {
        status =
            bind_shared(draft, "dy_tensor", op->dy_tensor, op->dx.rows, linear->out_features,
                        linear->scaling->formats[linear->slot_dy], true, false, &dgrad->dy_filling);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    bind_linear(draft, linear);
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

    commit_linear(draft, linear, ticket);
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
    enum fp8pipe_status status = check_matrix_shape("dx", &op->dx, -1, linear->in_features);

    if (status == FP8PIPE_OK) {
        status = check_enum("accumulation", (int)op->accumulation, FP8PIPE_ACCUMULATION_SPLIT);
    }
    if (status == FP8PIPE_OK) {
        status = check_sums("bias_grad", &op->bias_grad, linear->out_features);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("bias_grad_accumulate", op->bias_grad_accumulate);
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
    status = check_matrix_shape("dy", &op->dy, op->dx.rows, linear->out_features);
    if (status == FP8PIPE_OK) {
        status = check_dtype("dy", &op->dy, linear);
    }
    return status != FP8PIPE_OK ? status : check_apart("dx", &op->dx, "dy", &op->dy);
}

enum fp8pipe_status fp8pipe_linear_dgrad(struct fp8pipe_linear *linear,
                                         const struct fp8pipe_dgrad_op *op, fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_dgrad_op defaults = FP8PIPE_DGRAD_OP_INIT;
    static const struct draft_calls calls = {bind_dgrad, commit_dgrad};
    struct layer_draft layer = {.linear = linear};
    struct fp8pipe_dgrad_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = check_linear(linear);

    if (status == FP8PIPE_OK) {
        status = options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    layer.op.dgrad = op = given;
    status = draft_begin(&draft, linear->object.pipe, &op->submit, OP_DGRAD,
                         sizeof(struct op_dgrad), FP8PIPE_LAST_USE | FP8PIPE_NO_AMAX);
    if (status == FP8PIPE_OK) {
        status = check_dgrad(linear, op);
    }
    if (status == FP8PIPE_OK) {
        status = draft_linear(&draft, linear);
    }
    if (status == FP8PIPE_OK) {
        status = draft_tensor(&draft, "dy_tensor", op->dy_tensor);
    }
    if (status == FP8PIPE_OK) {
        status = draft_tensor(&draft, "saved", op->saved);
    }
    if (status == FP8PIPE_OK) {
        status = draft_tensor(&draft, "dy_saved", op->dy_saved);
    }
    if (status == FP8PIPE_OK && linear->scaling != NULL && op->dy_saved != NULL) {
        status = draft_filling(&draft, &layer.kept);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (layer.kept != NULL) {
        filling_shape(layer.kept, op->dy.rows, op->dy.cols,
                      linear->scaling->formats[linear->slot_dy], false, true);
    }
    draft.entry.op.u.dgrad = (struct op_dgrad){
        .linear = linear,
        .dy = op->dy,
        .dx = op->dx,
        .kept = layer.kept,
        .sums = op->bias_grad.data,
    };
    draft.entry.op.flags |= (uint8_t)(fast_flag(op->accumulation, false) |
                                      (op->bias_grad_accumulate ? OP_SUMS_ACCUMULATE : 0u));
    status = draft_submit(&draft, &calls, &layer, ticket);
    if (status != FP8PIPE_OK && layer.kept != NULL) {
        filling_put(layer.kept);
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
    int64_t rows = op->dy_tensor != NULL ? -1 : op->dy.rows;

    if (linear->scaling != NULL) {
        if (op->saved->kept_by != linear) {
            return status_fail(FP8PIPE_EINVAL, "saved = %p: it keeps nothing of this linear",
                               (void *)op->saved);
        }
        if (op->dy_tensor != NULL) {
            status = bind_shared(draft, "dy_tensor", op->dy_tensor,
                                 check_given(&op->dy) ? op->dy.rows : -1, linear->out_features,
                                 linear->scaling->formats[linear->slot_dy], false, true,
                                 &wgrad->dy_filling);
            rows = status == FP8PIPE_OK ? wgrad->dy_filling->rows : -1;
        }
        if (status == FP8PIPE_OK) {
            status = bind_shared(draft, "saved", op->saved, rows, linear->in_features,
                                 linear->scaling->formats[linear->slot_x], false, true,
                                 &wgrad->x_filling);
        }
        if (status == FP8PIPE_OK) {
            status = draft_after(draft, op->saved->kept_ticket);
        }
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    bind_linear(draft, linear);
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

    commit_linear(draft, layer->linear, ticket);
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
        status = check_matrix_shape("dy", &op->dy, -1, linear->out_features);
        if (status == FP8PIPE_OK) {
            status = check_dtype("dy", &op->dy, linear);
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
    status = check_matrix_shape("x", &op->x, op->dy.rows, linear->in_features);
    if (status == FP8PIPE_OK) {
        status = check_dtype("x", &op->x, linear);
    }
    return status != FP8PIPE_OK ? status : check_apart("dw", &op->dw, "x", &op->x);
}

static enum fp8pipe_status check_wgrad(const struct fp8pipe_linear *linear,
                                       const struct fp8pipe_wgrad_op *op)
{
    enum fp8pipe_status status =
        check_matrix_shape("dw", &op->dw, linear->out_features, linear->in_features);

    if (status == FP8PIPE_OK) {
        status = check_enum("accumulation", (int)op->accumulation, FP8PIPE_ACCUMULATION_SPLIT);
    }
    if (status == FP8PIPE_OK) {
        status = check_sums("bias_grad", &op->bias_grad, linear->out_features);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("accumulate", op->accumulate);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("bias_grad_accumulate", op->bias_grad_accumulate);
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
    static const struct draft_calls calls = {bind_wgrad, commit_wgrad};
    struct layer_draft layer = {.linear = linear};
    struct fp8pipe_wgrad_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = check_linear(linear);

    if (status == FP8PIPE_OK) {
        status = options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    layer.op.wgrad = op = given;
    status = draft_begin(&draft, linear->object.pipe, &op->submit, OP_WGRAD,
                         sizeof(struct op_wgrad), FP8PIPE_LAST_USE | FP8PIPE_NO_AMAX);
    if (status == FP8PIPE_OK) {
        status = check_wgrad(linear, op);
    }
    if (status == FP8PIPE_OK) {
        status = draft_linear(&draft, linear);
    }
    if (status == FP8PIPE_OK) {
        status = draft_tensor(&draft, "dy_tensor", op->dy_tensor);
    }
    if (status == FP8PIPE_OK) {
        status = draft_tensor(&draft, "saved", op->saved);
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
        (uint8_t)(fast_flag(op->accumulation, false) | (op->accumulate ? OP_ACCUMULATE : 0u) |
                  (op->bias_grad_accumulate ? OP_SUMS_ACCUMULATE : 0u));
    return draft_submit(&draft, &calls, &layer, ticket);
}
