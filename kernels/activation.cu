/*
 * activation: GELU, SiLU, SWIGLU and their backward, quantized: functors of
 * fp8pipe_quantize_kernel.cuh.
 *
 * x [rows, cols] (SWIGLU: two halves of columns), dy, result: any dtype, any row stride; bias
 * [x.cols] of any dtype or absent. bf16 without a bias, all of it 16-byte aligned and in whole
 * units, has its loads issued several rows ahead; everything else is loaded where it is computed.
 * Scaling rule: as in quantize, of the float32 values.
 */
#include "kernels/activation.cuh"

#include "fp8pipe_quantize_launch.cuh"
#include "kernels/kernels.h"

namespace
{
using namespace activation;

#define EACH ACTIVATION_EACH

/* ---- Anything else ------------------------------------------------------------------------ */

/* A matrix whose dtype is known at run time. */
struct any_matrix {
    fp8pipe_cuda::detail::view view;
    int dtype;

    static any_matrix of(const struct fp8pipe_matrix &m, const char *name)
    {
        using fp8pipe_cuda::detail::view_of;

        return {m.dtype == FP8PIPE_FP32   ? view_of<FP8PIPE_FP32>(m, name)
                : m.dtype == FP8PIPE_BF16 ? view_of<FP8PIPE_BF16>(m, name)
                                          : view_of<FP8PIPE_FP16>(m, name),
                (int)m.dtype};
    }
    FP8PIPE_DEVICE values load(const place &at, int64_t col_offset) const
    {
        if (dtype == FP8PIPE_FP32)
            return widen(operand<FP8PIPE_FP32>{view, NULL}.load(at, col_offset));
        if (dtype == FP8PIPE_BF16)
            return widen(operand<FP8PIPE_BF16>{view, NULL}.load(at, col_offset));
        return widen(operand<FP8PIPE_FP16>{view, NULL}.load(at, col_offset));
    }
    FP8PIPE_DEVICE void store(const place &at, const values &v) const
    {
        if (dtype == FP8PIPE_FP32)
            result<FP8PIPE_FP32>{view}.store(at, v);
        else if (dtype == FP8PIPE_BF16)
            result<FP8PIPE_BF16>{view}.store(at, v);
        else
            result<FP8PIPE_FP16>{view}.store(at, v);
    }
};

/* The activation is the same for all threads: no warp takes two ways. */
FP8PIPE_DEVICE values any_forward(enum fp8pipe_activation activation, const values &x)
{
    if (activation == FP8PIPE_ACTIVATION_GELU_TANH)
        return forward<FP8PIPE_ACTIVATION_GELU_TANH>(x);
    if (activation == FP8PIPE_ACTIVATION_GELU_ERF)
        return forward<FP8PIPE_ACTIVATION_GELU_ERF>(x);
    return forward<FP8PIPE_ACTIVATION_SILU>(x);
}

FP8PIPE_DEVICE values any_slope(enum fp8pipe_activation activation, const values &x)
{
    if (activation == FP8PIPE_ACTIVATION_GELU_TANH)
        return slope<FP8PIPE_ACTIVATION_GELU_TANH>(x);
    if (activation == FP8PIPE_ACTIVATION_GELU_ERF)
        return slope<FP8PIPE_ACTIVATION_GELU_ERF>(x);
    return slope<FP8PIPE_ACTIVATION_SILU>(x);
}

template <bool BACKWARD> struct general {
    enum fp8pipe_activation activation;
    int64_t half; /* SWIGLU: columns of a half */
    any_matrix x;
    any_matrix bias; /* one row, or data NULL */
    any_matrix dy;
    any_matrix out;
    struct loaded {
    };

    FP8PIPE_DEVICE loaded load(const place &) const
    {
        return {};
    }
    FP8PIPE_DEVICE values biased(const place &at, int64_t col_offset) const
    {
        const values b = bias.load({0, at.col, at.count, false, false}, col_offset);
        values v = x.load(at, col_offset);

        if (bias.view.data != NULL)
            EACH(__fadd_rn(v[i], b[i]));
        return v;
    }
    /* Of columns that are all in one half. Once for all rows of a kernel: it is long. */
    __device__ __noinline__ values half_values(const place at) const
    {
        const bool gated = activation == FP8PIPE_ACTIVATION_SWIGLU;
        const bool by_gate = gated && BACKWARD && at.col >= half;
        const int64_t back = by_gate ? -half : 0;
        const values in = biased(at, back);

        if (!BACKWARD)
            return gated ? product(any_forward(activation, in), biased(at, half))
                         : any_forward(activation, in);
        const values slopes = dy.load(at, back);
        if (by_gate)
            return product(slopes, any_forward(activation, in));
        return product(gated ? product(slopes, biased(at, half)) : slopes,
                       any_slope(activation, in));
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &) const
    {
        values v;

        if (BACKWARD && activation == FP8PIPE_ACTIVATION_SWIGLU && at.col < half &&
            at.col + at.count > half) {
            /* Across both halves: an element at a time. */
            v = {};
            for (int i = 0; i < at.count; i++)
                put(v, i, half_values({at.row, at.col + i, 1, false, false})[0]);
        } else {
            v = half_values(at);
        }
        out.store(at, v);
        return v;
    }

  private:
    /* v[at] = value; at known at run time only, v in registers. */
    static FP8PIPE_DEVICE void put(values &v, int at, float value)
    {
        EACH(i == at ? value : v[i]);
    }
};

} /* namespace */

/* Nothing is loaded ahead, but much is held. */
template <bool BACKWARD> struct fp8pipe_cuda::detail::tuning<general<BACKWARD>> {
    typedef row_shape<4, 1, 2> rows;
    typedef tile_shape<4, 1, 8, 2, 8> tiles;
};
/* It is slow whatever it is asked for. */
template <bool BACKWARD> struct fp8pipe_cuda::detail::kernels<general<BACKWARD>, false> {
    static constexpr bool LEAN = false;
    static constexpr bool FORMATS = false;
};

namespace
{
/* ---- Launches ----------------------------------------------------------------------------- */

namespace detail = fp8pipe_cuda::detail;

template <bool BACKWARD> general<BACKWARD> general_of(const struct kernel_activation_args *args)
{
    const struct fp8pipe_vector &b = args->bias;
    const struct fp8pipe_matrix bias = {b.data, 1, b.count, b.count, b.dtype, 0};

    return {args->activation,
            args->x.cols / 2,
            any_matrix::of(args->x, "x"),
            any_matrix::of(bias, "bias"),
            any_matrix::of(args->dy, "dy"),
            any_matrix::of(args->result, "result")};
}

/* The pass in front, of any operands: it runs until there is a scale, and need not be fast. */
template <bool BACKWARD>
cudaError_t front(const struct kernel_activation_args *args, struct CUstream_st *stream)
{
    return detail::front<general<BACKWARD>>(args->target, general_of<BACKWARD>(args), stream);
}

template <bool BACKWARD>
int run_general(const struct kernel_activation_args *args, struct CUstream_st *stream)
{
    cudaError_t error = front<BACKWARD>(args, stream);

    if (error == cudaSuccess)
        error = detail::run<general<BACKWARD>>(args->target, general_of<BACKWARD>(args), stream);
    return (int)error;
}

/* f if all that it needs is aligned, which is known to its kernels, else the general way. */
template <bool BACKWARD, class F>
int run_aligned(const struct kernel_activation_args *args, const F &f, struct CUstream_st *stream)
{
    const detail::job<F> job = {args->target, f};

    if (!detail::is_whole(args->target, f))
        return run_general<BACKWARD>(args, stream);
    cudaError_t error = front<BACKWARD>(args, stream);
    if (error == cudaSuccess)
        error = detail::run_whole<F, true>(job, stream);
    return (int)error;
}

/* bf16, no bias; not SWIGLU. */
template <int A>
int run_plain(const struct kernel_activation_args *args, struct CUstream_st *stream)
{
    const operand<FP8PIPE_BF16> x = operand<FP8PIPE_BF16>::of(args->x, "x");
    const operand<FP8PIPE_BF16> dy = operand<FP8PIPE_BF16>::of(args->dy, "dy");
    const result<FP8PIPE_BF16> out = result<FP8PIPE_BF16>::of(args->result, "result");

    return args->backward ? run_aligned<true>(args, plain_backward<A>{x, dy, out}, stream)
                          : run_aligned<false>(args, plain_forward<A>{x, out}, stream);
}

int run_gated(const struct kernel_activation_args *args, struct CUstream_st *stream)
{
    const int64_t half = args->x.cols / 2;
    const operand<FP8PIPE_BF16> x = operand<FP8PIPE_BF16>::of(args->x, "x");
    const operand<FP8PIPE_BF16> dy = operand<FP8PIPE_BF16>::of(args->dy, "dy");
    const result<FP8PIPE_BF16> out = result<FP8PIPE_BF16>::of(args->result, "result");

    return args->backward ? run_aligned<true>(args, gated_backward{half, x, dy, out}, stream)
                          : run_aligned<false>(args, gated_forward{half, x, out}, stream);
}

bool is_bf16(const struct fp8pipe_matrix &m)
{
    return m.data == NULL || m.dtype == FP8PIPE_BF16;
}
} /* namespace */

int kernel_activation_cuda(const struct kernel_activation_args *args, struct CUstream_st *stream)
{
    if (args->target.rows < 1 || args->target.cols < 1 || args->x.data == NULL ||
        (args->backward != 0) != (args->dy.data != NULL))
        return (int)cudaErrorInvalidValue;
    if (!is_bf16(args->x) || !is_bf16(args->dy) || !is_bf16(args->result) ||
        args->bias.data != NULL)
        return args->backward ? run_general<true>(args, stream) : run_general<false>(args, stream);
    switch (args->activation) {
    case FP8PIPE_ACTIVATION_GELU_TANH:
        return run_plain<FP8PIPE_ACTIVATION_GELU_TANH>(args, stream);
    case FP8PIPE_ACTIVATION_GELU_ERF:
        return run_plain<FP8PIPE_ACTIVATION_GELU_ERF>(args, stream);
    case FP8PIPE_ACTIVATION_SILU:
        return run_plain<FP8PIPE_ACTIVATION_SILU>(args, stream);
    case FP8PIPE_ACTIVATION_SWIGLU:
        return run_gated(args, stream);
    default:
        return (int)cudaErrorInvalidValue;
    }
}
