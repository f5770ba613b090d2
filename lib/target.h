/*
 * What a kernel that quantizes is told (struct fp8pipe_quantize_target), made at issue of what an
 * op says of its result: where the bytes go, by what they are scaled, where sums go. Called by
 * launchers.
 *
 * A fused op: target_begin; its kernel, with the target, unless there are no values; target_end.
 */
#ifndef LIB_TARGET_H
#define LIB_TARGET_H

#include "fp8pipe_fused.h"
#include "op.h"
#include "scaling.h"
#include "tensor.h"

/*
 * The target of an op's values [rows, cols]; `flags` are the op's. Allocates the filling and
 * partial sums. Without a filling the target has no outputs. With rows or cols 0 the filling is
 * filled here: the kernel is then not to be launched.
 */
enum fp8pipe_status target_begin(struct issue *issue, const struct op_out *out, uint8_t flags,
                                 int64_t rows, int64_t cols,
                                 struct fp8pipe_quantize_target *target);

/* After the kernel: makes the column sums of its partial sums. */
enum fp8pipe_status target_end(struct issue *issue, const struct op_out *out, uint8_t flags,
                               const struct fp8pipe_quantize_target *target);

/* The target is [rows, cols] with the copies that a filling has; where they are and the inverse
 * scale's place come from it. */
void target_place(struct fp8pipe_quantize_target *target, const struct filling *filling);

/* Quantizes a matrix as the target says, after the pass for its own amax if it asks for one. */
enum fp8pipe_status target_quantize(struct issue *issue,
                                    const struct fp8pipe_quantize_target *target,
                                    const struct fp8pipe_matrix *x);

/* Partial sums of a matrix of rows x cols, in temporary memory; none if it is empty. */
enum fp8pipe_status target_partials(struct issue *issue, int64_t rows, int64_t cols,
                                    float **partials);

/* sums (+)= the columns' sums of partial sums of rows x cols. */
enum fp8pipe_status target_sums(struct issue *issue, const float *partials, int64_t rows,
                                int64_t cols, float *sums, bool accumulate);

#endif
