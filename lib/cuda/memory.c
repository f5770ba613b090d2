#include "internal.h"

/* What an allocator promises, as cudaMalloc does. */
#define CUDA_ALIGN 256

/* ---- The pool ----------------------------------------------------------------------------- */

/*
 * A pool of its own, so that its policies touch nobody else's memory. What is freed stays in it for
 * the next op. It may not make one stream wait for another's free: that would be an edge between
 * lanes that no ticket asked for.
 */
enum fp8pipe_status cuda_pool_create(struct cuda_backend *backend)
{
    struct cudaMemPoolProps props = {
        .allocType = cudaMemAllocationTypePinned,
        .handleTypes = cudaMemHandleTypeNone,
        .location = {.type = cudaMemLocationTypeDevice, .id = backend->device},
    };
    uint64_t keep_bytes = UINT64_MAX;
    int waits = 0, supported = 0;
    cudaError_t error;

    error = cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, backend->device);
    if (error == cudaSuccess && !supported)
        return status_fail(FP8PIPE_ENODEV,
                           "CUDA device %d has no stream-ordered memory: set options.allocator",
                           backend->device);
    if (error == cudaSuccess)
        error = cudaMemPoolCreate(&backend->pool, &props);
    if (error == cudaSuccess)
        error =
            cudaMemPoolSetAttribute(backend->pool, cudaMemPoolAttrReleaseThreshold, &keep_bytes);
    if (error == cudaSuccess)
        error = cudaMemPoolSetAttribute(backend->pool, cudaMemPoolReuseAllowInternalDependencies,
                                        &waits);
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ENODEV, "cudaMemPoolCreate", "CUDA device %d",
                         backend->device);
    return FP8PIPE_OK;
}

void cuda_pool_destroy(struct cuda_backend *backend)
{
    if (backend->pool != NULL)
        cuda_forget(cudaMemPoolDestroy(backend->pool));
    backend->pool = NULL;
}

/* ---- Stream-ordered memory ---------------------------------------------------------------- */

static enum fp8pipe_status alloc_of_caller(struct cuda_backend *backend, cudaStream_t native,
                                           size_t bytes, void **data)
{
    void *given = backend->allocator.alloc(backend->allocator.arg, bytes, native);

    if (given == NULL)
        return status_fail(FP8PIPE_ENOMEM, "options.allocator gave no %zu bytes on stream %p",
                           bytes, (void *)native);
    if ((uintptr_t)given % CUDA_ALIGN != 0) {
        backend->allocator.free(backend->allocator.arg, given, bytes, native);
        return status_fail(FP8PIPE_EINVAL, "options.allocator gave %p: it is aligned to %d bytes",
                           given, CUDA_ALIGN);
    }
    *data = given;
    return FP8PIPE_OK;
}

static enum fp8pipe_status alloc_on(struct cuda_backend *backend, cudaStream_t native, size_t bytes,
                                    void **data)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    cudaError_t error;

    if (backend->allocator.alloc != NULL) {
        status = alloc_of_caller(backend, native, bytes, data);
    } else {
        /* Whoever allocates it: it may be freed on a stream that then keeps it. */
        error = cudaMallocFromPoolAsync(data, blocks_size(bytes), backend->pool, native);
        if (error != cudaSuccess)
            status = cuda_fail(error, FP8PIPE_ELAUNCH, "cudaMallocFromPoolAsync",
                               "%zu bytes on stream %p", bytes, (void *)native);
    }
    if (status == FP8PIPE_OK)
        backend_memory_got(&backend->base, bytes);
    return status;
}

static void free_on(struct cuda_backend *backend, cudaStream_t native, void *data, size_t bytes)
{
    backend_memory_gave(&backend->base, bytes);
    if (backend->allocator.free != NULL)
        backend->allocator.free(backend->allocator.arg, data, bytes, native);
    else
        cuda_forget(cudaFreeAsync(data, native));
}

void cuda_blocks_free(struct cuda_stream *stream, cudaStream_t native)
{
    void *block;

    while ((block = blocks_drain(&stream->blocks)) != NULL)
        cuda_forget(cudaFreeAsync(block, native));
}

/* What the stream kept, else of the pool. */
static enum fp8pipe_status alloc_kept(struct cuda_backend *backend, struct cuda_stream *stream,
                                      size_t bytes, void **data)
{
    void *block = blocks_take(&stream->blocks, bytes);
    enum fp8pipe_status status;

    if (block != NULL) {
        backend_memory_got(&backend->base, bytes);
        *data = block;
        return FP8PIPE_OK;
    }
    status = alloc_on(backend, stream->native, bytes, data);
    if (status != FP8PIPE_ENOMEM || stream->blocks.bytes == 0)
        return status;
    cuda_blocks_free(stream, stream->native);
    return alloc_on(backend, stream->native, bytes, data);
}

static void free_kept(struct cuda_backend *backend, struct cuda_stream *stream, void *data,
                      size_t bytes)
{
    void *excess;

    if (!blocks_put(&stream->blocks, data, bytes)) {
        free_on(backend, stream->native, data, bytes);
        return;
    }
    backend_memory_gave(&backend->base, bytes);
    while ((excess = blocks_excess(&stream->blocks)) != NULL)
        cuda_forget(cudaFreeAsync(excess, stream->native));
}

/* On the service stream, and waited for. */
static enum fp8pipe_status alloc_now(struct cuda_backend *backend, size_t bytes, void **data)
{
    enum fp8pipe_status status;
    cudaError_t error;
    void *given;

    status = alloc_on(backend, backend->service, bytes, &given);
    if (status != FP8PIPE_OK)
        return status;
    error = cudaStreamSynchronize(backend->service);
    if (error != cudaSuccess) {
        free_on(backend, backend->service, given, bytes);
        return cuda_fail(error, FP8PIPE_EDEVICE, "cudaStreamSynchronize",
                         "%zu bytes on CUDA device %d", bytes, backend->device);
    }
    *data = given;
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_alloc(struct backend *base, struct fp8pipe_stream *stream, size_t bytes,
                               void **data)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    enum fp8pipe_status status;

    if (bytes == 0) {
        *data = NULL;
        return FP8PIPE_OK;
    }
    if (stream != NULL)
        return backend->pool == NULL
                   ? alloc_on(backend, cuda_stream_of(stream)->native, bytes, data)
                   : alloc_kept(backend, cuda_stream_of(stream), bytes, data);
    pthread_mutex_lock(&backend->service_lock);
    status = alloc_now(backend, bytes, data);
    pthread_mutex_unlock(&backend->service_lock);
    return status;
}

void cuda_free(struct backend *base, struct fp8pipe_stream *stream, void *data, size_t bytes)
{
    struct cuda_backend *backend = cuda_backend_of(base);

    if (data == NULL)
        return;
    if (stream != NULL && backend->pool != NULL) {
        free_kept(backend, cuda_stream_of(stream), data, bytes);
        return;
    }
    if (stream != NULL) {
        free_on(backend, cuda_stream_of(stream)->native, data, bytes);
        return;
    }
    pthread_mutex_lock(&backend->service_lock);
    free_on(backend, backend->service, data, bytes);
    pthread_mutex_unlock(&backend->service_lock);
}

enum fp8pipe_status cuda_pinned_alloc(struct backend *base, size_t bytes, void **data)
{
    cudaError_t error;
    void *given;

    (void)base;
    if (bytes == 0) {
        *data = NULL;
        return FP8PIPE_OK;
    }
    error = cudaHostAlloc(&given, bytes, cudaHostAllocPortable);
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ENOMEM, "cudaHostAlloc", "%zu bytes", bytes);
    *data = given;
    return FP8PIPE_OK;
}

void cuda_pinned_free(struct backend *base, void *data)
{
    (void)base;
    if (data != NULL)
        cuda_forget(cudaFreeHost(data));
}

/* ---- The public blocking helpers ---------------------------------------------------------- */

/* The size of a block of cudaMalloc's, whose free is not told it; 0 for any other address. */
static size_t block_bytes(struct cuda_backend *backend, void *data)
{
    CUdeviceptr start = 0;
    size_t bytes = 0;

    if (backend->driver.address_range(&start, &bytes, (CUdeviceptr)data) != CUDA_SUCCESS ||
        start != (CUdeviceptr)data)
        return 0;
    return bytes;
}

enum fp8pipe_status cuda_memory_alloc(struct backend *base, size_t bytes, void **data)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    cudaError_t error;
    void *given;

    if (bytes == 0) {
        *data = NULL;
        return FP8PIPE_OK;
    }
    error = cudaMalloc(&given, bytes);
    if (error == cudaErrorMemoryAllocation && backend->pool != NULL) {
        /* What the pool keeps for ops to come is free for this. */
        cuda_forget(error);
        cuda_forget(cudaMemPoolTrimTo(backend->pool, 0));
        error = cudaMalloc(&given, bytes);
    }
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_EDEVICE, "cudaMalloc", "%zu bytes on CUDA device %d", bytes,
                         backend->device);
    backend_memory_got(base, block_bytes(backend, given));
    *data = given;
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_memory_free(struct backend *base, void *data)
{
    size_t bytes;
    cudaError_t error;

    if (data == NULL)
        return FP8PIPE_OK;
    bytes = block_bytes(cuda_backend_of(base), data);
    error = cudaFree(data);
    if (error != cudaSuccess)
        return cuda_fail(error, error == cudaErrorInvalidValue ? FP8PIPE_EINVAL : FP8PIPE_EDEVICE,
                         "cudaFree", "memory at %p", data);
    backend_memory_gave(base, bytes);
    return FP8PIPE_OK;
}

/* Waits for what was enqueued on the service stream, whose lock the caller holds. */
static enum fp8pipe_status service_finish(struct cuda_backend *backend, cudaError_t enqueued,
                                          const char *call, const void *data, size_t bytes)
{
    cudaError_t finished = cudaStreamSynchronize(backend->service);

    if (enqueued != cudaSuccess)
        return cuda_fail(enqueued, FP8PIPE_ELAUNCH, call, "%zu bytes at %p", bytes, data);
    if (finished != cudaSuccess)
        return cuda_fail(finished, FP8PIPE_EDEVICE, call, "%zu bytes at %p", bytes, data);
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_memory_copy(struct backend *base, void *to, const void *from, size_t bytes)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    enum fp8pipe_status status;
    cudaError_t error;

    if (bytes == 0)
        return FP8PIPE_OK;
    pthread_mutex_lock(&backend->service_lock);
    error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, backend->service);
    status = service_finish(backend, error, "cudaMemcpyAsync", to, bytes);
    pthread_mutex_unlock(&backend->service_lock);
    return status;
}

enum fp8pipe_status cuda_memory_fill(struct backend *base, void *data, int value, size_t bytes)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    enum fp8pipe_status status;
    cudaError_t error;

    if (bytes == 0)
        return FP8PIPE_OK;
    pthread_mutex_lock(&backend->service_lock);
    error = cudaMemsetAsync(data, value, bytes, backend->service);
    status = service_finish(backend, error, "cudaMemsetAsync", data, bytes);
    pthread_mutex_unlock(&backend->service_lock);
    return status;
}

/* ---- In stream order ---------------------------------------------------------------------- */

enum fp8pipe_status cuda_copy_2d(struct backend *base, struct fp8pipe_stream *stream, void *to,
                                 size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                 size_t rows)
{
    cudaError_t error;

    if (width == 0 || rows == 0)
        return FP8PIPE_OK;
    if (rows == 1 || (to_pitch == width && from_pitch == width))
        return cuda_copy(base, stream, to, from, width * rows);
    error = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault,
                              cuda_stream_of(stream)->native);
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaMemcpy2DAsync",
                         "%zu rows of %zu bytes from %p to %p", rows, width, from, to);
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_fill(struct backend *base, struct fp8pipe_stream *stream, void *data,
                              int value, size_t bytes)
{
    cudaError_t error;

    (void)base;
    if (bytes == 0)
        return FP8PIPE_OK;
    error = cudaMemsetAsync(data, value, bytes, cuda_stream_of(stream)->native);
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaMemsetAsync", "%zu bytes at %p", bytes, data);
    return FP8PIPE_OK;
}
