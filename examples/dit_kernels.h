/*
 * The examples' own operations: what a diffusion transformer does between its linear layers.
 *
 * Each is enqueued as one `call` op, fp8pipe_call(fn = dit_call, arg = a struct dit_op), and has a
 * CUDA kernel (dit_kernels.cu) and a C twin (dit_kernels_host.c), which compute the same up to
 * rounding. Sums are made in a fixed order: the same input gives the same bits.
 *
 * Words: an image is a sequence of `tokens` rows; row r belongs to image r / tokens. `rows` is
 * images * tokens. Arrays are float32, dense and row-major. Inputs of linear layers are matrices:
 * FP32 or BF16, written here and read by the library.
 */
#ifndef DIT_KERNELS_H
#define DIT_KERNELS_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The longest sequence that the attention takes. */
#define DIT_TOKENS_MAX 64

/* Layer norm divides by sqrt(variance + this). */
#define DIT_NORM_EPSILON 1e-6f

enum dit_kind {
    DIT_NOISE,
    DIT_TIME_EMBEDDING,
    DIT_SILU,
    DIT_SILU_BACKWARD,
    DIT_LABEL_BACKWARD,
    DIT_POSITION,
    DIT_POSITION_BACKWARD,
    DIT_MODULATE,
    DIT_MODULATE_BACKWARD,
    DIT_GATE,
    DIT_GATE_BACKWARD,
    DIT_GELU,
    DIT_GELU_BACKWARD,
    DIT_ATTENTION,
    DIT_ATTENTION_BACKWARD,
    DIT_LOSS,
    DIT_ADAMW,
    DIT_EULER
};

/* mixed = (1 - t) * noise + t * image; target = image - noise. t: one for each image. */
struct dit_noise_args {
    const float *image; /* [rows, cols] */
    const float *noise;
    const float *t; /* [images] */
    float *mixed;
    float *target;
    int64_t images;
    int64_t tokens;
    int64_t cols;
};

/* out[i, k] = cos(a), out[i, half + k] = sin(a); half = cols / 2, a = 1000 t 10000^(-k / half) */
struct dit_time_embedding_args {
    const float *t; /* [out.rows], or NULL: t_value for all */
    float t_value;
    struct fp8pipe_matrix out;
};

/* With a table, x[r] += table[labels[r]] first, in place. out = x * sigmoid(x). */
struct dit_silu_args {
    float *x; /* [out.rows, out.cols] */
    const float *table;
    const int32_t *labels;
    struct fp8pipe_matrix out;
};

/* out = (sum over parts of grad[part]) * d silu(x) / dx */
struct dit_silu_backward_args {
    const float *x;
    const float *grad; /* [parts, out.rows, out.cols] */
    int64_t parts;
    struct fp8pipe_matrix out;
};

/* table_grad[c] = sum of grad[i] over the images whose label is c */
struct dit_label_backward_args {
    struct fp8pipe_matrix grad; /* [images, cols] */
    const int32_t *labels;
    float *table_grad; /* [classes, cols] */
    int64_t classes;
};

/* x[r] += table[position[r % tokens]], in place */
struct dit_position_args {
    float *x; /* [rows, cols] */
    const float *table;
    const int32_t *position; /* [tokens], no two the same */
    int64_t images;
    int64_t tokens;
    int64_t cols;
};

/* table_grad[p] = sum over the images of grad at the token whose position is p, or 0 */
struct dit_position_backward_args {
    const float *grad; /* [rows, cols] */
    const int32_t *position;
    float *table_grad; /* [positions, cols] */
    int64_t positions;
    int64_t images;
    int64_t tokens;
    int64_t cols;
};

/* out = (x - mean) * rstd * (1 + scale) + shift; mean and rstd of each row of x, kept. */
struct dit_modulate_args {
    const float *x;     /* [rows, out.cols] */
    const float *shift; /* [images, out.cols], rows `stride` apart */
    const float *scale;
    int64_t stride;
    int64_t tokens;
    float *mean; /* [rows] */
    float *rstd;
    struct fp8pipe_matrix out;
};

/*
 * grad_x = (accumulate ? grad_x : 0) + gradient through the norm;
 * grad_shift = sum over the image's tokens of grad, grad_scale of grad * (x - mean) * rstd.
 */
struct dit_modulate_backward_args {
    const float *grad; /* [rows, cols], of `out` */
    const float *x;
    const float *mean;
    const float *rstd;
    const float *scale;
    int64_t stride;
    float *grad_x;
    int32_t accumulate;
    struct fp8pipe_matrix grad_shift; /* [images, cols] */
    struct fp8pipe_matrix grad_scale;
    int64_t tokens;
};

/* out = x + gate * y; gate: one row for each image. */
struct dit_gate_args {
    const float *x; /* [rows, cols] */
    const float *y;
    const float *gate; /* [images, cols], rows `stride` apart */
    int64_t stride;
    float *out;
    int64_t images;
    int64_t tokens;
    int64_t cols;
};

/* grad_y = gate * grad; grad_gate = sum over the image's tokens of grad * y. */
struct dit_gate_backward_args {
    const float *grad; /* [rows, cols], of `out` */
    const float *y;
    const float *gate;
    int64_t stride;
    struct fp8pipe_matrix grad_y;
    struct fp8pipe_matrix grad_gate; /* [images, cols] */
    int64_t tokens;
};

/* out = gelu(x), with tanh's approximation of the error function. */
struct dit_gelu_args {
    const float *x;
    struct fp8pipe_matrix out;
};

struct dit_gelu_backward_args {
    const float *x;
    const float *grad;
    struct fp8pipe_matrix out; /* grad * d gelu(x) / dx */
};

/*
 * For each image and head: out = softmax(q . k^T / sqrt(head_cols)) . v. A row of qkv holds all
 * heads' q, then k, then v. The softmax is kept for the backward, or not (NULL).
 */
struct dit_attention_args {
    const float *qkv;     /* [rows, 3 * out.cols] */
    float *probabilities; /* [images, heads, tokens, tokens] */
    int64_t tokens;       /* <= DIT_TOKENS_MAX */
    int64_t heads;
    struct fp8pipe_matrix out; /* [rows, heads * head_cols] */
};

struct dit_attention_backward_args {
    const float *qkv;
    const float *probabilities;
    const float *grad; /* [rows, cols], of `out` */
    int64_t tokens;
    int64_t heads;
    struct fp8pipe_matrix grad_qkv; /* [rows, 3 * cols] */
};

/* *loss = mean((prediction - target)^2); grad = d loss / d prediction, or not (NULL). */
struct dit_loss_args {
    const float *prediction;
    const float *target;
    int64_t count;
    float *grad;
    double *loss;
};

/*
 * AdamW with decoupled weight decay; correctionN = 1 / (1 - betaN^step):
 *   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
 *   w = w - rate * (weight_decay * w + m * correction1 / (sqrt(v * correction2) + epsilon))
 */
struct dit_adamw_args {
    float *weight; /* [count] */
    const float *grad;
    float *m;
    float *v;
    uint16_t *bf16; /* a copy of the weight in BF16, or NULL */
    int64_t count;
    float rate;
    float beta1;
    float beta2;
    float epsilon;
    float weight_decay;
    float correction1;
    float correction2;
};

/*
 * One Euler step with classifier-free guidance. x and velocity hold `count` values with labels,
 * then the same samples' without: x += step * (without + guidance * (with - without)), in both
 * halves.
 */
struct dit_euler_args {
    float *x; /* [2, count] */
    const float *velocity;
    int64_t count;
    float step;
    float guidance;
};

struct dit_op {
    enum dit_kind kind;
    union {
        struct dit_noise_args noise;
        struct dit_time_embedding_args time_embedding;
        struct dit_silu_args silu;
        struct dit_silu_backward_args silu_backward;
        struct dit_label_backward_args label_backward;
        struct dit_position_args position;
        struct dit_position_backward_args position_backward;
        struct dit_modulate_args modulate;
        struct dit_modulate_backward_args modulate_backward;
        struct dit_gate_args gate;
        struct dit_gate_backward_args gate_backward;
        struct dit_gelu_args gelu;
        struct dit_gelu_backward_args gelu_backward;
        struct dit_attention_args attention;
        struct dit_attention_backward_args attention_backward;
        struct dit_loss_args loss;
        struct dit_adamw_args adamw;
        struct dit_euler_args euler;
    };
};

/*
 * The function of a `call` op; `op` is a struct dit_op, which must live until the op is done. It
 * launches the kernel on the lane's stream, or gives its twin to the host backend's executor.
 */
enum fp8pipe_status dit_call(struct fp8pipe_stream *stream, void *op);

struct CUstream_st;
/* Launches op's kernel; 0 or a cudaError_t. */
int dit_launch_cuda(const struct dit_op *op, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
