/*
 * libfp8pipe: GEMMs with their epilogues, and linear layers. A part of fp8pipe.h, which includes it
 * and whose conventions hold.
 */
#ifndef FP8PIPE_LINEAR_H
#define FP8PIPE_LINEAR_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- GEMM --------------------------------------------------------------------------------- */

/*
 * How products are summed in FP8 GEMMs. FAST keeps about 14 bits on Hopper; SPLIT promotes partial
 * sums to float32. DEFAULT: FAST in forward and in fp8pipe_gemm, SPLIT in dgrad and wgrad. Without
 * effect on unquantized layers and on the host backend, which sum in float32.
 */
enum fp8pipe_accumulation {
    FP8PIPE_ACCUMULATION_DEFAULT = 0,
    FP8PIPE_ACCUMULATION_FAST = 1,
    FP8PIPE_ACCUMULATION_SPLIT = 2
};

enum fp8pipe_activation {
    FP8PIPE_ACTIVATION_NONE = 0,
    FP8PIPE_ACTIVATION_GELU_TANH = 1, /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    FP8PIPE_ACTIVATION_GELU_ERF = 2,  /* x/2 (1 + erf(x / sqrt(2))) */
    FP8PIPE_ACTIVATION_SILU = 3,      /* x / (1 + exp(-x)) */
    FP8PIPE_ACTIVATION_SWIGLU = 4     /* silu(first half of the columns) * second half; not in a
                                         GEMM */
};

/*
 * What a GEMM does to its product before it is stored:
 *   P = product + bias;  pre = P, where asked for;  D = activation(P) + residual.
 * All of it in float32, then rounded to D's dtype. Where `pre` is asked for, the activation is of P
 * as stored there, rounded to its dtype, which is what a backward pass sees. On CUDA a 16-bit D
 * with a residual may be rounded twice, the product with its bias, then the sum; and the GELU_TANH
 * of a BF16 or quantized D may be cuBLASLt's, of about as many digits as BF16 has.
 *
 * With `tensor` D is quantized instead, straight from float32 (with `pre`: from that): `tensor` is
 * filled as by fp8pipe_tensor_quantize with `scaling` and `slot` and its amax folded likewise
 * (unless the op is flagged NO_AMAX), so that a layer which takes it as x_tensor needs no quantize;
 * the matrix D is then absent. Until an update of the scaling has been submitted (or a state
 * loaded, or initial_scale given), D is scaled by its own amax; after that by the slot's scale,
 * which is 1 while no update has moved it. No residual then.
 *
 * Fastest, on CUDA: a quantized D without `pre`, with N a multiple of 16 and a BF16 bias or none:
 * the GEMM itself writes it. It also adds a residual whose rows are multiples of 16 bytes.
 */
struct fp8pipe_epilogue {
    enum fp8pipe_activation activation; /* not SWIGLU */
    uint32_t slot;
    struct fp8pipe_matrix pre;      /* NONE, or [M, N], any dtype, apart from the other matrices */
    struct fp8pipe_matrix residual; /* NONE, or [M, N] of D's dtype: D itself, or apart from it */
    struct fp8pipe_tensor *tensor;  /* NULL, or another one than the op's; NULL: scaling, slot and
                                       copies are not read */
    struct fp8pipe_scaling *scaling;
    uint32_t copies;                /* of tensor: FP8PIPE_ROWWISE, FP8PIPE_TRANSPOSED or both */
    uint32_t reserved;              /* 0 */
};
#define FP8PIPE_EPILOGUE_NONE                                                                      \
    { FP8PIPE_ACTIVATION_NONE, 0, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, NULL, NULL, 0, 0 }

/*
 * D[M,N] (+)= A[M,K] . B[N,K]^T + bias[N]. Each of A and B is a matrix, or a quantized tensor (both
 * or neither; not both in E5M2; matrices of one dtype). *_transposed: the operand is stored as
 * [K,M] or [K,N]; a quantized one then needs its transposed copy, otherwise its row-wise one. D may
 * be of any dtype, and may not overlap A or B.
 */
struct fp8pipe_gemm_op {
    size_t size;
    struct fp8pipe_submit submit;
    struct fp8pipe_matrix a;
    struct fp8pipe_matrix b;
    struct fp8pipe_tensor *a_tensor; /* instead of a */
    struct fp8pipe_tensor *b_tensor; /* instead of b */
    struct fp8pipe_matrix d;
    struct fp8pipe_vector bias;
    int32_t a_transposed;
    int32_t b_transposed;
    int32_t accumulate; /* 1: add to D (bias too); not together with an epilogue */
    enum fp8pipe_accumulation accumulation;
    struct fp8pipe_epilogue epilogue;
};
#define FP8PIPE_GEMM_OP_INIT                                                                       \
    {                                                                                              \
        sizeof(struct fp8pipe_gemm_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_MATRIX_NONE,                  \
            FP8PIPE_MATRIX_NONE, NULL, NULL, FP8PIPE_MATRIX_NONE, FP8PIPE_VECTOR_NONE, 0, 0, 0,    \
            FP8PIPE_ACCUMULATION_DEFAULT, FP8PIPE_EPILOGUE_NONE                                    \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_gemm(struct fp8pipe *pipe, const struct fp8pipe_gemm_op *op,
                                             fp8pipe_ticket *ticket);

/* ---- Linear layers ------------------------------------------------------------------------ */

/*
 * A layer. With a scaling it runs in FP8 (weight of any dtype, quantized once a version); without
 * one it runs unquantized in the dtype of its weight (X, dY and the weight then have one dtype).
 * Slots may be shared between linears; slot_x and slot_w must be of a role with the format of X and
 * W, slot_dy of DY.
 * Ownership  weight and bias stay the caller's; they live until the last op that uses them is done.
 */
struct fp8pipe_linear_options {
    size_t size;
    int64_t in_features;          /* K >= 0 */
    int64_t out_features;         /* N >= 0 */
    struct fp8pipe_matrix weight; /* [N, K] */
    struct fp8pipe_vector bias;   /* N entries of any dtype, or absent */
    struct fp8pipe_scaling *scaling;
    uint32_t slot_x;
    uint32_t slot_w;
    uint32_t slot_dy;
    uint32_t reserved;
};
#define FP8PIPE_LINEAR_OPTIONS_INIT                                                                \
    {                                                                                              \
        sizeof(struct fp8pipe_linear_options), 0, 0, FP8PIPE_MATRIX_NONE, FP8PIPE_VECTOR_NONE,     \
            NULL, 0, 1, 2, 0                                                                       \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_linear_create(struct fp8pipe *pipe,
                                                      const struct fp8pipe_linear_options *options,
                                                      struct fp8pipe_linear **linear);
/* Takes NULL. EBUSY while ops in flight use it or a quantized tensor keeps a version of it. */
FP8PIPE_API enum fp8pipe_status fp8pipe_linear_destroy(struct fp8pipe_linear *linear);

/*
 * Starts a new version of the weight. weight: NULL (the same matrix, overwritten) or the matrix,
 * [N, K], of the same dtype, that holds it. written: the ticket of the op that writes it, on which
 * every op of the version depends; 0: written already. A forward uses the version current at its
 * submit, its dgrad the forward's. Overwriting a matrix in place before the older version's ops are
 * done is the caller's to order. Never blocks, enqueues nothing.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_linear_weight_changed(struct fp8pipe_linear *linear,
                                                              const struct fp8pipe_matrix *weight,
                                                              fp8pipe_ticket written);

/*
 * Quantizes the weight's current version now, with the copies asked for, instead of in the first op
 * that needs it. Once the ticket is done, the FP8 ops of this version no longer read the weight's
 * matrix: for inference its memory may then be given back, and other matrices may lie there. EINVAL
 * for an unquantized linear. The amax is always folded.
 */
struct fp8pipe_prepare_op {
    size_t size;
    struct fp8pipe_submit submit;
    uint32_t copies; /* FP8PIPE_ROWWISE, for forward, or also FP8PIPE_TRANSPOSED, for dgrad */
    uint32_t reserved; /* 0 */
};
#define FP8PIPE_PREPARE_OP_INIT                                                                    \
    { sizeof(struct fp8pipe_prepare_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_ROWWISE, 0 }
FP8PIPE_API enum fp8pipe_status fp8pipe_linear_prepare(struct fp8pipe_linear *linear,
                                                       const struct fp8pipe_prepare_op *op,
                                                       fp8pipe_ticket *ticket);

/* What a forward keeps in `saved`: nothing; what dgrad needs; what dgrad and wgrad need. */
enum fp8pipe_keep { FP8PIPE_KEEP_NOTHING = 0, FP8PIPE_KEEP_DGRAD = 1, FP8PIPE_KEEP_ALL = 2 };

/*
 * forward: Y = X . W^T + b. X is `x`, or `x_tensor`, quantized before with this layer's format and
 * shared with other layers (KEEP_ALL then needs its transposed copy, and keeps nothing else of it:
 * the row-wise bytes' memory is given back once x_tensor has let go of them). KEEP_DGRAD and
 * KEEP_ALL fill `saved`; an unquantized layer keeps its weight's version only.
 */
struct fp8pipe_forward_op {
    size_t size;
    struct fp8pipe_submit submit;
    struct fp8pipe_matrix x; /* [M, K] */
    struct fp8pipe_tensor *x_tensor;
    struct fp8pipe_matrix y; /* [M, N], any dtype; may not overlap X or the weight */
    struct fp8pipe_tensor *saved;
    enum fp8pipe_keep keep;
    enum fp8pipe_accumulation accumulation;
    struct fp8pipe_epilogue epilogue; /* D is Y; with epilogue.tensor `y` is absent */
};
#define FP8PIPE_FORWARD_OP_INIT                                                                    \
    {                                                                                              \
        sizeof(struct fp8pipe_forward_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_MATRIX_NONE, NULL,         \
            FP8PIPE_MATRIX_NONE, NULL, FP8PIPE_KEEP_NOTHING, FP8PIPE_ACCUMULATION_DEFAULT,         \
            FP8PIPE_EPILOGUE_NONE                                                                  \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_linear_forward(struct fp8pipe_linear *linear,
                                                       const struct fp8pipe_forward_op *op,
                                                       fp8pipe_ticket *ticket);

/*
 * dgrad: dX = dY . W. dY is `dy`, or `dy_tensor`, quantized before. `saved`: what the forward kept;
 * NULL: the weight's current version. dy_saved (with `dy` only): is filled with dY, transposed, for
 * wgrad. bias_grad as in wgrad.
 */
struct fp8pipe_dgrad_op {
    size_t size;
    struct fp8pipe_submit submit;
    struct fp8pipe_matrix dy; /* [M, N] */
    struct fp8pipe_tensor *dy_tensor;
    struct fp8pipe_tensor *saved;
    struct fp8pipe_matrix dx; /* [M, K], any dtype; may not overlap dY or the weight */
    struct fp8pipe_tensor *dy_saved;
    struct fp8pipe_vector bias_grad; /* FP32, N entries, or absent; with `dy` only */
    int32_t bias_grad_accumulate;
    enum fp8pipe_accumulation accumulation;
    struct fp8pipe_matrix residual; /* NONE, or [M, K] of dX's dtype, added to dX: dX itself, or
                                       apart from it. See fp8pipe_epilogue */
};
#define FP8PIPE_DGRAD_OP_INIT                                                                      \
    {                                                                                              \
        sizeof(struct fp8pipe_dgrad_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_MATRIX_NONE, NULL, NULL,     \
            FP8PIPE_MATRIX_NONE, NULL, FP8PIPE_VECTOR_NONE, 0, FP8PIPE_ACCUMULATION_DEFAULT,       \
            FP8PIPE_MATRIX_NONE                                                                    \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_linear_dgrad(struct fp8pipe_linear *linear,
                                                     const struct fp8pipe_dgrad_op *op,
                                                     fp8pipe_ticket *ticket);

/*
 * wgrad: dW (+)= dY^T . X, db (+)= column sums of dY. In FP8: X is what the forward kept in `saved`
 * (KEEP_ALL), dY is `dy_tensor` (with its transposed copy, a dgrad's dy_saved) or `dy`, quantized
 * here. Unquantized: X is `x`, dY is `dy`; saved and dy_tensor may be given and are not read.
 * M = 0 writes zeros, or leaves the sums alone when accumulating.
 */
struct fp8pipe_wgrad_op {
    size_t size;
    struct fp8pipe_submit submit;
    struct fp8pipe_matrix dy; /* [M, N] */
    struct fp8pipe_tensor *dy_tensor;
    struct fp8pipe_matrix x; /* [M, K], unquantized layers only */
    struct fp8pipe_tensor *saved;
    struct fp8pipe_matrix dw; /* [N, K], any dtype; may not overlap X, dY or the weight */
    struct fp8pipe_vector bias_grad; /* FP32, N entries, or absent; needs `dy` */
    int32_t accumulate;              /* 0: dW is set, 1: added to */
    int32_t bias_grad_accumulate;
    enum fp8pipe_accumulation accumulation;
    int32_t reserved;
};
#define FP8PIPE_WGRAD_OP_INIT                                                                      \
    {                                                                                              \
        sizeof(struct fp8pipe_wgrad_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_MATRIX_NONE, NULL,           \
            FP8PIPE_MATRIX_NONE, NULL, FP8PIPE_MATRIX_NONE, FP8PIPE_VECTOR_NONE, 0, 0,             \
            FP8PIPE_ACCUMULATION_DEFAULT, 0                                                        \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_linear_wgrad(struct fp8pipe_linear *linear,
                                                     const struct fp8pipe_wgrad_op *op,
                                                     fp8pipe_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
