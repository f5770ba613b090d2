/*
 * Copies in stream order. CUDA itself copies pageable host memory by waiting for the stream first,
 * which would hold up a launcher, and for ever in INLINE, where the caller is yet to submit what
 * the stream waits for. So such memory goes through a page-locked buffer of the stream's: host
 * functions move it piece by piece, in stream order with the transfers, and one buffer serves all
 * of a stream's copies.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* A piece large enough that its two launches (some 10 us) are small against its transfer. */
#define STAGING_BYTES ((size_t)4 << 20)

struct piece {
    void *to;
    const void *from;
    size_t bytes;
};

static void CUDART_CB move_piece(void *arg)
{
    struct piece *piece = arg;

    memcpy(piece->to, piece->from, piece->bytes);
    free(piece);
}

static enum fp8pipe_status enqueue_move(cudaStream_t native, void *to, const void *from,
                                        size_t bytes)
{
    struct piece *piece = malloc(sizeof(*piece));
    cudaError_t error;

    if (piece == NULL)
        return status_fail(FP8PIPE_ENOMEM, "a copy of %zu bytes: host memory is not to be had",
                           bytes);
    *piece = (struct piece){to, from, bytes};
    error = cudaLaunchHostFunc(native, move_piece, piece);
    if (error != cudaSuccess) {
        free(piece);
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaLaunchHostFunc", "stream %p", (void *)native);
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status transfer(cudaStream_t native, void *to, const void *from, size_t bytes)
{
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native);

    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaMemcpyAsync", "%zu bytes from %p to %p",
                         bytes, from, to);
    return FP8PIPE_OK;
}

static bool pageable(const void *data)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, data);

    if (error != cudaSuccess) {
        cuda_forget(error);
        return true;
    }
    return attributes.type == cudaMemoryTypeUnregistered;
}

/* One side is pageable. May fail with pieces enqueued already: the op's event still covers them. */
static enum fp8pipe_status copy_staged(struct cuda_stream *stream, unsigned char *to,
                                       const unsigned char *from, size_t bytes, bool from_pageable)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    if (stream->staging == NULL) {
        cudaError_t error = cudaHostAlloc(&stream->staging, STAGING_BYTES, cudaHostAllocDefault);

        if (error != cudaSuccess) {
            stream->staging = NULL;
            return cuda_fail(error, FP8PIPE_ENOMEM, "cudaHostAlloc", "%zu bytes", STAGING_BYTES);
        }
    }
    while (bytes > 0 && status == FP8PIPE_OK) {
        size_t piece = bytes < STAGING_BYTES ? bytes : STAGING_BYTES;

        if (from_pageable) {
            status = enqueue_move(stream->native, stream->staging, from, piece);
            if (status == FP8PIPE_OK)
                status = transfer(stream->native, to, stream->staging, piece);
        } else {
            status = transfer(stream->native, stream->staging, from, piece);
            if (status == FP8PIPE_OK)
                status = enqueue_move(stream->native, to, stream->staging, piece);
        }
        to += piece;
        from += piece;
        bytes -= piece;
    }
    return status;
}

enum fp8pipe_status cuda_copy(struct backend *base, struct fp8pipe_stream *stream, void *to,
                              const void *from, size_t bytes)
{
    struct cuda_stream *cuda = cuda_stream_of(stream);
    bool to_pageable, from_pageable;

    (void)base;
    if (bytes == 0)
        return FP8PIPE_OK;
    to_pageable = pageable(to);
    from_pageable = pageable(from);
    if (to_pageable && from_pageable)
        return enqueue_move(cuda->native, to, from, bytes);
    if (to_pageable || from_pageable)
        return copy_staged(cuda, to, from, bytes, from_pageable);
    return transfer(cuda->native, to, from, bytes);
}

void cuda_staging_free(struct cuda_stream *stream)
{
    if (stream->staging != NULL)
        cuda_forget(cudaFreeHost(stream->staging));
}
