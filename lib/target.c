#include "target.h"

static int64_t sum_tiles(int64_t rows)
{
    return (rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
}

enum fp8pipe_status target_partials(struct issue *issue, int64_t rows, int64_t cols,
                                    float **partials)
{
    if (rows == 0 || cols == 0) {
        *partials = NULL;
        return FP8PIPE_OK;
    }
    return issue_alloc(issue, (size_t)sum_tiles(rows) * (size_t)cols * sizeof(float),
                       (void **)partials);
}

enum fp8pipe_status target_sums(struct issue *issue, const float *partials, int64_t rows,
                                int64_t cols, float *sums, bool accumulate)
{
    struct kernel_column_sums_args args = {
        .partials = partials,
        .rows = sum_tiles(rows),
        .cols = cols,
        .out = sums,
        .accumulate = accumulate,
    };

    return cols == 0 ? FP8PIPE_OK
                     : issue->backend->ops->column_sums(issue->backend, issue->stream, &args);
}

void target_place(struct fp8pipe_quantize_target *target, const struct filling *filling)
{
    target->rows = filling->rows;
    target->cols = filling->cols;
    target->scale_inv = filling->scale_inv;
    target->row = filling->row;
    target->row_stride = filling->row_stride;
    target->transposed = filling->transposed_data;
    target->transposed_stride = filling->transposed_stride;
}

enum fp8pipe_status target_quantize(struct issue *issue,
                                    const struct fp8pipe_quantize_target *target,
                                    const struct fp8pipe_matrix *x)
{
    struct kernel_quantize_args args = kernel_quantize_of(target, x);
    struct backend *backend = issue->backend;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (target->own_amax != NULL) {
        struct kernel_amax_args amax = {
            .x = *x,
            .skip_if = target->has_scale,
            .amax = target->own_amax,
        };

        status = backend->ops->amax(backend, issue->stream, &amax);
    }
    return status != FP8PIPE_OK ? status : backend->ops->quantize(backend, issue->stream, &args);
}

enum fp8pipe_status target_begin(struct issue *issue, const struct op_out *out, uint8_t flags,
                                 int64_t rows, int64_t cols, struct fp8pipe_quantize_target *target)
{
    struct fp8pipe_matrix empty = {NULL, rows, cols, cols, FP8PIPE_FP32, 0};
    enum fp8pipe_status status;

    *target = (struct fp8pipe_quantize_target){.rows = rows, .cols = cols};
    if (out->filling == NULL) {
        return FP8PIPE_OK;
    }
    status = filling_alloc(out->filling, issue);
    if (status == FP8PIPE_OK && out->sums != NULL) {
        status = target_partials(issue, rows, cols, &target->partials);
    }
    if (status == FP8PIPE_OK) {
        status = scaling_target(out->scaling, out->slot, (flags & OP_FOLD) != 0, issue, target);
    }
    target_place(target, out->filling);
    return status == FP8PIPE_OK && (rows == 0 || cols == 0) ? target_quantize(issue, target, &empty)
                                                            : status;
}

enum fp8pipe_status target_end(struct issue *issue, const struct op_out *out, uint8_t flags,
                               const struct fp8pipe_quantize_target *target)
{
    return out->filling == NULL || out->sums == NULL
               ? FP8PIPE_OK
               : target_sums(issue, target->partials, target->rows, target->cols, out->sums,
                             (flags & OP_SUMS_ACCUMULATE) != 0);
}
