#include "bench_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_pass.h"

/* The loss changes by about this part of itself: far above its rounding, below its curvature. */
#define CHANGE 1e-3
#define STEP_MOST 1e-2

static double loss_of(struct bench_chain *chain, struct bench_model *model)
{
    struct bench_pass pass = {.rows = model->rows, .train = true};
    double *at = model->losses + model->loss_count % model->loss_room;
    double loss = NAN;

    bench_pass_forward(chain, model, &pass);
    bench_pass_loss(chain, model, &pass);
    bench_chain_read(chain, &loss, at, sizeof(loss));
    return loss;
}

/* Sets the parameter to value + step * direction. */
static void move(struct bench_chain *chain, const struct fp8pipe_matrix *master, const float *value,
                 const float *direction, double step, float *scratch)
{
    size_t count = (size_t)(master->rows * master->cols);

    for (size_t i = 0; i < count; i++) {
        scratch[i] = (float)((double)value[i] + step * (double)direction[i]);
    }
    bench_chain_drain(chain);
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain,
                         fp8pipe_upload(chain->pipe, master->data, scratch, count * sizeof(float)),
                         "moving a parameter");
    }
}

/*
 * The direction has every gradient's own sign in one half of the places, at random, and any sign in
 * the others: so the expected change is large, and a gradient in a wrong place shows.
 */
static double choose_direction(const float *gradient, size_t count, uint64_t key, float *direction)
{
    double slope = 0.0;

    for (size_t i = 0; i < count; i++) {
        float draw = bench_uniform(key, i);
        float sign = draw < 0.25f ? -1.0f : 1.0f;

        direction[i] = draw < 0.5f ? sign : gradient[i] < 0.0f ? -1.0f : 1.0f;
        slope += (double)gradient[i] * (double)direction[i];
    }
    return slope;
}

static double compare(struct bench_chain *chain, struct bench_model *model,
                      const struct fp8pipe_parameter *parameter, double loss, uint64_t key)
{
    const struct fp8pipe_matrix *master = &parameter->master;
    size_t count = (size_t)(master->rows * master->cols);
    float *memory = malloc(4 * count * sizeof(float));
    float *value = memory;
    float *gradient = memory + count;
    float *direction = memory + 2 * count;
    float *scratch = memory + 3 * count;
    double slope;
    double step;
    double change;

    if (!memory) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "checking gradients");
        return NAN;
    }
    bench_chain_read(chain, value, master->data, count * sizeof(float));
    bench_chain_read(chain, gradient, parameter->gradient.data, count * sizeof(float));
    slope = choose_direction(gradient, count, key, direction);
    step = CHANGE * loss / slope;
    step = step < STEP_MOST ? step : STEP_MOST;
    move(chain, master, value, direction, step, scratch);
    change = loss_of(chain, model);
    move(chain, master, value, direction, -step, scratch);
    change -= loss_of(chain, model);
    move(chain, master, value, direction, 0.0, scratch);
    free(memory);
    return fabs(change / (2.0 * step * slope) - 1.0);
}

void bench_check_gradients(struct bench_chain *chain, struct bench_model *model,
                           struct bench_check_result *result)
{
    struct bench_pass pass = {.rows = model->rows, .train = true};
    double *at = model->losses + model->loss_count % model->loss_room;
    double loss = NAN;

    *result = (struct bench_check_result){.worst = 0.0};
    bench_model_data(chain, model, 0);
    bench_pass_forward(chain, model, &pass);
    bench_pass_loss(chain, model, &pass);
    bench_chain_read(chain, &loss, at, sizeof(loss));
    bench_pass_backward(chain, model, &pass);
    for (int64_t i = 0; i < 2 * BENCH_LAYERS * model->options.depth; i++) {
        int64_t block = i / (2 * BENCH_LAYERS);
        int layer = (int)(i / 2 % BENCH_LAYERS);
        bool bias = i % 2 != 0;
        double apart;

        if ((bias && !model->shapes[layer].bias) || chain->status != FP8PIPE_OK) {
            continue;
        }
        apart = compare(chain, model,
                        bias ? &model->blocks[block].biases[layer]
                             : &model->blocks[block].weights[layer],
                        loss, (uint64_t)i);
        result->compared++;
        if (!(apart <= result->worst)) {
            result->worst = apart;
            snprintf(result->where, sizeof(result->where), "%s's %s in block %lld",
                     model->shapes[layer].name, bias ? "bias" : "weight", (long long)block);
        }
    }
}
