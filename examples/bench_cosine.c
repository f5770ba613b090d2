#include "bench_cosine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_median.h"
#include "bench_pass.h"

static size_t bytes_of(const struct fp8pipe_matrix *matrix)
{
    size_t each = matrix->dtype == FP8PIPE_FP32 ? sizeof(float) : sizeof(uint16_t);

    return (size_t)(matrix->rows * matrix->cols) * each;
}

static double element(const void *data, enum fp8pipe_dtype dtype, size_t i)
{
    uint32_t bits;
    float value;

    if (dtype == FP8PIPE_FP32) {
        return ((const float *)data)[i];
    }
    bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double cosine_of(const void *a, const void *b, const struct fp8pipe_matrix *matrix)
{
    size_t count = (size_t)(matrix->rows * matrix->cols);
    double dot = 0.0;
    double a_square = 0.0;
    double b_square = 0.0;

    for (size_t i = 0; i < count; i++) {
        double x = element(a, matrix->dtype, i);
        double y = element(b, matrix->dtype, i);

        dot += x * y;
        a_square += x * x;
        b_square += y * y;
    }
    return dot / sqrt(a_square * b_square);
}

/* The model after the backward of one step. */
static struct bench_model *differentiate(struct bench_chain *chain,
                                         const struct bench_options *options,
                                         enum bench_dtype dtype)
{
    struct bench_options own = *options;
    struct bench_model *model;
    struct bench_pass pass = {.train = true};

    own.dtype = dtype;
    model = bench_model_create(chain, &own, 1);
    if (model) {
        pass.rows = model->rows;
        bench_model_data(chain, model, 0);
        bench_pass_forward(chain, model, &pass);
        bench_pass_loss(chain, model, &pass);
        bench_pass_backward(chain, model, &pass);
        bench_chain_drain(chain);
    }
    return model;
}

static void *read_gradient(struct bench_chain *chain, const struct fp8pipe_matrix *gradient)
{
    void *data = malloc(bytes_of(gradient));

    if (!data) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "gradients");
    } else {
        bench_chain_read(chain, data, gradient->data, bytes_of(gradient));
    }
    return data;
}

/* values: [layer][block]. */
static void compare(struct bench_chain *chain, const struct bench_model *model, void **gradients,
                    double *values, struct bench_cosine *cosine)
{
    for (int64_t i = 0; i < model->options.depth * BENCH_LAYERS; i++) {
        int64_t block = i / BENCH_LAYERS;
        int layer = (int)(i % BENCH_LAYERS);
        const struct fp8pipe_matrix *gradient = &model->blocks[block].weights[layer].gradient;
        void *data = read_gradient(chain, gradient);

        if (chain->status == FP8PIPE_OK) {
            double value = cosine_of(gradients[i], data, gradient);

            values[layer * model->options.depth + block] = value;
            if (!(value >= cosine->worst)) {
                cosine->worst = value;
                snprintf(cosine->where, sizeof(cosine->where), "%s in block %lld",
                         model->shapes[layer].name, (long long)block);
            }
        }
        free(data);
    }
}

void bench_cosine_measure(struct bench_chain *chain, const struct bench_options *options,
                          struct bench_cosine *cosine)
{
    int64_t count = options->depth * BENCH_LAYERS;
    void **gradients = calloc((size_t)count, sizeof(*gradients));
    double *values = calloc((size_t)count, sizeof(*values));
    struct bench_model *model = NULL;

    *cosine = (struct bench_cosine){.worst = INFINITY};
    if (!gradients || !values) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "gradients");
    } else {
        model = differentiate(chain, options, BENCH_FP8);
    }
    for (int64_t i = 0; i < count && chain->status == FP8PIPE_OK; i++) {
        gradients[i] = read_gradient(
            chain, &model->blocks[i / BENCH_LAYERS].weights[i % BENCH_LAYERS].gradient);
    }
    bench_model_destroy(model);
    model = chain->status == FP8PIPE_OK ? differentiate(chain, options, BENCH_BF16) : NULL;
    if (chain->status == FP8PIPE_OK) {
        compare(chain, model, gradients, values, cosine);
    }
    bench_model_destroy(model);
    if (chain->status == FP8PIPE_OK) {
        for (int i = 0; i < BENCH_LAYERS; i++) {
            cosine->medians[i] = bench_median(values + i * options->depth, options->depth);
        }
        cosine->median = bench_median(values, count);
    }
    for (int64_t i = 0; gradients && i < count; i++) {
        free(gradients[i]);
    }
    free(gradients);
    free(values);
}
