/*
 * The toy diffusion transformer of a public report, timed: its forward pass, or whole training
 * steps with AdamW, with its linear layers in FP8, bf16 or float32 and all that lies between them
 * fused with the quantizes. See --help.
 *
 * Exit status: 0; 1 if the run failed, or was not finite, or its gradients are wrong; 2 if it was
 * refused before it began.
 */
#include <fp8pipe.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "bench_check.h"
#include "bench_layout.h"
#include "bench_report.h"
#include "clock.h"

#define RING_SLOTS 8192 /* several iterations fit */
#define CHECK_PASSES 4
#define ERROR_BYTES 512
#define GIB (1024.0 * 1024.0 * 1024.0)

enum { OK = 0, FAILED = 1, REFUSED = 2 };

static int complain(int code, const char *sentence)
{
    fprintf(stderr, "dit_bench: %s\n", sentence);
    return code;
}

/* What would fail only at the end of the run. */
static int check_paths(const struct bench_options *options)
{
    const char *paths[] = {options->json, options->profile,
                           options->tune ? options->tune_file : NULL};
    char error[ERROR_BYTES];

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (paths[i] && bench_report_path_check(paths[i]) != 0) {
            snprintf(error, sizeof(error), "%s cannot be written", paths[i]);
            return complain(REFUSED, error);
        }
    }
    return OK;
}

static int open_pipe(const struct bench_options *options, struct fp8pipe **pipe)
{
    struct fp8pipe_options pipe_options = FP8PIPE_OPTIONS_INIT;

    pipe_options.backend = options->backend;
    pipe_options.mode = options->is_inline ? FP8PIPE_INLINE : FP8PIPE_ASYNC;
    pipe_options.lanes = (int32_t)options->lanes;
    pipe_options.ring_slots = RING_SLOTS;
    pipe_options.measure_idle = !options->no_idle;
    pipe_options.plans = options->fixed_plans ? FP8PIPE_PLANS_FIXED : FP8PIPE_PLANS_REFINED;
    pipe_options.replays = options->no_replays ? FP8PIPE_REPLAYS_OFF : FP8PIPE_REPLAYS_ON;
    /* A file that is yet to be written is not one that is missing. */
    if (options->tune_file && !(options->tune && access(options->tune_file, F_OK) != 0)) {
        pipe_options.tune_file = options->tune_file;
    }
    if (fp8pipe_open(&pipe_options, pipe) != FP8PIPE_OK) {
        return complain(REFUSED, fp8pipe_last_error());
    }
    return OK;
}

/* What would change nothing there. */
static int check_backend(const struct bench_options *options, enum fp8pipe_backend backend)
{
    if (backend != FP8PIPE_BACKEND_HOST || (!options->tune && !options->tune_file)) {
        return OK;
    }
    return complain(REFUSED, options->tune
                                 ? "--tune needs the cuda backend: the host has no GEMMs to tune"
                                 : "--tune_file needs the cuda backend: the host tunes no GEMMs");
}

/* Before anything large is allocated. */
static int check_memory(const struct bench_options *options, struct bench_result *result)
{
    char error[ERROR_BYTES];

    result->needed_bytes = bench_layout_bytes(options, &result->parameters);
    if (result->needed_bytes <= result->device.free_bytes) {
        return OK;
    }
    snprintf(error, sizeof(error),
             "these sizes need %.2f GiB of memory, but %s has %.2f GiB free of %.2f",
             result->needed_bytes / GIB, result->device.name, result->device.free_bytes / GIB,
             result->device.total_bytes / GIB);
    return complain(REFUSED, error);
}

static int check_gradients(struct bench_chain *chain, struct bench_model *model)
{
    struct bench_check_result check;

    bench_check_gradients(chain, model, &check);
    if (chain->status != FP8PIPE_OK) {
        return complain(FAILED, chain->sentence);
    }
    printf("dit_bench: gradients and finite differences of %lld parameters are at most %.2e apart "
           "(%s)\n",
           (long long)check.compared, check.worst, check.where);
    return check.worst <= BENCH_CHECK_BOUND
               ? OK
               : complain(FAILED, "a gradient is not the loss' derivative");
}

/* Tells how the run went. */
static int end(const struct bench_chain *chain, const struct bench_options *options, int argc,
               char **argv, const struct bench_result *result)
{
    if (chain->status != FP8PIPE_OK) {
        return complain(FAILED, chain->sentence);
    }
    bench_report_print(stdout, options, result);
    if (options->json && bench_report_json(options->json, argc, argv, options, result) != 0) {
        return complain(FAILED, "the JSON file could not be written");
    }
    return result->fault[0] ? FAILED : OK;
}

static int run(struct fp8pipe *pipe, const struct bench_options *options, int argc, char **argv,
               int64_t opened_ns)
{
    struct bench_chain chain = {.pipe = pipe};
    struct bench_result result = {.loss = 0.0};
    struct bench_model *model;
    int64_t passes = options->loss_run ? options->loss_run : options->iterations;
    int code;

    if (fp8pipe_backend_get(pipe, &result.backend) != FP8PIPE_OK) {
        return complain(FAILED, fp8pipe_last_error());
    }
    code = check_backend(options, result.backend);
    if (code != OK) {
        return code;
    }
    bench_device_get(result.backend, &result.device);
    code = check_memory(options, &result);
    if (code != OK) {
        return code;
    }
    if (options->cosine) {
        result.has_cosine = true;
        bench_cosine_measure(&chain, options, &result.cosine);
        if (!isfinite(result.cosine.median) || !isfinite(result.cosine.worst)) {
            snprintf(result.fault, sizeof(result.fault), "a gradient is not finite");
        }
        return end(&chain, options, argc, argv, &result);
    }
    model = bench_model_create(&chain, options, options->check ? CHECK_PASSES : passes);
    if (!model) {
        return complain(FAILED, chain.sentence);
    }
    if (options->check) {
        code = check_gradients(&chain, model);
        bench_model_destroy(model);
        return code;
    }
    if (options->loss_run) {
        bench_run_losses(&chain, model, &result);
    } else {
        bench_run_timed(&chain, model, opened_ns, &result);
    }
    bench_model_destroy(model);
    if (options->floor && chain.status == FP8PIPE_OK && !result.fault[0]) {
        result.has_floor = true;
        bench_floor_measure(&chain, options, result.backend, &result.floor);
    }
    return end(&chain, options, argc, argv, &result);
}

int main(int argc, char **argv)
{
    struct bench_options options;
    struct fp8pipe *pipe;
    char error[ERROR_BYTES];
    int64_t opened_ns;
    int code;

    if (bench_options_parse(argc, argv, &options, error, sizeof(error)) != 0) {
        return complain(REFUSED, error);
    }
    if (options.help) {
        bench_options_help(stdout);
        return OK;
    }
    code = check_paths(&options);
    if (code != OK) {
        return code;
    }
    opened_ns = now_ns();
    code = open_pipe(&options, &pipe);
    if (code != OK) {
        return code;
    }
    code = run(pipe, &options, argc, argv, opened_ns);
    fp8pipe_close(pipe, 0, -1);
    return code;
}
