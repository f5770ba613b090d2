/*
 * libfp8pipe: interop with the caller's own CUDA streams and events. Needs no CUDA header: a
 * cudaStream_t is a `struct CUstream_st *` and a cudaEvent_t a `struct CUevent_st *`.
 *
 * Work of the caller's comes before an op through fp8pipe_submit.event, and after an op through
 * fp8pipe_stream_wait. In a library built without CUDA, and on host pipes, these calls return
 * FP8PIPE_ENOTSUP (fp8pipe_stream_cuda: NULL).
 */
#ifndef FP8PIPE_CUDA_H
#define FP8PIPE_CUDA_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Inside a `call`: the lane's stream, to launch kernels on. Not to be synchronised or destroyed. */
FP8PIPE_API struct CUstream_st *fp8pipe_stream_cuda(const struct fp8pipe_stream *stream);

/*
 * Makes later work on the caller's stream wait for the op. Returns once the op is issued and its
 * event is in the stream: after that the stream's work needs no other wait.
 * Returns    OK; the root's status for a failed or cancelled op (the stream then still waits for
 *            what the op launched); ECAPTURE if the stream is being captured; EDEADLK inside a
 *            function that the library runs; as fp8pipe_wait otherwise.
 * Blocks     until the op is issued.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_stream_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                                    struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
