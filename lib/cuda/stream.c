#include "internal.h"

#include <stdlib.h>

#include "replay.h"

/* A backend_event is the cudaEvent_t itself. */
static cudaEvent_t event_native(struct backend_event *event)
{
    return (cudaEvent_t)event;
}

/* ECAPTURE if the stream is being captured into a graph, or its capture has failed. */
static enum fp8pipe_status native_check(cudaStream_t native, const char *whose)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(native, &capture);

    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaStreamIsCapturing", "%s stream %p", whose,
                         (void *)native);
    if (capture != cudaStreamCaptureStatusNone)
        return status_fail(FP8PIPE_ECAPTURE, "%s stream %p is being captured into a graph", whose,
                           (void *)native);
    return FP8PIPE_OK;
}

/* ---- Streams ------------------------------------------------------------------------------ */

enum fp8pipe_status cuda_stream_create(struct backend *base, void *native,
                                       struct fp8pipe_stream **out)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct cuda_stream *stream = calloc(1, sizeof(*stream));
    enum fp8pipe_status status;
    cudaError_t error;

    if (stream == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for a stream");
    stream->base.backend = base;
    stream->native = native;
    stream->owned = native == NULL;
    if (stream->owned) {
        error = cudaStreamCreateWithFlags(&stream->native, cudaStreamNonBlocking);
        if (error != cudaSuccess) {
            status = cuda_fail(error, FP8PIPE_ELAUNCH, "cudaStreamCreateWithFlags",
                               "CUDA device %d", backend->device);
            goto free_stream;
        }
    } else {
        status = native_check(native, "the caller's");
        if (status != FP8PIPE_OK)
            goto free_stream;
    }
    *out = &stream->base;
    return FP8PIPE_OK;

free_stream:
    free(stream);
    return status;
}

void cuda_stream_destroy(struct backend *base, struct fp8pipe_stream *base_stream)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct cuda_stream *stream = cuda_stream_of(base_stream);
    bool ours;

    if (stream == NULL)
        return;
    plan_front_clear(&stream->plans, backend->plans);
    replays_free(stream);
    /* To synchronise or free on a stream under capture would go into the capture, or void it. */
    ours = stream->owned || native_check(stream->native, "the caller's") == FP8PIPE_OK;
    if (ours)
        cuda_forget(cudaStreamSynchronize(stream->native));
    if (ours)
        cuda_staging_free(stream);
    cuda_free(base, ours ? base_stream : NULL, stream->workspace, backend->workspace_bytes);
    cuda_blocks_free(stream, ours ? stream->native : backend->service);
    if (stream->owned)
        cuda_forget(cudaStreamDestroy(stream->native));
    free(stream);
}

enum fp8pipe_status cuda_stream_check(struct backend *base, struct fp8pipe_stream *stream)
{
    (void)base;
    return native_check(cuda_stream_of(stream)->native, "the lane's");
}

void *backend_cuda_native(const struct fp8pipe_stream *stream)
{
    if (stream == NULL || stream->backend->ops != &backend_cuda_ops)
        return NULL;
    return ((const struct cuda_stream *)stream)->native;
}

/* ---- Events ------------------------------------------------------------------------------- */

enum fp8pipe_status cuda_event_create(struct backend *base, struct backend_event **event)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    cudaEvent_t native;
    cudaError_t error = cudaEventCreateWithFlags(&native, cudaEventDisableTiming);

    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaEventCreateWithFlags", "CUDA device %d",
                         backend->device);
    *event = (struct backend_event *)native;
    return FP8PIPE_OK;
}

void cuda_event_destroy(struct backend *base, struct backend_event *event)
{
    (void)base;
    if (event != NULL)
        cuda_forget(cudaEventDestroy(event_native(event)));
}

enum fp8pipe_status cuda_event_record(struct backend *base, struct backend_event *event,
                                      struct fp8pipe_stream *stream)
{
    cudaStream_t native = cuda_stream_of(stream)->native;
    cudaError_t error = cudaEventRecord(event_native(event), native);

    (void)base;
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaEventRecord", "event %p on stream %p",
                         (void *)event, (void *)native);
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_event_query(struct backend *base, struct backend_event *event, bool *done)
{
    cudaError_t error = cudaEventQuery(event_native(event));

    (void)base;
    if (error != cudaSuccess && error != cudaErrorNotReady)
        return cuda_fail(error, FP8PIPE_EDEVICE, "cudaEventQuery", "event %p", (void *)event);
    cuda_forget(error);
    *done = error == cudaSuccess;
    return FP8PIPE_OK;
}

/* ---- Order -------------------------------------------------------------------------------- */

static enum fp8pipe_status native_wait_event(cudaStream_t native, cudaEvent_t event)
{
    cudaError_t error = cudaStreamWaitEvent(native, event, 0);

    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaStreamWaitEvent", "stream %p, event %p",
                         (void *)native, (void *)event);
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_stream_wait(struct backend *base, struct fp8pipe_stream *stream,
                                     struct backend_event *event)
{
    (void)base;
    return native_wait_event(cuda_stream_of(stream)->native, event_native(event));
}

enum fp8pipe_status cuda_stream_wait_native(struct backend *base, struct fp8pipe_stream *stream,
                                            void *native_event)
{
    (void)base;
    return native_wait_event(cuda_stream_of(stream)->native, native_event);
}

enum fp8pipe_status cuda_native_wait(struct backend *base, void *native_stream,
                                     struct backend_event *event)
{
    enum fp8pipe_status status = native_check(native_stream, "the caller's");

    (void)base;
    if (status != FP8PIPE_OK)
        return status;
    return native_wait_event(native_stream, event_native(event));
}

enum fp8pipe_status cuda_host_call(struct backend *base, struct fp8pipe_stream *stream,
                                   fp8pipe_work_fn *fn, void *arg)
{
    cudaStream_t native = cuda_stream_of(stream)->native;
    cudaError_t error = cudaLaunchHostFunc(native, fn, arg);

    (void)base;
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaLaunchHostFunc", "stream %p", (void *)native);
    return FP8PIPE_OK;
}
