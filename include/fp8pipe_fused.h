/*
 * libfp8pipe: what lies between linear layers, fused with the quantize that follows it.
 *
 *   fp8pipe_tensor_call   a quantize whose values come from a kernel of the caller's, written as a
 *                         functor of a few lines with fp8pipe_quantize.cuh (CUDA) or as a C
 *                         function (host)
 *   fp8pipe_modulate      x' = x + gate * y -> LayerNorm or RMSNorm -> (1 + scale) * n + shift
 *   fp8pipe_activation    GELU, SiLU, SwiGLU
 *   and the backward of both
 *
 * Each reads its operands once and writes what is asked for in the same pass: the result in high
 * precision, and a quantized tensor (row-wise, transposed or both) with its amax folded. The
 * conventions of fp8pipe.h hold.
 */
#ifndef FP8PIPE_FUSED_H
#define FP8PIPE_FUSED_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Where a fused op's quantized result goes. `tensor` NULL: nowhere, the rest is then not read.
 * As struct fp8pipe_quantize_op otherwise: `tensor` is filled, max|value| is folded into the slot
 * unless the op is flagged NO_AMAX, column_sums (FP32, one a column; absent: none) (+)= the sum
 * over rows of the values, in float32, in a fixed order. What is quantized is the value in float32,
 * not a result as rounded to its dtype. Ops without rows or columns fill the tensor (it has no
 * bytes then), set the sums to 0 or leave them when accumulating, and touch no amax.
 */
struct fp8pipe_quantized {
    struct fp8pipe_tensor *tensor;
    struct fp8pipe_scaling *scaling;
    uint32_t slot;
    uint32_t copies; /* FP8PIPE_ROWWISE, FP8PIPE_TRANSPOSED or both */
    struct fp8pipe_vector column_sums;
    int32_t column_sums_accumulate; /* 0: set, 1: add */
    int32_t reserved;               /* 0 */
};
#define FP8PIPE_QUANTIZED_NONE { NULL, NULL, 0, FP8PIPE_ROWWISE, FP8PIPE_VECTOR_NONE, 0, 0 }

/* ---- Values of the caller's ---------------------------------------------------------------- */

/*
 * What a fused quantize kernel is told: where the FP8 bytes of values [rows, cols] go, and by what
 * they are scaled. Made by the library for one call of a fp8pipe_quantize_fn, and gone when that
 * returns; all pointers are memory of the backend, used in the stream's order only.
 * fp8pipe_quantize.cuh and fp8pipe_quantize_host() do all that it asks; nobody else needs to read
 * it. scale_inv NULL: there is no tensor, and all pointers are NULL.
 */
struct fp8pipe_quantize_target {
    int64_t rows;
    int64_t cols;
    enum fp8pipe_format format;
    float scale_numerator;     /* fp8_max * 2^-margin: a scale is this / amax */
    const float *scale;        /* of the slot */
    const int32_t *has_scale;  /* of the slot; read only where own_amax is not NULL */
    uint32_t *own_amax;        /* NULL: the slot is known to have a scale. Else a pass in front
                                  folds the values' amax here (0 before it); skipped if *has_scale
                                  is set */
    float *scale_inv;          /* written: 1 / scale, what codes are multiplied by to get values */
    uint8_t *row;              /* [rows, row_stride], or NULL; 16-byte aligned */
    int64_t row_stride;        /* bytes, a multiple of 16 >= cols; those beyond cols become 0 */
    uint8_t *transposed;       /* [cols, transposed_stride], or NULL */
    int64_t transposed_stride; /* bytes, a multiple of 16 >= rows; those beyond rows become 0 */
    uint32_t *amax;            /* history[0] of the slot, bits of float32; NULL: not folded */
    float *partials;           /* [ceil(rows / 64), cols]: sums over each 64 rows; NULL: none */
    uint64_t *extremes;        /* [2]: saturated, flushed are added; NULL: not counted */
};

/*
 * Runs on the launcher, at issue, as the function of a fp8pipe_call does, and under its rules: fn
 * may only enqueue: once fp8pipe_cuda::quantize() of fp8pipe_quantize.cuh, or on the host backend
 * fp8pipe_quantize_host(), with the stream and the target it was given; before and after that, what
 * the function of a fp8pipe_call may. A status other than FP8PIPE_OK fails the op, as does, on the
 * host, FP8PIPE_OK without values (FP8PIPE_ECALL). With a NULL tensor the target has no outputs.
 */
typedef enum fp8pipe_status fp8pipe_quantize_fn(struct fp8pipe_stream *stream,
                                                const struct fp8pipe_quantize_target *target,
                                                void *arg);

/*
 * Values [rows, cols], computed by fn's kernel, into out.tensor. arg, arg_bytes: as
 * fp8pipe_call_op. rows or cols 0: fn is not called. Flag: FP8PIPE_NO_AMAX.
 * Ownership  what fn's kernel reads lives until the ticket is done.
 * Blocks     as every submit: only while the ring is full.
 */
struct fp8pipe_tensor_call_op {
    size_t size;
    struct fp8pipe_submit submit;
    int64_t rows;
    int64_t cols;
    fp8pipe_quantize_fn *fn;
    void *arg;
    size_t arg_bytes;
    struct fp8pipe_quantized out;
};
#define FP8PIPE_TENSOR_CALL_OP_INIT                                                                \
    {                                                                                              \
        sizeof(struct fp8pipe_tensor_call_op), FP8PIPE_SUBMIT_INIT, 0, 0, NULL, NULL, 0,           \
            FP8PIPE_QUANTIZED_NONE                                                                 \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_tensor_call(struct fp8pipe *pipe,
                                                    const struct fp8pipe_tensor_call_op *op,
                                                    fp8pipe_ticket *ticket);

/*
 * The host's counterpart of fp8pipe_quantize.cuh. From inside a fp8pipe_quantize_fn on the host
 * backend: enqueues a pass that calls values(arg, row, out) once for each row, in ascending order,
 * in stream order, on the lane's executor; it computes the row's target->cols float32 values into
 * `out` (and may write results of its own), under the rules for the work of fp8pipe_host_enqueue();
 * the library then does what the target asks. Skipped once the pipe has failed.
 * It takes temporary memory of 64 rows in float32; of all rows while the slot may lack a scale.
 * arg_bytes > 0: `arg` is copied now (up to FP8PIPE_ARG_MAX bytes); 0: it lives until the op is
 * done.
 * Returns    OK, ENOTSUP (a stream of CUDA), EINVAL (also if the thread is not inside a
 *            fp8pipe_quantize_fn with this stream and target, or has given its values already),
 *            ENOMEM.
 * Blocks     while the executor's queue is full.
 */
typedef void fp8pipe_values_fn(void *arg, int64_t row, float *out);
FP8PIPE_API enum fp8pipe_status
fp8pipe_quantize_host(struct fp8pipe_stream *stream, const struct fp8pipe_quantize_target *target,
                      fp8pipe_values_fn *values, void *arg, size_t arg_bytes);

/* ---- Gate, norm, modulate ------------------------------------------------------------------ */

enum fp8pipe_norm { FP8PIPE_NORM_NONE = 0, FP8PIPE_NORM_LAYER = 1, FP8PIPE_NORM_RMS = 2 };

/*
 * For token i and feature c, with r = rows_of[i] (rows_of NULL: r = i where the operand has M rows,
 * 0 where it has one):
 *   x'[i,c] = x[i,c] + gate[r,c] * y[i,c]            (y absent: x' = x; gate absent: 1)
 *   LAYER:  mean[i] = sum_c x' / H;  rstd[i] = 1 / sqrt(sum_c (x' - mean)^2 / H + epsilon)
 *   RMS:    mean[i] = 0;             rstd[i] = 1 / sqrt(sum_c x'^2 / H + epsilon)
 *   n = (x' - mean) * rstd (NONE: n = x'), then n * weight[c] + bias[c] where given
 *   z = n * (1 + scale[r,c]) + shift[r,c]            (each absent: 0)
 * in float32, of x' as it is stored (rounded to x_out's dtype where x_out is given). Everything
 * but x may be absent, but a gate is for a y; gate, scale and shift have G rows and H columns,
 * G = M, 1, or any with rows_of, whose entries the caller keeps in 0 .. G-1 (a device array: it is
 * not checked). Outputs are apart from all operands and each other, but x_out may be x itself: its
 * data, stride and dtype. out quantizes z. M or H 0: no value is written but column sums, of no
 * rows.
 * Flags: NO_AMAX. The same bits on both backends, but for the sign and payload of NaNs, and the
 * order of out.column_sums.
 * Returns  OK; EINVAL, ENOMEM, and what all submits return.
 */
struct fp8pipe_modulate_op {
    size_t size;
    struct fp8pipe_submit submit;
    struct fp8pipe_matrix x;     /* [M, H], any dtype, as all matrices here */
    struct fp8pipe_matrix y;     /* NONE, or [M, H] */
    struct fp8pipe_matrix gate;  /* NONE, or [G, H] */
    struct fp8pipe_matrix x_out; /* NONE, or [M, H]: x' */
    struct fp8pipe_matrix scale; /* NONE, or [G, H] */
    struct fp8pipe_matrix shift; /* NONE, or [G, H] */
    const int32_t *rows_of;      /* device, [M], or NULL */
    enum fp8pipe_norm norm;
    float epsilon;                /* > 0 with a norm */
    struct fp8pipe_vector weight; /* FP32, H entries, or absent */
    struct fp8pipe_vector bias;   /* FP32, H entries, or absent */
    float *mean;                  /* device, [M], or NULL: kept for backward; NONE writes neither */
    float *rstd;                  /* device, [M], or NULL */
    struct fp8pipe_matrix z;      /* NONE, or [M, H]: the result in high precision */
    struct fp8pipe_quantized out; /* the result, quantized */
};
#define FP8PIPE_MODULATE_OP_INIT                                                                   \
    {                                                                                              \
        sizeof(struct fp8pipe_modulate_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_MATRIX_NONE,              \
            FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE,    \
            FP8PIPE_MATRIX_NONE, NULL, FP8PIPE_NORM_LAYER, 1e-6f, FP8PIPE_VECTOR_NONE,             \
            FP8PIPE_VECTOR_NONE, NULL, NULL, FP8PIPE_MATRIX_NONE, FP8PIPE_QUANTIZED_NONE           \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_modulate(struct fp8pipe *pipe,
                                                 const struct fp8pipe_modulate_op *op,
                                                 fp8pipe_ticket *ticket);

/*
 * Backward of fp8pipe_modulate, from dz, the gradient of z, and dx_out, that of x' by all other
 * ways (absent: 0). With n as above, D = dx_out + the norm's backward of dz * (1 + scale) * weight:
 *   dx = D;  dy = gate * D;  dgate[r] = sum over r's tokens of D * y
 *   dscale[r] = sum of dz * n;  dshift[r] = sum of dz;
 *   dweight = sum over tokens of dz * (1 + scale) * (n before weight);  dbias likewise of
 *   dz * (1 + scale)
 * Sums over tokens are float32 in a fixed order; an operand with G = M rows and no rows_of has
 * nothing to sum. rows_of must not decrease. dgate, dscale and dshift are [G, H], with the rows of
 * gate and scale where those are given: set, not added to; rows without tokens become 0. dweight
 * and dbias are set, or added to with accumulate. Each output may be absent; they are apart from
 * all operands and each other, but dx may be dx_out itself: its data, stride and dtype. `out`
 * quantizes dy where y is given, else dx. mean and rstd are the forward's; NONE reads neither, RMS
 * only rstd.
 * The float32 sums need temporary memory of at most 5 * ceil(M / 64) + 3 * G rows of H float32 and
 * 2 * M more.
 * Flags: NO_AMAX. The same bits on both backends, as the forward.
 * Returns  OK; EINVAL, ENOMEM, and what all submits return.
 */
struct fp8pipe_modulate_backward_op {
    size_t size;
    struct fp8pipe_submit submit;
    struct fp8pipe_matrix dz;     /* NONE (0), or [M, H], any dtype, as all matrices here */
    struct fp8pipe_matrix dx_out; /* NONE, or [M, H] */
    struct fp8pipe_matrix x_out;  /* [M, H]: x' as stored by the forward */
    struct fp8pipe_matrix y;      /* as in the forward; read for dgate, which needs it, only */
    struct fp8pipe_matrix gate;
    struct fp8pipe_matrix scale;
    const int32_t *rows_of;
    enum fp8pipe_norm norm;
    int32_t accumulate; /* of dweight and dbias */
    struct fp8pipe_vector weight;
    struct fp8pipe_vector bias; /* read for dscale only */
    const float *mean;
    const float *rstd;
    struct fp8pipe_matrix dx;
    struct fp8pipe_matrix dy;
    struct fp8pipe_matrix dgate; /* [G, H], as the next two */
    struct fp8pipe_matrix dscale;
    struct fp8pipe_matrix dshift;
    struct fp8pipe_vector dweight; /* FP32 */
    struct fp8pipe_vector dbias;   /* FP32 */
    struct fp8pipe_quantized out;
};
#define FP8PIPE_MODULATE_BACKWARD_OP_INIT                                                          \
    {                                                                                              \
        sizeof(struct fp8pipe_modulate_backward_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_MATRIX_NONE,     \
            FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE,    \
            FP8PIPE_MATRIX_NONE, NULL, FP8PIPE_NORM_LAYER, 0, FP8PIPE_VECTOR_NONE,                 \
            FP8PIPE_VECTOR_NONE, NULL, NULL, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE,             \
            FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_VECTOR_NONE,    \
            FP8PIPE_VECTOR_NONE, FP8PIPE_QUANTIZED_NONE                                            \
    }
FP8PIPE_API enum fp8pipe_status
fp8pipe_modulate_backward(struct fp8pipe *pipe, const struct fp8pipe_modulate_backward_op *op,
                          fp8pipe_ticket *ticket);

/* ---- Activations --------------------------------------------------------------------------- */

/*
 * y = activation(x + bias), in float32; the values are y's. SWIGLU: x is [M, 2N],
 * y[i,c] = silu(x[i,c]) * x[i,N+c], both with their bias. Before they are rounded, values are off
 * by at most 2.5e-7 |x|; they are the same bits on both backends (NaNs but for sign and payload).
 * Flag: FP8PIPE_NO_AMAX. At least one of y and out.tensor is given.
 * Ownership  the matrices live until the ticket is done.
 */
struct fp8pipe_activation_op {
    size_t size;
    struct fp8pipe_submit submit;
    enum fp8pipe_activation activation; /* not NONE */
    int32_t reserved;                   /* 0 */
    struct fp8pipe_matrix x;            /* [M, N], or [M, 2N] for SWIGLU; any dtype */
    struct fp8pipe_vector bias;         /* x.cols entries of any dtype, or absent */
    struct fp8pipe_matrix y;            /* NONE, or [M, N], any dtype; apart from x, or, unless
                                           SWIGLU, x itself (its data, stride and dtype) */
    struct fp8pipe_quantized out;
};
#define FP8PIPE_ACTIVATION_OP_INIT                                                                 \
    {                                                                                              \
        sizeof(struct fp8pipe_activation_op), FP8PIPE_SUBMIT_INIT,                                 \
            FP8PIPE_ACTIVATION_GELU_TANH, 0, FP8PIPE_MATRIX_NONE, FP8PIPE_VECTOR_NONE,             \
            FP8PIPE_MATRIX_NONE, FP8PIPE_QUANTIZED_NONE                                            \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_activation(struct fp8pipe *pipe,
                                                   const struct fp8pipe_activation_op *op,
                                                   fp8pipe_ticket *ticket);

/*
 * dx = dy * activation'(x + bias), in float32; the values are dx's. SWIGLU: dx is [M, 2N], the
 * gradient of both halves. out.column_sums are then the gradient of the bias that was added to x
 * before the activation. Derivatives are off by at most 2.5e-7. Otherwise as fp8pipe_activation.
 */
struct fp8pipe_activation_backward_op {
    size_t size;
    struct fp8pipe_submit submit;
    enum fp8pipe_activation activation;
    int32_t reserved;           /* 0 */
    struct fp8pipe_matrix dy;   /* [M, N], any dtype */
    struct fp8pipe_matrix x;    /* as in the forward */
    struct fp8pipe_vector bias; /* as in the forward */
    struct fp8pipe_matrix dx;   /* NONE, or of x's shape, any dtype; apart from x and dy, or, unless
                                   SWIGLU, one of them itself */
    struct fp8pipe_quantized out;
};
#define FP8PIPE_ACTIVATION_BACKWARD_OP_INIT                                                        \
    {                                                                                              \
        sizeof(struct fp8pipe_activation_backward_op), FP8PIPE_SUBMIT_INIT,                        \
            FP8PIPE_ACTIVATION_GELU_TANH, 0, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE,             \
            FP8PIPE_VECTOR_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_QUANTIZED_NONE                       \
    }
FP8PIPE_API enum fp8pipe_status
fp8pipe_activation_backward(struct fp8pipe *pipe, const struct fp8pipe_activation_backward_op *op,
                            fp8pipe_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
