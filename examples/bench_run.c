#include "bench_run.h"

#include <fp8pipe_trace.h>
#include <fp8pipe_tune.h>
#include <math.h>
#include <stdlib.h>

#include "bench_median.h"
#include "bench_pass.h"
#include "clock.h"

/* Iterations that are enqueued while another one runs; of those that change shapes none is, so that
 * the time of each is its own. */
#define AHEAD 3
#define AHEAD_DYNAMIC 1
#define PROFILED_OPS (1u << 16)
#define INFINITY_BITS 0x7F800000u

/* ---- Checks --------------------------------------------------------------------------------- */

static void fault(struct bench_result *result, const char *sentence)
{
    if (!result->fault[0]) {
        snprintf(result->fault, sizeof(result->fault), "%s", sentence);
    }
}

/* The losses that are kept are all finite; the last one. */
static double check_losses(struct bench_chain *chain, const struct bench_model *model,
                           struct bench_result *result)
{
    int64_t count = model->loss_count < model->loss_room ? model->loss_count : model->loss_room;
    double *losses = calloc((size_t)count, sizeof(*losses));
    double last = NAN;

    if (!losses) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "losses");
        return last;
    }
    bench_chain_read(chain, losses, model->losses, (size_t)count * sizeof(*losses));
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(losses[i])) {
            fault(result, "a loss is not finite");
        }
    }
    last = losses[(model->loss_count - 1) % model->loss_room];
    free(losses);
    return last;
}

/* No step may have been skipped: it would have cost no time. */
static void check_training(struct bench_chain *chain, const struct bench_model *model,
                           struct bench_result *result)
{
    int32_t nonfinite = 1;
    int64_t steps = 0;

    check_losses(chain, model, result);
    bench_chain_read(chain, &nonfinite, model->nonfinite, sizeof(nonfinite));
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_optimizer_steps_get(model->optimizer, &steps), "steps");
    }
    if (chain->status != FP8PIPE_OK) {
        return;
    }
    if (nonfinite) {
        fault(result, "a gradient is not finite");
    }
    if (steps != model->loss_count) {
        fault(result, "an optimizer step was skipped");
    }
}

void bench_run_check(struct bench_chain *chain, struct bench_model *model, int64_t rows,
                     struct bench_result *result)
{
    struct bench_pass pass = {.rows = rows, .train = model->options.train, .check = true};
    const int32_t *flag;
    uint32_t bits = INFINITY_BITS;
    int32_t nonfinite = 0;

    bench_chain_drain(chain);
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain,
                         fp8pipe_fill(chain->pipe, model->max_bits, 0, sizeof(*model->max_bits)),
                         "checking");
    }
    bench_pass_run(chain, model, &pass);
    bench_chain_read(chain, &bits, model->max_bits, sizeof(bits));
    if (model->scaling && chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_scaling_nonfinite_get(model->scaling, &flag), "scaling");
        bench_chain_read(chain, &nonfinite, flag, sizeof(nonfinite));
    }
    if (chain->status != FP8PIPE_OK) {
        return;
    }
    if (bits >= INFINITY_BITS) {
        fault(result, "a block's output is not finite");
    }
    if (nonfinite) {
        fault(result, "a quantized tensor is not finite");
    }
    if (pass.train) {
        check_training(chain, model, result);
    }
}

/* ---- Timed runs ------------------------------------------------------------------------------ */

static void tune(struct bench_chain *chain, const struct bench_model *model)
{
    struct fp8pipe_tune_options options = FP8PIPE_TUNE_OPTIONS_INIT;

    options.file = model->options.tune_file;
    bench_chain_drain(chain);
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_tune(chain->pipe, &options), "tuning");
    }
}

static void profile(struct bench_chain *chain, struct bench_model *model, int64_t rows)
{
    struct fp8pipe_trace_options options = FP8PIPE_TRACE_OPTIONS_INIT;
    struct bench_pass pass = {.rows = rows, .train = model->options.train};

    options.ops = PROFILED_OPS;
    bench_chain_drain(chain);
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_trace_start(chain->pipe, &options), "profile");
    }
    bench_pass_run(chain, model, &pass);
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_trace_stop(chain->pipe, model->options.profile), "profile");
    }
}

static void stats(struct bench_chain *chain, int32_t lane, struct fp8pipe_stats *stats)
{
    *stats = (struct fp8pipe_stats)FP8PIPE_STATS_INIT;
    bench_chain_keep(chain, fp8pipe_stats_get(chain->pipe, lane, stats), "stats");
}

static void mark(struct bench_chain *chain, struct bench_marks *marks, int64_t index)
{
    struct bench_op op = {.kind = BENCH_MARK, .mark = {marks, index}};

    bench_chain_call(chain, "mark", &op);
}

/* What the timed iterations measure. */
struct times {
    struct bench_marks marks; /* iterations + 1 */
    double *wall_ms;          /* iterations */
    double *stream_ms;
    int64_t *rows;
    fp8pipe_ticket *tickets;
    int64_t caller_ns;
    double total_ms;
};

static int times_create(struct times *times, enum fp8pipe_backend backend, int64_t iterations)
{
    *times = (struct times){.wall_ms = calloc((size_t)iterations, sizeof(double)),
                            .stream_ms = calloc((size_t)iterations, sizeof(double)),
                            .rows = calloc((size_t)iterations, sizeof(int64_t)),
                            .tickets = calloc((size_t)iterations, sizeof(fp8pipe_ticket))};
    return !times->wall_ms || !times->stream_ms || !times->rows || !times->tickets ||
                   bench_marks_create(&times->marks, backend, iterations + 1) != 0
               ? -1
               : 0;
}

static void times_clear(struct times *times)
{
    bench_marks_clear(&times->marks);
    free(times->tickets);
    free(times->rows);
    free(times->stream_ms);
    free(times->wall_ms);
}

/* Waits for iteration i, and takes the time since the one before. */
static void finish(struct bench_chain *chain, struct times *times, int64_t i, int64_t *before_ns)
{
    int64_t ended_ns;

    bench_chain_wait(chain, times->tickets[i]);
    ended_ns = now_ns();
    times->wall_ms[i] = 1e-6 * (double)(ended_ns - *before_ns);
    *before_ns = ended_ns;
}

static void iterate(struct bench_chain *chain, struct bench_model *model, struct times *times)
{
    int64_t count = model->options.iterations;
    int64_t ahead = model->options.dynamic ? AHEAD_DYNAMIC : AHEAD;
    int64_t begun_ns;
    int64_t before_ns;

    mark(chain, &times->marks, 0);
    bench_chain_drain(chain);
    begun_ns = before_ns = now_ns();
    for (int64_t i = 0; i < count; i++) {
        struct bench_pass pass = {.rows = bench_shapes_rows(&model->options, i),
                                  .train = model->options.train};
        int64_t cpu_ns;

        if (i >= ahead) {
            finish(chain, times, i - ahead, &before_ns);
        }
        cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        bench_pass_run(chain, model, &pass);
        times->caller_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
        mark(chain, &times->marks, i + 1);
        times->rows[i] = pass.rows;
        times->tickets[i] = chain->last;
    }
    for (int64_t i = count > ahead ? count - ahead : 0; i < count; i++) {
        finish(chain, times, i, &before_ns);
    }
    times->total_ms = 1e-6 * (double)(before_ns - begun_ns);
    bench_chain_drain(chain);
}

static void summarise(struct times *times, int64_t count, const struct fp8pipe_stats *before,
                      const struct fp8pipe_stats *after, bool idle, struct bench_result *result)
{
    double n = (double)count;

    for (int64_t i = 0; i < count; i++) {
        times->stream_ms[i] = bench_marks_ms(&times->marks, i, i + 1);
    }
    result->stream_ms_mean = bench_marks_ms(&times->marks, 0, count) / n;
    result->stream_ms_median = bench_median(times->stream_ms, count);
    result->ms_mean = times->total_ms / n;
    result->ms_median = bench_median(times->wall_ms, count);
    result->caller_cpu_ms = 1e-6 * (double)times->caller_ns / n;
    result->launcher_cpu_ms =
        1e-6 * (double)(after[1].launcher_cpu_ns - before[1].launcher_cpu_ns) / n;
    result->idle_ms = idle ? 1e-6 * (double)(after[0].idle_ns - before[0].idle_ns) / n : -1.0;
    result->memory_bytes = (double)after[1].memory_peak_bytes;
    result->plans = (double)after[1].plans;
    result->plans_borrowed = (double)after[1].plans_borrowed;
    result->plans_refined = (double)after[1].plans_refined;
    result->replays = (double)after[1].replays;
    result->replays_evicted = (double)after[1].replays_evicted;
    result->replayed = (double)after[1].replayed;
}

/* At the most tokens alone: in a dynamic run every other shape is new to the timed iterations. */
static void warm_up(struct bench_chain *chain, struct bench_model *model, int64_t opened_ns,
                    struct bench_result *result)
{
    struct bench_pass pass = {.rows = model->rows, .train = model->options.train};

    for (int64_t i = 0; i < model->options.warm_up; i++) {
        bench_pass_run(chain, model, &pass);
        bench_chain_drain(chain);
        if (i == 0) {
            result->first_ms = 1e-6 * (double)(now_ns() - opened_ns);
        }
    }
}

void bench_run_timed(struct bench_chain *chain, struct bench_model *model, int64_t opened_ns,
                     struct bench_result *result)
{
    struct fp8pipe_stats before[2]; /* of lane 0, and of all lanes */
    struct fp8pipe_stats after[2];
    struct times times;
    uint64_t enqueued;

    bench_model_data(chain, model, 0);
    warm_up(chain, model, opened_ns, result);
    if (model->options.tune) {
        tune(chain, model);
    }
    bench_run_check(chain, model, model->rows, result);
    if (chain->status != FP8PIPE_OK || result->fault[0]) {
        return;
    }
    if (times_create(&times, result->backend, model->options.iterations) != 0) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "times");
    } else {
        stats(chain, 0, &before[0]);
        stats(chain, -1, &before[1]);
        enqueued = chain->enqueued;
        iterate(chain, model, &times);
        /* But for the marks. */
        result->ops =
            (double)(chain->enqueued - enqueued - 1) / (double)model->options.iterations - 1.0;
        stats(chain, 0, &after[0]);
        stats(chain, -1, &after[1]);
        if (model->options.train) {
            result->loss = check_losses(chain, model, result);
        }
        if (model->options.dynamic &&
            bench_shapes_first(times.rows, times.wall_ms, model->options.iterations, model->rows,
                               &result->first) != 0) {
            bench_chain_keep(chain, FP8PIPE_ENOMEM, "times");
        }
        summarise(&times, model->options.iterations, before, after, !model->options.no_idle,
                  result);
        if (model->options.profile) {
            profile(chain, model, model->rows);
        }
        bench_run_check(chain, model, model->rows, result);
    }
    times_clear(&times);
}

void bench_run_losses(struct bench_chain *chain, struct bench_model *model,
                      struct bench_result *result)
{
    int64_t steps = model->options.loss_run;
    int64_t count = steps < BENCH_LOSS_WINDOW ? steps : BENCH_LOSS_WINDOW;
    struct bench_pass pass = {.rows = model->rows, .train = true};
    double losses[BENCH_LOSS_WINDOW];
    double sum = 0.0;

    for (int64_t i = 0; i < steps && chain->status == FP8PIPE_OK; i++) {
        bench_model_data(chain, model, i);
        bench_pass_run(chain, model, &pass);
        if (i % AHEAD == 0) {
            bench_chain_wait(chain, chain->last);
        }
    }
    bench_chain_read(chain, losses, model->losses + (steps - count),
                     (size_t)count * sizeof(*losses));
    for (int64_t i = 0; i < count && chain->status == FP8PIPE_OK; i++) {
        sum += losses[i];
    }
    result->loss = sum / (double)count;
    bench_run_check(chain, model, model->rows, result);
}
