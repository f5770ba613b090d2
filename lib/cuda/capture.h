/*
 * What a call launches, by capturing it into a graph: nothing is executed and no memory touched.
 */
#ifndef LIB_CUDA_CAPTURE_H
#define LIB_CUDA_CAPTURE_H

#include "internal.h"

/* *stream is made where it is NULL, for cudaStreamDestroy when all is done. False: there is none.
 * One user of a stream at a time. */
bool capture_stream(cudaStream_t *stream);
/* Begins a capture in *stream, made likewise. */
bool capture_begin(cudaStream_t *stream);
/* The graph, for cudaGraphDestroy; NULL: the capture failed. */
cudaGraph_t capture_end(cudaStream_t stream);

#endif
