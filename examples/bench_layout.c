#include "bench_layout.h"

#include <stdlib.h>

#define ALIGN 256
#define WORKSPACE_BYTES (32.0 * 1024 * 1024) /* the library's default of a lane */

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

size_t bench_layout_place(struct bench_model *model, void *memory)
{
    struct arena arena = {memory, 0};
    int64_t hidden = model->options.hidden;
    int64_t ratio = model->options.mlp_ratio;

    model->input = take_matrix(&arena, model->rows, hidden, model->dtype);
    model->output = take_matrix(&arena, model->rows, hidden, model->dtype);
    model->scratch =
        take_matrix(&arena, model->rows, (ratio > 6 ? ratio : 6) * hidden, model->dtype);
    if (!model->quantized) {
        model->gradient = take_matrix(&arena, model->rows, hidden, model->dtype);
    }
    if (model->options.train) {
        model->target = take_matrix(&arena, model->rows, hidden, model->dtype);
    }
    if (model->options.loss_run) {
        model->teacher = take_matrix(&arena, hidden, hidden, model->dtype);
    }
    model->partials = take(&arena, BENCH_LOSS_PARTS * sizeof(double));
    model->losses = take(&arena, (size_t)model->loss_room * sizeof(double));
    model->max_bits = take(&arena, sizeof(*model->max_bits));
    model->norm = take(&arena, sizeof(*model->norm));
    model->nonfinite = take(&arena, sizeof(*model->nonfinite));
    for (int64_t i = 0; i < model->options.depth; i++) {
        layout_block(model, &arena, i);
    }
    for (int64_t i = 0; i < model->options.depth; i++) {
        model->blocks[i].out = i + 1 < model->options.depth
                                   ? model->blocks[i + 1].x[BENCH_X_MODULATION]
                                   : model->output;
    }
    return arena.used;
}

/* What the library allocates: FP8 weights, in training the transposed X of every layer, and the
 * most that is in flight. */
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
           (model->options.train ? (double)model->options.depth + 1.0 : 1.0) * inputs +
           (model->options.train ? copies * rows * (double)model->scratch.cols : 0.0);
}

bool bench_layout_plan(const struct bench_options *options, int64_t passes,
                       struct bench_model *model)
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
        .rows = options->batch * options->tokens,
        .loss_room = passes,
        .blocks = calloc((size_t)options->depth, sizeof(*model->blocks))};
    for (int i = 0; i < BENCH_LAYERS; i++) {
        const struct bench_shape *shape = &model->shapes[i];

        model->parameter_count +=
            options->depth * shape->outputs * (shape->inputs + (shape->bias ? 1 : 0));
    }
    return model->blocks != NULL;
}

double bench_layout_bytes(const struct bench_options *options, int64_t *parameters)
{
    struct bench_model model;
    double bytes = 0.0;

    if (bench_layout_plan(options, options->iterations, &model)) {
        bytes = (double)bench_layout_place(&model, NULL) + library_bytes(&model);
    }
    *parameters = model.parameter_count;
    free(model.blocks);
    return bytes;
}
