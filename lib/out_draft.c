#include "out_draft.h"

static enum fp8pipe_status bind(struct draft *draft, void *arg)
{
    const struct out_draft *own = arg;

    draft_use_scaling(draft, own->scaling);
    draft_fill(draft, own->tensor, own->filling);
    return FP8PIPE_OK;
}

static void commit(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct out_draft *own = arg;

    draft_used_scaling(draft, own->scaling, ticket);
    draft_filled(draft, own->tensor, own->filling, ticket);
}

const struct draft_calls out_draft_calls = {bind, commit};

enum fp8pipe_status out_draft_check(struct draft *draft, const struct fp8pipe_quantized *out,
                                    struct check_size cols)
{
    enum fp8pipe_status status;

    if (out->tensor == NULL) {
        return FP8PIPE_OK;
    }
    if (out->scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "out.scaling = NULL: out.tensor needs it");
    }
    status = out_draft_rules("out.", out->scaling, out->slot, out->copies, out->reserved);
    if (status == FP8PIPE_OK) {
        status = check_sums("out.column_sums", &out->column_sums, cols);
    }
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
    if (out->tensor == NULL) {
        *payload = (struct op_out){0};
        return draft_submit(draft, NULL, NULL, ticket);
    }
    *payload = (struct op_out){
        .scaling = out->scaling,
        .sums = out->column_sums.data,
        .slot = out->slot,
    };
    draft->entry.op.flags |= (uint8_t)(out->column_sums_accumulate ? OP_SUMS_ACCUMULATE : 0u);
    return out_draft_fill(draft, out->tensor, payload, out->copies, rows, cols, ticket);
}
