#include "bench/issue.h"

#include <stdlib.h>

#include "kernels/fp8.h"

struct json issue_json;

void must(enum fp8pipe_status status, const char *what)
{
    if (status != FP8PIPE_OK) {
        fprintf(stderr, "issue: %s: %s\n", what, fp8pipe_last_error());
        exit(1);
    }
}

void *host_alloc(size_t count, size_t bytes)
{
    void *data = calloc(count, bytes);

    if (data == NULL) {
        must(FP8PIPE_ENOMEM, "calloc");
    }
    return data;
}

void report(const char *name, const char *unit, double value)
{
    printf("%-52s %10.2f %s\n", name, value, unit);
    fflush(stdout);
    json_lines(&issue_json, 2);
    json_object(&issue_json, NULL);
    json_lines(&issue_json, -1);
    json_text(&issue_json, "name", name);
    json_text(&issue_json, "unit", unit);
    json_fixed(&issue_json, "value", 4, value);
    json_object_end(&issue_json);
}

struct fp8pipe_matrix matrix(void *data, int64_t rows, int64_t cols)
{
    return (struct fp8pipe_matrix){data, rows, cols, cols, FP8PIPE_BF16, 0};
}

static uint16_t *random_matrix(struct fp8pipe *pipe, int64_t rows, int64_t cols)
{
    size_t count = (size_t)(rows * cols);
    uint16_t *values = host_alloc(count, sizeof(*values));
    void *data;

    for (size_t i = 0; i < count; i++) {
        values[i] = bf16_from_float((float)rand() / (float)RAND_MAX - 0.5f);
    }
    must(fp8pipe_alloc(pipe, count * sizeof(*values), &data), "alloc");
    must(fp8pipe_upload(pipe, data, values, count * sizeof(*values)), "upload");
    free(values);
    return data;
}

struct layer layer_make(struct fp8pipe *pipe, int64_t tokens, int64_t features)
{
    struct fp8pipe_scaling_options scaling = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear_options linear = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct layer layer = {.pipe = pipe, .features = features};

    layer.x = random_matrix(pipe, tokens, features);
    layer.w = random_matrix(pipe, features, features);
    layer.y = random_matrix(pipe, tokens, features);
    scaling.slots = 3;
    scaling.initial_scale = 16.0f;
    must(fp8pipe_scaling_create(pipe, &scaling, &layer.scaling), "scaling");
    linear.in_features = features;
    linear.out_features = features;
    linear.weight = matrix(layer.w, features, features);
    linear.scaling = layer.scaling;
    must(fp8pipe_linear_create(pipe, &linear, &layer.linear), "linear");
    return layer;
}

void layer_free(struct layer *layer)
{
    must(fp8pipe_linear_destroy(layer->linear), "destroy");
    must(fp8pipe_scaling_destroy(layer->scaling), "destroy");
    must(fp8pipe_free(layer->pipe, layer->x), "free");
    must(fp8pipe_free(layer->pipe, layer->w), "free");
    must(fp8pipe_free(layer->pipe, layer->y), "free");
}

void forward(struct layer *layer, int32_t lane, uint16_t *x, uint16_t *y, int64_t tokens,
             fp8pipe_ticket *ticket)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit.lane = lane;
    op.x = matrix(x, tokens, layer->features);
    op.y = matrix(y, tokens, layer->features);
    must(fp8pipe_linear_forward(layer->linear, &op, ticket), "forward");
}

struct fp8pipe *pipe_open(int32_t lanes)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct fp8pipe *pipe;

    options.backend = FP8PIPE_BACKEND_CUDA;
    options.lanes = lanes;
    options.ring_slots = RING_SLOTS;
    must(fp8pipe_open(&options, &pipe), "open");
    return pipe;
}
