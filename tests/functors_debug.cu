#define FP8PIPE_DEBUG

#include "tests/functors.h"

#include <fp8pipe_quantize.cuh>

using fp8pipe_cuda::operand;
using fp8pipe_cuda::place;
using fp8pipe_cuda::raw;
using fp8pipe_cuda::result;
using fp8pipe_cuda::values;

#define FAULT_ROWS 100
#define FAULT_COLS 72

/* out = x + table[rows_of]; all of one size, in memory that has room for more. */
struct looked_up {
    operand<FP8PIPE_FP32> x, table;
    result<FP8PIPE_FP32> out;

    struct loaded {
        raw<FP8PIPE_FP32> x, table;
    };
    __device__ loaded load(const place &at) const
    {
        return {x.load(at), table.load(at)};
    }
    __device__ values compute(const place &at, const loaded &in) const
    {
        values v = widen(in.x), more = widen(in.table);

        for (int i = 0; i < fp8pipe_cuda::UNIT; i++)
            v[i] += more[i];
        out.store(at, v);
        return v;
    }
};

int functor_fault_run(enum functor_fault fault)
{
    struct fp8pipe_matrix x = {NULL, FAULT_ROWS, FAULT_COLS, FAULT_COLS, FP8PIPE_FP32, 0};
    struct fp8pipe_matrix table = x, out = x;
    int32_t *rows_of = NULL;
    const int32_t wrong = FAULT_ROWS;
    const size_t bytes = 4 * FAULT_ROWS * FAULT_COLS * sizeof(float);
    cudaError_t error = cudaMalloc(&x.data, bytes);

    if (error == cudaSuccess)
        error = cudaMalloc(&table.data, bytes);
    if (error == cudaSuccess)
        error = cudaMalloc(&out.data, bytes);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&rows_of, FAULT_ROWS * sizeof(*rows_of));
    if (error == cudaSuccess)
        error = cudaMemset(rows_of, 0, FAULT_ROWS * sizeof(*rows_of));
    if (error == cudaSuccess && fault == FAULT_ROWS_OF)
        error = cudaMemcpy(rows_of + 41, &wrong, sizeof(wrong), cudaMemcpyHostToDevice);
    if (error != cudaSuccess)
        return (int)error;
    if (fault == FAULT_ROW)
        x.rows--;
    if (fault == FAULT_COLUMN)
        x.cols--;
    if (fault == FAULT_RESULT)
        out.cols -= 8;
    if (fault == FAULT_DTYPE)
        table.dtype = FP8PIPE_BF16;
    const looked_up functor = {operand<FP8PIPE_FP32>::of(x, "the input"),
                               operand<FP8PIPE_FP32>::of(table, "the table", rows_of),
                               result<FP8PIPE_FP32>::of(out, "the output")};
    if (fp8pipe_cuda::elementwise(functor, FAULT_ROWS, FAULT_COLS, NULL) != FP8PIPE_OK)
        return (int)cudaErrorLaunchFailure;
    error = cudaDeviceSynchronize();
    return (int)error;
}
