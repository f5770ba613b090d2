#include "digits_pass.h"

#include <stdlib.h>

#define POOL_ALIGN 256

/* Hands out pieces of one allocation. At first memory is NULL, and only `used` counts. */
struct pool {
    char *memory;
    size_t used;
};

static void *pool_take(struct pool *pool, int64_t count, size_t each)
{
    size_t bytes = ((size_t)count * each + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
    void *piece = pool->memory ? pool->memory + pool->used : NULL;

    pool->used += bytes;
    return piece;
}

static float *take_floats(struct pool *pool, int64_t count)
{
    return pool_take(pool, count, sizeof(float));
}

static struct fp8pipe_matrix matrix(void *data, int64_t rows, int64_t cols,
                                    enum fp8pipe_dtype dtype)
{
    return (struct fp8pipe_matrix){data, rows, cols, cols, dtype, 0};
}

static struct fp8pipe_matrix take_matrix(struct pool *pool, int64_t rows, int64_t cols,
                                         enum fp8pipe_dtype dtype)
{
    size_t each = dtype == FP8PIPE_FP32 ? sizeof(float) : sizeof(uint16_t);

    return matrix(pool_take(pool, rows * cols, each), rows, cols, dtype);
}

static void take_block(struct pool *pool, struct block_buffers *block,
                       const struct network *network, int64_t images, bool training)
{
    int64_t rows = images * DIGITS_POSITIONS;
    int64_t hidden = network->hidden;
    enum fp8pipe_dtype dtype = network->activation;

    block->x = take_floats(pool, rows * hidden);
    block->modulation = take_floats(pool, images * MODULATIONS * hidden);
    for (int i = 0; i < 2; i++) {
        block->mean[i] = take_floats(pool, rows);
        block->rstd[i] = take_floats(pool, rows);
    }
    block->attention_in = take_matrix(pool, rows, hidden, dtype);
    block->qkv = take_floats(pool, rows * 3 * hidden);
    block->attention_out = take_matrix(pool, rows, hidden, dtype);
    block->attention_y = take_floats(pool, rows * hidden);
    block->middle = take_floats(pool, rows * hidden);
    block->mlp_in = take_matrix(pool, rows, hidden, dtype);
    block->up = take_floats(pool, rows * MLP_RATIO * hidden);
    block->activated = take_matrix(pool, rows, MLP_RATIO * hidden, dtype);
    block->mlp_y = take_floats(pool, rows * hidden);
    if (training) {
        block->probabilities = take_floats(pool, rows * network->heads * DIGITS_POSITIONS);
        block->grad_modulation = take_matrix(pool, images, MODULATIONS * hidden, dtype);
        block->grad_qkv = take_matrix(pool, rows, 3 * hidden, dtype);
        block->grad_attention_y = take_matrix(pool, rows, hidden, dtype);
        block->grad_up = take_matrix(pool, rows, MLP_RATIO * hidden, dtype);
        block->grad_mlp_y = take_matrix(pool, rows, hidden, dtype);
    }
}

static void take_all(struct pool *pool, struct buffers *b, const struct network *network,
                     int64_t images)
{
    int64_t rows = images * DIGITS_POSITIONS;
    int64_t hidden = network->hidden;
    enum fp8pipe_dtype dtype = network->activation;

    b->time_embedding = take_matrix(pool, images, hidden, dtype);
    b->time_hidden = take_floats(pool, images * hidden);
    b->time_activated = take_matrix(pool, images, hidden, dtype);
    b->condition = take_floats(pool, images * hidden);
    b->condition_activated = take_matrix(pool, images, hidden, dtype);
    for (int64_t i = 0; i < network->depth; i++) {
        if (b->training || i == 0) {
            take_block(pool, &b->blocks[i], network, images, b->training);
        } else {
            b->blocks[i] = b->blocks[0];
        }
    }
    b->final_x = take_floats(pool, rows * hidden);
    b->final_modulation = take_floats(pool, images * MODULATIONS_FINAL * hidden);
    b->final_mean = take_floats(pool, rows);
    b->final_rstd = take_floats(pool, rows);
    b->final_in = take_matrix(pool, rows, hidden, FP8PIPE_FP32);
    b->prediction = take_floats(pool, rows * DIGITS_PATCH_PIXELS);
    if (b->training) {
        b->grad_prediction = take_floats(pool, rows * DIGITS_PATCH_PIXELS);
        b->grad_final_modulation = take_matrix(pool, images, MODULATIONS_FINAL * hidden, dtype);
        b->grad_x = take_floats(pool, rows * hidden);
        b->grad_narrow = take_floats(pool, rows * hidden);
        b->grad_wide = take_floats(pool, rows * MLP_RATIO * hidden);
        b->grad_condition = take_floats(pool, (network->depth + 1) * images * hidden);
        b->grad_time_out = take_matrix(pool, images, hidden, dtype);
        b->grad_time_activated = take_floats(pool, images * hidden);
        b->grad_time_in = take_matrix(pool, images, hidden, dtype);
    }
}

enum fp8pipe_status buffers_create(struct buffers *buffers, struct fp8pipe *pipe,
                                   const struct network *network, int64_t images, bool training)
{
    struct pool pool = {NULL, 0};
    enum fp8pipe_status status;
    void *memory;

    *buffers = (struct buffers){.training = training};
    buffers->blocks = calloc((size_t)network->depth, sizeof(*buffers->blocks));
    if (!buffers->blocks) {
        return FP8PIPE_ENOMEM;
    }
    take_all(&pool, buffers, network, images);
    status = fp8pipe_alloc(pipe, pool.used, &memory);
    if (status != FP8PIPE_OK) {
        free(buffers->blocks);
        buffers->blocks = NULL;
        return status;
    }
    buffers->memory = memory;
    pool = (struct pool){memory, 0};
    take_all(&pool, buffers, network, images);
    return FP8PIPE_OK;
}

void buffers_destroy(struct buffers *buffers, struct fp8pipe *pipe)
{
    if (buffers->memory) {
        fp8pipe_free(pipe, buffers->memory);
    }
    free(buffers->blocks);
    *buffers = (struct buffers){.memory = NULL};
}

size_t step_ops(int64_t depth)
{
    /* Forward: 5, and 6 a block; backward the same; noise, loss, AdamW. */
    return 13 + 12 * (size_t)depth;
}

/* The first `rows` rows of a buffer. */
static struct fp8pipe_matrix top(struct fp8pipe_matrix buffer, int64_t rows)
{
    buffer.rows = rows;
    return buffer;
}

/* `cols` columns of a matrix, from `first` on. */
static struct fp8pipe_matrix columns(struct fp8pipe_matrix whole, int64_t first, int64_t cols)
{
    size_t each = whole.dtype == FP8PIPE_FP32 ? sizeof(float) : sizeof(uint16_t);

    whole.data = (char *)whole.data + (size_t)first * each;
    whole.cols = cols;
    return whole;
}

static struct fp8pipe_matrix floats(float *data, int64_t rows, int64_t cols)
{
    return matrix(data, rows, cols, FP8PIPE_FP32);
}

static void condition_forward(struct digits_chain *chain, const struct network *net,
                              struct buffers *b, const struct pass_input *in)
{
    int64_t images = in->images;
    struct fp8pipe_matrix embedding = top(b->time_embedding, images);
    struct fp8pipe_matrix activated = top(b->time_activated, images);
    struct fp8pipe_matrix condition = top(b->condition_activated, images);

    digits_chain_op(chain, "time embedding",
                    (struct dit_op){.kind = DIT_TIME_EMBEDDING,
                                    .time_embedding = {in->t, in->t_value, embedding}});
    digits_layer_forward(chain, &net->layers[LAYER_TIME_IN], embedding,
                         floats(b->time_hidden, images, net->hidden), b->training);
    digits_chain_op(
        chain, "silu",
        (struct dit_op){.kind = DIT_SILU, .silu = {.x = b->time_hidden, .out = activated}});
    digits_layer_forward(chain, &net->layers[LAYER_TIME_OUT], activated,
                         floats(b->condition, images, net->hidden), b->training);
    digits_chain_op(chain, "condition",
                    (struct dit_op){.kind = DIT_SILU,
                                    .silu = {.x = b->condition,
                                             .table = net->label_table,
                                             .labels = in->labels,
                                             .out = condition}});
}

/* out = x + gate * y */
static void gate(struct digits_chain *chain, const struct network *net, const struct pass_input *in,
                 const float *modulation, int column, const float *x, const float *y, float *out)
{
    digits_chain_op(chain, "gate",
                    (struct dit_op){.kind = DIT_GATE,
                                    .gate = {.x = x,
                                             .y = y,
                                             .gate = modulation + column * net->hidden,
                                             .stride = MODULATIONS * net->hidden,
                                             .out = out,
                                             .images = in->images,
                                             .tokens = in->tokens,
                                             .cols = net->hidden}});
}

/* out = norm(x) * (1 + scale) + shift; shift is `column` of the modulation, scale the next one */
static void modulate(struct digits_chain *chain, const struct network *net,
                     const struct pass_input *in, const float *modulation, int64_t modulations,
                     int column, const float *x, float *mean, float *rstd,
                     struct fp8pipe_matrix out)
{
    digits_chain_op(chain, "modulate",
                    (struct dit_op){.kind = DIT_MODULATE,
                                    .modulate = {.x = x,
                                                 .shift = modulation + column * net->hidden,
                                                 .scale = modulation + (column + 1) * net->hidden,
                                                 .stride = modulations * net->hidden,
                                                 .tokens = in->tokens,
                                                 .mean = mean,
                                                 .rstd = rstd,
                                                 .out = out}});
}

static void block_forward(struct digits_chain *chain, const struct network *net,
                          struct buffers *buffers, const struct pass_input *in, int64_t index,
                          float *out)
{
    struct block_buffers *b = &buffers->blocks[index];
    struct digits_layer *layers = &net->layers[LAYERS + index * LAYERS_PER_BLOCK];
    bool training = buffers->training;
    int64_t hidden = net->hidden;
    int64_t rows = in->images * in->tokens;
    struct fp8pipe_matrix attention_in = top(b->attention_in, rows);
    struct fp8pipe_matrix attention_out = top(b->attention_out, rows);
    struct fp8pipe_matrix mlp_in = top(b->mlp_in, rows);
    struct fp8pipe_matrix activated = top(b->activated, rows);

    digits_layer_forward(chain, &layers[LAYER_MODULATION],
                         top(buffers->condition_activated, in->images),
                         floats(b->modulation, in->images, MODULATIONS * hidden), training);

    modulate(chain, net, in, b->modulation, MODULATIONS, SHIFT_ATTENTION, b->x, b->mean[0],
             b->rstd[0], attention_in);
    digits_layer_forward(chain, &layers[LAYER_QKV], attention_in, floats(b->qkv, rows, 3 * hidden),
                         training);
    digits_chain_op(chain, "attention",
                    (struct dit_op){.kind = DIT_ATTENTION,
                                    .attention = {.qkv = b->qkv,
                                                  .probabilities = b->probabilities,
                                                  .tokens = in->tokens,
                                                  .heads = net->heads,
                                                  .out = attention_out}});
    digits_layer_forward(chain, &layers[LAYER_PROJECTION], attention_out,
                         floats(b->attention_y, rows, hidden), training);
    gate(chain, net, in, b->modulation, GATE_ATTENTION, b->x, b->attention_y, b->middle);

    modulate(chain, net, in, b->modulation, MODULATIONS, SHIFT_MLP, b->middle, b->mean[1],
             b->rstd[1], mlp_in);
    digits_layer_forward(chain, &layers[LAYER_UP], mlp_in, floats(b->up, rows, MLP_RATIO * hidden),
                         training);
    digits_chain_op(chain, "gelu",
                    (struct dit_op){.kind = DIT_GELU, .gelu = {.x = b->up, .out = activated}});
    digits_layer_forward(chain, &layers[LAYER_DOWN], activated, floats(b->mlp_y, rows, hidden),
                         training);
    gate(chain, net, in, b->modulation, GATE_MLP, b->middle, b->mlp_y, out);
}

void pass_forward(struct digits_chain *chain, const struct network *net, struct buffers *b,
                  const struct pass_input *in)
{
    int64_t hidden = net->hidden;
    int64_t rows = in->images * in->tokens;
    float *first = b->blocks[0].x;
    struct fp8pipe_matrix final_in = top(b->final_in, rows);

    condition_forward(chain, net, b, in);
    digits_layer_forward(chain, &net->layers[LAYER_PATCH],
                         floats((float *)in->mixed, rows, DIGITS_PATCH_PIXELS),
                         floats(first, rows, hidden), b->training);
    digits_chain_op(chain, "position",
                    (struct dit_op){.kind = DIT_POSITION,
                                    .position = {first, net->position_table, in->position,
                                                 in->images, in->tokens, hidden}});
    for (int64_t i = 0; i < net->depth; i++) {
        block_forward(chain, net, b, in, i, i + 1 < net->depth ? b->blocks[i + 1].x : b->final_x);
    }
    digits_layer_forward(
        chain, &net->layers[LAYER_FINAL_MODULATION], top(b->condition_activated, in->images),
        floats(b->final_modulation, in->images, MODULATIONS_FINAL * hidden), b->training);
    modulate(chain, net, in, b->final_modulation, MODULATIONS_FINAL, SHIFT_FINAL, b->final_x,
             b->final_mean, b->final_rstd, final_in);
    digits_layer_forward(chain, &net->layers[LAYER_OUTPUT], final_in,
                         floats(b->prediction, rows, DIGITS_PATCH_PIXELS), b->training);
}

/* From grad_narrow, the gradient of `out`, into grad_x and the modulation's gradient. */
static void modulate_backward(struct digits_chain *chain, const struct network *net,
                              struct buffers *b, const struct pass_input *in,
                              const float *modulation, int64_t modulations, int column,
                              const float *x, const float *mean, const float *rstd, bool accumulate,
                              struct fp8pipe_matrix grad_modulation)
{
    int64_t hidden = net->hidden;
    int64_t shift = column * hidden;
    int64_t scale = shift + hidden;

    digits_chain_op(
        chain, "modulate'",
        (struct dit_op){.kind = DIT_MODULATE_BACKWARD,
                        .modulate_backward = {.grad = b->grad_narrow,
                                              .x = x,
                                              .mean = mean,
                                              .rstd = rstd,
                                              .scale = modulation + scale,
                                              .stride = modulations * hidden,
                                              .grad_x = b->grad_x,
                                              .accumulate = accumulate,
                                              .grad_shift = columns(grad_modulation, shift, hidden),
                                              .grad_scale = columns(grad_modulation, scale, hidden),
                                              .tokens = in->tokens}});
}

/* From grad_x, the gradient of `out`, into that of y and of the gate; x's stays where it is. */
static void gate_backward(struct digits_chain *chain, const struct network *net, struct buffers *b,
                          const struct pass_input *in, const float *modulation, int column,
                          const float *y, struct fp8pipe_matrix grad_y,
                          struct fp8pipe_matrix grad_modulation)
{
    int64_t gate = column * net->hidden;

    digits_chain_op(
        chain, "gate'",
        (struct dit_op){.kind = DIT_GATE_BACKWARD,
                        .gate_backward = {.grad = b->grad_x,
                                          .y = y,
                                          .gate = modulation + gate,
                                          .stride = MODULATIONS * net->hidden,
                                          .grad_y = grad_y,
                                          .grad_gate = columns(grad_modulation, gate, net->hidden),
                                          .tokens = in->tokens}});
}

static void block_backward(struct digits_chain *chain, const struct network *net,
                           struct buffers *buffers, const struct pass_input *in, int64_t index)
{
    struct block_buffers *b = &buffers->blocks[index];
    struct digits_layer *layers = &net->layers[LAYERS + index * LAYERS_PER_BLOCK];
    int64_t hidden = net->hidden;
    int64_t rows = in->images * in->tokens;
    struct fp8pipe_matrix narrow = floats(buffers->grad_narrow, rows, hidden);
    struct fp8pipe_matrix wide = floats(buffers->grad_wide, rows, MLP_RATIO * hidden);
    struct fp8pipe_matrix grad_mlp_y = top(b->grad_mlp_y, rows);
    struct fp8pipe_matrix grad_up = top(b->grad_up, rows);
    struct fp8pipe_matrix grad_attention_y = top(b->grad_attention_y, rows);
    struct fp8pipe_matrix grad_qkv = top(b->grad_qkv, rows);
    struct fp8pipe_matrix grad_modulation = top(b->grad_modulation, in->images);

    gate_backward(chain, net, buffers, in, b->modulation, GATE_MLP, b->mlp_y, grad_mlp_y,
                  grad_modulation);
    digits_layer_backward(chain, &layers[LAYER_DOWN], top(b->activated, rows), grad_mlp_y, wide);
    digits_chain_op(chain, "gelu'",
                    (struct dit_op){.kind = DIT_GELU_BACKWARD,
                                    .gelu_backward = {b->up, buffers->grad_wide, grad_up}});
    digits_layer_backward(chain, &layers[LAYER_UP], top(b->mlp_in, rows), grad_up, narrow);
    modulate_backward(chain, net, buffers, in, b->modulation, MODULATIONS, SHIFT_MLP, b->middle,
                      b->mean[1], b->rstd[1], true, grad_modulation);

    gate_backward(chain, net, buffers, in, b->modulation, GATE_ATTENTION, b->attention_y,
                  grad_attention_y, grad_modulation);
    digits_layer_backward(chain, &layers[LAYER_PROJECTION], top(b->attention_out, rows),
                          grad_attention_y, narrow);
    digits_chain_op(chain, "attention'",
                    (struct dit_op){.kind = DIT_ATTENTION_BACKWARD,
                                    .attention_backward = {.qkv = b->qkv,
                                                           .probabilities = b->probabilities,
                                                           .grad = buffers->grad_narrow,
                                                           .tokens = in->tokens,
                                                           .heads = net->heads,
                                                           .grad_qkv = grad_qkv}});
    digits_layer_backward(chain, &layers[LAYER_QKV], top(b->attention_in, rows), grad_qkv, narrow);
    modulate_backward(chain, net, buffers, in, b->modulation, MODULATIONS, SHIFT_ATTENTION, b->x,
                      b->mean[0], b->rstd[0], true, grad_modulation);

    digits_layer_backward(
        chain, &layers[LAYER_MODULATION], top(buffers->condition_activated, in->images),
        grad_modulation,
        floats(buffers->grad_condition + index * in->images * hidden, in->images, hidden));
}

static void condition_backward(struct digits_chain *chain, const struct network *net,
                               struct buffers *b, const struct pass_input *in)
{
    int64_t images = in->images;
    int64_t hidden = net->hidden;
    struct fp8pipe_matrix grad_out = top(b->grad_time_out, images);
    struct fp8pipe_matrix grad_in = top(b->grad_time_in, images);

    digits_chain_op(chain, "condition'",
                    (struct dit_op){.kind = DIT_SILU_BACKWARD,
                                    .silu_backward = {b->condition, b->grad_condition,
                                                      net->depth + 1, grad_out}});
    digits_chain_op(chain, "label'",
                    (struct dit_op){.kind = DIT_LABEL_BACKWARD,
                                    .label_backward = {grad_out, in->labels, net->label_grad,
                                                       DIGITS_CLASSES + 1}});
    digits_layer_backward(chain, &net->layers[LAYER_TIME_OUT], top(b->time_activated, images),
                          grad_out, floats(b->grad_time_activated, images, hidden));
    digits_chain_op(
        chain, "silu'",
        (struct dit_op){.kind = DIT_SILU_BACKWARD,
                        .silu_backward = {b->time_hidden, b->grad_time_activated, 1, grad_in}});
    digits_layer_backward(chain, &net->layers[LAYER_TIME_IN], top(b->time_embedding, images),
                          grad_in, (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE);
}

void pass_backward(struct digits_chain *chain, const struct network *net, struct buffers *b,
                   const struct pass_input *in)
{
    int64_t hidden = net->hidden;
    int64_t rows = in->images * in->tokens;
    struct fp8pipe_matrix grad_modulation = top(b->grad_final_modulation, in->images);

    digits_layer_backward(chain, &net->layers[LAYER_OUTPUT], top(b->final_in, rows),
                          floats(b->grad_prediction, rows, DIGITS_PATCH_PIXELS),
                          floats(b->grad_narrow, rows, hidden));
    modulate_backward(chain, net, b, in, b->final_modulation, MODULATIONS_FINAL, SHIFT_FINAL,
                      b->final_x, b->final_mean, b->final_rstd, false, grad_modulation);
    digits_layer_backward(
        chain, &net->layers[LAYER_FINAL_MODULATION], top(b->condition_activated, in->images),
        grad_modulation,
        floats(b->grad_condition + net->depth * in->images * hidden, in->images, hidden));
    for (int64_t i = net->depth - 1; i >= 0; i--) {
        block_backward(chain, net, b, in, i);
    }
    digits_chain_op(
        chain, "position'",
        (struct dit_op){.kind = DIT_POSITION_BACKWARD,
                        .position_backward = {b->grad_x, in->position, net->position_grad,
                                              DIGITS_POSITIONS, in->images, in->tokens, hidden}});
    digits_layer_backward(
        chain, &net->layers[LAYER_PATCH], floats((float *)in->mixed, rows, DIGITS_PATCH_PIXELS),
        floats(b->grad_x, rows, hidden), (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE);
    condition_backward(chain, net, b, in);
}
