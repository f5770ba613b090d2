/*
 * libfp8pipe: fused quantize kernels of the caller's. For nvcc -std=c++17, GPUs of sm_80 and later.
 *
 * A functor says in a few lines what the values are; the kernel around it does all that a
 * fp8pipe_quantize_fn is asked for: FP8 rows, the transposed copy, amax, column sums.
 *
 *     struct shifted {
 *         fp8pipe_cuda::operand<FP8PIPE_BF16> x, shift;
 *         struct loaded {
 *             fp8pipe_cuda::raw<FP8PIPE_BF16> x, shift;
 *         };
 *         __device__ loaded load(const fp8pipe_cuda::place &at) const
 *         {
 *             return {x.load(at), shift.load(at)};
 *         }
 *         __device__ fp8pipe_cuda::values compute(const fp8pipe_cuda::place &at,
 *                                                 const loaded &in) const
 *         {
 *             fp8pipe_cuda::values x = widen(in.x), shift = widen(in.shift);
 *             for (int i = 0; i < fp8pipe_cuda::UNIT; i++)
 *                 x[i] *= shift[i];
 *             return x;
 *         }
 *     };
 *     ...
 *     return fp8pipe_cuda::quantize(stream, target, functor);
 *
 * A functor is copied into the kernel's arguments (a few hundred bytes are fine). load() only
 * loads: the kernel issues the loads of several rows before it computes the first. compute() gives
 * the unit's values and may store to result<>s; what it gives beyond at.count does not count. Both
 * are called once for each unit, in any order; in the pass in front (see quantize()) once more,
 * with at.writes false. Float arithmetic is the functor's own: -fmad=false gives the host's bits.
 *
 * A functor may have a member `bool aligned() const`, host code: true if aligned() of all of its
 * operands and results is, for every col_offset that it uses. The kernel then has no code for
 * misaligned rows, which is a little faster.
 */
#ifndef FP8PIPE_QUANTIZE_CUH
#define FP8PIPE_QUANTIZE_CUH

#include <fp8pipe_cuda.h>
#include <fp8pipe_fused.h>
#include <fp8pipe_operand.cuh>
#include <fp8pipe_quantize_launch.cuh>

FP8PIPE_CUDA_BEGIN

/*
 * From inside a fp8pipe_quantize_fn: enqueues what `target` asks for, in one kernel. While the slot
 * may lack a scale, one more in front finds the amax of the values; it returns at once if the slot
 * has got one by then. The functor is copied; its matrices live until the op is done.
 * Returns  OK; ENOTSUP for a stream of the host backend; EINVAL for a target that the library did
 *          not make; ELAUNCH if a kernel could not be launched.
 */
template <class F>
inline enum fp8pipe_status quantize(struct fp8pipe_stream *stream,
                                    const struct fp8pipe_quantize_target *target, const F &functor)
{
    if (fp8pipe_stream_backend(stream) != FP8PIPE_BACKEND_CUDA)
        return FP8PIPE_ENOTSUP;
    cudaStream_t to = (cudaStream_t)fp8pipe_stream_cuda(stream);
    cudaError_t error = detail::front<F>(*target, functor, to);

    if (error == cudaSuccess)
        error = detail::run<F>(*target, functor, to);
    if (error == cudaErrorInvalidValue)
        return FP8PIPE_EINVAL;
    return error == cudaSuccess ? FP8PIPE_OK : FP8PIPE_ELAUNCH;
}

/*
 * A functor that only stores to its results, over rows x cols, on any stream: for what is not
 * quantized. What compute() returns is not used.
 */
template <class F>
inline enum fp8pipe_status elementwise(const F &functor, int64_t rows, int64_t cols,
                                       cudaStream_t stream)
{
    struct fp8pipe_quantize_target target = {};

    if (rows < 0 || cols < 0)
        return FP8PIPE_EINVAL;
    target.rows = rows;
    target.cols = cols;
    return detail::run<F>(target, functor, stream) == cudaSuccess ? FP8PIPE_OK : FP8PIPE_ELAUNCH;
}
FP8PIPE_CUDA_END

#endif
