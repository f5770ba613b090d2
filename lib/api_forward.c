/* Public entry points of a linear's forward, and of the quantize of its weight before it. */
#include <ck_pr.h>

#include "epilogue_draft.h"
#include "layer_draft.h"

/* ---- Forward ------------------------------------------------------------------------------- */

/* Y's shape is known from here on. */
static inline enum fp8pipe_status bind_epilogue(struct draft *draft,
                                                const struct layer_draft *layer)
{
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct op_forward *forward = &draft->entry.op.u.forward;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (epilogue_adds(&op->epilogue)) {
        return FP8PIPE_OK;
    }
    if (forward->x_filling != NULL) {
        forward->y.rows = forward->x_filling->rows;
    }
    if (op->epilogue.pre.data != NULL) {
        status = layer_apart(draft, "epilogue.pre", &op->epilogue.pre, layer->linear->current);
    }
    return status != FP8PIPE_OK ? status
                                : epilogue_bind(draft, &op->epilogue, &forward->epilogue,
                                                forward->y.rows, forward->y.cols);
}

static enum fp8pipe_status bind_forward(struct draft *draft, void *arg)
{
    const struct layer_draft *layer = arg;
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct fp8pipe_linear *linear = layer->linear;
    struct op_forward *forward = &draft->entry.op.u.forward;
    enum fp8pipe_status status;

    status = layer_apart(draft, "y", &op->y, linear->current);
    if (status != FP8PIPE_OK) {
        return status;
    }
    forward->version = linear->current;
    status = layer_bind_version(draft, linear->current);
    if (status == FP8PIPE_OK && op->x_tensor != NULL) {
        struct layer_shared shared = {"x_tensor",
                                      op->epilogue.tensor != NULL ? check_any()
                                                                  : check_is(op->y.rows, "y.rows"),
                                      check_is(linear->in_features, "in_features"),
                                      linear->scaling->formats[linear->slot_x],
                                      true,
                                      op->keep == FP8PIPE_KEEP_ALL};

        status = layer_bind_shared(draft, op->x_tensor, &shared, &forward->x_filling);
        if (draft->last_use) {
            tensor_may_end(draft, op->x_tensor);
        }
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    layer_bind(draft, linear);
    if ((draft->entry.op.flags & OP_EPILOGUE) != 0) {
        status = bind_epilogue(draft, layer);
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    if (op->saved != NULL) {
        tensor_may_end(draft, op->saved);
    }
    draft_use(draft, layer->kept);
    return FP8PIPE_OK;
}

static void keep_forward(struct draft *draft, const struct layer_draft *layer,
                         fp8pipe_ticket ticket)
{
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct fp8pipe_linear *linear = layer->linear;
    struct fp8pipe_tensor *saved = op->saved;
    struct filling *x_filling = draft->entry.op.u.forward.x_filling;

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
        /* Not its part: no backward reads the row-wise bytes. */
        saved->filling = x_filling;
        filling_hold(x_filling);
    }
}

/* The rest of the commit, of a forward that has more than X and Y. */
static __attribute__((noinline)) void
commit_more(struct draft *draft, const struct layer_draft *layer, fp8pipe_ticket ticket)
{
    const struct fp8pipe_forward_op *op = layer->op.forward;

    if (op->keep != FP8PIPE_KEEP_NOTHING) {
        keep_forward(draft, layer, ticket);
    }
    if (draft->last_use && op->x_tensor != NULL) {
        tensor_let_go(draft, op->x_tensor);
    }
    if ((draft->entry.op.flags & OP_EPILOGUE) != 0) {
        epilogue_commit(draft, &op->epilogue, &draft->entry.op.u.forward.epilogue, ticket);
    }
}

static void commit_forward(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct layer_draft *layer = arg;

    layer_commit(draft, layer->linear, ticket);
    if ((draft->entry.op.flags & (OP_KEEPS | OP_EPILOGUE)) != 0 || draft->last_use) {
        commit_more(draft, layer, ticket);
    }
}

static enum fp8pipe_status check_forward(const struct fp8pipe_linear *linear,
                                         const struct fp8pipe_forward_op *op)
{
    struct check_size rows =
        op->epilogue.tensor != NULL ? check_any() : check_is(op->y.rows, "y.rows");
    enum fp8pipe_status status = FP8PIPE_OK;

    if (op->epilogue.tensor == NULL) {
        status = check_matrix_shape("y", &op->y, check_any(),
                                    check_is(linear->out_features, "out_features"));
        if (status == FP8PIPE_OK) {
            status = check_apart_vector("y", &op->y, "bias", &linear->bias);
        }
    }
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
    status = check_matrix_shape("x", &op->x, rows, check_is(linear->in_features, "in_features"));
    if (status == FP8PIPE_OK) {
        status = layer_dtype("x", &op->x, linear);
    }
    /* Of a result that is a tensor, Y is not looked at yet. */
    return status != FP8PIPE_OK || op->epilogue.tensor != NULL
               ? status
               : check_apart("y", &op->y, "x", &op->x);
}

/* draft_epilogue of a residual and nothing else. */
static enum fp8pipe_status draft_residual(struct draft *draft, const struct layer_draft *layer)
{
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct op_forward *forward = &draft->entry.op.u.forward;

    draft_payload(draft, sizeof(*forward));
    draft->entry.op.flags |= (uint8_t)OP_EPILOGUE;
    forward->epilogue.pre = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    forward->epilogue.residual = op->epilogue.residual;
    forward->epilogue.out.filling = NULL;
    forward->epilogue.activation = FP8PIPE_ACTIVATION_NONE;
    forward->epilogue.scaled = 0;
    return epilogue_check_residual("epilogue.residual", &op->epilogue.residual, "y", &op->y);
}

/* Checks a given epilogue and writes it into the payload, which has Y and X. */
static enum fp8pipe_status draft_epilogue(struct draft *draft, const struct layer_draft *layer)
{
    const struct fp8pipe_forward_op *op = layer->op.forward;
    struct op_forward *forward = &draft->entry.op.u.forward;
    struct epilogue_shape shape = {
        .d_field = "y",
        .d = &op->y,
        .rows = op->x_tensor == NULL          ? check_is(op->x.rows, "x.rows")
                : op->epilogue.tensor == NULL ? check_is(op->y.rows, "y.rows")
                                              : check_any(),
        .cols = check_is(layer->linear->out_features, "out_features"),
        .bias = &layer->linear->bias,
        .in = {{"x", &op->x}, {NULL, NULL}},
    };
    enum fp8pipe_status status = epilogue_check(draft, &op->epilogue, &shape);

    if (status != FP8PIPE_OK) {
        return status;
    }
    if (op->epilogue.tensor != NULL) {
        forward->y.rows = op->x.rows;
        forward->y.cols = shape.cols.is;
    }
    draft_payload(draft, sizeof(*forward));
    draft->entry.op.flags |= (uint8_t)OP_EPILOGUE;
    return epilogue_fill(draft, &op->epilogue, &forward->epilogue);
}

/* Fillings that were made for a refused submit. */
static void undo_forward(struct draft *draft, const struct layer_draft *layer)
{
    struct filling *filling = (draft->entry.op.flags & OP_EPILOGUE) != 0
                                  ? draft->entry.op.u.forward.epilogue.out.filling
                                  : NULL;

    if (filling != NULL) {
        filling_undo(filling);
    }
    if (layer->kept != NULL) {
        filling_undo(layer->kept);
    }
}

enum fp8pipe_status fp8pipe_linear_forward(struct fp8pipe_linear *linear,
                                           const struct fp8pipe_forward_op *op,
                                           fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_forward_op defaults = FP8PIPE_FORWARD_OP_INIT;
    static const struct draft_kind kind = {OP_FORWARD, FP8PIPE_LAST_USE | FP8PIPE_NO_AMAX,
                                           offsetof(struct op_forward, epilogue), &defaults,
                                           sizeof(defaults)};
    static const struct draft_calls calls = {bind_forward, commit_forward};
    struct layer_draft layer = {.linear = linear};
    struct fp8pipe_forward_op room;
    const void *given;
    struct draft draft;
    struct op_forward *forward = &draft.entry.op.u.forward;
    enum fp8pipe_status status = layer_begin(&draft, linear, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    layer.op.forward = op = given;
    status = check_forward(linear, op);
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "x_tensor", op->x_tensor);
    }
    if (status == FP8PIPE_OK) {
        status = layer_tensor(&draft, "saved", op->saved);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    forward->linear = linear;
    forward->x = op->x;
    forward->x_filling = NULL;
    forward->y = op->y;
    draft.entry.op.flags |= (uint8_t)(layer_fast(op->accumulation, true) |
                                      (op->keep != FP8PIPE_KEEP_NOTHING ? OP_KEEPS : 0u));
    if (epilogue_given(&op->epilogue)) {
        status = epilogue_adds(&op->epilogue) ? draft_residual(&draft, &layer)
                                              : draft_epilogue(&draft, &layer);
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    if (linear->scaling != NULL && op->keep == FP8PIPE_KEEP_ALL && op->x_tensor == NULL) {
        status = draft_filling(&draft, FP8PIPE_TRANSPOSED, &layer.kept);
        if (status == FP8PIPE_OK) {
            filling_shape(layer.kept, op->x.rows, op->x.cols,
                          linear->scaling->formats[linear->slot_x], false, true);
        }
    }
    forward->kept = layer.kept;
    if (status == FP8PIPE_OK) {
        status = draft_submit(&draft, &calls, &layer, ticket);
    }
    if (status != FP8PIPE_OK) {
        undo_forward(&draft, &layer);
    }
    return status;
}

/* ---- Prepare ------------------------------------------------------------------------------- */

static enum fp8pipe_status bind_prepare(struct draft *draft, void *arg)
{
    const struct layer_draft *layer = arg;
    struct version *version = layer->linear->current;
    enum fp8pipe_status status = layer_bind_version(draft, version);

    draft->entry.op.u.prepare.version = version;
    layer_bind(draft, layer->linear);
    return status;
}

static void commit_prepare(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct layer_draft *layer = arg;

    layer_commit(draft, layer->linear, ticket);
    layer_prepared(draft, layer->linear->current, ticket);
}

static enum fp8pipe_status check_prepare(const struct fp8pipe_linear *linear,
                                         const struct fp8pipe_prepare_op *op)
{
    if (linear->scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL,
                           "linear = %p: it is unquantized, its weight is used as "
                           "it is",
                           (const void *)linear);
    }
    if (op->copies != FP8PIPE_ROWWISE && op->copies != (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)) {
        return status_fail(FP8PIPE_EINVAL, "copies = %#x: it is ROWWISE, or TRANSPOSED as well",
                           op->copies);
    }
    return op->reserved == 0 ? FP8PIPE_OK
                             : status_fail(FP8PIPE_EINVAL, "reserved = %u: it is 0", op->reserved);
}

enum fp8pipe_status fp8pipe_linear_prepare(struct fp8pipe_linear *linear,
                                           const struct fp8pipe_prepare_op *op,
                                           fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_prepare_op defaults = FP8PIPE_PREPARE_OP_INIT;
    static const struct draft_kind kind = {OP_PREPARE, 0, sizeof(struct op_prepare), &defaults,
                                           sizeof(defaults)};
    static const struct draft_calls calls = {bind_prepare, commit_prepare};
    struct layer_draft layer = {.linear = linear};
    struct fp8pipe_prepare_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = layer_begin(&draft, linear, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = check_prepare(linear, op);
    if (status != FP8PIPE_OK) {
        return status;
    }
    draft.entry.op.u.prepare = (struct op_prepare){
        .linear = linear,
        .transposed = (op->copies & FP8PIPE_TRANSPOSED) != 0,
    };
    return draft_submit(&draft, &calls, &layer, ticket);
}
