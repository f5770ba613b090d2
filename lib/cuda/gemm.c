#include "plan.h"

#include <assert.h>
#include <inttypes.h>

static bool operand_is_fp8(const struct gemm_operand *operand)
{
    return operand->type == GEMM_E4M3 || operand->type == GEMM_E5M2;
}

static enum fp8pipe_status gemm_by_plan(struct cuda_backend *backend, struct cuda_stream *stream,
                                        struct plan *plan, const struct gemm_args *args);

/*
 * An algorithm that was borrowed or loaded has passed cuBLASLt's check, which does not promise
 * that it runs: then what the heuristic says of this key takes its place, which may be another way.
 * A GEMM that was refused, or of which only the first steps ran, has left D alone.
 */
static enum fp8pipe_status gemm_direct(struct cuda_backend *backend, struct cuda_stream *stream,
                                       struct plan *plan, const struct gemm_args *args)
{
    enum fp8pipe_status status = plan_run(backend, stream, plan, args);

    if ((status != FP8PIPE_ELAUNCH && status != FP8PIPE_ENOTSUP) || plan->heuristic)
        return status;
    status = plan_renew(backend, args);
    if (status == FP8PIPE_OK)
        status = plan_get(backend, stream, args, &plan);
    return status == FP8PIPE_OK ? gemm_by_plan(backend, stream, plan, args) : status;
}

/* GEMM into fp32 of the stream's, then store. */
static enum fp8pipe_status gemm_through_fp32(struct cuda_backend *backend,
                                             struct cuda_stream *stream,
                                             const struct gemm_args *args)
{
    const int64_t row = 64; /* fp32 elements: every row 256-byte aligned */
    struct gemm_args plain = *args;
    struct kernel_store_args store = {
        .to = {args->d, args->m, args->n, args->d_stride, args->d_dtype, 0},
        .bias = {(void *)args->bias, args->bias != NULL ? args->n : 0, args->bias_dtype, 0},
        .accumulate = args->accumulate,
    };
    struct plan *plan;
    enum fp8pipe_status status;
    size_t bytes;
    int error;

    plain.bias = NULL;
    plain.accumulate = false;
    plain.d_dtype = FP8PIPE_FP32;
    plain.d_stride = (args->n + row - 1) / row * row;
    if (__builtin_mul_overflow((size_t)plain.d_stride * sizeof(float), (size_t)args->m, &bytes))
        return status_fail(FP8PIPE_ENOMEM, "GEMM %" PRId64 " x %" PRId64 ": its fp32 result",
                           args->m, args->n);
    status = cuda_alloc(&backend->base, &stream->base, bytes, &plain.d);
    if (status != FP8PIPE_OK)
        return status;
    status = plan_get(backend, stream, &plain, &plan);
    if (status == FP8PIPE_OK)
        status = gemm_direct(backend, stream, plan, &plain);
    if (status == FP8PIPE_OK) {
        store.from =
            (struct fp8pipe_matrix){plain.d, args->m, args->n, plain.d_stride, FP8PIPE_FP32, 0};
        error = kernel_store_cuda(&store, stream->native);
        if (error != 0)
            status = cuda_fail((cudaError_t)error, FP8PIPE_ELAUNCH, "store",
                               "GEMM %" PRId64 " x %" PRId64, args->m, args->n);
    }
    cuda_free(&backend->base, &stream->base, plain.d, bytes);
    return status;
}

static enum fp8pipe_status gemm_by_plan(struct cuda_backend *backend, struct cuda_stream *stream,
                                        struct plan *plan, const struct gemm_args *args)
{
    char name[PLAN_KEY_NAME_BYTES];
    struct plan_key key;

    if (plan->way == PLAN_DIRECT)
        return gemm_direct(backend, stream, plan, args);
    if (plan->way == PLAN_THROUGH_FP32)
        return gemm_through_fp32(backend, stream, args);
    plan_key_make(&key, args);
    return status_fail(FP8PIPE_ENOTSUP, "%s: cuBLASLt has no kernel for it",
                       plan_key_name(name, &key));
}

enum fp8pipe_status cuda_gemm(struct backend *base, struct fp8pipe_stream *base_stream,
                              const struct gemm_args *args)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct cuda_stream *stream = cuda_stream_of(base_stream);
    struct plan *plan;
    enum fp8pipe_status status;

    assert(args->m >= 1 && args->n >= 1 && args->k >= 1);
    assert(!operand_is_fp8(&args->a) || (args->a.scale_inv != NULL && args->b.scale_inv != NULL &&
                                         !args->a.transposed && !args->b.transposed));
    assert(operand_is_fp8(&args->a) == operand_is_fp8(&args->b));
    status = plan_get(backend, stream, args, &plan);
    return status == FP8PIPE_OK ? gemm_by_plan(backend, stream, plan, args) : status;
}
