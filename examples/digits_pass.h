/*
 * The model's passes: the buffers between its layers, forward and backward. Internal to the model.
 */
#ifndef DIGITS_PASS_H
#define DIGITS_PASS_H

#include "digits_layer.h"
#include "digits_model.h"

/* The layers of a model in one array: these, then LAYERS_PER_BLOCK for each block. */
enum { LAYER_PATCH, LAYER_TIME_IN, LAYER_TIME_OUT, LAYER_FINAL_MODULATION, LAYER_OUTPUT, LAYERS };
enum { LAYER_MODULATION, LAYER_QKV, LAYER_PROJECTION, LAYER_UP, LAYER_DOWN, LAYERS_PER_BLOCK };

/* Columns of a block's modulation, in units of `hidden`. */
enum {
    SHIFT_ATTENTION,
    SCALE_ATTENTION,
    GATE_ATTENTION,
    SHIFT_MLP,
    SCALE_MLP,
    GATE_MLP,
    MODULATIONS
};
enum { SHIFT_FINAL, SCALE_FINAL, MODULATIONS_FINAL };

#define MLP_RATIO 4

struct network {
    int64_t hidden;
    int64_t depth;
    int64_t heads;
    enum fp8pipe_dtype activation; /* of the inputs of layers of the model's dtype */
    struct digits_layer *layers;   /* [LAYERS + depth * LAYERS_PER_BLOCK] */
    const float *label_table;      /* [DIGITS_CLASSES + 1, hidden] */
    const float *position_table;   /* [DIGITS_POSITIONS, hidden] */
    float *label_grad;
    float *position_grad;
};

/* What one pass is over, in memory of the backend. */
struct pass_input {
    int64_t images;
    int64_t tokens;
    const float *t; /* [images], or NULL: t_value */
    float t_value;
    const int32_t *labels;
    const int32_t *position;
    const float *mixed; /* [images * tokens, DIGITS_PATCH_PIXELS] */
};

/*
 * A block's buffers. Matrices are inputs of layers, or gradients of their outputs. Those that a
 * weight gradient reads are not shared with other layers: it runs on another lane.
 */
struct block_buffers {
    float *x; /* [rows, hidden], the block's input */
    float *modulation;
    float *mean[2];
    float *rstd[2];
    struct fp8pipe_matrix attention_in;
    float *qkv;
    float *probabilities;
    struct fp8pipe_matrix attention_out;
    float *attention_y;
    float *middle; /* x after attention */
    struct fp8pipe_matrix mlp_in;
    float *up;
    struct fp8pipe_matrix activated;
    float *mlp_y;
    struct fp8pipe_matrix grad_modulation;
    struct fp8pipe_matrix grad_qkv;
    struct fp8pipe_matrix grad_attention_y;
    struct fp8pipe_matrix grad_up;
    struct fp8pipe_matrix grad_mlp_y;
};

struct buffers {
    void *memory;
    bool training;
    struct fp8pipe_matrix time_embedding;
    float *time_hidden;
    struct fp8pipe_matrix time_activated;
    float *condition;
    struct fp8pipe_matrix condition_activated;
    struct block_buffers *blocks;
    float *final_x;
    float *final_modulation;
    float *final_mean;
    float *final_rstd;
    struct fp8pipe_matrix final_in; /* FP32 */
    float *prediction;
    float *grad_prediction;
    struct fp8pipe_matrix grad_final_modulation;
    float *grad_x;         /* the residual stream's */
    float *grad_narrow;    /* [rows, hidden] */
    float *grad_wide;      /* [rows, MLP_RATIO * hidden] */
    float *grad_condition; /* [depth + 1, images, hidden] */
    struct fp8pipe_matrix grad_time_out;
    float *grad_time_activated;
    struct fp8pipe_matrix grad_time_in;
};

/* Buffers for `images` images of up to DIGITS_POSITIONS tokens. Without training, blocks share. */
enum fp8pipe_status buffers_create(struct buffers *buffers, struct fp8pipe *pipe,
                                   const struct network *network, int64_t images, bool training);
void buffers_destroy(struct buffers *buffers, struct fp8pipe *pipe);

/* Ops of the example's own that a step of a network of this depth enqueues at most. */
size_t step_ops(int64_t depth);

/* Leaves the network's output in buffers->prediction. */
void pass_forward(struct digits_chain *chain, const struct network *network,
                  struct buffers *buffers, const struct pass_input *input);
/* From buffers->grad_prediction to the gradients of all parameters. */
void pass_backward(struct digits_chain *chain, const struct network *network,
                   struct buffers *buffers, const struct pass_input *input);

#endif
