#include "epilogue_draft.h"

#include "layer_draft.h"
#include "out_draft.h"

enum fp8pipe_status epilogue_check_residual(const char *field,
                                            const struct fp8pipe_matrix *residual,
                                            const char *d_field, const struct fp8pipe_matrix *d)
{
    enum fp8pipe_status status;

    if (residual->rows != d->rows || residual->cols != d->cols) {
        return status_fail(FP8PIPE_EINVAL, "%s.%s = %lld: it is that of %s, %lld", field,
                           residual->rows != d->rows ? "rows" : "cols",
                           (long long)(residual->rows != d->rows ? residual->rows : residual->cols),
                           d_field, (long long)(residual->rows != d->rows ? d->rows : d->cols));
    }
    status = check_matrix(field, residual);
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (residual->dtype != d->dtype) {
        return status_fail(FP8PIPE_EINVAL, "%s.dtype = %d: it is that of %s, %d", field,
                           (int)residual->dtype, d_field, (int)d->dtype);
    }
    return residual->data == d->data && residual->stride == d->stride
               ? FP8PIPE_OK
               : check_apart(field, residual, d_field, d);
}

static enum fp8pipe_status check_tensor(struct draft *draft,
                                        const struct fp8pipe_epilogue *epilogue,
                                        const struct epilogue_shape *shape)
{
    const struct fp8pipe_scaling *scaling = epilogue->scaling;
    enum fp8pipe_status status;

    if (check_given(shape->d)) {
        return status_fail(FP8PIPE_EINVAL, "%s.data = %p: the result is epilogue.tensor",
                           shape->d_field, shape->d->data);
    }
    if (check_given(&epilogue->residual)) {
        return status_fail(FP8PIPE_EINVAL,
                           "epilogue.residual.data = %p: the result is epilogue.tensor, which has "
                           "none",
                           epilogue->residual.data);
    }
    if (scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "epilogue.scaling = NULL: epilogue.tensor needs it");
    }
    status = out_draft_rules("epilogue.", scaling, epilogue->slot, epilogue->copies, 0);
    if (status == FP8PIPE_OK) {
        status = layer_tensor(draft, "epilogue.tensor", epilogue->tensor);
    }
    return status != FP8PIPE_OK
               ? status
               : draft_object(draft, "epilogue.scaling", &epilogue->scaling->object);
}

static enum fp8pipe_status check_pre(const struct fp8pipe_epilogue *epilogue,
                                     const struct epilogue_shape *shape)
{
    const struct fp8pipe_matrix *pre = &epilogue->pre;
    enum fp8pipe_status status = check_matrix_shape("epilogue.pre", pre, shape->rows, shape->cols);

    if (status == FP8PIPE_OK) {
        status = check_apart("epilogue.pre", pre, shape->d_field, shape->d);
    }
    if (status == FP8PIPE_OK) {
        status = check_apart("epilogue.pre", pre, "epilogue.residual", &epilogue->residual);
    }
    if (status == FP8PIPE_OK) {
        status = check_apart_vector("epilogue.pre", pre, "bias", shape->bias);
    }
    for (int i = 0; status == FP8PIPE_OK && shape->in[i].field != NULL; i++) {
        status = check_apart("epilogue.pre", pre, shape->in[i].field, shape->in[i].matrix);
    }
    return status;
}

enum fp8pipe_status epilogue_check(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                   const struct epilogue_shape *shape)
{
    enum fp8pipe_status status =
        check_enum("epilogue.activation", (int)epilogue->activation, FP8PIPE_ACTIVATION_SILU);

    if (status == FP8PIPE_OK && epilogue->reserved != 0) {
        status = status_fail(FP8PIPE_EINVAL, "epilogue.reserved = %u: it is 0", epilogue->reserved);
    }
    if (status == FP8PIPE_OK && epilogue->tensor != NULL) {
        status = check_tensor(draft, epilogue, shape);
    } else if (status == FP8PIPE_OK && check_given(&epilogue->residual)) {
        status = epilogue_check_residual("epilogue.residual", &epilogue->residual, shape->d_field,
                                         shape->d);
    }
    if (status == FP8PIPE_OK && check_given(&epilogue->pre)) {
        status = check_pre(epilogue, shape);
    }
    return status;
}

enum fp8pipe_status epilogue_fill(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                  struct op_epilogue *payload)
{
    *payload = (struct op_epilogue){
        .pre = epilogue->pre,
        .residual = epilogue->residual,
        .activation = (uint8_t)epilogue->activation,
    };
    if (epilogue->tensor == NULL) {
        return FP8PIPE_OK;
    }
    payload->out.scaling = epilogue->scaling;
    payload->out.slot = epilogue->slot;
    return draft_filling(draft, epilogue->copies, &payload->out.filling);
}

enum fp8pipe_status epilogue_bind(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                  struct op_epilogue *payload, int64_t rows, int64_t cols)
{
    struct filling *filling = payload->out.filling;

    if (check_given(&epilogue->pre)) {
        enum fp8pipe_status status =
            check_matrix_shape("epilogue.pre", &epilogue->pre, check_is(rows, "the result's rows"),
                               check_is(cols, "the result's cols"));

        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    if (filling == NULL) {
        return FP8PIPE_OK;
    }
    payload->scaled = epilogue->scaling->scaled;
    filling_shape(filling, rows, cols, epilogue->scaling->formats[epilogue->slot],
                  (epilogue->copies & FP8PIPE_ROWWISE) != 0,
                  (epilogue->copies & FP8PIPE_TRANSPOSED) != 0);
    draft_use_scaling(draft, epilogue->scaling);
    draft_fill(draft, epilogue->tensor, filling);
    return FP8PIPE_OK;
}

void epilogue_commit(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                     const struct op_epilogue *payload, fp8pipe_ticket ticket)
{
    if (payload->out.filling == NULL) {
        return;
    }
    draft_used_scaling(draft, epilogue->scaling, ticket);
    draft_filled(draft, epilogue->tensor, payload->out.filling, ticket);
}
