/*
 * One block of a diffusion transformer forward, its five linear layers in FP8, and again with the
 * same layers in float32: how far are the two apart? Runs on a GPU, or on the host without one.
 *
 *   shift, scale, gate, shift', scale', gate' = modulation(condition)
 *   x += gate * projection(attention(qkv(norm(x) * (1 + scale) + shift)))
 *   x += gate' * down(gelu(up(norm(x) * (1 + scale') + shift')))
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dit_kernels.h"

/* Images, tokens of each, width, attention heads. */
enum { IMAGES = 8, TOKENS = 64, ROWS = IMAGES * TOKENS, HIDDEN = 256, HEADS = 4 };
enum { MODULATION, QKV, PROJECTION, UP, DOWN, LAYERS };

/* Outputs and inputs of each layer. */
static const int64_t shapes[LAYERS][2] = {{6 * HIDDEN, HIDDEN},
                                          {3 * HIDDEN, HIDDEN},
                                          {HIDDEN, HIDDEN},
                                          {4 * HIDDEN, HIDDEN},
                                          {HIDDEN, 4 * HIDDEN}};

static struct fp8pipe *pipe;

/* All memory that make_matrix made. */
static void *owned[64];
static int owned_count;

static void check(enum fp8pipe_status status)
{
    if (status != FP8PIPE_OK) {
        fprintf(stderr, "dit_block: %s: %s\n", fp8pipe_strerror(status), fp8pipe_last_error());
        exit(1);
    }
}

/* A float32 matrix in memory of the pipe's backend, uniform in +-bound (0: as it comes). */
static struct fp8pipe_matrix make_matrix(int64_t rows, int64_t cols, float bound)
{
    struct fp8pipe_matrix matrix = {NULL, rows, cols, cols, FP8PIPE_FP32, 0};
    size_t count = (size_t)(rows * cols);
    float *values;

    check(fp8pipe_alloc(pipe, count * sizeof(float), &matrix.data));
    owned[owned_count++] = matrix.data;
    if (bound == 0.0f) {
        return matrix;
    }
    values = malloc(count * sizeof(float));
    if (!values) {
        check(FP8PIPE_ENOMEM);
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = bound * (2.0f * (float)rand() / (float)RAND_MAX - 1.0f);
    }
    check(fp8pipe_upload(pipe, matrix.data, values, count * sizeof(float)));
    free(values);
    return matrix;
}

/* All ops go to lane 0, which runs them in the order of their submits: no tickets are needed. */
static void enqueue_linear(struct fp8pipe_linear *linear, struct fp8pipe_matrix x,
                           struct fp8pipe_matrix y)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit.lane = 0;
    op.x = x;
    op.y = y;
    check(fp8pipe_linear_forward(linear, &op, NULL));
}

/* `op` must live until it is done. */
static void enqueue_op(struct dit_op *op)
{
    struct fp8pipe_call_op call = FP8PIPE_CALL_OP_INIT;

    call.submit.lane = 0;
    call.fn = dit_call;
    call.arg = op;
    check(fp8pipe_call(pipe, &call, NULL));
}

static struct dit_op modulate(struct fp8pipe_matrix x, const float *shift,
                              struct fp8pipe_matrix statistics, struct fp8pipe_matrix out)
{
    float *mean = statistics.data;

    return (struct dit_op){.kind = DIT_MODULATE,
                           .modulate = {.x = x.data,
                                        .shift = shift,
                                        .scale = shift + HIDDEN,
                                        .stride = 6 * HIDDEN,
                                        .tokens = TOKENS,
                                        .mean = mean,
                                        .rstd = mean + ROWS,
                                        .out = out}};
}

/* out = x + gate * y */
static struct dit_op gate(struct fp8pipe_matrix x, const float *by, struct fp8pipe_matrix y,
                          struct fp8pipe_matrix out)
{
    return (struct dit_op){.kind = DIT_GATE,
                           .gate = {.x = x.data,
                                    .y = y.data,
                                    .gate = by,
                                    .stride = 6 * HIDDEN,
                                    .out = out.data,
                                    .images = IMAGES,
                                    .tokens = TOKENS,
                                    .cols = HIDDEN}};
}

/* The block's output on the host. The layers are the five above, quantized or not. */
static float *run_block(struct fp8pipe_linear **layers, struct fp8pipe_matrix x,
                        struct fp8pipe_matrix condition)
{
    struct fp8pipe_matrix modulation = make_matrix(IMAGES, 6 * HIDDEN, 0);
    struct fp8pipe_matrix statistics = make_matrix(2, ROWS, 0);
    struct fp8pipe_matrix normed = make_matrix(ROWS, HIDDEN, 0);
    struct fp8pipe_matrix qkv = make_matrix(ROWS, 3 * HIDDEN, 0);
    struct fp8pipe_matrix attended = make_matrix(ROWS, HIDDEN, 0);
    struct fp8pipe_matrix y = make_matrix(ROWS, HIDDEN, 0);
    struct fp8pipe_matrix middle = make_matrix(ROWS, HIDDEN, 0);
    struct fp8pipe_matrix up = make_matrix(ROWS, 4 * HIDDEN, 0);
    struct fp8pipe_matrix activated = make_matrix(ROWS, 4 * HIDDEN, 0);
    struct fp8pipe_matrix out = make_matrix(ROWS, HIDDEN, 0);
    const float *part = modulation.data;
    struct dit_op ops[] = {
        modulate(x, part, statistics, normed),
        {.kind = DIT_ATTENTION,
         .attention = {.qkv = qkv.data, .tokens = TOKENS, .heads = HEADS, .out = attended}},
        gate(x, part + 2 * HIDDEN, y, middle),
        modulate(middle, part + 3 * HIDDEN, statistics, normed),
        {.kind = DIT_GELU, .gelu = {.x = up.data, .out = activated}},
        gate(middle, part + 5 * HIDDEN, y, out),
    };
    float *result = malloc(ROWS * HIDDEN * sizeof(float));

    if (!result) {
        check(FP8PIPE_ENOMEM);
    }
    enqueue_linear(layers[MODULATION], condition, modulation);
    enqueue_op(&ops[0]);
    enqueue_linear(layers[QKV], normed, qkv);
    enqueue_op(&ops[1]);
    enqueue_linear(layers[PROJECTION], attended, y);
    enqueue_op(&ops[2]);
    enqueue_op(&ops[3]);
    enqueue_linear(layers[UP], normed, up);
    enqueue_op(&ops[4]);
    enqueue_linear(layers[DOWN], activated, y);
    enqueue_op(&ops[5]);

    check(fp8pipe_drain(pipe, -1));
    check(fp8pipe_download(pipe, result, out.data, ROWS * HIDDEN * sizeof(float)));
    return result;
}

int main(void)
{
    struct fp8pipe_scaling_options recipe = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear *layers[2][LAYERS]; /* FP8, float32 */
    struct fp8pipe_matrix x, condition;
    struct fp8pipe_scaling *scaling;
    enum fp8pipe_backend backend;
    float *fp8, *fp32;
    double difference = 0.0, size = 0.0;

    check(fp8pipe_open(NULL, &pipe));
    check(fp8pipe_backend_get(pipe, &backend));
    recipe.slots = 3 * LAYERS; /* X, W and dY of each layer */
    check(fp8pipe_scaling_create(pipe, &recipe, &scaling));
    for (int i = 0; i < LAYERS; i++) {
        float bound = 1.0f / sqrtf((float)shapes[i][1]);
        struct fp8pipe_matrix weight = make_matrix(shapes[i][0], shapes[i][1], bound);
        struct fp8pipe_matrix bias = make_matrix(1, shapes[i][0], bound);

        for (int unquantized = 0; unquantized < 2; unquantized++) {
            struct fp8pipe_linear_options options = FP8PIPE_LINEAR_OPTIONS_INIT;

            options.in_features = shapes[i][1];
            options.out_features = shapes[i][0];
            options.weight = weight;
            options.bias.data = bias.data;
            options.bias.count = bias.cols;
            options.scaling = unquantized ? NULL : scaling;
            options.slot_x = 3 * (uint32_t)i;
            options.slot_w = options.slot_x + 1;
            options.slot_dy = options.slot_x + 2;
            check(fp8pipe_linear_create(pipe, &options, &layers[unquantized][i]));
        }
    }
    x = make_matrix(ROWS, HIDDEN, 1.0f);
    condition = make_matrix(IMAGES, HIDDEN, 1.0f);

    fp8 = run_block(layers[0], x, condition);
    fp32 = run_block(layers[1], x, condition);
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        difference += (double)(fp8[i] - fp32[i]) * (fp8[i] - fp32[i]);
        size += (double)fp32[i] * fp32[i];
    }
    printf(
        "%s backend, %d x %d: the FP8 block is %.2e from the float32 one (norm of the difference "
        "over norm)\n",
        backend == FP8PIPE_BACKEND_CUDA ? "cuda" : "host", ROWS, HIDDEN, sqrt(difference / size));

    free(fp8);
    free(fp32);
    for (int i = 0; i < LAYERS; i++) {
        check(fp8pipe_linear_destroy(layers[0][i]));
        check(fp8pipe_linear_destroy(layers[1][i]));
    }
    while (owned_count > 0) {
        check(fp8pipe_free(pipe, owned[--owned_count]));
    }
    check(fp8pipe_scaling_destroy(scaling));
    check(fp8pipe_close(pipe, 0, -1));
    return 0;
}
