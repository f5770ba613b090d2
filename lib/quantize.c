#include "quantize.h"

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

static int64_t sum_tiles(int64_t rows)
{
    return (rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
}

static enum fp8pipe_status alloc_partials(struct issue *issue, const struct fp8pipe_matrix *x,
                                          float **partials)
{
    return issue_alloc(issue, (size_t)sum_tiles(x->rows) * (size_t)x->cols * sizeof(float),
                       (void **)partials);
}

static enum fp8pipe_status finish_sums(struct issue *issue, const struct fp8pipe_matrix *x,
                                       const float *partials, float *sums, bool accumulate)
{
    struct kernel_column_sums_args args = {
        .partials = partials,
        .rows = sum_tiles(x->rows),
        .cols = x->cols,
        .out = sums,
        .accumulate = accumulate,
    };

    return issue->backend->ops->column_sums(issue->backend, issue->stream, &args);
}

enum fp8pipe_status quantize_sums(struct issue *issue, const struct fp8pipe_matrix *x, float *sums,
                                  bool accumulate)
{
    struct kernel_partials_args args = {.x = *x};
    enum fp8pipe_status status;

    if (x->cols == 0) {
        return FP8PIPE_OK;
    }
    if (x->rows > 0) {
        status = alloc_partials(issue, x, &args.partials);
        if (status == FP8PIPE_OK) {
            status = issue->backend->ops->partials(issue->backend, issue->stream, &args);
        }
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    return finish_sums(issue, x, args.partials, sums, accumulate);
}

enum fp8pipe_status quantize_run(struct issue *issue, const struct quantize_request *request,
                                 struct quantized *out)
{
    struct backend *backend = issue->backend;
    struct filling *kept = request->kept;
    const struct fp8pipe_matrix *x = &request->x;
    /* What is not kept has a filling of its own for the time of the op, in temporary memory. */
    struct filling temporary = {0};
    struct kernel_quantize_args args = {.x = *x};
    bool sums = request->sums != NULL && x->cols > 0;
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
    if (status == FP8PIPE_OK && sums && x->rows > 0) {
        status = alloc_partials(issue, x, &args.partials);
    }
    if (status == FP8PIPE_OK) {
        status = scaling_source(request->scaling, request->slot, request->fold, issue, &args);
    }
    if (status == FP8PIPE_OK) {
        args.scale_inv = temporary.scale_inv;
        args.row = temporary.row;
        args.row_stride = temporary.row_stride;
        args.transposed = temporary.transposed_data;
        args.transposed_stride = temporary.transposed_stride;
        status = backend->ops->quantize(backend, issue->stream, &args);
    }
    if (status == FP8PIPE_OK && sums) {
        status = finish_sums(issue, x, args.partials, request->sums, request->sums_accumulate);
    }
    if (status == FP8PIPE_OK && out != NULL) {
        out->row = quantize_row_of(&temporary);
        out->transposed = quantize_transposed_of(&temporary);
    }
    return status;
}
