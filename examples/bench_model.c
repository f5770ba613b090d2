#include "bench_model.h"

#include <math.h>
#include <stdlib.h>

#include "bench_layout.h"

#define SLOTS_PER_BLOCK (BENCH_XS + 2 * BENCH_LAYERS)
#define STREAM_DATA ((uint64_t)1 << 32) /* of random numbers: parameters' are below */
#define STREAM_TEACHER ((uint64_t)1 << 62)

/* What keeps the toy block finite: weights are uniform in +- factor / sqrt(inputs). */
static const float weight_factors[BENCH_LAYERS] = {0.05f, 0.3f, 0.3f, 0.3f, 1.0f, 0.3f};

/* ---- Parameters ----------------------------------------------------------------------------- */

static uint64_t key(const struct bench_model *model, uint64_t stream)
{
    return (uint64_t)model->options.seed * 0xD1342543DE82EF95u + stream * 0xA0761D6478BD642Fu;
}

static void fill(struct bench_chain *chain, struct fp8pipe_matrix matrix, uint64_t key, float low,
                 float span)
{
    struct bench_op op = {.kind = BENCH_FILL, .fill = {matrix, key, low, span}};

    if (matrix.data) {
        bench_chain_call(chain, "fill", &op);
    }
}

static void fill_parameter(struct bench_chain *chain, const struct fp8pipe_parameter *parameter,
                           uint64_t key, float low, float span)
{
    fill(chain, parameter->master, key, low, span);
    fill(chain, parameter->copy, key, low, span);
    fill(chain, parameter->first, 0, 0.0f, 0.0f);
    fill(chain, parameter->second, 0, 0.0f, 0.0f);
}

/* The layer, its parameters set. staging: for FP8 inference, which keeps weights in FP8 alone. */
static void create_layer(struct bench_chain *chain, struct bench_model *model, int64_t index,
                         enum bench_layer layer, void *staging)
{
    struct fp8pipe_linear_options options = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_prepare_op prepare = FP8PIPE_PREPARE_OP_INIT;
    const struct bench_shape *shape = &model->shapes[layer];
    struct bench_block *block = &model->blocks[index];
    struct fp8pipe_parameter *weight = &block->weights[layer];
    struct fp8pipe_parameter *bias = &block->biases[layer];
    uint64_t stream = (uint64_t)index * BENCH_LAYERS + layer;
    float bound = weight_factors[layer] / sqrtf((float)shape->inputs);
    struct fp8pipe_matrix used = weight->copy.data ? weight->copy : weight->master;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    if (!used.data) {
        used = (struct fp8pipe_matrix){staging,       shape->outputs, shape->inputs,
                                       shape->inputs, FP8PIPE_FP32,   0};
        fill(chain, used, key(model, stream), -bound, 2.0f * bound);
    }
    fill_parameter(chain, weight, key(model, stream), -bound, 2.0f * bound);
    options.in_features = shape->inputs;
    options.out_features = shape->outputs;
    options.weight = used;
    if (shape->bias) {
        struct fp8pipe_matrix values = bias->copy.data ? bias->copy : bias->master;

        fill_parameter(chain, bias, 0, layer == BENCH_MODULATION ? 1.0f : 0.0f, 0.0f);
        options.bias = (struct fp8pipe_vector){values.data, values.cols, values.dtype, 0};
    }
    options.scaling = model->scaling;
    options.slot_x = block->slot_x[shape->x];
    options.slot_w = block->slot_w[layer];
    options.slot_dy = block->slot_dy[layer];
    bench_chain_keep(chain, fp8pipe_linear_create(chain->pipe, &options, &block->linears[layer]),
                     shape->name);
    if (!model->quantized || chain->status != FP8PIPE_OK) {
        return;
    }
    prepare.submit = bench_chain_submit(BENCH_LANE_CHAIN, shape->name);
    if (model->options.train) {
        prepare.copies |= FP8PIPE_TRANSPOSED;
        weight->linear = block->linears[layer];
        bench_chain_keep(chain, fp8pipe_tensor_create(chain->pipe, &block->saved[layer]),
                         shape->name);
    }
    if (chain->status == FP8PIPE_OK) {
        bench_chain_submitted(chain,
                              fp8pipe_linear_prepare(block->linears[layer], &prepare, &chain->last),
                              shape->name);
    }
}

static void create_layers(struct bench_chain *chain, struct bench_model *model)
{
    void *staging = NULL;

    if (model->quantized && !model->options.train) {
        size_t most = 0;

        for (int i = 0; i < BENCH_LAYERS; i++) {
            size_t count = (size_t)(model->shapes[i].outputs * model->shapes[i].inputs);

            most = count > most ? count : most;
        }
        bench_chain_keep(chain, fp8pipe_alloc(chain->pipe, most * sizeof(float), &staging),
                         "memory for a weight");
    }
    for (int64_t i = 0; i < model->options.depth; i++) {
        for (int layer = 0; layer < BENCH_LAYERS; layer++) {
            create_layer(chain, model, i, (enum bench_layer)layer, staging);
        }
    }
    if (staging) {
        bench_chain_drain(chain);
        fp8pipe_free(chain->pipe, staging);
    }
}

/* ---- Create and destroy --------------------------------------------------------------------- */

static void create_scaling(struct bench_chain *chain, struct bench_model *model)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    uint8_t *roles = malloc((size_t)model->options.depth * SLOTS_PER_BLOCK);
    uint32_t slot = 0;

    if (!roles) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "scaling");
        return;
    }
    for (int64_t i = 0; i < model->options.depth; i++) {
        struct bench_block *block = &model->blocks[i];

        for (int x = 0; x < BENCH_XS; x++) {
            roles[slot] = FP8PIPE_ROLE_X;
            block->slot_x[x] = slot++;
        }
        for (int layer = 0; layer < BENCH_LAYERS; layer++) {
            roles[slot] = FP8PIPE_ROLE_W;
            block->slot_w[layer] = slot++;
            roles[slot] = FP8PIPE_ROLE_DY;
            block->slot_dy[layer] = slot++;
        }
    }
    options.slots = slot;
    options.roles = roles;
    bench_chain_keep(chain, fp8pipe_scaling_create(chain->pipe, &options, &model->scaling),
                     "scaling");
    free(roles);
    for (int i = BENCH_X_ATTENTION; i < BENCH_XS && chain->status == FP8PIPE_OK; i++) {
        bench_chain_keep(chain, fp8pipe_tensor_create(chain->pipe, &model->x_tensors[i]), "tensor");
    }
    for (int i = 0; i < BENCH_LAYERS && chain->status == FP8PIPE_OK; i++) {
        bench_chain_keep(chain, fp8pipe_tensor_create(chain->pipe, &model->dy_tensors[i]),
                         "tensor");
    }
}

static void create_optimizer(struct bench_chain *chain, struct bench_model *model)
{
    struct fp8pipe_optimizer_options options = FP8PIPE_OPTIMIZER_OPTIONS_INIT;
    struct fp8pipe_parameter_group group = FP8PIPE_PARAMETER_GROUP_INIT;
    struct fp8pipe_parameter *all =
        calloc((size_t)model->options.depth * 2 * BENCH_LAYERS, sizeof(*all));

    if (!all) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "optimizer");
        return;
    }
    for (int64_t i = 0; i < model->options.depth; i++) {
        for (int layer = 0; layer < BENCH_LAYERS; layer++) {
            all[options.parameter_count++] = model->blocks[i].weights[layer];
            if (model->shapes[layer].bias) {
                all[options.parameter_count++] = model->blocks[i].biases[layer];
            }
        }
    }
    group.weight_decay = 0.01f;
    options.parameters = all;
    options.groups = &group;
    options.group_count = 1;
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_optimizer_create(chain->pipe, &options, &model->optimizer),
                         "optimizer");
    }
    free(all);
}

struct bench_model *bench_model_create(struct bench_chain *chain,
                                       const struct bench_options *options, int64_t passes)
{
    struct bench_model *model = malloc(sizeof(*model));
    size_t bytes;

    if (!model || !bench_layout_plan(options, passes, model)) {
        free(model);
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "model");
        return NULL;
    }
    model->pipe = chain->pipe;
    bytes = bench_layout_place(model, NULL);
    bench_chain_keep(chain, fp8pipe_alloc(chain->pipe, bytes, &model->memory), "memory");
    if (chain->status == FP8PIPE_OK) {
        bench_layout_place(model, model->memory);
        if (model->quantized) {
            create_scaling(chain, model);
        }
        create_layers(chain, model);
    }
    if (chain->status == FP8PIPE_OK && options->train) {
        create_optimizer(chain, model);
    }
    fill(chain, model->teacher, key(model, STREAM_TEACHER), -1.0f / sqrtf((float)options->hidden),
         2.0f / sqrtf((float)options->hidden));
    if (chain->status != FP8PIPE_OK) {
        bench_model_destroy(model);
        return NULL;
    }
    return model;
}

void bench_model_destroy(struct bench_model *model)
{
    if (!model) {
        return;
    }
    fp8pipe_drain(model->pipe, -1);
    fp8pipe_optimizer_destroy(model->optimizer);
    for (int i = 0; i < BENCH_XS; i++) {
        fp8pipe_tensor_destroy(model->x_tensors[i]);
    }
    for (int i = 0; i < BENCH_LAYERS; i++) {
        fp8pipe_tensor_destroy(model->dy_tensors[i]);
    }
    for (int64_t i = 0; i < model->options.depth; i++) {
        for (int layer = 0; layer < BENCH_LAYERS; layer++) {
            fp8pipe_tensor_destroy(model->blocks[i].saved[layer]);
            fp8pipe_linear_destroy(model->blocks[i].linears[layer]);
        }
    }
    fp8pipe_scaling_destroy(model->scaling);
    fp8pipe_free(model->pipe, model->memory);
    free(model->blocks);
    free(model);
}

void bench_model_data(struct bench_chain *chain, struct bench_model *model, int64_t number)
{
    uint64_t stream = STREAM_DATA + 2 * (uint64_t)number;
    struct fp8pipe_gemm_op gemm = FP8PIPE_GEMM_OP_INIT;

    fill(chain, model->input, key(model, stream), 0.0f, 1.0f);
    if (!model->teacher.data) {
        fill(chain, model->target, key(model, stream + 1), 0.0f, 1.0f);
        return;
    }
    gemm.submit = bench_chain_submit(BENCH_LANE_CHAIN, "target");
    gemm.a = model->input;
    gemm.b = model->teacher;
    gemm.d = model->target;
    if (chain->status == FP8PIPE_OK) {
        bench_chain_submitted(chain, fp8pipe_gemm(chain->pipe, &gemm, &chain->last), "target");
    }
}
