/*
 * dit_bench's model: blocks of linear layers, their parameters, gradients, optimizer and scaling,
 * and all memory of a pass.
 *
 * One block, T tokens wide H, all columns computed although only the first H of each are used:
 *
 *   shift, scale, ... = modulation(x)           H -> 6 H, with bias
 *   x1 = shift * x / scale
 *   x2 = x1 + self_attn(x1)[:, :H]              H -> 3 H
 *   x3 = x2 + cross_attn_q(x2) + cross_attn_kv(x2)[:, :H]   H -> H, H -> 2 H
 *   out = x3 + mlp2(mlp1(x3))                   H -> r H -> H, with bias
 *
 * In FP8 one bf16 matrix goes through all blocks, each overwriting it. The modulation quantizes it
 * itself, what is written to it afterwards is quantized on the way, and mlp1 gives FP8 right away.
 * Training keeps the quantized inputs and, of the modulation, u = x / scale and v = shift / scale.
 * In bf16 and float32 training keeps the inputs as matrices.
 */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include <fp8pipe_optimizer.h>

#include "bench_chain.h"
#include "bench_options.h"

enum bench_layer {
    BENCH_MODULATION,
    BENCH_ATTENTION,
    BENCH_QUERY,
    BENCH_KEY_VALUE,
    BENCH_MLP1,
    BENCH_MLP2,
    BENCH_LAYERS
};

/* The inputs of a block's layers; the two of the cross attention share one. */
enum bench_x {
    BENCH_X_MODULATION,
    BENCH_X_ATTENTION,
    BENCH_X_CROSS,
    BENCH_X_MLP1,
    BENCH_X_MLP2,
    BENCH_XS
};

struct bench_shape {
    const char *name;
    int64_t outputs;
    int64_t inputs;
    enum bench_x x;
    bool bias;
};

struct bench_block {
    struct fp8pipe_linear *linears[BENCH_LAYERS];
    struct fp8pipe_tensor *saved[BENCH_LAYERS]; /* FP8 training */
    struct fp8pipe_parameter weights[BENCH_LAYERS];
    struct fp8pipe_parameter biases[BENCH_LAYERS];
    uint32_t slot_x[BENCH_XS];
    uint32_t slot_w[BENCH_LAYERS];
    uint32_t slot_dy[BENCH_LAYERS];
    struct fp8pipe_matrix x[BENCH_XS]; /* of all rows; in FP8 the last is not used */
    struct fp8pipe_matrix out;
    struct fp8pipe_matrix u; /* training, or NONE */
    struct fp8pipe_matrix v;
};

struct bench_model {
    struct fp8pipe *pipe;
    struct bench_options options;
    struct bench_shape shapes[BENCH_LAYERS];
    bool quantized;
    enum fp8pipe_dtype dtype; /* of activations */
    int64_t rows;             /* the most tokens of a pass */
    int64_t parameter_count;  /* numbers in all of them */
    struct bench_block *blocks;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *x_tensors[BENCH_XS]; /* FP8, but for the modulation's */
    struct fp8pipe_tensor *dy_tensors[BENCH_LAYERS];
    struct fp8pipe_optimizer *optimizer;
    void *memory;
    struct fp8pipe_matrix input; /* [rows, H], as the next ones */
    struct fp8pipe_matrix target;
    struct fp8pipe_matrix output;   /* then its gradient, which goes through all blocks */
    struct fp8pipe_matrix gradient; /* where that has to alternate: unquantized */
    struct fp8pipe_matrix scratch;  /* [rows, the widest layer's outputs] */
    struct fp8pipe_matrix teacher;  /* loss runs: target = input . teacher^T */
    double *partials;
    double *losses;     /* one for each pass */
    int64_t loss_count; /* passes so far */
    int64_t loss_room;
    uint32_t *max_bits; /* max|x| of all blocks' outputs, in passes that are checked */
    float *norm;        /* of the gradients, likewise */
    int32_t *nonfinite; /* 1 when that is not finite */
};

/* Makes it on the chain's pipe and enqueues what sets its parameters. passes: how many losses are
 * kept. NULL: chain->status says why. */
struct bench_model *bench_model_create(struct bench_chain *chain,
                                       const struct bench_options *options, int64_t passes);
/* Takes NULL. Nothing of it may be under way. */
void bench_model_destroy(struct bench_model *model);

/* Enqueues new random input, and its target. */
void bench_model_data(struct bench_chain *chain, struct bench_model *model, int64_t number);

/* The first rows of a matrix, and its first columns. */
static inline struct fp8pipe_matrix bench_rows(struct fp8pipe_matrix matrix, int64_t rows)
{
    matrix.rows = rows;
    return matrix;
}

static inline struct fp8pipe_matrix bench_cols(struct fp8pipe_matrix matrix, int64_t cols)
{
    matrix.cols = cols;
    return matrix;
}

#endif
