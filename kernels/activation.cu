/*
 * activation: GELU, SiLU, SWIGLU and their backward, quantized: functors of
 * fp8pipe_quantize_kernel.cuh.
 *
 * x [rows, cols] (SWIGLU: two halves of columns), dy, result: any dtype, any row stride; bias
 * [x.cols] of any dtype or absent. bf16 without a bias, all of it 16-byte aligned and in whole
 * units, has its loads issued several rows ahead; everything else is loaded where it is computed.
 * Scaling rule: as in quantize, of the float32 values.
 */
#include "kernels/activation.h"

#include "fp8pipe_quantize_kernel.cuh"
#include "kernels/kernels.h"

namespace
{
using fp8pipe_cuda::operand;
using fp8pipe_cuda::place;
using fp8pipe_cuda::raw;
using fp8pipe_cuda::result;
using fp8pipe_cuda::UNIT;
using fp8pipe_cuda::values;

/* What a unit's values are made of. `gate`: of SWIGLU, the second half's. */
struct inputs {
    values x;
    values gate;
    values dy;
};

#define EACH(expression)                                                                           \
    do {                                                                                           \
        _Pragma("unroll") for (int i = 0; i < UNIT; i++) v[i] = expression;                        \
    } while (0)

/* The activation is the same for all threads: no warp takes two ways. */
template <bool BACKWARD>
FP8PIPE_DEVICE values plain_values(enum fp8pipe_activation activation, const inputs &in)
{
    values v;

    if (activation == FP8PIPE_ACTIVATION_GELU_TANH) {
        if (BACKWARD)
            EACH(in.dy[i] * activation_gelu_tanh_slope(in.x[i]));
        else
            EACH(activation_gelu_tanh(in.x[i]));
    } else if (activation == FP8PIPE_ACTIVATION_GELU_ERF) {
        if (BACKWARD)
            EACH(in.dy[i] * activation_gelu_erf_slope(in.x[i]));
        else
            EACH(activation_gelu_erf(in.x[i]));
    } else {
        if (BACKWARD)
            EACH(in.dy[i] * activation_silu_slope(in.x[i]));
        else
            EACH(activation_silu(in.x[i]));
    }
    return v;
}

/* by_gate: in backward, the derivative by the second half, which does not need `gate`. */
template <bool BACKWARD> FP8PIPE_DEVICE values gated_values(bool by_gate, const inputs &in)
{
    values v;

    if (!BACKWARD)
        EACH(activation_silu(in.x[i]) * in.gate[i]);
    else if (by_gate)
        EACH(in.dy[i] * activation_silu(in.x[i]));
    else
        EACH(in.dy[i] * in.gate[i] * activation_silu_slope(in.x[i]));
    return v;
}

/* ---- bf16 without a bias, aligned --------------------------------------------------------- */

struct plain_forward {
    enum fp8pipe_activation activation;
    operand<FP8PIPE_BF16> x;
    result<FP8PIPE_BF16> y;
    typedef raw<FP8PIPE_BF16> loaded;

    bool aligned() const
    {
        return x.aligned() && y.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        return x.load(at);
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values v = plain_values<false>(activation, {widen(in)});
        y.store(at, v);
        return v;
    }
};

struct plain_backward {
    enum fp8pipe_activation activation;
    operand<FP8PIPE_BF16> x;
    operand<FP8PIPE_BF16> dy;
    result<FP8PIPE_BF16> dx;
    struct loaded {
        raw<FP8PIPE_BF16> x;
        raw<FP8PIPE_BF16> dy;
    };

    bool aligned() const
    {
        return x.aligned() && dy.aligned() && dx.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        return {x.load(at), dy.load(at)};
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values v = plain_values<true>(activation, {widen(in.x), {}, widen(in.dy)});
        dx.store(at, v);
        return v;
    }
};

struct gated_forward {
    int64_t half; /* a multiple of UNIT, as in the next */
    operand<FP8PIPE_BF16> x;
    result<FP8PIPE_BF16> y;
    struct loaded {
        raw<FP8PIPE_BF16> x;
        raw<FP8PIPE_BF16> gate;
    };

    bool aligned() const
    {
        return half % UNIT == 0 && x.aligned() && y.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        return {x.load(at), x.load(at, half)};
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values v = gated_values<false>(false, {widen(in.x), widen(in.gate)});
        y.store(at, v);
        return v;
    }
};

struct gated_backward {
    int64_t half;
    operand<FP8PIPE_BF16> x;
    operand<FP8PIPE_BF16> dy;
    result<FP8PIPE_BF16> dx;
    struct loaded {
        raw<FP8PIPE_BF16> x;
        raw<FP8PIPE_BF16> gate;
        raw<FP8PIPE_BF16> dy;
    };

    bool aligned() const
    {
        return half % UNIT == 0 && x.aligned() && dy.aligned() && dx.aligned();
    }
    FP8PIPE_DEVICE loaded load(const place &at) const
    {
        const int64_t back = at.col < half ? 0 : -half;

        /* In the second half the gate is the unit itself, and not used. */
        return {x.load(at, back), x.load(at, back + half), dy.load(at, back)};
    }
    FP8PIPE_DEVICE values compute(const place &at, const loaded &in) const
    {
        const values v =
            gated_values<true>(at.col >= half, {widen(in.x), widen(in.gate), widen(in.dy)});
        dx.store(at, v);
        return v;
    }
};

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
        inputs in = {};

        in.x = biased(at, back);
        if (gated && !by_gate)
            in.gate = biased(at, half);
        if (BACKWARD)
            in.dy = dy.load(at, back);
        return gated ? gated_values<BACKWARD>(by_gate, in) : plain_values<BACKWARD>(activation, in);
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

/* ---- Launches ----------------------------------------------------------------------------- */

namespace detail = fp8pipe_cuda::detail;

template <class F>
int run(const struct fp8pipe_quantize_target &target, const F &f, struct CUstream_st *stream)
{
    cudaError_t error = detail::front<F>(target, f, stream);

    if (error == cudaSuccess)
        error = detail::run<F>(target, f, stream);
    return (int)error;
}

template <bool BACKWARD>
int run_general(const struct kernel_activation_args *args, struct CUstream_st *stream)
{
    const struct fp8pipe_vector &b = args->bias;
    const struct fp8pipe_matrix bias = {b.data, 1, b.count, b.count, b.dtype, 0};

    return run(args->target,
               general<BACKWARD>{args->activation, args->x.cols / 2, any_matrix::of(args->x, "x"),
                                 any_matrix::of(bias, "bias"), any_matrix::of(args->dy, "dy"),
                                 any_matrix::of(args->result, "result")},
               stream);
}

/* f if all that it needs is aligned, which is known to its kernels, else the general way. */
template <bool BACKWARD, class F>
int run_aligned(const struct kernel_activation_args *args, const F &f, struct CUstream_st *stream)
{
    const struct fp8pipe_quantize_target &target = args->target;
    const detail::job<F> job = {target, f};
    cudaError_t error = cudaSuccess;

    if (!detail::is_whole(target, f))
        return run_general<BACKWARD>(args, stream);
    if (target.own_amax != NULL) {
        const detail::geometry g =
            detail::rows_geometry(target.rows, target.cols, detail::tuning<F>::rows::ROWS);
        void *kernel_args[] = {(void *)&job, (void *)&target.has_scale, (void *)&target.own_amax};

        error = detail::launch((const void *)detail::amax_kernel<F, true>, g.grid, g.block,
                               kernel_args, stream);
    }
    if (error == cudaSuccess)
        error = detail::run_whole<F, true>(job, stream);
    return (int)error;
}

bool is_bf16(const struct fp8pipe_matrix &m)
{
    return m.data == NULL || m.dtype == FP8PIPE_BF16;
}
} /* namespace */

/* Nothing is loaded ahead, but much is held. */
template <bool BACKWARD> struct fp8pipe_cuda::detail::tuning<general<BACKWARD>> {
    typedef row_shape<4, 1, 2> rows;
    typedef tile_shape<4, 1, 8, 2, 8, 1, false> tiles;
};

/* More blocks on a multiprocessor would cost registers that are needed. */
template <> struct fp8pipe_cuda::detail::tuning<plain_forward> {
    typedef row_shape<4, 4, 4> rows;
    typedef tile_shape<4, 4, 8, 2, 8, 1, false> tiles;
};

int kernel_activation_cuda(const struct kernel_activation_args *args, struct CUstream_st *stream)
{
    const int64_t half = args->x.cols / 2;
    const operand<FP8PIPE_BF16> x = operand<FP8PIPE_BF16>::of(args->x, "x");
    const operand<FP8PIPE_BF16> dy = operand<FP8PIPE_BF16>::of(args->dy, "dy");
    const result<FP8PIPE_BF16> out = result<FP8PIPE_BF16>::of(args->result, "result");

    if (args->target.rows < 1 || args->target.cols < 1 || args->x.data == NULL ||
        (args->backward != 0) != (args->dy.data != NULL))
        return (int)cudaErrorInvalidValue;
    if (!is_bf16(args->x) || !is_bf16(args->dy) || !is_bf16(args->result) ||
        args->bias.data != NULL)
        return args->backward ? run_general<true>(args, stream) : run_general<false>(args, stream);
    if (args->activation == FP8PIPE_ACTIVATION_SWIGLU)
        return args->backward ? run_aligned<true>(args, gated_backward{half, x, dy, out}, stream)
                              : run_aligned<false>(args, gated_forward{half, x, out}, stream);
    return args->backward
               ? run_aligned<true>(args, plain_backward{args->activation, x, dy, out}, stream)
               : run_aligned<false>(args, plain_forward{args->activation, x, out}, stream);
}
