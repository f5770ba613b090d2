#include "digits_model.h"

#include <assert.h>
#include <stdlib.h>

#include "clock.h"
#include "digits_parameters.h"
#include "digits_pass.h"

static_assert(DIGITS_MODEL_LANES == DIGITS_LANES, "the chain's lanes");
static_assert(DIGITS_MODEL_STEPS_AHEAD == DIGITS_SLOTS, "the chain's slots");

static const char *const dtype_names[DIGITS_DTYPES] = {"fp8", "bf16", "fp32"};

/* A step's data on its way: written on the host, copied whole to the backend. */
struct staging {
    struct digits_batch batch; /* points into `host` */
    char *host;
    char *backend;
    double *loss; /* memory of the backend */
};

struct digits_model {
    struct fp8pipe *pipe;
    struct digits_model_options options;
    struct digits_chain chain;
    struct parameters parameters;
    struct fp8pipe_scaling *scaling;
    struct network network;
    int layer_count;
    struct buffers buffers;
    struct staging staging[DIGITS_SLOTS];
    size_t staging_bytes;
    float *mixed;
    float *target;
    int slot; /* of the batch that was handed out last */
    int64_t updates;
    uint64_t enqueued;  /* ops of training steps */
    int64_t enqueue_ns; /* the caller's time for them */
};

const char *digits_dtype_name(enum digits_dtype dtype)
{
    return dtype_names[dtype];
}

const char *digits_model_error(const struct digits_model *model)
{
    return model->chain.sentence;
}

/* ---- Making a model ----------------------------------------------------------------------- */

static enum fp8pipe_status layer_create(struct digits_model *model, int index)
{
    const struct parameters *p = &model->parameters;
    struct digits_layer *layer = &model->network.layers[index];
    struct layer_spec spec = layer_spec(model->options.hidden, index);
    int64_t weight = p->tensors[2 * index].offset;
    int64_t bias = p->tensors[2 * index + 1].offset;
    struct fp8pipe_matrix matrix = {p->weights + weight, spec.out, spec.in, spec.in,
                                    FP8PIPE_FP32,        0};

    layer->weight_grad = matrix;
    layer->weight_grad.data = p->gradients + weight;
    layer->bias_grad = (struct fp8pipe_vector){p->gradients + bias, spec.out, FP8PIPE_FP32, 0};
    if (p->bf16 && !spec.float32) {
        matrix.data = p->bf16 + weight;
        matrix.dtype = FP8PIPE_BF16;
    }
    return digits_layer_init(layer, model->pipe, spec.name, matrix,
                             (struct fp8pipe_vector){p->weights + bias, spec.out, FP8PIPE_FP32, 0},
                             spec.float32 ? NULL : model->scaling, 3 * (uint32_t)index);
}

static enum fp8pipe_status network_create(struct digits_model *model)
{
    struct fp8pipe_scaling_options scaling = FP8PIPE_SCALING_OPTIONS_INIT;
    struct network *network = &model->network;
    const struct parameters *p = &model->parameters;
    enum fp8pipe_status status = FP8PIPE_OK;

    network->hidden = model->options.hidden;
    network->depth = model->options.depth;
    network->heads = model->options.heads;
    network->activation = model->options.dtype == DIGITS_BF16 ? FP8PIPE_BF16 : FP8PIPE_FP32;
    network->label_table = p->weights + parameters_label(p)->offset;
    network->label_grad = p->gradients + parameters_label(p)->offset;
    network->position_table = p->weights + parameters_position(p)->offset;
    network->position_grad = p->gradients + parameters_position(p)->offset;
    network->layers = calloc((size_t)model->layer_count, sizeof(*network->layers));
    if (!network->layers) {
        return FP8PIPE_ENOMEM;
    }
    if (model->options.dtype == DIGITS_FP8) {
        scaling.slots = 3 * (uint32_t)model->layer_count;
        status = fp8pipe_scaling_create(model->pipe, &scaling, &model->scaling);
    }
    for (int i = 0; i < model->layer_count && status == FP8PIPE_OK; i++) {
        status = layer_create(model, i);
    }
    return status;
}

static enum fp8pipe_status staging_create(struct digits_model *model)
{
    int64_t images = model->options.batch;
    int64_t values = images * DIGITS_POSITIONS * DIGITS_PATCH_PIXELS;
    size_t floats = (size_t)(2 * values + images);
    enum fp8pipe_status status = FP8PIPE_OK;
    void *memory;

    model->staging_bytes =
        floats * sizeof(float) + (size_t)(images + DIGITS_POSITIONS) * sizeof(int32_t);
    for (int i = 0; i < DIGITS_SLOTS && status == FP8PIPE_OK; i++) {
        struct staging *staging = &model->staging[i];
        float *at;

        staging->host = calloc(1, model->staging_bytes);
        if (!staging->host) {
            return FP8PIPE_ENOMEM;
        }
        at = (float *)staging->host;
        staging->batch = (struct digits_batch){.images = images,
                                               .image = at,
                                               .noise = at + values,
                                               .t = at + 2 * values,
                                               .labels = (int32_t *)(at + floats),
                                               .position = (int32_t *)(at + floats) + images};
        status = fp8pipe_alloc(model->pipe, model->staging_bytes, &memory);
        if (status == FP8PIPE_OK) {
            staging->backend = memory;
            status = fp8pipe_alloc(model->pipe, sizeof(double), &memory);
        }
        if (status == FP8PIPE_OK) {
            staging->loss = memory;
        }
    }
    if (status == FP8PIPE_OK) {
        status = fp8pipe_alloc(model->pipe, 2 * (size_t)values * sizeof(float), &memory);
    }
    if (status == FP8PIPE_OK) {
        model->mixed = memory;
        model->target = model->mixed + values;
    }
    return status;
}

enum fp8pipe_status digits_model_create(struct fp8pipe *pipe,
                                        const struct digits_model_options *options,
                                        struct digits_model **result)
{
    struct digits_model *model = calloc(1, sizeof(*model));
    enum fp8pipe_status status;

    if (!model) {
        return FP8PIPE_ENOMEM;
    }
    model->pipe = pipe;
    model->options = *options;
    model->layer_count = LAYERS + (int)options->depth * LAYERS_PER_BLOCK;
    status = digits_chain_init(&model->chain, pipe, step_ops(options->depth));
    if (status == FP8PIPE_OK) {
        status = parameters_create(&model->parameters, pipe, options, model->layer_count);
    }
    if (status == FP8PIPE_OK) {
        status = network_create(model);
    }
    if (status == FP8PIPE_OK) {
        status = buffers_create(&model->buffers, pipe, &model->network, options->batch, true);
    }
    if (status == FP8PIPE_OK) {
        status = staging_create(model);
    }
    if (status != FP8PIPE_OK) {
        digits_model_destroy(model);
        return status;
    }
    *result = model;
    return FP8PIPE_OK;
}

void digits_model_destroy(struct digits_model *model)
{
    if (!model) {
        return;
    }
    digits_chain_clear(&model->chain);
    for (int i = 0; i < DIGITS_SLOTS; i++) {
        fp8pipe_free(model->pipe, model->staging[i].loss);
        fp8pipe_free(model->pipe, model->staging[i].backend);
        free(model->staging[i].host);
    }
    fp8pipe_free(model->pipe, model->mixed);
    buffers_destroy(&model->buffers, model->pipe);
    for (int i = 0; i < model->layer_count && model->network.layers; i++) {
        digits_layer_clear(&model->network.layers[i]);
    }
    fp8pipe_scaling_destroy(model->scaling);
    free(model->network.layers);
    parameters_destroy(&model->parameters);
    free(model);
}

/* ---- Training ----------------------------------------------------------------------------- */

struct digits_batch *digits_model_batch(struct digits_model *model)
{
    model->slot = digits_chain_begin(&model->chain);
    return &model->staging[model->slot].batch;
}

/* The same piece of a staging's memory on the backend. */
static const void *on_backend(const struct staging *staging, const void *host)
{
    return staging->backend + ((const char *)host - staging->host);
}

/* Enqueues the batch's pass up to its loss and, if wanted, its gradients; the ticket of the copy of
 * the loss. */
static fp8pipe_ticket enqueue_pass(struct digits_model *model, bool backward, double *loss)
{
    struct digits_chain *chain = &model->chain;
    struct staging *staging = &model->staging[model->slot];
    const struct digits_batch *batch = &staging->batch;
    struct pass_input input = {.images = batch->images,
                               .tokens = batch->tokens,
                               .t = on_backend(staging, batch->t),
                               .labels = on_backend(staging, batch->labels),
                               .position = on_backend(staging, batch->position),
                               .mixed = model->mixed};
    fp8pipe_ticket copied;

    copied =
        digits_chain_copy(chain, 0, "batch", staging->backend, staging->host, model->staging_bytes);
    digits_chain_join(chain, copied);
    digits_chain_op(chain, "noise",
                    (struct dit_op){.kind = DIT_NOISE,
                                    .noise = {.image = on_backend(staging, batch->image),
                                              .noise = on_backend(staging, batch->noise),
                                              .t = input.t,
                                              .mixed = model->mixed,
                                              .target = model->target,
                                              .images = batch->images,
                                              .tokens = batch->tokens,
                                              .cols = DIGITS_PATCH_PIXELS}});
    pass_forward(chain, &model->network, &model->buffers, &input);
    digits_chain_op(
        chain, "loss",
        (struct dit_op){.kind = DIT_LOSS,
                        .loss = {.prediction = model->buffers.prediction,
                                 .target = model->target,
                                 .count = batch->images * batch->tokens * DIGITS_PATCH_PIXELS,
                                 .grad = model->buffers.grad_prediction,
                                 .loss = staging->loss}});
    copied = digits_chain_copy(chain, chain->last, "loss", loss, staging->loss, sizeof(double));
    if (backward) {
        pass_backward(chain, &model->network, &model->buffers, &input);
    }
    return copied;
}

enum fp8pipe_status digits_model_train(struct digits_model *model, float rate, double *loss)
{
    struct digits_chain *chain = &model->chain;
    uint64_t enqueued_before = chain->enqueued;
    int64_t begun_ns = now_ns();
    fp8pipe_ticket copied = enqueue_pass(model, true, loss);
    fp8pipe_ticket updated;

    updated = parameters_update(&model->parameters, chain, ++model->updates, rate);
    if (model->scaling) {
        digits_chain_scaling_update(chain, model->scaling);
    }
    for (int i = 0; i < model->layer_count; i++) {
        digits_layer_changed(chain, &model->network.layers[i], updated);
    }
    /* Tables, biases and buffers have no versions: the next step waits for the end of this one. */
    digits_chain_join(chain, updated);
    digits_chain_end(chain, updated, copied);
    model->enqueued += chain->enqueued - enqueued_before;
    model->enqueue_ns += now_ns() - begun_ns;
    return chain->status;
}

enum fp8pipe_status digits_model_finish(struct digits_model *model)
{
    digits_chain_finish(&model->chain);
    return model->chain.status;
}

enum fp8pipe_status digits_model_evaluate(struct digits_model *model, int gradients, double *loss)
{
    struct digits_chain *chain = &model->chain;
    fp8pipe_ticket copied = enqueue_pass(model, gradients, loss);

    /* The last weight gradient waits for the chain. */
    digits_chain_end(chain, copied, chain->last_wgrad);
    return digits_model_finish(model);
}

void digits_model_enqueued(const struct digits_model *model, uint64_t *ops, int64_t *ns)
{
    *ops = model->enqueued;
    *ns = model->enqueue_ns;
}

/* ---- Sampling ----------------------------------------------------------------------------- */

enum fp8pipe_status digits_model_sample(struct digits_model *model, const int32_t *labels,
                                        int64_t count, int steps, float guidance,
                                        struct digits_random *random,
                                        float (*images)[DIGITS_PIXELS])
{
    struct digits_chain *chain = &model->chain;
    int64_t values = count * DIGITS_PIXELS;
    size_t floats = 2 * (size_t)values;
    size_t bytes =
        floats * sizeof(float) + (2 * (size_t)count + DIGITS_POSITIONS) * sizeof(int32_t);
    enum fp8pipe_status status = digits_model_finish(model);
    struct buffers buffers = {.memory = NULL};
    struct pass_input input = {.images = 2 * count, .tokens = DIGITS_POSITIONS};
    void *memory = NULL;
    float *host;
    int32_t *integers;

    if (status != FP8PIPE_OK) {
        return status;
    }
    host = malloc(bytes);
    if (!host) {
        return FP8PIPE_ENOMEM;
    }
    /* Each sample twice: with its label, and without one. */
    integers = (int32_t *)(host + floats);
    for (int64_t i = 0; i < values; i++) {
        host[i] = host[values + i] = (float)digits_random_normal(random);
    }
    for (int64_t i = 0; i < count; i++) {
        integers[i] = labels[i];
        integers[count + i] = DIGITS_NO_LABEL;
    }
    for (int i = 0; i < DIGITS_POSITIONS; i++) {
        integers[2 * count + i] = i;
    }

    status = buffers_create(&buffers, model->pipe, &model->network, 2 * count, false);
    if (status == FP8PIPE_OK) {
        status = fp8pipe_alloc(model->pipe, bytes, &memory);
    }
    if (status == FP8PIPE_OK) {
        status = fp8pipe_upload(model->pipe, memory, host, bytes);
    }
    if (status != FP8PIPE_OK) {
        goto done;
    }
    input.mixed = memory;
    input.labels = (const int32_t *)((const float *)memory + floats);
    input.position = input.labels + 2 * count;
    for (int step = 0; step < steps; step++) {
        digits_chain_begin(chain);
        input.t_value = (float)step / (float)steps;
        pass_forward(chain, &model->network, &buffers, &input);
        digits_chain_op(chain, "euler",
                        (struct dit_op){.kind = DIT_EULER,
                                        .euler = {.x = memory,
                                                  .velocity = buffers.prediction,
                                                  .count = values,
                                                  .step = 1.0f / (float)steps,
                                                  .guidance = guidance}});
        digits_chain_end(chain, chain->last, 0);
    }
    status = digits_model_finish(model);
    if (status == FP8PIPE_OK) {
        status = fp8pipe_download(model->pipe, host, memory, (size_t)values * sizeof(float));
    }
    for (int64_t i = 0; i < count && status == FP8PIPE_OK; i++) {
        digits_unpatch(host + i * DIGITS_PIXELS, images[i]);
    }
done:
    fp8pipe_free(model->pipe, memory);
    buffers_destroy(&buffers, model->pipe);
    free(host);
    return status;
}

/* ---- Parameters, from outside -------------------------------------------------------------- */

const struct digits_tensor *digits_model_tensors(const struct digits_model *model, int *count)
{
    *count = model->parameters.tensor_count;
    return model->parameters.tensors;
}

int64_t digits_model_parameter_count(const struct digits_model *model)
{
    return model->parameters.count;
}

static enum fp8pipe_status get(struct digits_model *model, const float *from, float *to)
{
    enum fp8pipe_status status = digits_model_finish(model);

    if (status == FP8PIPE_OK) {
        status = fp8pipe_download(model->pipe, to, from,
                                  (size_t)model->parameters.count * sizeof(float));
    }
    return status;
}

enum fp8pipe_status digits_model_parameters_get(struct digits_model *model, float *parameters)
{
    return get(model, model->parameters.weights, parameters);
}

enum fp8pipe_status digits_model_gradients_get(struct digits_model *model, float *gradients)
{
    return get(model, model->parameters.gradients, gradients);
}

enum fp8pipe_status digits_model_parameters_set(struct digits_model *model, const float *parameters)
{
    enum fp8pipe_status status = digits_model_finish(model);

    if (status == FP8PIPE_OK) {
        status = parameters_upload(&model->parameters, parameters);
    }
    for (int i = 0; i < model->layer_count && status == FP8PIPE_OK; i++) {
        status = fp8pipe_linear_weight_changed(model->network.layers[i].linear, NULL, 0);
    }
    return status;
}
