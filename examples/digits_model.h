/*
 * A class-conditional diffusion transformer for the digits, trained by flow matching, every linear
 * layer of it through the library.
 *
 *   tokens   patches of 2 x 2 pixels, embedded by a linear layer, plus a learned position
 *   condition  SiLU(linear(SiLU(linear(sinusoids of t))) + learned label)
 *   block    shift, scale, gate (twice) = linear(condition), zero at first;
 *            x += gate * projection(attention(qkv(norm(x) * (1 + scale) + shift)))
 *            x += gate * down(GELU(up(norm(x) * (1 + scale) + shift)))
 *   output   linear(norm(x) * (1 + scale) + shift), predicts image - noise
 *
 * Patch embedding and output layer, with 4 inputs and 4 outputs, are always float32; the other
 * linear layers are of the model's dtype. Weights, gradients and AdamW's moments are float32.
 * One thread at a time.
 */
#ifndef DIGITS_MODEL_H
#define DIGITS_MODEL_H

#include <fp8pipe.h>

#include "digits_data.h"

enum digits_dtype { DIGITS_FP8, DIGITS_BF16, DIGITS_FP32, DIGITS_DTYPES };

/* "fp8", "bf16", "fp32" */
const char *digits_dtype_name(enum digits_dtype dtype);

/* The number of lanes that the pipe must have. */
#define DIGITS_MODEL_LANES 3

struct digits_model_options {
    enum digits_dtype dtype;
    int64_t hidden; /* even, a multiple of heads */
    int64_t depth;
    int64_t heads;
    int64_t batch; /* images in a training step */
    uint64_t seed; /* of the first weights */
};

struct digits_model;

/* A failing create leaves its sentence in fp8pipe_last_error(), or has run out of host memory. */
enum fp8pipe_status digits_model_create(struct fp8pipe *pipe,
                                        const struct digits_model_options *options,
                                        struct digits_model **model);
/* Waits for what is under way. Takes NULL. */
void digits_model_destroy(struct digits_model *model);

/* The sentence of the first failure. Never NULL. */
const char *digits_model_error(const struct digits_model *model);

/*
 * The batch to fill for the next training step; waits only while too many steps are under way. It
 * may not be touched once the step is enqueued.
 */
struct digits_batch *digits_model_batch(struct digits_model *model);

/* How many steps may be under way at once. */
#define DIGITS_MODEL_STEPS_AHEAD 4

/*
 * Enqueues one step on the batch and returns: forward, backward, AdamW (betas 0.9 and 0.999, weight
 * decay 0.01), scaling update. *loss is written when the step is done: at the latest when the
 * fourth batch after its own is handed out, or when finish returns.
 */
enum fp8pipe_status digits_model_train(struct digits_model *model, float rate, double *loss);
enum fp8pipe_status digits_model_finish(struct digits_model *model);

/* Loss of the batch, and with `gradients` its gradients; changes no weight. Waits. */
enum fp8pipe_status digits_model_evaluate(struct digits_model *model, int gradients, double *loss);

/*
 * Draws `count` images with the given labels: Euler steps from noise (t = 0) to image (t = 1), with
 * classifier-free guidance. Waits.
 */
enum fp8pipe_status digits_model_sample(struct digits_model *model, const int32_t *labels,
                                        int64_t count, int steps, float guidance,
                                        struct digits_random *random,
                                        float (*images)[DIGITS_PIXELS]);

/* Ops enqueued by training so far, and the calling thread's time for enqueuing them. */
void digits_model_enqueued(const struct digits_model *model, uint64_t *ops, int64_t *ns);

/* The model's parameters lie in one array; a tensor is a piece of it. */
struct digits_tensor {
    const char *name;
    int64_t offset;
    int64_t count;
};
const struct digits_tensor *digits_model_tensors(const struct digits_model *model, int *count);
int64_t digits_model_parameter_count(const struct digits_model *model);
/* These wait for what is under way. */
enum fp8pipe_status digits_model_parameters_get(struct digits_model *model, float *parameters);
enum fp8pipe_status digits_model_parameters_set(struct digits_model *model,
                                                const float *parameters);
enum fp8pipe_status digits_model_gradients_get(struct digits_model *model, float *gradients);

#endif
