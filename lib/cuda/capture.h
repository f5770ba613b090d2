/*
 * What a call launches, by capturing it into a graph: nothing is executed and no memory touched.
 */
#ifndef LIB_CUDA_CAPTURE_H
#define LIB_CUDA_CAPTURE_H

#include "internal.h"

/* Begins a capture in *stream, which is made where it is NULL. False: there is none. One user of
 * the stream at a time; it is for cudaStreamDestroy when all is done. */
bool capture_begin(cudaStream_t *stream);
/* The graph, for cudaGraphDestroy; NULL: the capture failed. */
cudaGraph_t capture_end(cudaStream_t stream);

#endif
