/*
 * Trains a small diffusion transformer on handwritten digits, its linear layers through the
 * library, then draws digits and has a classifier name them. See --help.
 *
 * Exit status: 0; 1 if the run failed or a loss was not finite; 2 if it was refused before it
 * began.
 */
#include <fp8pipe.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "digits_data.h"
#include "digits_image.h"
#include "digits_model.h"
#include "digits_options.h"

#define RATE 2e-3
#define WARM_UP_STEPS 50
#define FINAL_STEPS 100 /* over which the final loss is the mean */
#define EULER_STEPS 20
#define GUIDANCE 2.0f
#define SAMPLES_PER_CLASS 20
#define SAMPLES (SAMPLES_PER_CLASS * DIGITS_CLASSES)
#define DRAWN_PER_CLASS 10

#define PI 3.14159265358979323846
#define ERROR_BYTES 5000 /* a path and a sentence */

static double seconds_since(int64_t begun_ns)
{
    return 1e-9 * (double)(now_ns() - begun_ns);
}

static int complain(const char *sentence)
{
    fprintf(stderr, "dit_digits: %s\n", sentence);
    return -1;
}

/* A call of the library's that was refused. */
static int refused(const char *what, enum fp8pipe_status status)
{
    const char *sentence = fp8pipe_last_error();

    fprintf(stderr, "dit_digits: %s: %s (%s)\n", what,
            sentence[0] ? sentence : fp8pipe_strerror(status), fp8pipe_status_name(status));
    return -1;
}

static double rate(int64_t step, int64_t steps)
{
    int64_t warm_up = steps / 2 < WARM_UP_STEPS ? steps / 2 : WARM_UP_STEPS;

    if (step < warm_up) {
        return RATE * (double)(step + 1) / (double)warm_up;
    }
    return RATE * 0.5 * (1.0 + cos(PI * (double)(step - warm_up) / (double)(steps - warm_up)));
}

/* The mean of the last `count` of the first `end` losses, or of all if there are fewer. */
static double mean_before(const double *losses, int64_t end, int64_t count)
{
    int64_t first = end > count ? end - count : 0;
    double sum = 0.0;

    for (int64_t i = first; i < end; i++) {
        sum += losses[i];
    }
    return sum / (double)(end - first);
}

/* A bar on a terminal, a line every hundred steps otherwise. done: steps whose loss is known. */
static void progress(const struct digits_result *result, int64_t done)
{
    static const char bar[] = "########################################";
    int width = (int)sizeof(bar) - 1;
    int filled = (int)(done * width / result->steps);
    bool last = done == result->steps;

    if (done == 0) {
        return;
    }
    if (isatty(STDOUT_FILENO)) {
        if (last || done % 5 == 0) {
            printf("\r%-4s  [%-*.*s] %lld/%lld  loss %.4f%s", result->dtype, width, filled, bar,
                   (long long)done, (long long)result->steps, mean_before(result->losses, done, 20),
                   last ? "\n" : "");
        }
    } else if (last || done % 100 == 0) {
        printf("%-4s  step %lld of %lld, loss %.4f\n", result->dtype, (long long)done,
               (long long)result->steps, mean_before(result->losses, done, 20));
    }
    fflush(stdout);
}

static int train(struct digits_model *model, const struct digits_options *options,
                 const struct digits *digits, struct digits_result *result)
{
    struct digits_random random;
    int64_t begun_ns = now_ns();
    int64_t ns;
    enum fp8pipe_status status = FP8PIPE_OK;

    digits_random_seed(&random, (uint64_t)options->seed, DIGITS_RANDOM_BATCHES);
    for (int64_t step = 0; step < options->steps && status == FP8PIPE_OK; step++) {
        struct digits_batch *batch = digits_model_batch(model);

        progress(result, step > DIGITS_MODEL_STEPS_AHEAD ? step - DIGITS_MODEL_STEPS_AHEAD : 0);
        digits_batch_draw(digits, &random, options->crops, batch);
        status =
            digits_model_train(model, (float)rate(step, options->steps), &result->losses[step]);
    }
    if (status == FP8PIPE_OK) {
        status = digits_model_finish(model);
    }
    if (status != FP8PIPE_OK) {
        return complain(digits_model_error(model));
    }
    progress(result, options->steps);
    result->train_seconds = seconds_since(begun_ns);
    result->final_loss = mean_before(result->losses, options->steps, FINAL_STEPS);
    digits_model_enqueued(model, &result->ops, &ns);
    result->submit_ns = (double)ns / (double)result->ops;
    return 0;
}

static int sample(struct digits_model *model, const struct digits_options *options,
                  const struct digits *digits, struct digits_result *result)
{
    struct digits_random random;
    int64_t begun_ns = now_ns();
    int32_t labels[SAMPLES];

    digits_random_seed(&random, (uint64_t)options->seed, DIGITS_RANDOM_SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = i / SAMPLES_PER_CLASS;
    }
    if (digits_model_sample(model, labels, SAMPLES, EULER_STEPS, GUIDANCE, &random,
                            result->samples) != FP8PIPE_OK) {
        return complain(digits_model_error(model));
    }
    result->sample_seconds = seconds_since(begun_ns);
    for (int i = 0; i < SAMPLES; i++) {
        result->named_right += digits_classify(digits, result->samples[i]) == labels[i];
    }
    return 0;
}

static int run_dtype(struct fp8pipe *pipe, const struct digits_options *options,
                     enum digits_dtype dtype, const struct digits *digits,
                     struct digits_result *result)
{
    struct digits_model_options model_options = {
        .dtype = dtype,
        .hidden = options->hidden,
        .depth = options->depth,
        .heads = options->heads,
        .batch = options->batch,
        .seed = (uint64_t)options->seed,
    };
    struct digits_model *model;
    enum fp8pipe_status status;
    int failed;

    result->dtype = digits_dtype_name(dtype);
    result->steps = options->steps;
    result->sample_count = SAMPLES;
    result->losses = calloc((size_t)options->steps, sizeof(*result->losses));
    result->samples = calloc(SAMPLES, sizeof(*result->samples));
    if (!result->losses || !result->samples) {
        return complain("out of memory");
    }
    status = digits_model_create(pipe, &model_options, &model);
    if (status != FP8PIPE_OK) {
        return refused("making the model", status);
    }
    failed = train(model, options, digits, result);
    if (failed == 0) {
        failed = sample(model, options, digits, result);
    }
    digits_model_destroy(model);
    return failed;
}

/* Some real images of each class, as far apart in the data set as they can be. */
static void choose_real(const struct digits *digits,
                        float real[DIGITS_CLASSES * DRAWN_PER_CLASS][DIGITS_PIXELS])
{
    int64_t first = 0;

    for (int label = 0; label < DIGITS_CLASSES; label++) {
        int64_t end = first;

        while (end < digits->count && digits->labels[end] == label) {
            end++;
        }
        for (int i = 0; i < DRAWN_PER_CLASS; i++) {
            memcpy(real[label * DRAWN_PER_CLASS + i],
                   digits->images[first + (end - first) * i / DRAWN_PER_CLASS], sizeof(real[0]));
        }
        first = end;
    }
}

static int write_files(const struct digits_options *options, const struct digits *digits,
                       const struct digits_run *run)
{
    float real[DIGITS_CLASSES * DRAWN_PER_CLASS][DIGITS_PIXELS];
    struct digits_panel panels[DIGITS_DTYPES + 1];
    char error[ERROR_BYTES];

    choose_real(digits, real);
    for (int i = 0; i < run->result_count; i++) {
        panels[i] =
            (struct digits_panel){run->results[i].samples, SAMPLES_PER_CLASS, DRAWN_PER_CLASS};
    }
    panels[run->result_count] = (struct digits_panel){real, DRAWN_PER_CLASS, DRAWN_PER_CLASS};
    if (digits_png_write(options->out, panels, run->result_count + 1, error, sizeof(error)) != 0 ||
        (options->csv && digits_csv_write(options->csv, run, error, sizeof(error)) != 0) ||
        (options->json && digits_json_write(options->json, run, error, sizeof(error)) != 0)) {
        return complain(error);
    }
    printf("\n%s: drawn by ", options->out);
    for (int i = 0; i < run->result_count; i++) {
        printf("%s, then ", run->results[i].dtype);
    }
    printf("real ones, from left to right\n");
    return 0;
}

/* Prints the table; -1 if a loss was not finite. */
static int report(const struct digits_run *run)
{
    int failed = 0;

    printf("\n%-6s %11s %12s %10s %10s %14s\n", "dtype", "final loss", "named right", "training",
           "sampling", "enqueuing");
    for (int i = 0; i < run->result_count; i++) {
        const struct digits_result *result = &run->results[i];

        printf("%-6s %11.4f %10.1f %% %8.1f s %8.1f s %8.0f ns/op\n", result->dtype,
               result->final_loss,
               100.0 * (double)result->named_right / (double)result->sample_count,
               result->train_seconds, result->sample_seconds, result->submit_ns);
    }
    if (run->result_count == 2) {
        printf("\n%s's loss is %+.2f %% from %s's\n", run->results[0].dtype,
               100.0 * (run->results[0].final_loss / run->results[1].final_loss - 1.0),
               run->results[1].dtype);
    }
    for (int i = 0; i < run->result_count; i++) {
        const struct digits_result *result = &run->results[i];

        for (int64_t step = 0; step < result->steps; step++) {
            if (!isfinite(result->losses[step])) {
                fprintf(stderr, "dit_digits: %s's loss is not finite at step %lld\n", result->dtype,
                        (long long)step + 1);
                failed = -1;
                break;
            }
        }
    }
    return failed;
}

static int run_all(struct fp8pipe *pipe, const struct digits_options *options,
                   const struct digits *digits)
{
    struct digits_result results[DIGITS_DTYPES] = {{.dtype = NULL}};
    struct digits_run run = {.steps = options->steps,
                             .hidden = options->hidden,
                             .depth = options->depth,
                             .heads = options->heads,
                             .batch = options->batch,
                             .seed = (uint64_t)options->seed,
                             .crops = options->crops,
                             .results = results,
                             .result_count = options->dtype_count};
    enum fp8pipe_backend backend;
    enum fp8pipe_status status = fp8pipe_backend_get(pipe, &backend);
    int failed = 0;

    if (status != FP8PIPE_OK) {
        return refused("asking for the backend", status);
    }
    run.backend = backend == FP8PIPE_BACKEND_CUDA ? "cuda" : "host";
    printf("libfp8pipe %s, %s backend: %lld digits, hidden %lld, depth %lld, %lld heads, "
           "batch %lld, seed %lld\n",
           fp8pipe_version(), run.backend, (long long)digits->count, (long long)options->hidden,
           (long long)options->depth, (long long)options->heads, (long long)options->batch,
           (long long)options->seed);
    for (int i = 0; i < options->dtype_count && failed == 0; i++) {
        failed = run_dtype(pipe, options, options->dtypes[i], digits, &results[i]);
    }
    if (failed == 0) {
        failed = report(&run);
        failed |= write_files(options, digits, &run);
    }
    for (int i = 0; i < options->dtype_count; i++) {
        free(results[i].losses);
        free(results[i].samples);
    }
    return failed;
}

/* What would fail only at the end of the run. */
static int check_files(const struct digits_options *options)
{
    const char *paths[] = {options->out, options->csv, options->json};
    char error[ERROR_BYTES];

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (paths[i] && digits_file_check(paths[i], error, sizeof(error)) != 0) {
            return complain(error);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct fp8pipe_options pipe_options = FP8PIPE_OPTIONS_INIT;
    struct digits_options options;
    struct digits digits;
    struct fp8pipe *pipe;
    enum fp8pipe_status status;
    char error[ERROR_BYTES];
    int failed;

    if (digits_options_parse(argc, argv, &options, error, sizeof(error)) != 0) {
        complain(error);
        return 2;
    }
    if (options.help) {
        digits_options_help(stdout);
        return 0;
    }
    if (check_files(&options) != 0) {
        return 2;
    }
    if (digits_load(options.data, &digits, error, sizeof(error)) != 0) {
        fprintf(stderr, "dit_digits: %s (--data names the folder)\n", error);
        return 2;
    }
    pipe_options.backend = options.backend;
    pipe_options.lanes = DIGITS_MODEL_LANES;
    status = fp8pipe_open(&pipe_options, &pipe);
    if (status != FP8PIPE_OK) {
        refused("opening a pipe", status);
        digits_free(&digits);
        return 2;
    }
    failed = run_all(pipe, &options, &digits);
    status = fp8pipe_close(pipe, 0, -1);
    if (status != FP8PIPE_OK) {
        failed = refused("closing the pipe", status);
    }
    digits_free(&digits);
    return failed == 0 ? 0 : 1;
}
