/*
 * The model of examples/dit_digits: its gradients against finite differences of its loss, those of
 * the other dtypes against float32's, and the classifier that judges its samples.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/digits_data.h"
#include "examples/digits_model.h"
#include "util.h"

/* How far a parameter is moved to either side, and how many are moved in each tensor. */
#define MOVE 2e-3f
#define PROBES 6
/* Allowed between slope and gradient, as a part of the largest gradient of the tensor. */
#define SLOPE_TOLERANCE 2e-3

/* Allowed norm of the difference to float32's gradients over their norm. */
#define BF16_DISTANCE 0.02
#define FP8_DISTANCE 0.2

#define ERROR_BYTES 5000

static struct fp8pipe *pipe;
static const char *backend;
static struct digits digits;

static struct digits_model *make_model(enum digits_dtype dtype)
{
    struct digits_model_options options = {
        .dtype = dtype, .hidden = 24, .depth = 2, .heads = 3, .batch = 5, .seed = 1};
    struct digits_model *model = NULL;

    if (digits_model_create(pipe, &options, &model) != FP8PIPE_OK) {
        bail("no %s model: %s", digits_dtype_name(dtype), fp8pipe_last_error());
    }
    return model;
}

/* Weights with nothing left at zero, the same for every model of this shape. */
static float *make_weights(struct digits_model *model)
{
    float *weights = malloc((size_t)digits_model_parameter_count(model) * sizeof(*weights));
    struct digits_random random;

    if (!weights || digits_model_parameters_get(model, weights) != FP8PIPE_OK) {
        bail("the weights cannot be read: %s", digits_model_error(model));
    }
    digits_random_seed(&random, 2, DIGITS_RANDOM_WEIGHTS);
    for (int64_t i = 0; i < digits_model_parameter_count(model); i++) {
        weights[i] += 0.2f * (float)digits_random_normal(&random);
    }
    return weights;
}

/* The loss of one fixed batch with these weights; with `gradients` not NULL, its gradients too. */
static double evaluate(struct digits_model *model, const float *weights, int crops,
                       float *gradients)
{
    struct digits_random random;
    double loss = NAN;

    digits_random_seed(&random, 3, DIGITS_RANDOM_BATCHES);
    if (digits_model_parameters_set(model, weights) != FP8PIPE_OK) {
        bail("the weights cannot be set: %s", digits_model_error(model));
    }
    digits_batch_draw(&digits, &random, crops, digits_model_batch(model));
    if (digits_model_evaluate(model, gradients != NULL, &loss) != FP8PIPE_OK ||
        (gradients && digits_model_gradients_get(model, gradients) != FP8PIPE_OK)) {
        bail("the model cannot be evaluated: %s", digits_model_error(model));
    }
    return loss;
}

static int64_t largest(const float *values, int64_t count)
{
    int64_t found = 0;

    for (int64_t i = 1; i < count; i++) {
        found = fabsf(values[i]) > fabsf(values[found]) ? i : found;
    }
    return found;
}

/* The largest gradient of the tensor and some at random against the loss's slope. */
static void check_tensor(struct digits_model *model, float *weights, const float *gradients,
                         const struct digits_tensor *tensor, int crops,
                         struct digits_random *random)
{
    int64_t peak = tensor->offset + largest(gradients + tensor->offset, tensor->count);
    double scale = fabs(gradients[peak]);
    double worst = 0.0;

    for (int probe = 0; probe < PROBES; probe++) {
        int64_t at = probe == 0 ? peak
                                : tensor->offset +
                                      (int64_t)digits_random_below(random, (uint64_t)tensor->count);
        float kept = weights[at];
        double up;
        double down;
        double slope;

        weights[at] = kept + MOVE;
        up = evaluate(model, weights, crops, NULL);
        slope = -(double)weights[at];
        weights[at] = kept - MOVE;
        down = evaluate(model, weights, crops, NULL);
        slope = (down - up) / (slope + (double)weights[at]);
        weights[at] = kept;
        worst = fmax(worst, fabs(slope - (double)gradients[at]) / scale);
    }
    if (!ok(scale > 0.0 && worst < SLOPE_TOLERANCE, "%s: %s's gradient is the loss's slope, %s",
            backend, tensor->name, crops ? "bands" : "whole images")) {
        diag("largest gradient %g, worst difference %g of it", scale, worst);
    }
}

static void check_gradients(int crops)
{
    struct digits_model *model = make_model(DIGITS_FP32);
    float *weights = make_weights(model);
    float *gradients = malloc((size_t)digits_model_parameter_count(model) * sizeof(*gradients));
    const struct digits_tensor *tensors;
    struct digits_random random;
    int count;

    if (!gradients) {
        bail("out of memory");
    }
    tensors = digits_model_tensors(model, &count);
    digits_random_seed(&random, 4, DIGITS_RANDOM_SAMPLES);
    evaluate(model, weights, crops, gradients);
    for (int i = 0; i < count; i++) {
        check_tensor(model, weights, gradients, &tensors[i], crops, &random);
    }
    free(gradients);
    free(weights);
    digits_model_destroy(model);
}

/* The norm of the difference over the norm. */
static double distance(const float *a, const float *b, int64_t count)
{
    double difference = 0.0;
    double size = 0.0;

    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

static void check_dtype(enum digits_dtype dtype, double bound)
{
    struct digits_model *exact = make_model(DIGITS_FP32);
    struct digits_model *model = make_model(dtype);
    int64_t count = digits_model_parameter_count(model);
    float *weights = make_weights(exact);
    float *wanted = malloc((size_t)count * sizeof(*wanted));
    float *got = malloc((size_t)count * sizeof(*got));
    double apart;

    if (!wanted || !got) {
        bail("out of memory");
    }
    evaluate(exact, weights, 0, wanted);
    evaluate(model, weights, 0, got);
    apart = distance(got, wanted, count);
    if (!ok(apart > 0.0 && apart < bound, "%s: %s gradients are near float32's", backend,
            digits_dtype_name(dtype))) {
        diag("%g apart, at most %g allowed", apart, bound);
    }
    free(got);
    free(wanted);
    free(weights);
    digits_model_destroy(model);
    digits_model_destroy(exact);
}

/* Every second image names the others. */
static void check_classifier(void)
{
    struct digits known = {malloc((size_t)digits.count * sizeof(*known.images)),
                           malloc((size_t)digits.count * sizeof(*known.labels)), 0};
    int64_t right = 0;
    int64_t asked = 0;

    if (!known.images || !known.labels) {
        bail("out of memory");
    }
    for (int64_t i = 0; i < digits.count; i += 2) {
        memcpy(known.images[known.count], digits.images[i], sizeof(*known.images));
        known.labels[known.count++] = digits.labels[i];
    }
    for (int64_t i = 1; i < digits.count; i += 2) {
        right += digits_classify(&known, digits.images[i]) == digits.labels[i];
        asked++;
    }
    if (!ok(20 * right >= 19 * asked, "the classifier names 95 %% of the held-out digits")) {
        diag("%lld of %lld", (long long)right, (long long)asked);
    }
    digits_free(&known);
}

static void check_data(void)
{
    char error[ERROR_BYTES];
    struct digits nothing;
    float tokens[DIGITS_PIXELS];
    float image[DIGITS_PIXELS];

    is_int(digits.count, 1797, "all digits are there");
    digits_patches(digits.images[100], tokens);
    digits_unpatch(tokens, image);
    ok(memcmp(image, digits.images[100], sizeof(image)) == 0,
       "an image cut into patches and put together is the same");
    is_int(digits_load("/nonexistent", &nothing, error, sizeof(error)), -1,
           "a folder that is not there is refused");
    ok(strstr(error, "/nonexistent/0.txt") != NULL, "and the sentence names the file");
}

static void cases(enum fp8pipe_backend wanted)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;

    options.lanes = DIGITS_MODEL_LANES;
    backend = test_backend_name(wanted);
    pipe = test_open(wanted, &options);
    check_gradients(0);
    check_gradients(1);
    check_dtype(DIGITS_BF16, BF16_DISTANCE);
    check_dtype(DIGITS_FP8, FP8_DISTANCE);
    test_close(pipe);
}

int main(void)
{
    char error[ERROR_BYTES];

    if (digits_load(getenv("DIGITS_DIR") != NULL ? getenv("DIGITS_DIR") : DIGITS_DIR, &digits,
                    error, sizeof(error)) != 0) {
        bail("%s", error);
    }
    check_data();
    check_classifier();
    test_each_backend(cases);
    digits_free(&digits);
    return done_testing();
}
