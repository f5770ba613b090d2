#include "capture.h"

bool capture_stream(cudaStream_t *stream)
{
    cudaError_t error = cudaSuccess;

    if (*stream == NULL)
        error = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    cuda_forget(error);
    return error == cudaSuccess;
}

bool capture_begin(cudaStream_t *stream)
{
    cudaError_t error;

    if (!capture_stream(stream))
        return false;
    error = cudaStreamBeginCapture(*stream, cudaStreamCaptureModeRelaxed);
    cuda_forget(error);
    return error == cudaSuccess;
}

cudaGraph_t capture_end(cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture(stream, &graph);

    cuda_forget(error);
    if (error == cudaSuccess)
        return graph;
    if (graph != NULL)
        cuda_forget(cudaGraphDestroy(graph));
    return NULL;
}
