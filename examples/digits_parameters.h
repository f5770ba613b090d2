/*
 * The model's parameters: their places in one array, their first values, and AdamW's arrays beside
 * them. Internal to the model. One thread at a time.
 */
#ifndef DIGITS_PARAMETERS_H
#define DIGITS_PARAMETERS_H

#include "digits_layer.h"
#include "digits_model.h"

/* A layer's shape. float32: whatever the model's dtype is. zero: its first values are zeros. */
struct layer_spec {
    const char *name;
    const char *bias_name;
    int64_t in;
    int64_t out;
    bool float32;
    bool zero;
};

/* Layer `index` of a network, counted as in digits_pass.h. */
struct layer_spec layer_spec(int64_t hidden, int index);

struct parameters {
    struct fp8pipe *pipe;
    int64_t hidden;
    struct digits_tensor *tensors; /* layer i's weight is 2 i, its bias 2 i + 1; then the tables */
    int tensor_count;
    int64_t count; /* of the whole array, with the gaps that align tensors */
    /* In memory of the backend, each of `count`. */
    float *weights;
    float *gradients;
    float *m;
    float *v;
    uint16_t *bf16; /* the weights again, for a bf16 model, or NULL */
};

enum fp8pipe_status parameters_create(struct parameters *parameters, struct fp8pipe *pipe,
                                      const struct digits_model_options *options, int layers);
void parameters_destroy(struct parameters *parameters);

/* The two tables, behind the layers' tensors. */
const struct digits_tensor *parameters_label(const struct parameters *parameters);
const struct digits_tensor *parameters_position(const struct parameters *parameters);

/* Nothing that uses the weights may be under way. */
enum fp8pipe_status parameters_upload(struct parameters *parameters, const float *weights);

/*
 * Enqueues one AdamW step, number `step` from 1, on the weight gradients' lane: behind all of them
 * and behind the chain.
 */
fp8pipe_ticket parameters_update(struct parameters *parameters, struct digits_chain *chain,
                                 int64_t step, float rate);

#endif
