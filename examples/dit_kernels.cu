/*
 * dit_kernels.h on CUDA. Simple rather than fast: one thread an element, or one warp a row where a
 * row is summed, always in the same order. Grids are capped and loop, so any size runs.
 */
#include "dit_kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

#define THREADS 256
#define WARP 32
#define BLOCKS_MAX 65535

/* The element, row or warp that a thread starts with, and how far it goes on from there. */
#define EACH(i, count)                                                                             \
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;                                    \
    i < (count);                                                                                   \
    i += (int64_t)gridDim.x * blockDim.x
#define EACH_WARP(i, count)                                                                        \
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / WARP;                           \
    i < (count);                                                                                   \
    i += (int64_t)gridDim.x * blockDim.x / WARP

static __device__ void put(const struct fp8pipe_matrix &matrix, int64_t row, int64_t col,
                           float value)
{
    int64_t at = row * matrix.stride + col;

    if (matrix.dtype == FP8PIPE_BF16) {
        ((__nv_bfloat16 *)matrix.data)[at] = __float2bfloat16_rn(value);
    } else {
        ((float *)matrix.data)[at] = value;
    }
}

static __device__ float get(const struct fp8pipe_matrix &matrix, int64_t row, int64_t col)
{
    int64_t at = row * matrix.stride + col;

    return matrix.dtype == FP8PIPE_BF16 ? __bfloat162float(((const __nv_bfloat16 *)matrix.data)[at])
                                        : ((const float *)matrix.data)[at];
}

static __device__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The sum over a warp, the same in every lane. */
static __device__ float warp_sum(float value)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, offset);
    }
    return value;
}

static __global__ void noise(struct dit_noise_args a)
{
    for (EACH(i, a.images * a.tokens * a.cols)) {
        float t = a.t[i / (a.tokens * a.cols)];

        a.mixed[i] = (1.0f - t) * a.noise[i] + t * a.image[i];
        a.target[i] = a.image[i] - a.noise[i];
    }
}

static __global__ void time_embedding(struct dit_time_embedding_args a)
{
    int64_t half = a.out.cols / 2;

    for (EACH(i, a.out.rows * half)) {
        int64_t r = i / half;
        int64_t k = i % half;
        float t = a.t ? a.t[r] : a.t_value;
        float angle = 1000.0f * t * powf(10000.0f, -(float)k / (float)half);

        put(a.out, r, k, cosf(angle));
        put(a.out, r, half + k, sinf(angle));
    }
}

static __global__ void silu(struct dit_silu_args a)
{
    for (EACH(i, a.out.rows * a.out.cols)) {
        int64_t r = i / a.out.cols;
        int64_t c = i % a.out.cols;
        float x = a.x[i];

        if (a.table) {
            x += a.table[a.labels[r] * a.out.cols + c];
            a.x[i] = x;
        }
        put(a.out, r, c, x * sigmoid(x));
    }
}

static __global__ void silu_backward(struct dit_silu_backward_args a)
{
    int64_t count = a.out.rows * a.out.cols;

    for (EACH(i, count)) {
        float s = sigmoid(a.x[i]);
        float sum = 0.0f;

        for (int64_t part = 0; part < a.parts; part++) {
            sum += a.grad[part * count + i];
        }
        put(a.out, i / a.out.cols, i % a.out.cols, sum * s * (1.0f + a.x[i] * (1.0f - s)));
    }
}

static __global__ void label_backward(struct dit_label_backward_args a)
{
    for (EACH(i, a.classes * a.grad.cols)) {
        float sum = 0.0f;

        for (int64_t r = 0; r < a.grad.rows; r++) {
            if (a.labels[r] == i / a.grad.cols) {
                sum += get(a.grad, r, i % a.grad.cols);
            }
        }
        a.table_grad[i] = sum;
    }
}

static __global__ void position(struct dit_position_args a)
{
    for (EACH(i, a.images * a.tokens * a.cols)) {
        int64_t token = i / a.cols % a.tokens;

        a.x[i] += a.table[a.position[token] * a.cols + i % a.cols];
    }
}

static __global__ void position_backward(struct dit_position_backward_args a)
{
    for (EACH(i, a.positions * a.cols)) {
        float sum = 0.0f;

        for (int64_t token = 0; token < a.tokens; token++) {
            if (a.position[token] != i / a.cols) {
                continue;
            }
            for (int64_t image = 0; image < a.images; image++) {
                sum += a.grad[(image * a.tokens + token) * a.cols + i % a.cols];
            }
        }
        a.table_grad[i] = sum;
    }
}

static __global__ void modulate(struct dit_modulate_args a)
{
    int64_t cols = a.out.cols;
    int lane = threadIdx.x % WARP;

    for (EACH_WARP(r, a.out.rows)) {
        const float *x = a.x + r * cols;
        const float *shift = a.shift + r / a.tokens * a.stride;
        const float *scale = a.scale + r / a.tokens * a.stride;
        float sum = 0.0f;
        float squares = 0.0f;

        for (int64_t c = lane; c < cols; c += WARP) {
            sum += x[c];
        }
        float mean = warp_sum(sum) / (float)cols;
        for (int64_t c = lane; c < cols; c += WARP) {
            squares += (x[c] - mean) * (x[c] - mean);
        }
        float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)cols + DIT_NORM_EPSILON);
        if (lane == 0) {
            a.mean[r] = mean;
            a.rstd[r] = rstd;
        }
        for (int64_t c = lane; c < cols; c += WARP) {
            put(a.out, r, c, (x[c] - mean) * rstd * (1.0f + scale[c]) + shift[c]);
        }
    }
}

/* With n = (x - mean) * rstd and g = grad * (1 + scale), the gradient through the norm is
 * rstd * (g - mean(g) - n * mean(g * n)). */
static __global__ void modulate_backward_x(struct dit_modulate_backward_args a)
{
    int64_t cols = a.grad_shift.cols;
    int lane = threadIdx.x % WARP;

    for (EACH_WARP(r, a.grad_shift.rows * a.tokens)) {
        const float *x = a.x + r * cols;
        const float *grad = a.grad + r * cols;
        const float *scale = a.scale + r / a.tokens * a.stride;
        float *grad_x = a.grad_x + r * cols;
        float sum = 0.0f;
        float dot = 0.0f;

        for (int64_t c = lane; c < cols; c += WARP) {
            float g = grad[c] * (1.0f + scale[c]);

            sum += g;
            dot += g * (x[c] - a.mean[r]) * a.rstd[r];
        }
        sum = warp_sum(sum) / (float)cols;
        dot = warp_sum(dot) / (float)cols;
        for (int64_t c = lane; c < cols; c += WARP) {
            float g = grad[c] * (1.0f + scale[c]);
            float n = (x[c] - a.mean[r]) * a.rstd[r];

            grad_x[c] = (a.accumulate ? grad_x[c] : 0.0f) + a.rstd[r] * (g - sum - n * dot);
        }
    }
}

static __global__ void modulate_backward_modulation(struct dit_modulate_backward_args a)
{
    int64_t cols = a.grad_shift.cols;

    for (EACH(i, a.grad_shift.rows * cols)) {
        int64_t image = i / cols;
        int64_t c = i % cols;
        float grad_shift = 0.0f;
        float grad_scale = 0.0f;

        for (int64_t r = image * a.tokens; r < (image + 1) * a.tokens; r++) {
            float n = (a.x[r * cols + c] - a.mean[r]) * a.rstd[r];

            grad_shift += a.grad[r * cols + c];
            grad_scale += a.grad[r * cols + c] * n;
        }
        put(a.grad_shift, image, c, grad_shift);
        put(a.grad_scale, image, c, grad_scale);
    }
}

static __global__ void gate(struct dit_gate_args a)
{
    for (EACH(i, a.images * a.tokens * a.cols)) {
        int64_t image = i / (a.tokens * a.cols);

        a.out[i] = a.x[i] + a.gate[image * a.stride + i % a.cols] * a.y[i];
    }
}

static __global__ void gate_backward(struct dit_gate_backward_args a)
{
    int64_t cols = a.grad_y.cols;

    for (EACH(i, a.grad_gate.rows * cols)) {
        int64_t image = i / cols;
        int64_t c = i % cols;
        float g = a.gate[image * a.stride + c];
        float sum = 0.0f;

        for (int64_t r = image * a.tokens; r < (image + 1) * a.tokens; r++) {
            sum += a.grad[r * cols + c] * a.y[r * cols + c];
            put(a.grad_y, r, c, g * a.grad[r * cols + c]);
        }
        put(a.grad_gate, image, c, sum);
    }
}

/* gelu(x) = x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_LINEAR 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

static __global__ void gelu(struct dit_gelu_args a)
{
    for (EACH(i, a.out.rows * a.out.cols)) {
        float x = a.x[i];

        put(a.out, i / a.out.cols, i % a.out.cols,
            x * sigmoid(GELU_LINEAR * (x + GELU_CUBIC * x * x * x)));
    }
}

static __global__ void gelu_backward(struct dit_gelu_backward_args a)
{
    for (EACH(i, a.out.rows * a.out.cols)) {
        float x = a.x[i];
        float s = sigmoid(GELU_LINEAR * (x + GELU_CUBIC * x * x * x));
        float slope = GELU_LINEAR * (1.0f + 3.0f * GELU_CUBIC * x * x);

        put(a.out, i / a.out.cols, i % a.out.cols, a.grad[i] * (s + x * s * (1.0f - s) * slope));
    }
}

static __device__ float dot(const float *a, const float *b, int64_t count)
{
    float sum = 0.0f;

    for (int64_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* One block for each image and head. */
static __global__ void attention(struct dit_attention_args a)
{
    __shared__ float p[DIT_TOKENS_MAX * DIT_TOKENS_MAX];
    int64_t cols = a.out.cols;
    int64_t width = cols / a.heads;
    int64_t n = a.tokens;
    int64_t pairs = a.out.rows / n * a.heads;
    float factor = 1.0f / sqrtf((float)width);

    for (int64_t pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
        int64_t first = pair / a.heads * n;
        int64_t head = pair % a.heads;
        const float *q = a.qkv + first * 3 * cols + head * width;

        __syncthreads();
        for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) {
            p[i] = factor * dot(q + i / n * 3 * cols, q + i % n * 3 * cols + cols, width);
        }
        __syncthreads();
        for (int64_t row = threadIdx.x; row < n; row += blockDim.x) {
            float most = -INFINITY;
            float sum = 0.0f;

            for (int64_t j = 0; j < n; j++) {
                most = fmaxf(most, p[row * n + j]);
            }
            for (int64_t j = 0; j < n; j++) {
                p[row * n + j] = expf(p[row * n + j] - most);
                sum += p[row * n + j];
            }
            for (int64_t j = 0; j < n; j++) {
                p[row * n + j] /= sum;
            }
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n * width; i += blockDim.x) {
            int64_t row = i / width;
            int64_t c = i % width;
            float value = 0.0f;

            for (int64_t j = 0; j < n; j++) {
                value += p[row * n + j] * q[j * 3 * cols + 2 * cols + c];
            }
            put(a.out, first + row, head * width + c, value);
        }
        if (a.probabilities) {
            for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) {
                a.probabilities[pair * n * n + i] = p[i];
            }
        }
    }
}

/* One block for each image and head. With s the scores and p their softmax: dv = p^T . grad,
 * dp = grad . v^T, ds = p * (dp - sum over j of p * dp), dq = ds . k * factor,
 * dk = ds^T . q * factor. */
static __global__ void attention_backward(struct dit_attention_backward_args a)
{
    __shared__ float ds[DIT_TOKENS_MAX * DIT_TOKENS_MAX];
    int64_t cols = a.grad_qkv.cols / 3;
    int64_t width = cols / a.heads;
    int64_t n = a.tokens;
    int64_t pairs = a.grad_qkv.rows / n * a.heads;
    float factor = 1.0f / sqrtf((float)width);

    for (int64_t pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
        int64_t first = pair / a.heads * n;
        int64_t head = pair % a.heads;
        const float *q = a.qkv + first * 3 * cols + head * width;
        const float *grad = a.grad + first * cols + head * width;
        const float *p = a.probabilities + pair * n * n;

        __syncthreads();
        for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) {
            ds[i] = dot(grad + i / n * cols, q + i % n * 3 * cols + 2 * cols, width);
        }
        __syncthreads();
        for (int64_t row = threadIdx.x; row < n; row += blockDim.x) {
            float sum = 0.0f;

            for (int64_t j = 0; j < n; j++) {
                sum += p[row * n + j] * ds[row * n + j];
            }
            for (int64_t j = 0; j < n; j++) {
                ds[row * n + j] = factor * p[row * n + j] * (ds[row * n + j] - sum);
            }
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n * width; i += blockDim.x) {
            int64_t row = i / width;
            int64_t c = i % width;
            float dq = 0.0f;
            float dk = 0.0f;
            float dv = 0.0f;

            for (int64_t j = 0; j < n; j++) {
                dq += ds[row * n + j] * q[j * 3 * cols + cols + c];
                dk += ds[j * n + row] * q[j * 3 * cols + c];
                dv += p[j * n + row] * grad[j * cols + c];
            }
            put(a.grad_qkv, first + row, head * width + c, dq);
            put(a.grad_qkv, first + row, cols + head * width + c, dk);
            put(a.grad_qkv, first + row, 2 * cols + head * width + c, dv);
        }
    }
}

/* One block: the sum's order does not depend on the grid. */
static __global__ void loss(struct dit_loss_args a)
{
    __shared__ double sums[THREADS];
    double sum = 0.0;

    for (int64_t i = threadIdx.x; i < a.count; i += THREADS) {
        float difference = a.prediction[i] - a.target[i];

        sum += (double)difference * (double)difference;
        if (a.grad) {
            a.grad[i] = 2.0f * difference / (float)a.count;
        }
    }
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        *a.loss = sums[0] / (double)a.count;
    }
}

static __global__ void adamw(struct dit_adamw_args a)
{
    for (EACH(i, a.count)) {
        float g = a.grad[i];
        float m = a.beta1 * a.m[i] + (1.0f - a.beta1) * g;
        float v = a.beta2 * a.v[i] + (1.0f - a.beta2) * g * g;
        float step = m * a.correction1 / (sqrtf(v * a.correction2) + a.epsilon);
        float weight = a.weight[i] - a.rate * (a.weight_decay * a.weight[i] + step);

        a.m[i] = m;
        a.v[i] = v;
        a.weight[i] = weight;
        if (a.bf16) {
            ((__nv_bfloat16 *)a.bf16)[i] = __float2bfloat16_rn(weight);
        }
    }
}

static __global__ void euler(struct dit_euler_args a)
{
    for (EACH(i, a.count)) {
        float without = a.velocity[a.count + i];
        float x = a.x[i] + a.step * (without + a.guidance * (a.velocity[i] - without));

        a.x[i] = x;
        a.x[a.count + i] = x;
    }
}

static unsigned grid(int64_t count, int64_t each)
{
    int64_t blocks = (count + each - 1) / each;

    return (unsigned)(blocks < 1 ? 1 : blocks > BLOCKS_MAX ? BLOCKS_MAX : blocks);
}

#define ELEMENTS(kernel, args, count) kernel<<<grid(count, THREADS), THREADS, 0, stream>>>(args)
#define ROWS(kernel, args, count) kernel<<<grid(count, THREADS / WARP), THREADS, 0, stream>>>(args)
#define BLOCKS(kernel, args, count) kernel<<<grid(count, 1), THREADS, 0, stream>>>(args)

static int64_t size(const struct fp8pipe_matrix &matrix)
{
    return matrix.rows * matrix.cols;
}

extern "C" int dit_launch_cuda(const struct dit_op *op, struct CUstream_st *stream)
{
    switch (op->kind) {
    case DIT_NOISE:
        ELEMENTS(noise, op->noise, op->noise.images * op->noise.tokens * op->noise.cols);
        break;
    case DIT_TIME_EMBEDDING:
        ELEMENTS(time_embedding, op->time_embedding, size(op->time_embedding.out) / 2);
        break;
    case DIT_SILU:
        ELEMENTS(silu, op->silu, size(op->silu.out));
        break;
    case DIT_SILU_BACKWARD:
        ELEMENTS(silu_backward, op->silu_backward, size(op->silu_backward.out));
        break;
    case DIT_LABEL_BACKWARD:
        ELEMENTS(label_backward, op->label_backward,
                 op->label_backward.classes * op->label_backward.grad.cols);
        break;
    case DIT_POSITION:
        ELEMENTS(position, op->position,
                 op->position.images * op->position.tokens * op->position.cols);
        break;
    case DIT_POSITION_BACKWARD:
        ELEMENTS(position_backward, op->position_backward,
                 op->position_backward.positions * op->position_backward.cols);
        break;
    case DIT_MODULATE:
        ROWS(modulate, op->modulate, op->modulate.out.rows);
        break;
    case DIT_MODULATE_BACKWARD:
        ROWS(modulate_backward_x, op->modulate_backward,
             op->modulate_backward.grad_shift.rows * op->modulate_backward.tokens);
        ELEMENTS(modulate_backward_modulation, op->modulate_backward,
                 size(op->modulate_backward.grad_shift));
        break;
    case DIT_GATE:
        ELEMENTS(gate, op->gate, op->gate.images * op->gate.tokens * op->gate.cols);
        break;
    case DIT_GATE_BACKWARD:
        ELEMENTS(gate_backward, op->gate_backward, size(op->gate_backward.grad_gate));
        break;
    case DIT_GELU:
        ELEMENTS(gelu, op->gelu, size(op->gelu.out));
        break;
    case DIT_GELU_BACKWARD:
        ELEMENTS(gelu_backward, op->gelu_backward, size(op->gelu_backward.out));
        break;
    case DIT_ATTENTION:
        BLOCKS(attention, op->attention,
               op->attention.out.rows / op->attention.tokens * op->attention.heads);
        break;
    case DIT_ATTENTION_BACKWARD:
        BLOCKS(attention_backward, op->attention_backward,
               op->attention_backward.grad_qkv.rows / op->attention_backward.tokens *
                   op->attention_backward.heads);
        break;
    case DIT_LOSS:
        BLOCKS(loss, op->loss, 1);
        break;
    case DIT_ADAMW:
        ELEMENTS(adamw, op->adamw, op->adamw.count);
        break;
    case DIT_EULER:
        ELEMENTS(euler, op->euler, op->euler.count);
        break;
    }
    return (int)cudaGetLastError();
}
