#include "quantize.h"

#include "target.h"

struct gemm_operand quantize_row_of(const struct filling *filling)
{
    return (struct gemm_operand){
        .data = filling->row,
        .stride = filling->row_stride,
        .type = gemm_type_of_format(filling->format),
        .scale_inv = filling->scale_inv,
    };
}

struct gemm_operand quantize_transposed_of(const struct filling *filling)
{
    return (struct gemm_operand){
        .data = filling->transposed_data,
        .stride = filling->transposed_stride,
        .type = gemm_type_of_format(filling->format),
        .scale_inv = filling->scale_inv,
    };
}

enum fp8pipe_status quantize_sums(struct issue *issue, const struct fp8pipe_matrix *x, float *sums,
                                  bool accumulate)
{
    struct kernel_partials_args args = {.x = *x};
    enum fp8pipe_status status;

    if (x->rows > 0 && x->cols > 0) {
        status = target_partials(issue, x->rows, x->cols, &args.partials);
        if (status == FP8PIPE_OK) {
            status = issue->backend->ops->partials(issue->backend, issue->stream, &args);
        }
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    return target_sums(issue, args.partials, x->rows, x->cols, sums, accumulate);
}

enum fp8pipe_status quantize_run(struct issue *issue, const struct quantize_request *request,
                                 struct quantized *out)
{
    struct filling *kept = request->kept;
    const struct fp8pipe_matrix *x = &request->x;
    /* What is not kept has a filling of its own for the time of the op, in temporary memory. */
    struct filling temporary = {0};
    struct fp8pipe_quantize_target target = {0};
    enum fp8pipe_status status = FP8PIPE_OK;

    if (kept != NULL) {
        status = filling_alloc(kept, issue);
        if (status != FP8PIPE_OK) {
            return status;
        }
        temporary.scale_inv = kept->scale_inv;
    } else {
        status = issue_alloc(issue, sizeof(float), (void **)&temporary.scale_inv);
    }
    filling_shape(&temporary, x->rows, x->cols, request->scaling->formats[request->slot],
                  request->row, request->transposed);
    filling_strides(&temporary);
    temporary.row = kept != NULL ? kept->row : NULL;
    temporary.transposed_data = kept != NULL ? kept->transposed_data : NULL;
    if (status == FP8PIPE_OK && request->row && temporary.row == NULL) {
        status = issue_alloc(issue, (size_t)fp8_round_up(x->rows) * (size_t)temporary.row_stride,
                             (void **)&temporary.row);
    }
    if (status == FP8PIPE_OK && request->transposed && temporary.transposed_data == NULL) {
        status =
            issue_alloc(issue, (size_t)fp8_round_up(x->cols) * (size_t)temporary.transposed_stride,
                        (void **)&temporary.transposed_data);
    }
    if (status == FP8PIPE_OK && request->sums != NULL) {
        status = target_partials(issue, x->rows, x->cols, &target.partials);
    }
    if (status == FP8PIPE_OK) {
        status = scaling_target(request->scaling, request->slot, request->fold, issue, &target);
    }
    if (status == FP8PIPE_OK) {
        target_place(&target, &temporary);
        status = target_quantize(issue, &target, x);
    }
    if (status == FP8PIPE_OK && request->sums != NULL) {
        status = target_sums(issue, target.partials, x->rows, x->cols, request->sums,
                             request->sums_accumulate);
    }
    if (status == FP8PIPE_OK && out != NULL) {
        out->row = quantize_row_of(&temporary);
        out->transposed = quantize_transposed_of(&temporary);
    }
    return status;
}
