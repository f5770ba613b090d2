#include "internal.h"

#include <stdlib.h>

#include "plan.h"
#include "tune.h"

/* How often a completion is looked for while somebody waits; a query takes some 0.2 us. */
#define POLL_NS 10000

/* ---- Open and close ----------------------------------------------------------------------- */

/* Runs one kernel: whether this build has any for the device shows here and not in the first op. */
static enum fp8pipe_status kernels_check(struct cuda_backend *backend)
{
    struct kernel_amax_args args = {.x = {NULL, 1, 1, 1, FP8PIPE_FP32, 0}};
    struct backend *base = &backend->base;
    const size_t bytes = 2 * sizeof(float);
    enum fp8pipe_status status;
    void *data;
    int error;

    status = cuda_alloc(base, NULL, bytes, &data);
    if (status != FP8PIPE_OK)
        return status;
    status = cuda_memory_fill(base, data, 0, bytes);
    if (status != FP8PIPE_OK)
        goto free_data;
    args.x.data = data;
    args.amax = (uint32_t *)data + 1;
    error = kernel_amax_cuda(&args, backend->service);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
        status = status_fail(FP8PIPE_ENODEV,
                             "this libfp8pipe has no kernels for CUDA device %d: configure it with "
                             "--with-cuda-arch=\"%d\"",
                             backend->device, backend->capability);
    else if (error == 0)
        error = cudaStreamSynchronize(backend->service);
    if (error != 0 && status == FP8PIPE_OK)
        status = cuda_fail((cudaError_t)error, FP8PIPE_ENODEV, "a first kernel", "CUDA device %d",
                           backend->device);

free_data:
    cuda_free(base, NULL, data, bytes);
    return status;
}

/* What lives in the device's context, which is current. After a failure close takes the rest. */
static enum fp8pipe_status contents_open(struct cuda_backend *backend,
                                         const struct backend_options *options)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    cudaError_t error;

    error = cudaStreamCreateWithFlags(&backend->service, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        backend->service = NULL;
        return cuda_fail(error, FP8PIPE_ENODEV, "cudaStreamCreateWithFlags", "CUDA device %d",
                         backend->device);
    }
    if (backend->allocator.alloc == NULL)
        status = cuda_pool_create(backend);
    if (status == FP8PIPE_OK)
        status = kernels_check(backend);
    if (status == FP8PIPE_OK)
        status = cublaslt_open(&backend->lt);
    if (status == FP8PIPE_OK)
        status = tuner_create(backend, options->tune_file);
    if (status == FP8PIPE_OK)
        status = plans_create(backend, options->plans);
    return status;
}

static void contents_close(struct cuda_backend *backend)
{
    plans_destroy(backend);
    tuner_destroy(backend->tuner);
    cublaslt_close(&backend->lt);
    cuda_pool_destroy(backend);
    if (backend->service != NULL)
        cuda_forget(cudaStreamDestroy(backend->service));
}

static enum fp8pipe_status cuda_open(const struct backend_options *options, struct backend **out)
{
    struct cuda_backend *backend = calloc(1, sizeof(*backend));
    struct backend_scope scope;
    enum fp8pipe_status status;

    if (backend == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for the cuda backend");
    backend->base.ops = &backend_cuda_ops;
    backend->allocator = options->allocator;
    backend->workspace_bytes = options->workspace_bytes;
    backend->log = options->log;
    backend->replays = options->replays == FP8PIPE_REPLAYS_ON;
    if (pthread_mutex_init(&backend->service_lock, NULL) != 0) {
        status = status_fail(FP8PIPE_ENOMEM, "no host memory for a lock");
        goto free_backend;
    }
    status = cuda_device_open(backend, options->device);
    if (status != FP8PIPE_OK)
        goto destroy_lock;
    cuda_enter(&backend->base, &scope);
    status = contents_open(backend, options);
    if (status != FP8PIPE_OK)
        contents_close(backend);
    cuda_leave(&backend->base, &scope);
    if (status != FP8PIPE_OK)
        goto close_device;
    *out = &backend->base;
    return FP8PIPE_OK;

close_device:
    cuda_device_close(backend);
destroy_lock:
    pthread_mutex_destroy(&backend->service_lock);
free_backend:
    free(backend);
    return status;
}

static void cuda_close(struct backend *base)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct backend_scope scope;

    if (base == NULL)
        return;
    cuda_enter(base, &scope);
    contents_close(backend);
    cuda_leave(base, &scope);
    cuda_device_close(backend);
    pthread_mutex_destroy(&backend->service_lock);
    free(backend);
}

static void cuda_plan_stats(struct backend *base, struct backend_plan_stats *stats)
{
    struct plan_cache_stats cache;

    plan_cache_stats_get(cuda_backend_of(base)->plans, &cache);
    stats->cached = cache.cached;
    stats->evicted = cache.evicted;
    stats->borrowed = cache.borrowed;
    stats->refined = cache.refined;
}

static void cuda_replay_stats(struct backend *base, struct fp8pipe_stream *stream,
                              struct backend_replay_stats *stats)
{
    const struct replay_table *table =
        __atomic_load_n(&cuda_stream_of(stream)->replays, __ATOMIC_ACQUIRE);

    (void)base;
    *stats = (struct backend_replay_stats){0};
    if (table != NULL)
        replay_table_stats(table, stats);
}

/* ---- Kernels ------------------------------------------------------------------------------ */

/* `rows` and `cols` are what the sentence names the call by. */
#define KERNEL(name, rows, cols)                                                                   \
    static enum fp8pipe_status cuda_##name(struct backend *base, struct fp8pipe_stream *stream,    \
                                           const struct kernel_##name##_args *args)                \
    {                                                                                              \
        int error = kernel_##name##_cuda(args, cuda_stream_of(stream)->native);                    \
                                                                                                   \
        (void)base;                                                                                \
        if (error != 0)                                                                            \
            return cuda_fail((cudaError_t)error, FP8PIPE_ELAUNCH, "cudaLaunchKernel",              \
                             "%s of %lld x %lld", #name, (long long)(rows), (long long)(cols));    \
        return FP8PIPE_OK;                                                                         \
    }

KERNEL(amax, args->x.rows, args->x.cols)
KERNEL(quantize, args->x.rows, args->x.cols)
KERNEL(capture, 1, 1)
KERNEL(transpose, args->rows, args->cols)
KERNEL(partials, args->x.rows, args->x.cols)
KERNEL(column_sums, args->rows, args->cols)
KERNEL(store, args->to.rows, args->to.cols)
KERNEL(activation, args->target.rows, args->target.cols)
KERNEL(scale_update, args->slots, args->history)
KERNEL(adamw, args->tile_count, KERNEL_TILE_ELEMENTS)
KERNEL(gradient_norm, args->tile_count, KERNEL_TILE_ELEMENTS)
KERNEL(modulate, args->rows, args->cols)
KERNEL(modulate_backward, args->rows, args->cols)
KERNEL(group_sums, args->groups, args->cols)

/* ---- The table ---------------------------------------------------------------------------- */

const struct backend_ops backend_cuda_ops = {
    .kind = FP8PIPE_BACKEND_CUDA,
    .name = "cuda",
    .poll_ns = POLL_NS,
    .open = cuda_open,
    .close = cuda_close,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_check = cuda_stream_check,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .stream_wait = cuda_stream_wait,
    .stream_wait_native = cuda_stream_wait_native,
    .native_wait = cuda_native_wait,
    .timer_create = cuda_timer_create,
    .timer_destroy = cuda_timer_destroy,
    .timer_record = cuda_timer_record,
    .timer_now = cuda_timer_now,
    .timer_elapsed = cuda_timer_elapsed,
    .range_push = cuda_range_push,
    .range_pop = cuda_range_pop,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pinned_alloc = cuda_pinned_alloc,
    .pinned_free = cuda_pinned_free,
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .memory_copy = cuda_memory_copy,
    .memory_fill = cuda_memory_fill,
    .copy = cuda_copy,
    .copy_2d = cuda_copy_2d,
    .fill = cuda_fill,
    .host_call = cuda_host_call,
    .gemm = cuda_gemm,
    .amax = cuda_amax,
    .quantize = cuda_quantize,
    .capture = cuda_capture,
    .transpose = cuda_transpose,
    .partials = cuda_partials,
    .column_sums = cuda_column_sums,
    .store = cuda_store,
    .activation = cuda_activation,
    .scale_update = cuda_scale_update,
    .adamw = cuda_adamw,
    .gradient_norm = cuda_gradient_norm,
    .modulate = cuda_modulate,
    .modulate_backward = cuda_modulate_backward,
    .group_sums = cuda_group_sums,
    .plan_stats = cuda_plan_stats,
    .replay_stats = cuda_replay_stats,
    .tune = cuda_tune,
    .memory_stats = backend_memory_stats,
};
