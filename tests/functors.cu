#include "tests/functors.h"

#include <fp8pipe_quantize.cuh>

using fp8pipe_cuda::operand;
using fp8pipe_cuda::place;
using fp8pipe_cuda::raw;
using fp8pipe_cuda::result;
using fp8pipe_cuda::UNIT;
using fp8pipe_cuda::values;

template <int X, int GATE, int OUT> struct gated {
    operand<X> x, bias;
    operand<GATE> gate;
    result<OUT> out;

    struct loaded {
        raw<X> x, bias;
        raw<GATE> gate;
    };
    __device__ loaded load(const place &at) const
    {
        return {x.load(at), bias.load(at), gate.load(at)};
    }
    __device__ values compute(const place &at, const loaded &in) const
    {
        const values x = widen(in.x), bias = widen(in.bias), gate = widen(in.gate);
        values v;

        for (int i = 0; i < UNIT; i++)
            v[i] = __fadd_rn(__fmul_rn(x[i], gate[i]), bias[i]);
        out.store(at, v);
        return v;
    }
};

/* The same, which says whether it is aligned. */
template <int X, int GATE, int OUT> struct gated_aligned : gated<X, GATE, OUT> {
    explicit gated_aligned(const gated<X, GATE, OUT> &plain) : gated<X, GATE, OUT>(plain)
    {
    }
    bool aligned() const
    {
        return this->x.aligned() && this->bias.aligned() && this->gate.aligned() &&
               this->out.aligned();
    }
};

template <int X, int GATE, int OUT>
static enum fp8pipe_status run(const struct functor_gated &g, struct fp8pipe_stream *stream,
                               const struct fp8pipe_quantize_target *target)
{
    const gated<X, GATE, OUT> functor = {operand<X>::of(g.x, "x"), operand<X>::of(g.bias, "bias"),
                                         operand<GATE>::of(g.gate, "gate", g.rows_of),
                                         result<OUT>::of(g.out, "out")};

    if constexpr (X == FP8PIPE_BF16)
        if (g.aligned)
            return fp8pipe_cuda::quantize(stream, target, gated_aligned<X, GATE, OUT>(functor));
    return fp8pipe_cuda::quantize(stream, target, functor);
}

enum fp8pipe_status functor_gated(int kind, const struct functor_gated *g,
                                  struct fp8pipe_stream *stream,
                                  const struct fp8pipe_quantize_target *target)
{
    switch (kind) {
    case 0:
        return run<FP8PIPE_BF16, FP8PIPE_FP32, FP8PIPE_BF16>(*g, stream, target);
    case 1:
        return run<FP8PIPE_FP16, FP8PIPE_BF16, FP8PIPE_FP16>(*g, stream, target);
    default:
        return run<FP8PIPE_FP32, FP8PIPE_FP16, FP8PIPE_BF16>(*g, stream, target);
    }
}

struct halves {
    operand<FP8PIPE_BF16> x;
    result<FP8PIPE_BF16> to;
    int64_t cols;

    struct loaded {
        raw<FP8PIPE_BF16> a, b;
    };
    __device__ loaded load(const place &at) const
    {
        return {x.load(at), x.load(at, cols)};
    }
    __device__ values compute(const place &at, const loaded &in) const
    {
        values a = widen(in.a), b = widen(in.b), v;

        for (int i = 0; i < UNIT; i++) {
            v[i] = __fmul_rn(a[i], b[i]);
            a[i] = __fadd_rn(a[i], 1.0f);
            b[i] = __fadd_rn(b[i], 1.0f);
        }
        to.store(at, b);
        to.store(at, a, cols);
        return v;
    }
};

enum fp8pipe_status functor_halves(const struct fp8pipe_matrix *x, struct fp8pipe_stream *stream,
                                   const struct fp8pipe_quantize_target *target)
{
    const halves functor = {operand<FP8PIPE_BF16>::of(*x, "x"), result<FP8PIPE_BF16>::of(*x, "x"),
                            target->cols};

    return fp8pipe_cuda::quantize(stream, target, functor);
}

template <int OUT> struct convert {
    operand<FP8PIPE_FP32> x;
    result<OUT> out;
    typedef raw<FP8PIPE_FP32> loaded;

    __device__ loaded load(const place &at) const
    {
        return x.load(at);
    }
    __device__ values compute(const place &at, const loaded &in) const
    {
        out.store(at, widen(in));
        return {};
    }
};

template <int OUT>
static enum fp8pipe_status run_convert(const struct fp8pipe_matrix &x,
                                       const struct fp8pipe_matrix &out, cudaStream_t stream)
{
    const convert<OUT> functor = {operand<FP8PIPE_FP32>::of(x, "x"), result<OUT>::of(out, "out")};

    return fp8pipe_cuda::elementwise(functor, x.rows, x.cols, stream);
}

enum fp8pipe_status functor_convert(const struct fp8pipe_matrix *x,
                                    const struct fp8pipe_matrix *out, struct CUstream_st *stream)
{
    switch (out->dtype) {
    case FP8PIPE_BF16:
        return run_convert<FP8PIPE_BF16>(*x, *out, stream);
    case FP8PIPE_FP16:
        return run_convert<FP8PIPE_FP16>(*x, *out, stream);
    default:
        return run_convert<FP8PIPE_FP32>(*x, *out, stream);
    }
}
