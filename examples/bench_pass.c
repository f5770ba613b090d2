#include "bench_pass.h"

/* Names in traces and sentences. */
static const char *const dgrad_names[BENCH_LAYERS] = {"modulation dgrad",   "self_attn dgrad",
                                                      "cross_attn_q dgrad", "cross_attn_kv dgrad",
                                                      "mlp1 dgrad",         "mlp2 dgrad"};
static const char *const wgrad_names[BENCH_LAYERS] = {"modulation wgrad",   "self_attn wgrad",
                                                      "cross_attn_q wgrad", "cross_attn_kv wgrad",
                                                      "mlp1 wgrad",         "mlp2 wgrad"};

static const struct fp8pipe_matrix none = FP8PIPE_MATRIX_NONE;

/* Where a scratch matrix of so many columns lies; those of one op after the other share it. */
static struct fp8pipe_matrix scratch(const struct bench_model *model, const struct bench_pass *pass,
                                     int64_t cols)
{
    return (struct fp8pipe_matrix){model->scratch.data, pass->rows, cols, cols, model->dtype, 0};
}

static struct fp8pipe_matrix rows_of(struct fp8pipe_matrix matrix, const struct bench_pass *pass)
{
    return matrix.data ? bench_rows(matrix, pass->rows) : matrix;
}

/* Columns from `first` on, of the width of the model. */
static struct fp8pipe_matrix part(const struct bench_model *model, struct fp8pipe_matrix matrix,
                                  int64_t first)
{
    char *data = matrix.data;
    size_t each = matrix.dtype == FP8PIPE_FP32 ? sizeof(float) : sizeof(uint16_t);

    matrix.data = data + (size_t)first * each;
    matrix.cols = model->options.hidden;
    return matrix;
}

static uint32_t copies(const struct bench_pass *pass)
{
    return pass->train ? FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED : FP8PIPE_ROWWISE;
}

/* ---- Forward -------------------------------------------------------------------------------- */

/* last: no other layer takes this X. */
static void forward(struct bench_chain *chain, struct bench_model *model,
                    const struct bench_pass *pass, struct bench_block *block,
                    enum bench_layer layer, struct fp8pipe_matrix y, struct fp8pipe_matrix residual,
                    bool last)
{
    const struct bench_shape *shape = &model->shapes[layer];
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    op.submit = bench_chain_submit(BENCH_LANE_CHAIN, shape->name);
    op.y = y;
    op.epilogue.residual = residual;
    if (model->x_tensors[shape->x]) {
        op.x_tensor = model->x_tensors[shape->x];
        op.submit.flags = last ? FP8PIPE_LAST_USE : 0;
    } else {
        op.x = rows_of(block->x[shape->x], pass);
    }
    if (model->quantized && pass->train) {
        op.saved = block->saved[layer];
        op.keep = FP8PIPE_KEEP_ALL;
    }
    if (model->quantized && layer == BENCH_MLP1) {
        op.y = none;
        op.epilogue.tensor = model->x_tensors[BENCH_X_MLP2];
        op.epilogue.scaling = model->scaling;
        op.epilogue.slot = block->slot_x[BENCH_X_MLP2];
        op.epilogue.copies = copies(pass);
    }
    bench_chain_submitted(chain, fp8pipe_linear_forward(block->linears[layer], &op, &chain->last),
                          shape->name);
}

/* The values become the layers' X, quantized or not. */
static void values_x(struct bench_chain *chain, struct bench_model *model,
                     const struct bench_pass *pass, const struct bench_block *block, enum bench_x x,
                     const char *name, const struct bench_values *values)
{
    struct fp8pipe_quantized out = FP8PIPE_QUANTIZED_NONE;

    if (model->quantized) {
        out.tensor = model->x_tensors[x];
        out.scaling = model->scaling;
        out.slot = block->slot_x[x];
        out.copies = copies(pass);
    }
    bench_chain_values(chain, name, pass->rows, model->options.hidden, values, &out);
}

static void block_forward(struct bench_chain *chain, struct bench_model *model,
                          const struct bench_pass *pass, struct bench_block *block)
{
    int64_t hidden = model->options.hidden;
    struct fp8pipe_matrix x = rows_of(block->x[BENCH_X_MODULATION], pass);
    struct fp8pipe_matrix x1 = rows_of(block->x[BENCH_X_ATTENTION], pass);
    struct fp8pipe_matrix x2 = rows_of(block->x[BENCH_X_CROSS], pass);
    struct fp8pipe_matrix x3 = rows_of(block->x[BENCH_X_MLP1], pass);
    struct fp8pipe_matrix modulation = scratch(model, pass, 6 * hidden);
    struct fp8pipe_matrix attention = scratch(model, pass, 3 * hidden);
    struct fp8pipe_matrix key_value = scratch(model, pass, 2 * hidden);
    struct bench_values modulate = {.kind = BENCH_MODULATE,
                                    .modulate = {x, part(model, modulation, 0),
                                                 part(model, modulation, hidden), x1,
                                                 pass->train ? rows_of(block->u, pass) : none,
                                                 pass->train ? rows_of(block->v, pass) : none}};
    struct bench_values add_attention = {.kind = BENCH_ADD,
                                         .add = {x1, part(model, attention, 0), x2}};
    struct bench_values add_cross = {.kind = BENCH_ADD, .add = {x3, part(model, key_value, 0), x3}};

    forward(chain, model, pass, block, BENCH_MODULATION, modulation, none, true);
    values_x(chain, model, pass, block, BENCH_X_ATTENTION, "modulate", &modulate);
    forward(chain, model, pass, block, BENCH_ATTENTION, attention, none, true);
    values_x(chain, model, pass, block, BENCH_X_CROSS, "add self_attn", &add_attention);
    forward(chain, model, pass, block, BENCH_QUERY, x3, x2, false);
    forward(chain, model, pass, block, BENCH_KEY_VALUE, key_value, none, true);
    values_x(chain, model, pass, block, BENCH_X_MLP1, "add cross_attn", &add_cross);
    forward(chain, model, pass, block, BENCH_MLP1, rows_of(block->x[BENCH_X_MLP2], pass), none,
            true);
    forward(chain, model, pass, block, BENCH_MLP2, rows_of(block->out, pass), x3, true);
    if (pass->check) {
        struct bench_op max = {.kind = BENCH_MAX,
                               .max = {rows_of(block->out, pass), model->max_bits}};

        bench_chain_call(chain, "max", &max);
    }
}

void bench_pass_forward(struct bench_chain *chain, struct bench_model *model,
                        const struct bench_pass *pass)
{
    for (int64_t i = 0; i < model->options.depth; i++) {
        block_forward(chain, model, pass, &model->blocks[i]);
    }
}

void bench_pass_loss(struct bench_chain *chain, struct bench_model *model,
                     const struct bench_pass *pass)
{
    struct fp8pipe_matrix output = rows_of(model->output, pass);
    struct bench_op op = {.kind = BENCH_LOSS,
                          .loss = {output, rows_of(model->target, pass), output, model->partials,
                                   model->losses + model->loss_count % model->loss_room}};

    bench_chain_call(chain, "loss", &op);
    model->loss_count++;
}

/* ---- Backward ------------------------------------------------------------------------------- */

static struct fp8pipe_vector bias_gradient(const struct bench_model *model,
                                           const struct bench_block *block, enum bench_layer layer)
{
    struct fp8pipe_matrix gradient = block->biases[layer].gradient;

    return model->shapes[layer].bias
               ? (struct fp8pipe_vector){gradient.data, gradient.cols, gradient.dtype, 0}
               : (struct fp8pipe_vector)FP8PIPE_VECTOR_NONE;
}

static void quantize_dy(struct bench_chain *chain, struct bench_model *model,
                        const struct bench_block *block, enum bench_layer layer,
                        struct fp8pipe_matrix dy)
{
    struct fp8pipe_quantize_op op = FP8PIPE_QUANTIZE_OP_INIT;

    if (model->quantized) {
        op.submit = bench_chain_submit(BENCH_LANE_CHAIN, "quantize dy");
        op.x = dy;
        op.scaling = model->scaling;
        op.slot = block->slot_dy[layer];
        op.copies = FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED;
        op.column_sums = bias_gradient(model, block, layer);
        if (chain->status == FP8PIPE_OK) {
            bench_chain_submitted(
                chain, fp8pipe_tensor_quantize(model->dy_tensors[layer], &op, &chain->last),
                op.submit.name);
        }
    }
}

/* The values become the layer's dY, quantized or not. */
static void values_dy(struct bench_chain *chain, struct bench_model *model,
                      const struct bench_pass *pass, const struct bench_block *block,
                      enum bench_layer layer, const char *name, const struct bench_values *values)
{
    struct fp8pipe_quantized out = FP8PIPE_QUANTIZED_NONE;

    if (model->quantized) {
        out.tensor = model->dy_tensors[layer];
        out.scaling = model->scaling;
        out.slot = block->slot_dy[layer];
        out.copies = FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED;
        out.column_sums = bias_gradient(model, block, layer);
    }
    bench_chain_values(chain, name, pass->rows, model->shapes[layer].outputs, values, &out);
}

/* dx = dY . W + residual, then dW. dy: as a matrix, for layers that are not quantized. */
static void backward(struct bench_chain *chain, struct bench_model *model,
                     const struct bench_pass *pass, struct bench_block *block,
                     enum bench_layer layer, struct fp8pipe_matrix dy, struct fp8pipe_matrix dx,
                     struct fp8pipe_matrix residual)
{
    struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
    struct fp8pipe_wgrad_op wgrad = FP8PIPE_WGRAD_OP_INIT;
    bool beside = model->quantized && model->options.lanes > 1;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    dgrad.submit = bench_chain_submit(BENCH_LANE_CHAIN, dgrad_names[layer]);
    dgrad.dx = dx;
    dgrad.residual = residual;
    wgrad.submit =
        bench_chain_submit(beside ? BENCH_LANE_WGRAD : BENCH_LANE_CHAIN, wgrad_names[layer]);
    wgrad.dw = block->weights[layer].gradient;
    if (model->quantized) {
        dgrad.dy_tensor = wgrad.dy_tensor = model->dy_tensors[layer];
        dgrad.saved = wgrad.saved = block->saved[layer];
        wgrad.submit.flags = FP8PIPE_LAST_USE;
    } else {
        dgrad.dy = wgrad.dy = dy;
        wgrad.x = rows_of(block->x[model->shapes[layer].x], pass);
        wgrad.bias_grad = bias_gradient(model, block, layer);
    }
    bench_chain_submitted(chain, fp8pipe_linear_dgrad(block->linears[layer], &dgrad, &chain->last),
                          dgrad_names[layer]);
    if (beside && chain->updated) {
        /* The step before still reads the gradient. */
        wgrad.submit.after[wgrad.submit.after_count++] = chain->updated;
    }
    if (chain->status == FP8PIPE_OK) {
        bench_chain_submitted(chain,
                              fp8pipe_linear_wgrad(block->linears[layer], &wgrad,
                                                   beside ? &chain->last_wgrad : &chain->last),
                              wgrad_names[layer]);
    }
}

/*
 * g: the output's gradient, and then the input's. In FP8 a product may overwrite g, from which its
 * dY was made; otherwise g is dY itself, and the other buffer takes its place.
 */
static void block_backward(struct bench_chain *chain, struct bench_model *model,
                           const struct bench_pass *pass, struct bench_block *block,
                           struct fp8pipe_matrix *g, struct fp8pipe_matrix *other)
{
    int64_t hidden = model->options.hidden;
    struct fp8pipe_matrix out = *g;
    struct fp8pipe_matrix x3 = model->quantized ? out : *other; /* gradients of */
    struct fp8pipe_matrix x2 = out;
    struct fp8pipe_matrix x = x3;
    struct fp8pipe_matrix hidden_layer = scratch(model, pass, model->shapes[BENCH_MLP1].outputs);
    struct fp8pipe_matrix key_value = scratch(model, pass, 2 * hidden);
    struct fp8pipe_matrix attention = scratch(model, pass, 3 * hidden);
    struct fp8pipe_matrix modulation = scratch(model, pass, 6 * hidden);
    /* x's gradient without what comes through the modulation. */
    struct fp8pipe_matrix direct = model->quantized ? scratch(model, pass, hidden) : *other;
    struct bench_values pad_key_value = {
        .kind = BENCH_PAD, .pad = {x3, model->quantized ? none : key_value, 2 * hidden}};
    struct bench_values pad_attention = {
        .kind = BENCH_PAD, .pad = {x2, model->quantized ? none : attention, 3 * hidden}};
    struct bench_values modulate = {
        .kind = BENCH_MODULATE_BACKWARD,
        .modulate_backward = {x2, rows_of(block->u, pass), rows_of(block->v, pass), direct,
                              model->quantized ? none : modulation, 6 * hidden}};

    quantize_dy(chain, model, block, BENCH_MLP2, out);
    backward(chain, model, pass, block, BENCH_MLP2, out, hidden_layer, none);
    quantize_dy(chain, model, block, BENCH_MLP1, hidden_layer);
    backward(chain, model, pass, block, BENCH_MLP1, hidden_layer, x3, out);

    quantize_dy(chain, model, block, BENCH_QUERY, x3);
    values_dy(chain, model, pass, block, BENCH_KEY_VALUE, "pad cross_attn_kv", &pad_key_value);
    backward(chain, model, pass, block, BENCH_QUERY, x3, x2, x3);
    backward(chain, model, pass, block, BENCH_KEY_VALUE, key_value, x2, x2);

    values_dy(chain, model, pass, block, BENCH_ATTENTION, "pad self_attn", &pad_attention);
    backward(chain, model, pass, block, BENCH_ATTENTION, attention, x2, x2);

    values_dy(chain, model, pass, block, BENCH_MODULATION, "modulate backward", &modulate);
    backward(chain, model, pass, block, BENCH_MODULATION, modulation, x, direct);
    *other = *g;
    *g = x;
}

void bench_pass_backward(struct bench_chain *chain, struct bench_model *model,
                         const struct bench_pass *pass)
{
    struct fp8pipe_matrix g = rows_of(model->output, pass);
    struct fp8pipe_matrix other = rows_of(model->gradient, pass);

    for (int64_t i = model->options.depth - 1; i >= 0; i--) {
        block_backward(chain, model, pass, &model->blocks[i], &g, &other);
    }
}

/* ---- Update --------------------------------------------------------------------------------- */

static void gradient_norm(struct bench_chain *chain, struct bench_model *model)
{
    struct fp8pipe_gradient_norm_op op = FP8PIPE_GRADIENT_NORM_OP_INIT;

    if (chain->status == FP8PIPE_OK) {
        op.submit = bench_chain_submit(BENCH_LANE_CHAIN, "gradient norm");
        op.submit.after[op.submit.after_count++] = chain->last_wgrad;
        op.norm = model->norm;
        op.nonfinite = model->nonfinite;
        bench_chain_submitted(chain,
                              fp8pipe_optimizer_gradient_norm(model->optimizer, &op, &chain->last),
                              op.submit.name);
    }
}

static void step(struct bench_chain *chain, struct bench_model *model, const int32_t *skip_if)
{
    struct fp8pipe_adamw_op op = FP8PIPE_ADAMW_OP_INIT;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    op.submit = bench_chain_submit(BENCH_LANE_CHAIN, "adamw");
    op.submit.after[op.submit.after_count++] = chain->last_wgrad;
    op.lr = (float)model->options.rate;
    op.skip_if = skip_if;
    bench_chain_submitted(chain, fp8pipe_optimizer_adamw(model->optimizer, &op, &chain->last),
                          op.submit.name);
    chain->updated = chain->last;
    for (int64_t i = 0; i < model->options.depth && !model->quantized; i++) {
        for (int layer = 0; layer < BENCH_LAYERS && chain->status == FP8PIPE_OK; layer++) {
            bench_chain_keep(chain,
                             fp8pipe_linear_weight_changed(model->blocks[i].linears[layer], NULL,
                                                           chain->updated),
                             model->shapes[layer].name);
        }
    }
}

void bench_pass_update(struct bench_chain *chain, struct bench_model *model,
                       const struct bench_pass *pass)
{
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
    bool normed = pass->train && (pass->check || model->options.grad_norm);
    const int32_t *skip_if = normed ? model->nonfinite : NULL;

    if (normed) {
        gradient_norm(chain, model);
    }
    if (model->scaling && chain->status == FP8PIPE_OK) {
        update.submit = bench_chain_submit(BENCH_LANE_CHAIN, "scaling update");
        update.skip_if = skip_if;
        bench_chain_submitted(chain, fp8pipe_scaling_update(model->scaling, &update, &chain->last),
                              update.submit.name);
    }
    if (pass->train) {
        step(chain, model, skip_if);
    }
}

void bench_pass_run(struct bench_chain *chain, struct bench_model *model,
                    const struct bench_pass *pass)
{
    bench_pass_forward(chain, model, pass);
    if (pass->train) {
        bench_pass_loss(chain, model, pass);
        bench_pass_backward(chain, model, pass);
    }
    bench_pass_update(chain, model, pass);
}
