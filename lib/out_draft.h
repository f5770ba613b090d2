/*
 * What the public entry points of a quantize and of fused ops share: checking where their quantized
 * result goes (struct fp8pipe_quantized), and submitting an op that touches no objects but the
 * result's. Called by submitters; lib/target.h is the counterpart at issue.
 */
#ifndef LIB_OUT_DRAFT_H
#define LIB_OUT_DRAFT_H

#include "fp8pipe_fused.h"
#include "submit.h"

/* The rules for a slot of a scaling and what is made with it; prefix: of their names. */
static inline enum fp8pipe_status out_draft_rules(const char *prefix,
                                                  const struct fp8pipe_scaling *scaling,
                                                  uint32_t slot, uint32_t copies, int32_t reserved)
{
    if (slot >= scaling->slots) {
        return status_fail(FP8PIPE_EINVAL, "%sslot = %u: the scaling has %u", prefix, slot,
                           scaling->slots);
    }
    if (copies == 0 || (copies & ~(FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)) != 0) {
        return status_fail(FP8PIPE_EINVAL, "%scopies = %#x: it is ROWWISE, TRANSPOSED or both",
                           prefix, copies);
    }
    return reserved == 0
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "%sreserved = %d: it is 0", prefix, reserved);
}

/* The rules for `out`, of values with so many columns; its objects join the draft. */
enum fp8pipe_status out_draft_check(struct draft *draft, const struct fp8pipe_quantized *out,
                                    struct check_size cols);

/* A submit that fills a tensor, for out_draft_calls. */
struct out_draft {
    struct fp8pipe_tensor *tensor;
    struct fp8pipe_scaling *scaling;
    struct filling *filling; /* new */
};

extern const struct draft_calls out_draft_calls;

/* Submits a draft whose payload is complete but for out->filling, in it: a new one of [rows, cols],
 * which the tensor gets. */
static inline enum fp8pipe_status out_draft_fill(struct draft *draft, struct fp8pipe_tensor *tensor,
                                                 struct op_out *out, uint32_t copies, int64_t rows,
                                                 int64_t cols, fp8pipe_ticket *ticket)
{
    struct out_draft own = {tensor, out->scaling, NULL};
    enum fp8pipe_status status = draft_filling(draft, copies, &own.filling);

    if (status != FP8PIPE_OK) {
        return status;
    }
    filling_shape(own.filling, rows, cols, out->scaling->formats[out->slot],
                  (copies & FP8PIPE_ROWWISE) != 0, (copies & FP8PIPE_TRANSPOSED) != 0);
    out->filling = own.filling;
    status = draft_submit(draft, &out_draft_calls, &own, ticket);
    if (status != FP8PIPE_OK) {
        filling_undo(own.filling);
    }
    return status;
}

/*
 * Submits a draft whose payload is complete but for *payload, its own copy of a checked `out`,
 * which is written here: with a tensor, it gets a new filling of [rows, cols]. `out` need not
 * outlive the call.
 */
enum fp8pipe_status out_draft_submit(struct draft *draft, const struct fp8pipe_quantized *out,
                                     int64_t rows, int64_t cols, struct op_out *payload,
                                     fp8pipe_ticket *ticket);

#endif
