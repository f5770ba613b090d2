#include "dit_kernels.h"

#include <fp8pipe_cuda.h>
#include <math.h>
#include <string.h>

static uint16_t bf16_from_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return 0x7fff;
    }
    /* To the nearest, ties to even. */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_to_float(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;

    memcpy(&result, &bits, sizeof(result));
    return result;
}

static void put(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col, float value)
{
    int64_t at = row * matrix->stride + col;

    if (matrix->dtype == FP8PIPE_BF16) {
        ((uint16_t *)matrix->data)[at] = bf16_from_float(value);
    } else {
        ((float *)matrix->data)[at] = value;
    }
}

static float get(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    int64_t at = row * matrix->stride + col;

    return matrix->dtype == FP8PIPE_BF16 ? bf16_to_float(((const uint16_t *)matrix->data)[at])
                                         : ((const float *)matrix->data)[at];
}

/* Sums of PARTS independent parts, which a compiler can keep in vector registers. */
#define PARTS 16

static float sum_parts(const float parts[PARTS])
{
    float sum = 0.0f;

    for (int l = 0; l < PARTS; l++) {
        sum += parts[l];
    }
    return sum;
}

static float dot(const float *a, const float *b, int64_t count)
{
    float parts[PARTS] = {0.0f};
    int64_t i = 0;

    for (; i + PARTS <= count; i += PARTS) {
        for (int l = 0; l < PARTS; l++) {
            parts[l] += a[i + l] * b[i + l];
        }
    }
    for (int l = 0; i < count; i++, l++) {
        parts[l] += a[i] * b[i];
    }
    return sum_parts(parts);
}

/* matrix[row, first + c] = sum over i of weights[i * weight_stride] * rows[i * stride + c] */
static void put_weighted(const struct fp8pipe_matrix *matrix, int64_t row, int64_t first,
                         int64_t cols, const float *weights, int64_t weight_stride,
                         const float *rows, int64_t stride, int64_t count)
{
    for (int64_t c = 0; c < cols; c += PARTS) {
        int width = cols - c < PARTS ? (int)(cols - c) : PARTS;
        float sums[PARTS] = {0.0f};

        for (int64_t i = 0; i < count; i++) {
            float weight = weights[i * weight_stride];
            const float *from = rows + i * stride + c;

            if (width == PARTS) {
                for (int l = 0; l < PARTS; l++) {
                    sums[l] += weight * from[l];
                }
            } else {
                for (int l = 0; l < width; l++) {
                    sums[l] += weight * from[l];
                }
            }
        }
        for (int l = 0; l < width; l++) {
            put(matrix, row, first + c + l, sums[l]);
        }
    }
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void noise(const struct dit_noise_args *a)
{
    for (int64_t r = 0; r < a->images * a->tokens; r++) {
        float t = a->t[r / a->tokens];

        for (int64_t i = r * a->cols; i < (r + 1) * a->cols; i++) {
            a->mixed[i] = (1.0f - t) * a->noise[i] + t * a->image[i];
            a->target[i] = a->image[i] - a->noise[i];
        }
    }
}

static void time_embedding(const struct dit_time_embedding_args *a)
{
    int64_t half = a->out.cols / 2;

    for (int64_t r = 0; r < a->out.rows; r++) {
        float t = a->t ? a->t[r] : a->t_value;

        for (int64_t k = 0; k < half; k++) {
            float angle = 1000.0f * t * powf(10000.0f, -(float)k / (float)half);

            put(&a->out, r, k, cosf(angle));
            put(&a->out, r, half + k, sinf(angle));
        }
    }
}

static void silu(const struct dit_silu_args *a)
{
    for (int64_t r = 0; r < a->out.rows; r++) {
        float *x = a->x + r * a->out.cols;

        for (int64_t c = 0; c < a->out.cols; c++) {
            if (a->table) {
                x[c] += a->table[a->labels[r] * a->out.cols + c];
            }
            put(&a->out, r, c, x[c] * sigmoid(x[c]));
        }
    }
}

static void silu_backward(const struct dit_silu_backward_args *a)
{
    int64_t count = a->out.rows * a->out.cols;

    for (int64_t r = 0; r < a->out.rows; r++) {
        for (int64_t c = 0; c < a->out.cols; c++) {
            int64_t at = r * a->out.cols + c;
            float s = sigmoid(a->x[at]);
            float sum = 0.0f;

            for (int64_t part = 0; part < a->parts; part++) {
                sum += a->grad[part * count + at];
            }
            put(&a->out, r, c, sum * s * (1.0f + a->x[at] * (1.0f - s)));
        }
    }
}

static void label_backward(const struct dit_label_backward_args *a)
{
    memset(a->table_grad, 0, (size_t)(a->classes * a->grad.cols) * sizeof(float));
    for (int64_t r = 0; r < a->grad.rows; r++) {
        float *to = a->table_grad + a->labels[r] * a->grad.cols;

        for (int64_t c = 0; c < a->grad.cols; c++) {
            to[c] += get(&a->grad, r, c);
        }
    }
}

static void position(const struct dit_position_args *a)
{
    for (int64_t r = 0; r < a->images * a->tokens; r++) {
        const float *from = a->table + a->position[r % a->tokens] * a->cols;
        float *x = a->x + r * a->cols;

        for (int64_t c = 0; c < a->cols; c++) {
            x[c] += from[c];
        }
    }
}

static void position_backward(const struct dit_position_backward_args *a)
{
    memset(a->table_grad, 0, (size_t)(a->positions * a->cols) * sizeof(float));
    for (int64_t r = 0; r < a->images * a->tokens; r++) {
        float *to = a->table_grad + a->position[r % a->tokens] * a->cols;
        const float *grad = a->grad + r * a->cols;

        for (int64_t c = 0; c < a->cols; c++) {
            to[c] += grad[c];
        }
    }
}

static void modulate(const struct dit_modulate_args *a)
{
    int64_t cols = a->out.cols;

    for (int64_t r = 0; r < a->out.rows; r++) {
        const float *x = a->x + r * cols;
        const float *shift = a->shift + r / a->tokens * a->stride;
        const float *scale = a->scale + r / a->tokens * a->stride;
        float parts[PARTS] = {0.0f};
        float squares[PARTS] = {0.0f};
        float mean;
        float rstd;

        for (int64_t c = 0; c < cols; c++) {
            parts[c % PARTS] += x[c];
        }
        mean = sum_parts(parts) / (float)cols;
        for (int64_t c = 0; c < cols; c++) {
            squares[c % PARTS] += (x[c] - mean) * (x[c] - mean);
        }
        rstd = 1.0f / sqrtf(sum_parts(squares) / (float)cols + DIT_NORM_EPSILON);
        a->mean[r] = mean;
        a->rstd[r] = rstd;
        for (int64_t c = 0; c < cols; c++) {
            put(&a->out, r, c, (x[c] - mean) * rstd * (1.0f + scale[c]) + shift[c]);
        }
    }
}

/* With n = (x - mean) * rstd and g = grad * (1 + scale), the gradient through the norm is
 * rstd * (g - mean(g) - n * mean(g * n)). */
static void modulate_backward(const struct dit_modulate_backward_args *a)
{
    int64_t cols = a->grad_shift.cols;

    for (int64_t r = 0; r < a->grad_shift.rows * a->tokens; r++) {
        const float *x = a->x + r * cols;
        const float *grad = a->grad + r * cols;
        const float *scale = a->scale + r / a->tokens * a->stride;
        float *grad_x = a->grad_x + r * cols;
        float mean = a->mean[r];
        float rstd = a->rstd[r];
        float sums[PARTS] = {0.0f};
        float dots[PARTS] = {0.0f};
        float mean_g;
        float mean_gn;

        for (int64_t c = 0; c < cols; c++) {
            float g = grad[c] * (1.0f + scale[c]);

            sums[c % PARTS] += g;
            dots[c % PARTS] += g * (x[c] - mean) * rstd;
        }
        mean_g = sum_parts(sums) / (float)cols;
        mean_gn = sum_parts(dots) / (float)cols;
        for (int64_t c = 0; c < cols; c++) {
            float g = grad[c] * (1.0f + scale[c]);
            float n = (x[c] - mean) * rstd;

            grad_x[c] = (a->accumulate ? grad_x[c] : 0.0f) + rstd * (g - mean_g - n * mean_gn);
        }
    }
    for (int64_t image = 0; image < a->grad_shift.rows; image++) {
        for (int64_t c = 0; c < cols; c++) {
            float grad_shift = 0.0f;
            float grad_scale = 0.0f;

            for (int64_t r = image * a->tokens; r < (image + 1) * a->tokens; r++) {
                float n = (a->x[r * cols + c] - a->mean[r]) * a->rstd[r];

                grad_shift += a->grad[r * cols + c];
                grad_scale += a->grad[r * cols + c] * n;
            }
            put(&a->grad_shift, image, c, grad_shift);
            put(&a->grad_scale, image, c, grad_scale);
        }
    }
}

static void gate(const struct dit_gate_args *a)
{
    for (int64_t r = 0; r < a->images * a->tokens; r++) {
        const float *g = a->gate + r / a->tokens * a->stride;

        for (int64_t c = 0; c < a->cols; c++) {
            int64_t at = r * a->cols + c;

            a->out[at] = a->x[at] + g[c] * a->y[at];
        }
    }
}

static void gate_backward(const struct dit_gate_backward_args *a)
{
    int64_t cols = a->grad_y.cols;

    for (int64_t image = 0; image < a->grad_gate.rows; image++) {
        const float *g = a->gate + image * a->stride;

        for (int64_t c = 0; c < cols; c++) {
            float sum = 0.0f;

            for (int64_t r = image * a->tokens; r < (image + 1) * a->tokens; r++) {
                sum += a->grad[r * cols + c] * a->y[r * cols + c];
                put(&a->grad_y, r, c, g[c] * a->grad[r * cols + c]);
            }
            put(&a->grad_gate, image, c, sum);
        }
    }
}

/* gelu(x) = x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_LINEAR 1.5957691216057308f /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

static void gelu(const struct dit_gelu_args *a)
{
    for (int64_t r = 0; r < a->out.rows; r++) {
        for (int64_t c = 0; c < a->out.cols; c++) {
            float x = a->x[r * a->out.cols + c];

            put(&a->out, r, c, x * sigmoid(GELU_LINEAR * (x + GELU_CUBIC * x * x * x)));
        }
    }
}

static void gelu_backward(const struct dit_gelu_backward_args *a)
{
    for (int64_t r = 0; r < a->out.rows; r++) {
        for (int64_t c = 0; c < a->out.cols; c++) {
            float x = a->x[r * a->out.cols + c];
            float s = sigmoid(GELU_LINEAR * (x + GELU_CUBIC * x * x * x));
            float slope = GELU_LINEAR * (1.0f + 3.0f * GELU_CUBIC * x * x);

            put(&a->out, r, c, a->grad[r * a->out.cols + c] * (s + x * s * (1.0f - s) * slope));
        }
    }
}

static void attention(const struct dit_attention_args *a)
{
    int64_t cols = a->out.cols;
    int64_t width = cols / a->heads;
    int64_t n = a->tokens;
    float factor = 1.0f / sqrtf((float)width);
    float scratch[DIT_TOKENS_MAX];

    for (int64_t i = 0; i < a->out.rows * a->heads; i++) {
        int64_t first = i / (a->heads * n) * n;
        int64_t head = i / n % a->heads;
        int64_t row = first + i % n;
        const float *q = a->qkv + row * 3 * cols + head * width;
        const float *k = a->qkv + first * 3 * cols + cols + head * width;
        const float *v = k + cols;
        float *p = a->probabilities ? a->probabilities + i * n : scratch;
        float most = -INFINITY;
        float sum = 0.0f;

        for (int64_t j = 0; j < n; j++) {
            p[j] = factor * dot(q, k + j * 3 * cols, width);
            most = p[j] > most ? p[j] : most;
        }
        for (int64_t j = 0; j < n; j++) {
            p[j] = expf(p[j] - most);
            sum += p[j];
        }
        for (int64_t j = 0; j < n; j++) {
            p[j] /= sum;
        }
        put_weighted(&a->out, row, head * width, width, p, 1, v, 3 * cols, n);
    }
}

/* With s the scores and p their softmax: dv = p^T . grad, dp = grad . v^T,
 * ds = p * (dp - sum over j of p * dp), dq = ds . k * factor, dk = ds^T . q * factor. */
static void attention_head_backward(const struct dit_attention_backward_args *a, int64_t image,
                                    int64_t head)
{
    int64_t cols = a->grad_qkv.cols / 3;
    int64_t width = cols / a->heads;
    int64_t n = a->tokens;
    float factor = 1.0f / sqrtf((float)width);
    const float *q = a->qkv + image * n * 3 * cols + head * width;
    const float *k = q + cols;
    const float *v = k + cols;
    const float *grad = a->grad + image * n * cols + head * width;
    const float *p = a->probabilities + (image * a->heads + head) * n * n;
    float ds[DIT_TOKENS_MAX * DIT_TOKENS_MAX];

    for (int64_t i = 0; i < n; i++) {
        float sum = 0.0f;

        for (int64_t j = 0; j < n; j++) {
            ds[i * n + j] = dot(grad + i * cols, v + j * 3 * cols, width);
            sum += p[i * n + j] * ds[i * n + j];
        }
        for (int64_t j = 0; j < n; j++) {
            ds[i * n + j] = factor * p[i * n + j] * (ds[i * n + j] - sum);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t row = image * n + i;
        int64_t col = head * width;

        put_weighted(&a->grad_qkv, row, col, width, ds + i * n, 1, k, 3 * cols, n);
        put_weighted(&a->grad_qkv, row, col + cols, width, ds + i, n, q, 3 * cols, n);
        put_weighted(&a->grad_qkv, row, col + 2 * cols, width, p + i, n, grad, cols, n);
    }
}

static void attention_backward(const struct dit_attention_backward_args *a)
{
    for (int64_t image = 0; image < a->grad_qkv.rows / a->tokens; image++) {
        for (int64_t head = 0; head < a->heads; head++) {
            attention_head_backward(a, image, head);
        }
    }
}

static void loss(const struct dit_loss_args *a)
{
    double sum = 0.0;

    for (int64_t i = 0; i < a->count; i++) {
        float difference = a->prediction[i] - a->target[i];

        sum += (double)difference * (double)difference;
        if (a->grad) {
            a->grad[i] = 2.0f * difference / (float)a->count;
        }
    }
    *a->loss = sum / (double)a->count;
}

static void adamw(const struct dit_adamw_args *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        float g = a->grad[i];
        float m = a->beta1 * a->m[i] + (1.0f - a->beta1) * g;
        float v = a->beta2 * a->v[i] + (1.0f - a->beta2) * g * g;
        float step = m * a->correction1 / (sqrtf(v * a->correction2) + a->epsilon);

        a->m[i] = m;
        a->v[i] = v;
        a->weight[i] -= a->rate * (a->weight_decay * a->weight[i] + step);
        if (a->bf16) {
            a->bf16[i] = bf16_from_float(a->weight[i]);
        }
    }
}

static void euler(const struct dit_euler_args *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        float without = a->velocity[a->count + i];
        float velocity = without + a->guidance * (a->velocity[i] - without);

        a->x[i] += a->step * velocity;
        a->x[a->count + i] = a->x[i];
    }
}

static void run_host(void *arg)
{
    const struct dit_op *op = arg;

    switch (op->kind) {
    case DIT_NOISE:
        noise(&op->noise);
        break;
    case DIT_TIME_EMBEDDING:
        time_embedding(&op->time_embedding);
        break;
    case DIT_SILU:
        silu(&op->silu);
        break;
    case DIT_SILU_BACKWARD:
        silu_backward(&op->silu_backward);
        break;
    case DIT_LABEL_BACKWARD:
        label_backward(&op->label_backward);
        break;
    case DIT_POSITION:
        position(&op->position);
        break;
    case DIT_POSITION_BACKWARD:
        position_backward(&op->position_backward);
        break;
    case DIT_MODULATE:
        modulate(&op->modulate);
        break;
    case DIT_MODULATE_BACKWARD:
        modulate_backward(&op->modulate_backward);
        break;
    case DIT_GATE:
        gate(&op->gate);
        break;
    case DIT_GATE_BACKWARD:
        gate_backward(&op->gate_backward);
        break;
    case DIT_GELU:
        gelu(&op->gelu);
        break;
    case DIT_GELU_BACKWARD:
        gelu_backward(&op->gelu_backward);
        break;
    case DIT_ATTENTION:
        attention(&op->attention);
        break;
    case DIT_ATTENTION_BACKWARD:
        attention_backward(&op->attention_backward);
        break;
    case DIT_LOSS:
        loss(&op->loss);
        break;
    case DIT_ADAMW:
        adamw(&op->adamw);
        break;
    case DIT_EULER:
        euler(&op->euler);
        break;
    }
}

enum fp8pipe_status dit_call(struct fp8pipe_stream *stream, void *op)
{
#ifdef HAVE_CUDA
    if (fp8pipe_stream_backend(stream) == FP8PIPE_BACKEND_CUDA) {
        return dit_launch_cuda(op, fp8pipe_stream_cuda(stream)) == 0 ? FP8PIPE_OK : FP8PIPE_ELAUNCH;
    }
#endif
    return fp8pipe_host_enqueue(stream, run_host, op);
}
