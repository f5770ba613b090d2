/*
 * Owns a stream's recorded GEMM calls. cublasLtMatmul works out the same launch again at every
 * call, for twice what the launch itself costs the host. A call that comes again with the same
 * plan and the same addresses (replay_table.h) is recorded once, by capturing it, and from then on
 * issued as the kernels and arguments that cuBLASLt made of it: the same work, to the bit.
 *
 * A capture executes nothing and touches no memory. What cannot be recorded (a call that
 * is not a chain of kernels and of bytes set to zero) goes through cuBLASLt as ever.
 *
 * By who uses the stream.
 */
#ifndef LIB_CUDA_REPLAY_H
#define LIB_CUDA_REPLAY_H

#include "internal.h"

/* Calls that a stream keeps, seen or recorded. A record takes some kilobytes of host memory. */
#define REPLAY_PLACES 4096

/*
 * Issues the call if it was recorded: *issued. Else *place, where it is not NULL, waits for it to
 * be recorded by replay_begin and replay_end, in which case it was not issued.
 * ELAUNCH: part of it was issued.
 */
enum fp8pipe_status replay_run(struct cuda_backend *backend, struct cuda_stream *stream,
                               const struct replay_key *key, bool *issued,
                               struct replay_place **place);

/* The stream, under capture, in which to make the call. False: there is none; the place is
 * refused. */
bool replay_begin(struct cuda_stream *stream, struct replay_place *place, cudaStream_t *capture);
/* `made`: the call succeeded. True: it is recorded, for replay_run to issue. Else the place is
 * refused. */
bool replay_end(struct cuda_backend *backend, struct cuda_stream *stream,
                struct replay_place *place, bool made);

/* Frees what the stream recorded. */
void replays_free(struct cuda_stream *stream);

#endif
