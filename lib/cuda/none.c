/* The cuda backend of a library that was built without CUDA. */
#include "backend.h"

#include "status.h"

static enum fp8pipe_status none_open(const struct backend_options *options,
                                     struct backend **backend)
{
    (void)options;
    (void)backend;
    return status_fail(FP8PIPE_ENODEV, "this libfp8pipe was built without CUDA: configure it "
                                       "--with-cuda=DIR, or use the host backend "
                                       "(FP8PIPE_BACKEND=host)");
}

/* No instance is ever made: open is all that can be called. */
const struct backend_ops backend_cuda_ops = {
    .kind = FP8PIPE_BACKEND_CUDA,
    .name = "cuda",
    .open = none_open,
};

void *backend_cuda_native(const struct fp8pipe_stream *stream)
{
    (void)stream;
    return NULL;
}
