#include "epilogue.h"

#include "target.h"

/* The filling's bytes straight from the GEMM. ENOTSUP: nothing was enqueued. */
static enum fp8pipe_status run_direct(struct issue *issue, const struct gemm_request *request,
                                      const struct fp8pipe_quantize_target *target)
{
    struct backend *backend = issue->backend;
    struct gemm_fp8 fp8 = {
        .data = target->row,
        .format = target->format,
        .scale = target->scale,
        .amax = target->amax != NULL ? issue->gemm_amax : NULL,
    };
    struct kernel_transpose_args transpose = {
        .out = target->transposed,
        .rows = target->rows,
        .cols = target->cols,
        .in_stride = target->cols,
        .out_stride = target->transposed_stride,
        .capture = {target->scale, target->scale_inv, issue->gemm_amax, target->amax},
    };
    enum fp8pipe_status status = FP8PIPE_OK;

    if (fp8.data == NULL) {
        status =
            issue_alloc(issue, (size_t)target->rows * (size_t)target->cols, (void **)&fp8.data);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = gemm_run_fp8(issue, request, &fp8);
    transpose.in = fp8.data;
    if (status == FP8PIPE_OK) {
        status = target->transposed != NULL
                     ? backend->ops->transpose(backend, issue->stream, &transpose)
                     : backend->ops->capture(backend, issue->stream, &transpose.capture);
    }
    if (status != FP8PIPE_OK && status != FP8PIPE_ENOTSUP) {
        /* Nothing will take the amax; the status is the first failure's. */
        (void)backend->ops->fill(backend, issue->stream, issue->gemm_amax, 0, sizeof(uint32_t));
    }
    return status;
}

/* Quantizes activation(values + bias); without activation there is no bias. */
static enum fp8pipe_status quantize(struct issue *issue, enum fp8pipe_activation activation,
                                    const struct fp8pipe_matrix *values,
                                    const struct fp8pipe_vector *bias,
                                    const struct fp8pipe_quantize_target *target)
{
    struct kernel_activation_args args = {
        .target = *target,
        .x = *values,
        .bias = *bias,
        .activation = activation,
    };

    return activation == FP8PIPE_ACTIVATION_NONE
               ? target_quantize(issue, target, values)
               : issue->backend->ops->activation(issue->backend, issue->stream, &args);
}

/* Into the filling. */
static enum fp8pipe_status run_quantized(struct issue *issue, const struct gemm_request *request,
                                         const struct op_epilogue *epilogue, uint8_t flags)
{
    static const struct fp8pipe_vector none = FP8PIPE_VECTOR_NONE;
    struct gemm_request product = *request;
    struct fp8pipe_vector bias = none;
    struct fp8pipe_quantize_target target;
    enum fp8pipe_status status =
        target_begin(issue, &epilogue->out, flags, request->d.rows, request->d.cols, &target);

    product.activation = (enum fp8pipe_activation)epilogue->activation;
    if (status != FP8PIPE_OK || request->d.rows == 0 || request->d.cols == 0) {
        return status;
    }
    if (epilogue->scaled) {
        target.own_amax = NULL;
    }
    if (epilogue->scaled && epilogue->pre.data == NULL && target.extremes == NULL) {
        status = run_direct(issue, &product, &target);
        if (status != FP8PIPE_ENOTSUP) {
            return status;
        }
    }
    product.activation = FP8PIPE_ACTIVATION_NONE;
    if (epilogue->pre.data != NULL) {
        product.d = epilogue->pre;
        status = gemm_run(issue, &product);
    } else {
        if (epilogue->activation != FP8PIPE_ACTIVATION_NONE) {
            bias = product.bias;
            product.bias = none;
        }
        product.d.dtype = FP8PIPE_FP32;
        product.d.stride = fp8_round_up(product.d.cols);
        status =
            issue_alloc(issue, (size_t)product.d.rows * (size_t)product.d.stride * sizeof(float),
                        &product.d.data);
        if (status == FP8PIPE_OK) {
            status = gemm_run(issue, &product);
        }
    }
    return status != FP8PIPE_OK ? status
                                : quantize(issue, (enum fp8pipe_activation)epilogue->activation,
                                           &product.d, &bias, &target);
}

/* D from what came before the activation, which is kept. */
static enum fp8pipe_status run_from_pre(struct issue *issue, const struct fp8pipe_matrix *d,
                                        const struct op_epilogue *epilogue)
{
    struct kernel_store_args store = {
        .to = *d,
        .from = epilogue->pre,
        .residual = epilogue->residual,
        .activation = (enum fp8pipe_activation)epilogue->activation,
    };
    struct kernel_activation_args activation = {
        .target = {.rows = d->rows, .cols = d->cols},
        .x = epilogue->pre,
        .result = *d,
        .activation = store.activation,
    };

    return store.residual.data == NULL && store.activation != FP8PIPE_ACTIVATION_NONE
               ? issue->backend->ops->activation(issue->backend, issue->stream, &activation)
               : issue->backend->ops->store(issue->backend, issue->stream, &store);
}

enum fp8pipe_status epilogue_run(struct issue *issue, const struct gemm_request *request,
                                 const struct op_epilogue *epilogue, uint8_t flags)
{
    struct gemm_request product = *request;
    enum fp8pipe_status status;

    if (epilogue->out.filling != NULL) {
        return run_quantized(issue, request, epilogue, flags);
    }
    if (epilogue->pre.data == NULL) {
        product.residual = epilogue->residual;
        product.activation = (enum fp8pipe_activation)epilogue->activation;
        return gemm_run(issue, &product);
    }
    if (request->d.rows == 0 || request->d.cols == 0) {
        return FP8PIPE_OK;
    }
    product.d = epilogue->pre;
    status = gemm_run(issue, &product);
    return status != FP8PIPE_OK ? status : run_from_pre(issue, &request->d, epilogue);
}
