#include "capture.h"
#include "ec.h"
#include "plan_describe.h"
#include "replay.h"

/* What cuBLASLt adds to the product, if beta is 1. */
static const void *c_of(const struct gemm_args *args)
{
    if (args->residual != NULL)
        return args->residual;
    return args->d_scale != NULL ? NULL : args->d;
}

static bool adds(const struct gemm_args *args)
{
    return args->accumulate || args->residual != NULL;
}

/* workspace: of backend->workspace_bytes, or NULL. */
static cublasStatus_t plan_call(const struct cuda_backend *backend, struct plan *plan,
                                const struct gemm_args *args, void *workspace, cudaStream_t native)
{
    const struct cublaslt *lt = &backend->lt;
    /* A copy, for the plan is shared with other streams: the descriptor is plain data. */
    cublasLtMatmulDescOpaque_t desc = plan->desc;
    const struct plan_pointers to = {
        .a_scale = args->a.scale_inv,
        .b_scale = args->b.scale_inv,
        .bias = args->bias,
        .d_scale = args->d_scale,
        .d_amax = args->d_scale != NULL ? args->d_amax : NULL,
    };
    const float alpha = 1.0f, beta = adds(args) ? 1.0f : 0.0f;
    cublasStatus_t error = plan_point(lt, &desc, &to);

    TRY(error,
        lt->cublasLtMatmul(lt->handle, &desc, &alpha, args->b.data, &plan->a, args->a.data,
                           &plan->b, &beta, c_of(args), &plan->c, args->d, &plan->d, &plan->algo,
                           workspace, workspace != NULL ? backend->workspace_bytes : 0, native));
    return error;
}

/* Issues the call from a record, if there is one or it is time to make it. */
static enum fp8pipe_status plan_replay(struct cuda_backend *backend, struct cuda_stream *stream,
                                       struct plan *plan, const struct gemm_args *args,
                                       bool *issued)
{
    const struct replay_key key = {
        .plan = plan->id,
        .a = args->a.data,
        .b = args->b.data,
        .c = c_of(args),
        .d = args->d,
        .bias = args->bias,
        .a_scale = args->a.scale_inv,
        .b_scale = args->b.scale_inv,
        .d_scale = args->d_scale,
        .d_amax = args->d_amax,
        .adds = adds(args),
    };
    struct replay_place *place;
    enum fp8pipe_status status = replay_run(backend, stream, &key, issued, &place);
    cudaStream_t capture;

    if (place == NULL || !replay_begin(stream, place, &capture))
        return status;
    load_gate_call(&backend->load_gate, ec_now_ns());
    if (!replay_end(backend, stream, place,
                    plan_call(backend, plan, args, stream->workspace, capture) ==
                        CUBLAS_STATUS_SUCCESS))
        return status;
    return replay_run(backend, stream, &key, issued, &place);
}

enum fp8pipe_status plan_run(struct cuda_backend *backend, struct cuda_stream *stream,
                             struct plan *plan, const struct gemm_args *args)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    char name[PLAN_KEY_NAME_BYTES];
    struct plan_key key;
    cublasStatus_t error;
    bool issued = false;

    /* Of the size that any plan may need. */
    if (plan->workspace_bytes > 0 && stream->workspace == NULL)
        status =
            cuda_alloc(&backend->base, &stream->base, backend->workspace_bytes, &stream->workspace);
    if (status == FP8PIPE_OK && plan->id != 0)
        status = plan_replay(backend, stream, plan, args, &issued);
    if (status != FP8PIPE_OK || issued)
        return status;
    load_gate_call(&backend->load_gate, ec_now_ns());
    error = plan_call(backend, plan, args, stream->workspace, stream->native);
    if (error == CUBLAS_STATUS_SUCCESS)
        return FP8PIPE_OK;
    plan_key_make(&key, args);
    return cublaslt_fail(&backend->lt, error, FP8PIPE_ELAUNCH, "cublasLtMatmul",
                         plan_key_name(name, &key));
}

/* ---- Loading ------------------------------------------------------------------------------ */

/* A call of the plan's as to its kernels; nothing is where its pointers lead. amax: where an amax
 * would be set to zero, which CUDA looks at. */
static struct gemm_args some_args(const struct plan_key *key, uint32_t *amax)
{
    const bool fp8 = gemm_type_is_fp8(key->a_type);
    void *some = PLAN_SOME_POINTER;

    return (struct gemm_args){
        .a = {.data = some, .scale_inv = fp8 ? some : NULL},
        .b = {.data = some, .scale_inv = fp8 ? some : NULL},
        .d = some,
        .d_scale = gemm_type_is_fp8(key->d_type) ? some : NULL,
        .d_amax = key->amax ? amax : NULL,
        .bias = key->bias_type != PLAN_NO_BIAS ? some : NULL,
        .residual = key->residual_stride != 0 ? some : NULL,
        .accumulate = key->accumulate,
    };
}

/* Of the device's own pool: where the allocator is the caller's this is none of its ops. */
static bool amax_make(struct cuda_backend *backend)
{
    void *word = NULL;
    cudaError_t error = cudaSuccess;

    if (!capture_stream(&backend->loading))
        return false;
    if (backend->loading_amax == NULL) {
        error = cudaMallocAsync(&word, sizeof(*backend->loading_amax), backend->loading);
        cuda_forget(error);
        if (error == cudaSuccess)
            backend->loading_amax = word;
    }
    return error == cudaSuccess;
}

bool plan_load(struct cuda_backend *backend, const struct plan_key *key, struct plan *plan)
{
    void *workspace = plan->workspace_bytes > 0 ? PLAN_SOME_POINTER : NULL;
    const int64_t from_ns = ec_now_ns();
    struct gemm_args args;
    cublasStatus_t error;
    cudaGraph_t graph;

    if (plan->way != PLAN_DIRECT)
        return true;
    if ((key->amax && !amax_make(backend)) || !capture_begin(&backend->loading))
        return false;
    args = some_args(key, backend->loading_amax);
    error = plan_call(backend, plan, &args, workspace, backend->loading);
    graph = capture_end(backend->loading);
    if (graph != NULL)
        cuda_forget(cudaGraphDestroy(graph));
    load_gate_loaded(&backend->load_gate, from_ns, ec_now_ns());
    return error == CUBLAS_STATUS_SUCCESS;
}
