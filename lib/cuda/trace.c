/* Timers, and ranges for profilers. */
#include "internal.h"

#include "ec.h"

#ifdef HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

/* The host's and the device's clocks are compared this often; the quickest time counts. */
#define NOW_TRIES 8

/* A backend_timer is the cudaEvent_t itself, which unlike a backend_event keeps the time. */
static cudaEvent_t timer_native(struct backend_timer *timer)
{
    return (cudaEvent_t)timer;
}

enum fp8pipe_status cuda_timer_create(struct backend *base, struct backend_timer **timer)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    cudaEvent_t native;
    cudaError_t error = cudaEventCreateWithFlags(&native, cudaEventDefault);

    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaEventCreateWithFlags", "CUDA device %d",
                         backend->device);
    *timer = (struct backend_timer *)native;
    return FP8PIPE_OK;
}

void cuda_timer_destroy(struct backend *base, struct backend_timer *timer)
{
    (void)base;
    if (timer != NULL)
        cuda_forget(cudaEventDestroy(timer_native(timer)));
}

enum fp8pipe_status cuda_timer_record(struct backend *base, struct backend_timer *timer,
                                      struct fp8pipe_stream *stream)
{
    cudaStream_t native = cuda_stream_of(stream)->native;
    cudaError_t error = cudaEventRecord(timer_native(timer), native);

    (void)base;
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaEventRecord", "timer %p on stream %p",
                         (void *)timer, (void *)native);
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_timer_now(struct backend *base, struct backend_timer *timer,
                                   int64_t *now_ns)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    int64_t before_ns, took_ns = INT64_MAX;
    cudaError_t error = cudaSuccess;

    pthread_mutex_lock(&backend->service_lock);
    /* What is recorded last counts: tries go on until one is about as quick as the quickest. */
    for (int i = 0; i < 2 * NOW_TRIES && error == cudaSuccess; i++) {
        int64_t this_ns;

        before_ns = ec_now_ns();
        error = cudaEventRecord(timer_native(timer), backend->service);
        if (error == cudaSuccess)
            error = cudaStreamSynchronize(backend->service);
        this_ns = ec_now_ns() - before_ns;
        *now_ns = before_ns + this_ns / 2;
        if (i >= NOW_TRIES && this_ns <= took_ns + took_ns / 8)
            break;
        took_ns = this_ns < took_ns ? this_ns : took_ns;
    }
    pthread_mutex_unlock(&backend->service_lock);
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_EDEVICE, "cudaEventRecord", "CUDA device %d",
                         backend->device);
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_timer_elapsed(struct backend *base, struct backend_timer *from,
                                       struct backend_timer *to, int64_t *elapsed_ns)
{
    cudaError_t error;
    float ms;

    (void)base;
    error = cudaEventElapsedTime(&ms, timer_native(from), timer_native(to));
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_EDEVICE, "cudaEventElapsedTime", "timers %p and %p",
                         (void *)from, (void *)to);
    *elapsed_ns = (int64_t)((double)ms * 1e6);
    return FP8PIPE_OK;
}

#ifdef HAVE_NVTX
/* Without a profiler each is a look at a pointer, which is NULL. */
void cuda_range_push(struct backend *base, const char *name)
{
    (void)base;
    nvtxRangePushA(name);
}

void cuda_range_pop(struct backend *base)
{
    (void)base;
    nvtxRangePop();
}
#else
void cuda_range_push(struct backend *base, const char *name)
{
    (void)base;
    (void)name;
}

void cuda_range_pop(struct backend *base)
{
    (void)base;
}
#endif
