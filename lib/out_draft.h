/*
 * What the public entry points of fused ops share: checking where their quantized result goes
 * (struct fp8pipe_quantized), and submitting an op that touches no objects but the result's. Called
 * by submitters; lib/target.h is the counterpart at issue.
 */
#ifndef LIB_OUT_DRAFT_H
#define LIB_OUT_DRAFT_H

#include "fp8pipe_fused.h"
#include "submit.h"

/* The rules for `out`, of values with `cols` columns; its objects join the draft. */
enum fp8pipe_status out_draft_check(struct draft *draft, const struct fp8pipe_quantized *out,
                                    int64_t cols);

/*
 * Submits a draft whose payload is complete but for *payload, its own copy of a checked `out`,
 * which is written here: with a tensor, it gets a new filling of [rows, cols]. `out` need not
 * outlive the call.
 */
enum fp8pipe_status out_draft_submit(struct draft *draft, const struct fp8pipe_quantized *out,
                                     int64_t rows, int64_t cols, struct op_out *payload,
                                     fp8pipe_ticket *ticket);

#endif
