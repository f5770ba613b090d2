#include "out_draft.h"

struct out_draft {
    const struct fp8pipe_quantized *out;
    struct filling *filling; /* new */
};

static enum fp8pipe_status bind(struct draft *draft, void *arg)
{
    const struct out_draft *own = arg;

    draft_use_scaling(draft, own->out->scaling);
    draft_fill(draft, own->out->tensor, own->filling);
    return FP8PIPE_OK;
}

static void commit(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct out_draft *own = arg;

    draft_used_scaling(draft, own->out->scaling, ticket);
    draft_filled(draft, own->out->tensor, own->filling, ticket);
}

enum fp8pipe_status out_draft_check(struct draft *draft, const struct fp8pipe_quantized *out,
                                    int64_t cols)
{
    enum fp8pipe_status status;

    if (out->tensor == NULL) {
        return FP8PIPE_OK;
    }
    if (out->scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "out.scaling = NULL: out.tensor needs it");
    }
    if (out->slot >= out->scaling->slots) {
        return status_fail(FP8PIPE_EINVAL, "out.slot = %u: the scaling has %u", out->slot,
                           out->scaling->slots);
    }
    if (out->copies == 0 || (out->copies & ~(FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)) != 0) {
        return status_fail(FP8PIPE_EINVAL, "out.copies = %#x: it is ROWWISE, TRANSPOSED or both",
                           out->copies);
    }
    if (out->reserved != 0) {
        return status_fail(FP8PIPE_EINVAL, "out.reserved = %d: it is 0", out->reserved);
    }
    status = check_sums("out.column_sums", &out->column_sums, cols);
    if (status == FP8PIPE_OK) {
        status = check_flag("out.column_sums_accumulate", out->column_sums_accumulate);
    }
    return status != FP8PIPE_OK ? status
                                : draft_filled_objects(draft, "out.tensor", out->tensor,
                                                       "out.scaling", out->scaling);
}

enum fp8pipe_status out_draft_submit(struct draft *draft, const struct fp8pipe_quantized *out,
                                     int64_t rows, int64_t cols, struct op_out *payload,
                                     fp8pipe_ticket *ticket)
{
    static const struct draft_calls calls = {bind, commit};
    struct out_draft own = {.out = out};
    enum fp8pipe_status status;

    if (out->tensor == NULL) {
        *payload = (struct op_out){0};
        return draft_submit(draft, NULL, NULL, ticket);
    }
    status = draft_filling(draft, out->copies, &own.filling);
    if (status != FP8PIPE_OK) {
        return status;
    }
    filling_shape(own.filling, rows, cols, out->scaling->formats[out->slot],
                  (out->copies & FP8PIPE_ROWWISE) != 0, (out->copies & FP8PIPE_TRANSPOSED) != 0);
    *payload = (struct op_out){
        .scaling = out->scaling,
        .filling = own.filling,
        .sums = out->column_sums.data,
        .slot = out->slot,
    };
    draft->entry.op.flags |= (uint8_t)(out->column_sums_accumulate ? OP_SUMS_ACCUMULATE : 0u);
    status = draft_submit(draft, &calls, &own, ticket);
    if (status != FP8PIPE_OK) {
        filling_undo(own.filling);
    }
    return status;
}
