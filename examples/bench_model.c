#include "bench_model.h"

#include <math.h>
#include <stdlib.h>

#define ALIGN 256
#define WORKSPACE_BYTES (32.0 * 1024 * 1024) /* the library's default of a lane */
#define SLOTS_PER_BLOCK (BENCH_XS + 2 * BENCH_LAYERS)
#define STREAM_DATA ((uint64_t)1 << 32) /* of random numbers: parameters' are below */
#define STREAM_TEACHER ((uint64_t)1 << 62)

/* What keeps the toy block finite: weights are uniform in +- factor / sqrt(inputs). */
static const float weight_factors[BENCH_LAYERS] = {0.05f, 0.3f, 0.3f, 0.3f, 1.0f, 0.3f};

/* ---- Memory -------------------------------------------------------------------------------- */

/* Hands out pieces of one allocation. At first memory is NULL, and only `used` counts. */
struct arena {
    char *memory;
    size_t used;
};

static void *take(struct arena *arena, size_t bytes)
{
    void *piece = arena->memory ? arena->memory + arena->used : NULL;

    arena->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return piece;
}

static struct fp8pipe_matrix take_matrix(struct arena *arena, int64_t rows, int64_t cols,
                                         enum fp8pipe_dtype dtype)
{
    size_t each = dtype == FP8PIPE_FP32 ? sizeof(float) : sizeof(uint16_t);

    return (struct fp8pipe_matrix){
        take(arena, (size_t)rows * (size_t)cols * each), rows, cols, cols, dtype, 0};
}

/* copies: the layer computes with a bf16 copy of the parameter. */
static void layout_parameter(const struct bench_model *model, struct arena *arena, int64_t rows,
                             int64_t cols, bool copies, enum fp8pipe_dtype gradient,
                             struct fp8pipe_parameter *parameter)
{
    *parameter = (struct fp8pipe_parameter)FP8PIPE_PARAMETER_INIT;
    if (model->options.train || model->options.dtype == BENCH_FP32) {
        parameter->master = take_matrix(arena, rows, cols, FP8PIPE_FP32);
    }
    if (model->options.train) {
        parameter->gradient = take_matrix(arena, rows, cols, gradient);
        parameter->first = take_matrix(arena, rows, cols, FP8PIPE_FP32);
        parameter->second = take_matrix(arena, rows, cols, FP8PIPE_FP32);
    }
    if (copies) {
        parameter->copy = take_matrix(arena, rows, cols, FP8PIPE_BF16);
    }
}

static void layout_block(struct bench_model *model, struct arena *arena, int64_t index)
{
    struct bench_block *block = &model->blocks[index];
    enum fp8pipe_dtype gradient =
        model->options.grad_dtype == BENCH_BF16 ? FP8PIPE_BF16 : FP8PIPE_FP32;
    bool keeps = model->options.train && !model->quantized;
    int64_t hidden = model->options.hidden;

    for (int i = 0; i < BENCH_LAYERS; i++) {
        const struct bench_shape *shape = &model->shapes[i];

        layout_parameter(model, arena, shape->outputs, shape->inputs,
                         model->options.dtype == BENCH_BF16, gradient, &block->weights[i]);
        if (shape->bias) {
            layout_parameter(model, arena, 1, shape->outputs, model->dtype == FP8PIPE_BF16,
                             FP8PIPE_FP32, &block->biases[i]);
        }
    }
    for (int i = 0; i < BENCH_XS; i++) {
        int64_t width = i == BENCH_X_MLP2 ? model->options.mlp_ratio * hidden : hidden;

        if (i == BENCH_X_MODULATION && index == 0) {
            block->x[i] = model->input;
        } else if (keeps) {
            block->x[i] = take_matrix(arena, model->rows, width, model->dtype);
        } else if (i == BENCH_X_MLP2) {
            block->x[i] = bench_cols(model->scratch, width);
        } else {
            /* A product may not overwrite the matrix that it is made of. */
            block->x[i] = i == BENCH_X_MLP1 && !model->quantized ? model->gradient : model->output;
        }
    }
    if (model->options.train) {
        block->u = take_matrix(arena, model->rows, hidden, model->dtype);
        block->v = take_matrix(arena, model->rows, hidden, model->dtype);
    }
}

static void layout(struct bench_model *model, struct arena *arena)
{
    int64_t hidden = model->options.hidden;
    int64_t ratio = model->options.mlp_ratio;

    model->input = take_matrix(arena, model->rows, hidden, model->dtype);
    model->output = take_matrix(arena, model->rows, hidden, model->dtype);
    model->scratch =
        take_matrix(arena, model->rows, (ratio > 6 ? ratio : 6) * hidden, model->dtype);
    if (!model->quantized) {
        model->gradient = take_matrix(arena, model->rows, hidden, model->dtype);
    }
    if (model->options.train) {
        model->target = take_matrix(arena, model->rows, hidden, model->dtype);
    }
    if (model->options.loss_run) {
        model->teacher = take_matrix(arena, hidden, hidden, model->dtype);
    }
    model->partials = take(arena, BENCH_LOSS_PARTS * sizeof(double));
    model->losses = take(arena, (size_t)model->loss_room * sizeof(double));
    model->max_bits = take(arena, sizeof(*model->max_bits));
    model->norm = take(arena, sizeof(*model->norm));
    model->nonfinite = take(arena, sizeof(*model->nonfinite));
    for (int64_t i = 0; i < model->options.depth; i++) {
        layout_block(model, arena, i);
    }
    for (int64_t i = 0; i < model->options.depth; i++) {
        model->blocks[i].out = i + 1 < model->options.depth
                                   ? model->blocks[i + 1].x[BENCH_X_MODULATION]
                                   : model->output;
    }
}

/* What the library allocates: FP8 weights, what training keeps, and the most that is in flight. */
static double library_bytes(const struct bench_model *model)
{
    double rows = (double)model->rows;
    double weights = 0.0;
    double inputs = 0.0;
    double copies = model->options.train ? 2.0 : 1.0;

    for (int i = 0; i < BENCH_LAYERS; i++) {
        weights += (double)model->shapes[i].outputs * (double)model->shapes[i].inputs;
        inputs += i == BENCH_KEY_VALUE ? 0.0 : rows * (double)model->shapes[i].inputs;
    }
    if (!model->quantized) {
        return (double)model->options.lanes * WORKSPACE_BYTES;
    }
    return (double)model->options.lanes * WORKSPACE_BYTES +
           (double)model->options.depth * copies * weights +
           (model->options.train ? (double)model->options.depth * copies * inputs : inputs) +
           (model->options.train ? copies * rows * (double)model->scratch.cols : 0.0);
}

/* All that is known without memory; its blocks are the caller's to free. */
static bool plan(const struct bench_options *options, int64_t passes, struct bench_model *model)
{
    int64_t hidden = options->hidden;
    int64_t wide = options->mlp_ratio * hidden;

    *model = (struct bench_model){
        .options = *options,
        .shapes = {{"modulation", 6 * hidden, hidden, BENCH_X_MODULATION, true},
                   {"self_attn", 3 * hidden, hidden, BENCH_X_ATTENTION, false},
                   {"cross_attn_q", hidden, hidden, BENCH_X_CROSS, false},
                   {"cross_attn_kv", 2 * hidden, hidden, BENCH_X_CROSS, false},
                   {"mlp1", wide, hidden, BENCH_X_MLP1, true},
                   {"mlp2", hidden, wide, BENCH_X_MLP2, true}},
        .quantized = options->dtype == BENCH_FP8,
        .dtype = options->dtype == BENCH_FP32 ? FP8PIPE_FP32 : FP8PIPE_BF16,
        .rows = options->batch * options->sequence,
        .loss_room = passes,
        .blocks = calloc((size_t)options->depth, sizeof(*model->blocks))};
    for (int i = 0; i < BENCH_LAYERS; i++) {
        const struct bench_shape *shape = &model->shapes[i];

        model->parameter_count +=
            options->depth * shape->outputs * (shape->inputs + (shape->bias ? 1 : 0));
    }
    return model->blocks != NULL;
}

double bench_model_bytes(const struct bench_options *options)
{
    struct bench_model model;
    struct arena arena = {NULL, 0};
    double bytes = 0.0;

    if (plan(options, options->iterations, &model)) {
        layout(&model, &arena);
        bytes = (double)arena.used + library_bytes(&model);
    }
    free(model.blocks);
    return bytes;
}

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

/* The layer, its parameters set; staging: for FP8 inference, which keeps its weight in FP8 alone. */
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
    for (int i = 0; i < BENCH_XS && chain->status == FP8PIPE_OK; i++) {
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
    struct arena arena = {NULL, 0};

    if (!model || !plan(options, passes, model)) {
        free(model);
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "model");
        return NULL;
    }
    model->pipe = chain->pipe;
    layout(model, &arena);
    bench_chain_keep(chain, fp8pipe_alloc(chain->pipe, arena.used, &model->memory), "memory");
    if (chain->status == FP8PIPE_OK) {
        arena = (struct arena){model->memory, 0};
        layout(model, &arena);
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
