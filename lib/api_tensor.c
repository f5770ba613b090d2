/* Public entry points of quantized tensors. */
#include <stdlib.h>

#include "out_draft.h"

static enum fp8pipe_status check_tensor(const struct fp8pipe_tensor *tensor)
{
    return tensor != NULL ? FP8PIPE_OK : status_fail(FP8PIPE_EINVAL, "tensor = NULL: it is needed");
}

enum fp8pipe_status fp8pipe_tensor_create(struct fp8pipe *pipe, struct fp8pipe_tensor **out)
{
    enum fp8pipe_status status = pipe_enter_create(pipe, "tensor", out);
    struct fp8pipe_tensor *tensor;

    if (status != FP8PIPE_OK) {
        return status;
    }
    tensor = object_new(OBJECT_TENSOR, pipe, sizeof(*tensor), pipe->lanes);
    if (tensor == NULL) {
        status = status_fail(FP8PIPE_ENOMEM, "a tensor's host memory is not to be had");
    } else {
        pipe_object_add(pipe, &tensor->object);
        *out = tensor;
    }
    pipe_leave(pipe);
    return status;
}

/* Empties a tensor from a caller's thread, between pipe_enter and pipe_leave. */
static void clear(struct fp8pipe_tensor *tensor)
{
    struct filling *held[TENSOR_HOLDS];

    object_lock(&tensor->object);
    tensor_empty(tensor, held);
    for (int i = 0; i < TENSOR_HOLDS; i++) {
        pipe_filling_drop(tensor->object.pipe, held[i]);
    }
    object_unlock(&tensor->object);
}

enum fp8pipe_status fp8pipe_tensor_clear(struct fp8pipe_tensor *tensor)
{
    enum fp8pipe_status status = check_tensor(tensor);

    if (status == FP8PIPE_OK) {
        status = pipe_check_inside(false);
    }
    if (status == FP8PIPE_OK) {
        status = pipe_enter(tensor->object.pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    clear(tensor);
    pipe_leave(tensor->object.pipe);
    return FP8PIPE_OK;
}

/* At close: all uses are done, and nothing runs any more. */
static void release(struct filling *filling, struct backend *backend)
{
    struct issue issue = {.backend = backend, .lane = ISSUE_NO_LANE};

    if (filling != NULL && filling_drop(filling)) {
        filling_release(filling, &issue);
    }
}

void tensor_retire(struct object *object, struct backend *backend)
{
    struct filling *held[TENSOR_HOLDS];

    tensor_empty((struct fp8pipe_tensor *)(void *)object, held);
    for (int i = 0; i < TENSOR_HOLDS; i++) {
        release(held[i], backend);
    }
}

static void free_tensor(struct object *object, bool closed)
{
    if (!closed) {
        clear((struct fp8pipe_tensor *)(void *)object);
    }
    free(object);
}

enum fp8pipe_status fp8pipe_tensor_destroy(struct fp8pipe_tensor *tensor)
{
    static const struct pipe_ending ending = {"tensor", NULL, free_tensor};

    return pipe_object_destroy(tensor != NULL ? &tensor->object : NULL, &ending);
}

enum fp8pipe_status fp8pipe_tensor_info_get(struct fp8pipe_tensor *tensor,
                                            struct fp8pipe_tensor_info *info)
{
    struct fp8pipe_tensor_info filled = FP8PIPE_TENSOR_INFO_INIT;
    enum fp8pipe_status status = check_tensor(tensor);

    if (status == FP8PIPE_OK) {
        status = options_check_out("info", info, sizeof(filled));
    }
    if (status == FP8PIPE_OK) {
        status = pipe_check(tensor->object.pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    object_lock(&tensor->object);
    if (tensor->filling != NULL) {
        filled.rowwise = tensor_rowwise(tensor);
        filled.transposed = tensor->filling->transposed;
        filled.rows = tensor->filling->rows;
        filled.cols = tensor->filling->cols;
        filled.format = tensor->filling->format;
    }
    filled.weight = tensor->version != NULL;
    filled.filled = tensor->filling != NULL || tensor->version != NULL;
    object_unlock(&tensor->object);
    options_write(info, &filled, sizeof(filled));
    return FP8PIPE_OK;
}

/* ---- Quantize ------------------------------------------------------------------------------ */

static enum fp8pipe_status check_quantize(const struct fp8pipe_quantize_op *op)
{
    enum fp8pipe_status status = check_matrix("x", &op->x);

    if (status != FP8PIPE_OK) {
        return status;
    }
    if (op->scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "scaling = NULL: it is needed");
    }
    status = out_draft_rules("", op->scaling, op->slot, op->copies, op->reserved);
    if (status == FP8PIPE_OK) {
        status = check_sums("column_sums", &op->column_sums, check_is(op->x.cols, "x.cols"));
    }
    if (status == FP8PIPE_OK) {
        status = check_sums_apart("column_sums", &op->column_sums, "x", &op->x);
    }
    return status != FP8PIPE_OK ? status
                                : check_flag("column_sums_accumulate", op->column_sums_accumulate);
}

enum fp8pipe_status fp8pipe_tensor_quantize(struct fp8pipe_tensor *tensor,
                                            const struct fp8pipe_quantize_op *op,
                                            fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_quantize_op defaults = FP8PIPE_QUANTIZE_OP_INIT;
    static const struct draft_kind kind = {OP_QUANTIZE, FP8PIPE_NO_AMAX, sizeof(struct op_quantize),
                                           &defaults, sizeof(defaults)};
    struct fp8pipe_quantize_op room;
    const void *given;
    struct draft draft;
    struct op_quantize *payload = &draft.entry.op.u.quantize;
    enum fp8pipe_status status = check_tensor(tensor);

    if (status == FP8PIPE_OK) {
        status = draft_open(&draft, tensor->object.pipe, &kind, op, &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = check_quantize(op);
    if (status == FP8PIPE_OK) {
        status = draft_filled_objects(&draft, "tensor", tensor, "scaling", op->scaling);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    payload->x = op->x;
    payload->out = (struct op_out){
        .scaling = op->scaling,
        .sums = op->column_sums.data,
        .slot = op->slot,
    };
    draft.entry.op.flags |= (uint8_t)(op->column_sums_accumulate ? OP_SUMS_ACCUMULATE : 0u);
    return out_draft_fill(&draft, tensor, &payload->out, op->copies, op->x.rows, op->x.cols,
                          ticket);
}

/* ---- Read ---------------------------------------------------------------------------------- */

struct read_draft {
    const struct fp8pipe_read_op *op;
    struct fp8pipe_tensor *tensor;
};

static enum fp8pipe_status bind_read(struct draft *draft, void *arg)
{
    const struct read_draft *read = arg;
    struct filling *filling = read->tensor->filling;

    if (filling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "tensor = %p: it is empty", (void *)read->tensor);
    }
    if (read->op->rowwise != NULL && !tensor_rowwise(read->tensor)) {
        return status_fail(FP8PIPE_EINVAL, "rowwise = %p: the tensor has no row-wise copy",
                           read->op->rowwise);
    }
    if (read->op->transposed != NULL && !filling->transposed) {
        return status_fail(FP8PIPE_EINVAL, "transposed = %p: the tensor has no transposed copy",
                           read->op->transposed);
    }
    draft->entry.op.u.read.filling = filling;
    if (draft->last_use) {
        tensor_may_end(draft, read->tensor);
    }
    return draft_read_tensor(draft, "tensor", read->tensor, read->op->rowwise != NULL);
}

static void commit_read(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct read_draft *read = arg;

    (void)ticket;
    if (draft->last_use) {
        tensor_let_go(draft, read->tensor);
    }
}

enum fp8pipe_status fp8pipe_tensor_read(struct fp8pipe_tensor *tensor,
                                        const struct fp8pipe_read_op *op, fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_read_op defaults = FP8PIPE_READ_OP_INIT;
    static const struct draft_kind kind = {OP_READ, FP8PIPE_LAST_USE, sizeof(struct op_read),
                                           &defaults, sizeof(defaults)};
    static const struct draft_calls calls = {bind_read, commit_read};
    struct read_draft read = {.tensor = tensor};
    struct fp8pipe_read_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = check_tensor(tensor);

    if (status == FP8PIPE_OK) {
        status = draft_open(&draft, tensor->object.pipe, &kind, op, &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    read.op = op = given;
    status = draft_object(&draft, "tensor", &tensor->object);
    if (status == FP8PIPE_OK && (uintptr_t)op->scale_inv % sizeof(float) != 0) {
        status = status_fail(FP8PIPE_EINVAL, "scale_inv = %p: it is aligned to its 4 bytes",
                             (void *)op->scale_inv);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    draft.entry.op.u.read = (struct op_read){
        .rowwise = op->rowwise,
        .transposed = op->transposed,
        .scale_inv = op->scale_inv,
    };
    return draft_submit(&draft, &calls, &read, ticket);
}
