/* Public entry points of fp8pipe_activation and its backward. */
#include "fp8pipe_fused.h"

#include "out_draft.h"

/* What both have in common. Shapes follow from x, the values' from it and the direction. */
struct activation {
    enum fp8pipe_activation activation;
    int32_t reserved;
    const struct fp8pipe_matrix *x;
    const struct fp8pipe_vector *bias;
    const struct fp8pipe_matrix *dy; /* NULL: forward */
    const struct fp8pipe_matrix *result;
    const char *result_field;
    const struct fp8pipe_quantized *out;
};

static bool gated(const struct activation *op)
{
    return op->activation == FP8PIPE_ACTIVATION_SWIGLU;
}

/* Columns of y and dy. */
static struct check_size outer_cols(const struct activation *op)
{
    return gated(op) ? check_is(op->x->cols / 2, "x.cols / 2") : check_is(op->x->cols, "x.cols");
}

static struct check_size value_cols(const struct activation *op)
{
    return op->dy != NULL ? check_is(op->x->cols, "x.cols") : outer_cols(op);
}

/* A matrix and the one it may be, if each element is read and written by the same thread. */
static enum fp8pipe_status check_in_place(const struct activation *op, const char *field,
                                          const struct fp8pipe_matrix *in)
{
    bool same = op->result->data == in->data && op->result->stride == in->stride &&
                op->result->dtype == in->dtype;

    return same && !gated(op) ? FP8PIPE_OK : check_apart(op->result_field, op->result, field, in);
}

static enum fp8pipe_status check_operands(const struct activation *op)
{
    enum fp8pipe_status status;

    if (op->activation < FP8PIPE_ACTIVATION_GELU_TANH ||
        op->activation > FP8PIPE_ACTIVATION_SWIGLU) {
        return status_fail(FP8PIPE_EINVAL, "activation = %d: it is one of %d to %d",
                           (int)op->activation, FP8PIPE_ACTIVATION_GELU_TANH,
                           FP8PIPE_ACTIVATION_SWIGLU);
    }
    if (op->reserved != 0) {
        return status_fail(FP8PIPE_EINVAL, "reserved = %d: it is 0", op->reserved);
    }
    status = check_matrix("x", op->x);
    if (status == FP8PIPE_OK && gated(op) && op->x->cols % 2 != 0) {
        status = status_fail(FP8PIPE_EINVAL, "x.cols = %lld: SWIGLU takes two halves",
                             (long long)op->x->cols);
    }
    if (status == FP8PIPE_OK) {
        status = check_vector("bias", op->bias, check_is(op->x->cols, "x.cols"));
    }
    if (status == FP8PIPE_OK && op->dy != NULL) {
        status = check_matrix_shape("dy", op->dy, check_is(op->x->rows, "x.rows"), outer_cols(op));
    }
    return status;
}

static enum fp8pipe_status check_result(const struct activation *op)
{
    enum fp8pipe_status status;

    if (!check_given(op->result)) {
        return op->out->tensor != NULL
                   ? FP8PIPE_OK
                   : status_fail(FP8PIPE_EINVAL,
                                 "out.tensor = NULL: %s is absent too, nothing is to be written",
                                 op->result_field);
    }
    status = check_matrix_shape(op->result_field, op->result, check_is(op->x->rows, "x.rows"),
                                value_cols(op));
    if (status == FP8PIPE_OK) {
        status = check_in_place(op, "x", op->x);
    }
    if (status == FP8PIPE_OK && op->dy != NULL) {
        status = check_in_place(op, "dy", op->dy);
    }
    if (status == FP8PIPE_OK) {
        status = check_apart_vector(op->result_field, op->result, "bias", op->bias);
    }
    return status;
}

/* Apart from all matrices; checked already otherwise. */
static enum fp8pipe_status check_column_sums(const struct activation *op)
{
    const struct fp8pipe_vector *sums = &op->out->column_sums;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (op->out->tensor == NULL) {
        return FP8PIPE_OK;
    }
    if (check_given(op->result)) {
        status = check_sums_apart("out.column_sums", sums, op->result_field, op->result);
    }
    if (status == FP8PIPE_OK) {
        status = check_sums_apart("out.column_sums", sums, "x", op->x);
    }
    if (status == FP8PIPE_OK && op->dy != NULL) {
        status = check_sums_apart("out.column_sums", sums, "dy", op->dy);
    }
    return status;
}

/* With an open draft. */
static enum fp8pipe_status submit(struct draft *draft, const struct activation *op,
                                  fp8pipe_ticket *ticket)
{
    struct op_activation *payload = &draft->entry.op.u.activation;
    enum fp8pipe_status status = check_operands(op);

    if (status == FP8PIPE_OK) {
        status = check_result(op);
    }
    if (status == FP8PIPE_OK) {
        status = out_draft_check(draft, op->out, value_cols(op));
    }
    if (status == FP8PIPE_OK) {
        status = check_column_sums(op);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    *payload = (struct op_activation){
        .x = *op->x,
        .result = *op->result,
        .bias = *op->bias,
        .rows = op->x->rows,
        .cols = value_cols(op).is,
        .activation = (uint8_t)op->activation,
        .backward = op->dy != NULL,
    };
    if (op->dy != NULL) {
        payload->dy = *op->dy;
    }
    return out_draft_submit(draft, op->out, payload->rows, payload->cols, &payload->out, ticket);
}

enum fp8pipe_status fp8pipe_activation(struct fp8pipe *pipe, const struct fp8pipe_activation_op *op,
                                       fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_activation_op defaults = FP8PIPE_ACTIVATION_OP_INIT;
    static const struct draft_kind kind = {
        OP_ACTIVATION, FP8PIPE_NO_AMAX, sizeof(struct op_activation), &defaults, sizeof(defaults)};
    struct fp8pipe_activation_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    return submit(&draft,
                  &(struct activation){op->activation, op->reserved, &op->x, &op->bias, NULL,
                                       &op->y, "y", &op->out},
                  ticket);
}

enum fp8pipe_status fp8pipe_activation_backward(struct fp8pipe *pipe,
                                                const struct fp8pipe_activation_backward_op *op,
                                                fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_activation_backward_op defaults =
        FP8PIPE_ACTIVATION_BACKWARD_OP_INIT;
    static const struct draft_kind kind = {
        OP_ACTIVATION, FP8PIPE_NO_AMAX, sizeof(struct op_activation), &defaults, sizeof(defaults)};
    struct fp8pipe_activation_backward_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    return submit(&draft,
                  &(struct activation){op->activation, op->reserved, &op->x, &op->bias, &op->dy,
                                       &op->dx, "dx", &op->out},
                  ticket);
}
