#include "digits_parameters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "digits_pass.h"

/* Tensors start at multiples of this many elements, so that rows of every dtype are aligned. */
#define TENSOR_ALIGN 64

#define BETA1 0.9
#define BETA2 0.999
#define EPSILON 1e-8f
#define WEIGHT_DECAY 0.01f

#define LABEL_DEVIATION 1.0f
#define POSITION_DEVIATION 0.02f

struct layer_spec layer_spec(int64_t hidden, int index)
{
    int64_t h = hidden;

    switch (index) {
    case LAYER_PATCH:
        return (struct layer_spec){"patch", "patch.bias", DIGITS_PATCH_PIXELS, h, true, false};
    case LAYER_TIME_IN:
        return (struct layer_spec){"time_in", "time_in.bias", h, h, false, false};
    case LAYER_TIME_OUT:
        return (struct layer_spec){"time_out", "time_out.bias", h, h, false, false};
    case LAYER_FINAL_MODULATION:
        return (struct layer_spec){
            "final_modulation", "final_modulation.bias", h, MODULATIONS_FINAL * h, false, true};
    case LAYER_OUTPUT:
        return (struct layer_spec){"output", "output.bias", h, DIGITS_PATCH_PIXELS, true, true};
    default:
        break;
    }
    switch ((index - LAYERS) % LAYERS_PER_BLOCK) {
    case LAYER_MODULATION:
        return (struct layer_spec){"modulation", "modulation.bias", h, MODULATIONS * h, false,
                                   true};
    case LAYER_QKV:
        return (struct layer_spec){"qkv", "qkv.bias", h, 3 * h, false, false};
    case LAYER_PROJECTION:
        return (struct layer_spec){"projection", "projection.bias", h, h, false, false};
    case LAYER_UP:
        return (struct layer_spec){"up", "up.bias", h, MLP_RATIO * h, false, false};
    default:
        return (struct layer_spec){"down", "down.bias", MLP_RATIO * h, h, false, false};
    }
}

static void add_tensor(struct parameters *p, const char *name, int64_t count)
{
    p->tensors[p->tensor_count++] = (struct digits_tensor){name, p->count, count};
    p->count += (count + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

static enum fp8pipe_status list_tensors(struct parameters *p, int layers)
{
    p->tensors = calloc(2 * (size_t)layers + 2, sizeof(*p->tensors));
    if (!p->tensors) {
        return FP8PIPE_ENOMEM;
    }
    for (int i = 0; i < layers; i++) {
        struct layer_spec spec = layer_spec(p->hidden, i);

        add_tensor(p, spec.name, spec.out * spec.in);
        add_tensor(p, spec.bias_name, spec.out);
    }
    add_tensor(p, "label", (DIGITS_CLASSES + 1) * p->hidden);
    add_tensor(p, "position", DIGITS_POSITIONS * p->hidden);
    return FP8PIPE_OK;
}

const struct digits_tensor *parameters_label(const struct parameters *parameters)
{
    return &parameters->tensors[parameters->tensor_count - 2];
}

const struct digits_tensor *parameters_position(const struct parameters *parameters)
{
    return &parameters->tensors[parameters->tensor_count - 1];
}

static void start_uniform(struct digits_random *random, float bound, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = bound * (float)(2.0 * digits_random_uniform(random) - 1.0);
    }
}

static void start_normal(struct digits_random *random, float deviation, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = deviation * (float)digits_random_normal(random);
    }
}

/* Weight and bias of a layer uniform within 1 / sqrt(inputs), or zero. */
static void start(const struct parameters *p, uint64_t seed, float *to)
{
    const struct digits_tensor *label = parameters_label(p);
    const struct digits_tensor *position = parameters_position(p);
    struct digits_random random;

    digits_random_seed(&random, seed, DIGITS_RANDOM_WEIGHTS);
    for (int i = 0; i < p->tensor_count - 2; i++) {
        struct layer_spec spec = layer_spec(p->hidden, i / 2);

        if (!spec.zero) {
            start_uniform(&random, 1.0f / sqrtf((float)spec.in), to + p->tensors[i].offset,
                          p->tensors[i].count);
        }
    }
    start_normal(&random, LABEL_DEVIATION, to + label->offset, label->count);
    start_normal(&random, POSITION_DEVIATION, to + position->offset, position->count);
}

static uint16_t bf16_from_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    /* To the nearest, ties to even; weights are finite. */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

enum fp8pipe_status parameters_upload(struct parameters *p, const float *weights)
{
    size_t count = (size_t)p->count;
    enum fp8pipe_status status;
    uint16_t *bf16;

    status = fp8pipe_upload(p->pipe, p->weights, weights, count * sizeof(float));
    if (status != FP8PIPE_OK || !p->bf16) {
        return status;
    }
    bf16 = malloc(count * sizeof(*bf16));
    if (!bf16) {
        return FP8PIPE_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        bf16[i] = bf16_from_float(weights[i]);
    }
    status = fp8pipe_upload(p->pipe, p->bf16, bf16, count * sizeof(*bf16));
    free(bf16);
    return status;
}

static enum fp8pipe_status alloc_arrays(struct parameters *p, bool bf16)
{
    size_t bytes = (size_t)p->count * sizeof(float);
    enum fp8pipe_status status;
    void *memory;

    status = fp8pipe_alloc(p->pipe, 4 * bytes, &memory);
    if (status != FP8PIPE_OK) {
        return status;
    }
    p->weights = memory;
    p->gradients = p->weights + p->count;
    p->m = p->gradients + p->count;
    p->v = p->m + p->count;
    status = fp8pipe_fill(p->pipe, memory, 0, 4 * bytes);
    if (status == FP8PIPE_OK && bf16) {
        status = fp8pipe_alloc(p->pipe, (size_t)p->count * sizeof(uint16_t), &memory);
        if (status == FP8PIPE_OK) {
            p->bf16 = memory;
        }
    }
    return status;
}

enum fp8pipe_status parameters_create(struct parameters *p, struct fp8pipe *pipe,
                                      const struct digits_model_options *options, int layers)
{
    enum fp8pipe_status status;
    float *first = NULL;

    *p = (struct parameters){.pipe = pipe, .hidden = options->hidden};
    status = list_tensors(p, layers);
    if (status == FP8PIPE_OK) {
        status = alloc_arrays(p, options->dtype == DIGITS_BF16);
    }
    if (status == FP8PIPE_OK) {
        first = calloc((size_t)p->count, sizeof(float));
        status = first ? FP8PIPE_OK : FP8PIPE_ENOMEM;
    }
    if (status == FP8PIPE_OK) {
        start(p, options->seed, first);
        status = parameters_upload(p, first);
    }
    free(first);
    if (status != FP8PIPE_OK) {
        parameters_destroy(p);
    }
    return status;
}

void parameters_destroy(struct parameters *p)
{
    if (p->pipe) {
        fp8pipe_free(p->pipe, p->bf16);
        fp8pipe_free(p->pipe, p->weights);
    }
    free(p->tensors);
    *p = (struct parameters){.pipe = NULL};
}

fp8pipe_ticket parameters_update(struct parameters *p, struct digits_chain *chain, int64_t step,
                                 float rate)
{
    return digits_chain_op_on(
        chain, DIGITS_LANE_WGRAD, chain->last, "adamw",
        (struct dit_op){.kind = DIT_ADAMW,
                        .adamw = {.weight = p->weights,
                                  .grad = p->gradients,
                                  .m = p->m,
                                  .v = p->v,
                                  .bf16 = p->bf16,
                                  .count = p->count,
                                  .rate = rate,
                                  .beta1 = (float)BETA1,
                                  .beta2 = (float)BETA2,
                                  .epsilon = EPSILON,
                                  .weight_decay = WEIGHT_DECAY,
                                  .correction1 = (float)(1.0 / (1.0 - pow(BETA1, (double)step))),
                                  .correction2 = (float)(1.0 / (1.0 - pow(BETA2, (double)step)))}});
}
