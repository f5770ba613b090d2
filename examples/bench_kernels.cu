/*
 * bench_kernels.h on CUDA. Values to quantize are functors of fp8pipe_quantize.cuh, which makes the
 * kernels. The other kernels take dense matrices whose number of elements is a multiple of 4, at
 * addresses that fit 4 elements; grids are capped and loop, so any size runs.
 */
#include "bench_kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>

#include <fp8pipe_cuda.h>
#include <fp8pipe_quantize.cuh>

#define THREADS 256
#define BLOCKS_MAX 4096
#define UNIT 4

/* ---- Values to quantize -------------------------------------------------------------------- */

namespace
{

using namespace fp8pipe_cuda;

template <int DTYPE> struct modulate {
    operand<DTYPE> x, shift, scale;
    result<DTYPE> out, u, v;

    struct loaded {
        raw<DTYPE> x, shift, scale;
    };

    explicit modulate(const struct bench_modulate_args &a)
        : x(operand<DTYPE>::of(a.x, "x")), shift(operand<DTYPE>::of(a.shift, "shift")),
          scale(operand<DTYPE>::of(a.scale, "scale")), out(result<DTYPE>::of(a.out, "out")),
          u(result<DTYPE>::of(a.u, "u")), v(result<DTYPE>::of(a.v, "v"))
    {
    }

    bool aligned() const
    {
        return x.aligned() && shift.aligned() && scale.aligned() && out.aligned() && u.aligned() &&
               v.aligned();
    }

    __device__ loaded load(const place &at) const
    {
        return {x.load(at), shift.load(at), scale.load(at)};
    }

    __device__ values compute(const place &at, const loaded &in) const
    {
        values wide_x = widen(in.x), wide_shift = widen(in.shift), wide_scale = widen(in.scale);
        values product, kept_u, kept_v;

#pragma unroll
        for (int i = 0; i < 8; i++) {
            float reciprocal = 1.0f / wide_scale[i];

            kept_u[i] = wide_x[i] * reciprocal;
            kept_v[i] = wide_shift[i] * reciprocal;
            product[i] = wide_shift[i] * kept_u[i];
        }
        out.store(at, product);
        u.store(at, kept_u);
        v.store(at, kept_v);
        return product;
    }
};

template <int DTYPE> struct add {
    operand<DTYPE> x, y;
    result<DTYPE> out;

    struct loaded {
        raw<DTYPE> x, y;
    };

    explicit add(const struct bench_add_args &a)
        : x(operand<DTYPE>::of(a.x, "x")), y(operand<DTYPE>::of(a.y, "y")),
          out(result<DTYPE>::of(a.out, "out"))
    {
    }

    bool aligned() const
    {
        return x.aligned() && y.aligned() && out.aligned();
    }

    __device__ loaded load(const place &at) const
    {
        return {x.load(at), y.load(at)};
    }

    __device__ values compute(const place &at, const loaded &in) const
    {
        values sum = widen(in.x), wide_y = widen(in.y);

#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = sum[i] + wide_y[i];
        }
        out.store(at, sum);
        return sum;
    }
};

/* A unit of 8 columns lies in one part of the values, for H is a multiple of 8. */
template <int DTYPE> struct pad {
    operand<DTYPE> x;
    result<DTYPE> out;
    int64_t width;

    struct loaded {
        raw<DTYPE> x;
    };

    explicit pad(const struct bench_pad_args &a)
        : x(operand<DTYPE>::of(a.x, "x")), out(result<DTYPE>::of(a.out, "out")), width(a.x.cols)
    {
    }

    bool aligned() const
    {
        return x.aligned() && out.aligned();
    }

    __device__ loaded load(const place &at) const
    {
        loaded in = {};

        if (at.col < width) {
            in.x = x.load(at);
        }
        return in;
    }

    __device__ values compute(const place &at, const loaded &in) const
    {
        values padded = widen(in.x);

        out.store(at, padded);
        return padded;
    }
};

template <int DTYPE> struct modulate_backward {
    operand<DTYPE> g, u, v;
    result<DTYPE> dx, out;
    int64_t width;

    struct loaded {
        raw<DTYPE> g, u, v;
    };

    explicit modulate_backward(const struct bench_modulate_backward_args &a)
        : g(operand<DTYPE>::of(a.g, "g")), u(operand<DTYPE>::of(a.u, "u")),
          v(operand<DTYPE>::of(a.v, "v")), dx(result<DTYPE>::of(a.dx, "dx")),
          out(result<DTYPE>::of(a.out, "out")), width(a.g.cols)
    {
    }

    bool aligned() const
    {
        return g.aligned(-width) && u.aligned(-width) && v.aligned(-width) && dx.aligned() &&
               out.aligned();
    }

    __device__ loaded load(const place &at) const
    {
        loaded in = {};

        if (at.col < width) {
            in = {g.load(at), u.load(at), v.load(at)};
        } else if (at.col < 2 * width) {
            in = {g.load(at, -width), u.load(at, -width), v.load(at, -width)};
        }
        return in;
    }

    __device__ values compute(const place &at, const loaded &in) const
    {
        values wide_g = widen(in.g), wide_u = widen(in.u), wide_v = widen(in.v);
        values gradient, input;
        bool first = at.col < width;

#pragma unroll
        for (int i = 0; i < 8; i++) {
            float by_shift = wide_g[i] * wide_u[i];

            gradient[i] = first ? by_shift : -by_shift * wide_v[i];
            input[i] = wide_g[i] * wide_v[i];
        }
        if (first) {
            dx.store(at, input);
        }
        out.store(at, gradient);
        return gradient;
    }
};

/* A float32 model is not quantized, so its functors need no kernels that do. */
template <int DTYPE, class F>
enum fp8pipe_status run(struct fp8pipe_stream *stream, const struct fp8pipe_quantize_target *target,
                        const F &functor)
{
    if constexpr (DTYPE == FP8PIPE_FP32) {
        return elementwise(functor, target->rows, target->cols, fp8pipe_stream_cuda(stream));
    } else {
        return quantize(stream, target, functor);
    }
}

template <int DTYPE>
enum fp8pipe_status run_values(struct fp8pipe_stream *stream,
                               const struct fp8pipe_quantize_target *target,
                               const struct bench_values &op)
{
    switch (op.kind) {
    case BENCH_MODULATE:
        return run<DTYPE>(stream, target, modulate<DTYPE>(op.modulate));
    case BENCH_ADD:
        return run<DTYPE>(stream, target, add<DTYPE>(op.add));
    case BENCH_PAD:
        return run<DTYPE>(stream, target, pad<DTYPE>(op.pad));
    case BENCH_MODULATE_BACKWARD:
        return run<DTYPE>(stream, target, modulate_backward<DTYPE>(op.modulate_backward));
    }
    return FP8PIPE_EINVAL;
}

} // namespace

/* The first matrix of every kind is its first member. */
extern "C" enum fp8pipe_status bench_values_cuda(struct fp8pipe_stream *stream,
                                                 const struct fp8pipe_quantize_target *target,
                                                 const struct bench_values *op)
{
    return op->add.x.dtype == FP8PIPE_BF16 ? run_values<FP8PIPE_BF16>(stream, target, *op)
                                           : run_values<FP8PIPE_FP32>(stream, target, *op);
}

/* ---- Everything else ----------------------------------------------------------------------- */

#define EACH(i, count)                                                                             \
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;                                    \
    i < (count);                                                                                   \
    i += (int64_t)gridDim.x * blockDim.x

struct unit {
    float v[UNIT];
};

static __device__ unit get(const float *data, int64_t at)
{
    float4 four = ((const float4 *)data)[at];

    return {{four.x, four.y, four.z, four.w}};
}

static __device__ unit get(const __nv_bfloat16 *data, int64_t at)
{
    uint2 bits = ((const uint2 *)data)[at];

    return {{__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u),
             __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xFFFF0000u)}};
}

static __device__ void put(float *data, int64_t at, const unit &u)
{
    ((float4 *)data)[at] = make_float4(u.v[0], u.v[1], u.v[2], u.v[3]);
}

static __device__ uint32_t pair(float low, float high)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}

static __device__ void put(__nv_bfloat16 *data, int64_t at, const unit &u)
{
    ((uint2 *)data)[at] = make_uint2(pair(u.v[0], u.v[1]), pair(u.v[2], u.v[3]));
}

template <class T>
static __global__ void fill(T *out, int64_t units, uint64_t key, float low, float span)
{
    for (EACH(i, units)) {
        unit u;

#pragma unroll
        for (int k = 0; k < UNIT; k++) {
            u.v[k] = low + span * bench_uniform(key, (uint64_t)(i * UNIT + k));
        }
        put(out, i, u);
    }
}

/* The sum over a block, in its first thread. */
static __device__ double block_sum(double sum)
{
    __shared__ double sums[THREADS];

    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
    }
    return sums[0];
}

/* A block for each part. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    loss_parts(const T *prediction, const T *target, T *grad, int64_t units, double *partials)
{
    float count = (float)(units * UNIT);
    double sum = 0.0;

    for (EACH(i, units)) {
        unit p = get(prediction, i);
        unit t = get(target, i);

#pragma unroll
        for (int k = 0; k < UNIT; k++) {
            float difference = p.v[k] - t.v[k];

            sum += (double)difference * (double)difference;
            p.v[k] = 2.0f * difference / count;
        }
        if (grad) {
            put(grad, i, p);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = sum;
    }
}

static __global__ void __launch_bounds__(THREADS)
    loss_sum(const double *partials, double count, double *loss)
{
    double sum = 0.0;

    for (int i = threadIdx.x; i < BENCH_LOSS_PARTS; i += THREADS) {
        sum += partials[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        *loss = sum / count;
    }
}

/* Bits of numbers that are not negative are ordered as these, NaN above all. */
template <class T> static __global__ void max_bits(const T *x, int64_t units, uint32_t *bits)
{
    uint32_t most = 0;

    for (EACH(i, units)) {
        unit u = get(x, i);

#pragma unroll
        for (int k = 0; k < UNIT; k++) {
            most = max(most, __float_as_uint(u.v[k]) & 0x7FFFFFFFu);
        }
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (threadIdx.x % 32 == 0) {
        atomicMax(bits, most);
    }
}

static int64_t units(const struct fp8pipe_matrix &matrix)
{
    return matrix.rows * matrix.cols / UNIT;
}

static int grid(int64_t count)
{
    int64_t blocks = (count + THREADS - 1) / THREADS;

    return (int)(blocks < 1 ? 1 : blocks > BLOCKS_MAX ? BLOCKS_MAX : blocks);
}

template <class T> static void launch_fill(const struct bench_fill_args &a, cudaStream_t stream)
{
    fill<<<grid(units(a.out)), THREADS, 0, stream>>>((T *)a.out.data, units(a.out), a.key, a.low,
                                                     a.span);
}

template <class T> static void launch_loss(const struct bench_loss_args &a, cudaStream_t stream)
{
    loss_parts<<<BENCH_LOSS_PARTS, THREADS, 0, stream>>>((const T *)a.prediction.data,
                                                         (const T *)a.target.data, (T *)a.grad.data,
                                                         units(a.prediction), a.partials);
    loss_sum<<<1, THREADS, 0, stream>>>(
        a.partials, (double)a.prediction.rows * (double)a.prediction.cols, a.loss);
}

template <class T> static void launch_max(const struct bench_max_args &a, cudaStream_t stream)
{
    max_bits<<<grid(units(a.x)), THREADS, 0, stream>>>((const T *)a.x.data, units(a.x), a.bits);
}

template <class T> static void launch(const struct bench_op &op, cudaStream_t stream)
{
    switch (op.kind) {
    case BENCH_FILL:
        launch_fill<T>(op.fill, stream);
        break;
    case BENCH_LOSS:
        launch_loss<T>(op.loss, stream);
        break;
    case BENCH_MAX:
        launch_max<T>(op.max, stream);
        break;
    case BENCH_MARK:
        break;
    }
}

extern "C" int bench_launch_cuda(const struct bench_op *op, struct CUstream_st *stream)
{
    if (op->kind == BENCH_MARK) {
        return (int)cudaEventRecord((cudaEvent_t)op->mark.marks->events[op->mark.index], stream);
    }
    /* The first matrix of every other kind is its first member. */
    if (op->max.x.dtype == FP8PIPE_BF16) {
        launch<__nv_bfloat16>(*op, stream);
    } else {
        launch<float>(*op, stream);
    }
    return (int)cudaGetLastError();
}

extern "C" int bench_events_create_cuda(void **events, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        cudaError_t error = cudaEventCreate((cudaEvent_t *)&events[i]);

        if (error != cudaSuccess) {
            return (int)error;
        }
    }
    return 0;
}

extern "C" void bench_events_destroy_cuda(void **events, int64_t count)
{
    for (int64_t i = 0; i < count && events[i]; i++) {
        cudaEventDestroy((cudaEvent_t)events[i]);
    }
}

/* NaN if one of them was not recorded, or has not happened. */
extern "C" double bench_events_ms_cuda(void *from, void *to)
{
    float ms;

    return cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to) == cudaSuccess ? ms : NAN;
}

extern "C" void bench_device_get_cuda(struct bench_device *device)
{
    struct cudaDeviceProp properties;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    int driver = 0;

    if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess) {
        snprintf(device->name, sizeof(device->name), "%.*s", (int)sizeof(device->name) - 1,
                 properties.name);
    }
    cudaDriverGetVersion(&driver);
    cudaMemGetInfo(&free_bytes, &total_bytes);
    device->driver = driver;
    device->free_bytes = (double)free_bytes;
    device->total_bytes = (double)total_bytes;
}
