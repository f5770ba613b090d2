#include "bench_report.h"

#include <time.h>
#include <unistd.h>

#include "json.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

static const char *const gemm_names[BENCH_GEMMS] = {"forward", "dgrad", "wgrad"};
static const char *const layer_names[BENCH_LAYERS] = {"modulation",    "self_attn", "cross_attn_q",
                                                      "cross_attn_kv", "mlp1",      "mlp2"};

static const char *mode(const struct bench_options *options)
{
    return options->train ? "train" : "forward";
}

static const char *backend(const struct bench_result *result)
{
    return result->backend == FP8PIPE_BACKEND_CUDA ? "cuda" : "host";
}

/* ---- Text ---------------------------------------------------------------------------------- */

static void print_floor(FILE *file, const struct bench_options *options,
                        const struct bench_result *result)
{
    const struct bench_floor *floor = &result->floor;

    for (int i = 0; i < BENCH_LAYERS; i++) {
        fprintf(file, "  gemm %-14s", layer_names[i]);
        for (int kind = 0; kind < (options->train ? BENCH_GEMMS : 1); kind++) {
            fprintf(file, "  %s %.1f us", gemm_names[kind], floor->gemm_us[i][kind]);
        }
        fprintf(file, "\n");
    }
    fprintf(file, "  %-19s %.3f TB/s\n", "copy", 1e-12 * floor->copy_bytes_per_s);
    fprintf(file, "  %-19s %.3f ms: GEMMs %.3f, %.2f GB between them %.3f\n", "floor", floor->ms,
            floor->gemms_ms, 1e-9 * floor->traffic_bytes, floor->ms - floor->gemms_ms);
    fprintf(file, "  %-19s %.3f\n", "time over floor", result->ms_mean / floor->ms);
}

static void print_cosine(FILE *file, const struct bench_cosine *cosine)
{
    for (int i = 0; i < BENCH_LAYERS; i++) {
        fprintf(file, "  %-19s %.5f median\n", layer_names[i], cosine->medians[i]);
    }
    fprintf(file, "  %-19s %.5f median, %.5f worst (%s)\n", "all weight gradients", cosine->median,
            cosine->worst, cosine->where);
}

static void print_first(FILE *file, const struct bench_first *first)
{
    fprintf(file, "  %-19s %.3f ms median, %.3f x the later ones; at worst %.3f x, %lld tokens\n",
            "first at a shape", first->ms_median, first->ratio_median, first->ratio_worst,
            (long long)first->rows_worst);
}

void bench_report_print(FILE *file, const struct bench_options *options,
                        const struct bench_result *result)
{
    fprintf(file,
            "dit_bench %s %s, %s backend (%s): batch %lld x %lld%s, hidden %lld, depth %lld, "
            "%.3f G parameters\n",
            mode(options), bench_dtype_name(options->dtype), backend(result), result->device.name,
            (long long)options->batch, (long long)options->tokens,
            options->dynamic ? " at most" : "", (long long)options->hidden,
            (long long)options->depth, 1e-9 * (double)result->parameters);
    if (result->fault[0]) {
        fprintf(file, "  not finite: %s; no time is told\n", result->fault);
        return;
    }
    if (options->loss_run) {
        fprintf(file, "  %-19s %.6g over the last %lld of %lld steps\n", "mean loss", result->loss,
                (long long)(options->loss_run < BENCH_LOSS_WINDOW ? options->loss_run
                                                                  : BENCH_LOSS_WINDOW),
                (long long)options->loss_run);
        return;
    }
    if (result->has_cosine) {
        print_cosine(file, &result->cosine);
        return;
    }
    fprintf(file, "  %-19s %.3f ms mean, %.3f median\n", "an iteration", result->ms_mean,
            result->ms_median);
    if (result->first.shapes > 0) {
        print_first(file, &result->first);
    }
    fprintf(file, "  %-19s %.3f ms mean, %.3f median\n", "on the stream", result->stream_ms_mean,
            result->stream_ms_median);
    fprintf(file, "  %-19s %.3f ms for %.0f ops\n", "caller's CPU", result->caller_cpu_ms,
            result->ops);
    fprintf(file, "  %-19s %.3f ms\n", "launchers' CPU", result->launcher_cpu_ms);
    if (result->idle_ms >= 0.0) {
        fprintf(file, "  %-19s %.3f ms, %.2f %%\n", "idle", result->idle_ms,
                100.0 * result->idle_ms / result->ms_mean);
    }
    fprintf(file, "  %-19s %.1f ms after the start\n", "first iteration", result->first_ms);
    fprintf(file, "  %-19s %.3f GiB, expected %.3f\n", "memory", result->memory_bytes / GIB,
            result->needed_bytes / GIB);
    if (result->backend == FP8PIPE_BACKEND_CUDA) {
        fprintf(file, "  %-19s %.0f issued from %.0f records, %.0f evicted\n",
                "GEMM calls replayed", result->replayed, result->replays, result->replays_evicted);
    }
    if (options->train) {
        fprintf(file, "  %-19s %.6g\n", "loss", result->loss);
    }
    if (result->has_floor) {
        print_floor(file, options, result);
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void write_floor(struct json *json, const struct bench_options *options,
                        const struct bench_result *result)
{
    const struct bench_floor *floor = &result->floor;

    json_number(json, "floor_ms", floor->ms);
    json_number(json, "floor_gemms_ms", floor->gemms_ms);
    json_number(json, "floor_traffic_bytes", floor->traffic_bytes);
    json_number(json, "copy_bytes_per_s", floor->copy_bytes_per_s);
    json_number(json, "over_floor", result->ms_mean / floor->ms);
    json_object(json, "gemm_us");
    json_lines(json, -1);
    for (int i = 0; i < BENCH_LAYERS; i++) {
        json_object(json, layer_names[i]);
        for (int kind = 0; kind < (options->train ? BENCH_GEMMS : 1); kind++) {
            json_fixed(json, gemm_names[kind], 3, floor->gemm_us[i][kind]);
        }
        json_object_end(json);
    }
    json_object_end(json);
    json_lines(json, 3);
}

static void write_first(struct json *json, const struct bench_first *first)
{
    json_number(json, "first_at_shape_shapes", (double)first->shapes);
    json_number(json, "first_at_shape_ms_median", first->ms_median);
    json_number(json, "first_at_shape_ratio_median", first->ratio_median);
    json_number(json, "first_at_shape_ratio_worst", first->ratio_worst);
    json_number(json, "first_at_shape_tokens_worst", (double)first->rows_worst);
}

static void write_times(struct json *json, const struct bench_options *options,
                        const struct bench_result *result)
{
    if (options->loss_run) {
        json_number(json, "loss", result->loss);
        return;
    }
    if (result->has_cosine) {
        json_number(json, "cosine_median", result->cosine.median);
        json_number(json, "cosine_worst", result->cosine.worst);
        return;
    }
    json_number(json, "ms_mean", result->ms_mean);
    json_number(json, "ms_median", result->ms_median);
    if (result->first.shapes > 0) {
        write_first(json, &result->first);
    }
    json_number(json, "stream_ms_mean", result->stream_ms_mean);
    json_number(json, "stream_ms_median", result->stream_ms_median);
    json_number(json, "caller_cpu_ms", result->caller_cpu_ms);
    json_number(json, "launcher_cpu_ms", result->launcher_cpu_ms);
    json_number(json, "ops", result->ops);
    json_number(json, "first_ms", result->first_ms);
    json_number(json, "memory_bytes", result->memory_bytes);
    json_number(json, "memory_expected_bytes", result->needed_bytes);
    json_number(json, "plans", result->plans);
    json_number(json, "plans_borrowed", result->plans_borrowed);
    json_number(json, "plans_refined", result->plans_refined);
    json_number(json, "replays", result->replays);
    json_number(json, "replays_evicted", result->replays_evicted);
    json_number(json, "replayed", result->replayed);
    if (result->idle_ms >= 0.0) {
        json_number(json, "idle_ms", result->idle_ms);
    }
    if (options->train) {
        json_number(json, "loss", result->loss);
    }
    if (result->has_floor) {
        write_floor(json, options, result);
    }
}

/* What was run, and on what. */
static void write_run(struct json *json, const struct bench_options *options,
                      const struct bench_result *result)
{
    time_t now = time(NULL);
    char date[32] = "", shape[64];
    struct tm utc;

    if (gmtime_r(&now, &utc)) {
        strftime(date, sizeof(date), "%Y-%m-%d", &utc);
    }
    snprintf(shape, sizeof(shape), "%lldx%lld%s", (long long)options->batch,
             (long long)options->tokens, options->dynamic ? " dynamic" : "");
    json_text(json, "program", "dit_bench");
    json_text(json, "version", fp8pipe_version());
    json_lines(json, 3);
    json_text(json, "mode", mode(options));
    json_lines(json, -1);
    json_text(json, "dtype", bench_dtype_name(options->dtype));
    json_text(json, "case", shape);
    json_text(json, "backend", backend(result));
    json_text(json, "issue", options->is_inline ? "inline" : "async");
    json_lines(json, 3);
    json_truth(json, "finite", !result->fault[0]);
    json_lines(json, -1);
    json_text(json, "date", date);
    json_integer(json, "driver", result->device.driver);
    json_lines(json, 3);
    json_text(json, "card", result->device.name);
    json_number(json, "batch_size", (double)options->batch);
    json_number(json, "seq_length", (double)options->tokens);
    json_number(json, "hidden_size", (double)options->hidden);
    json_number(json, "depth", (double)options->depth);
    json_number(json, "mlp_ratio", (double)options->mlp_ratio);
    json_number(json, "iters", (double)options->iterations);
    json_number(json, "lanes", (double)options->lanes);
    json_number(json, "seed", (double)options->seed);
    json_number(json, "parameters", (double)result->parameters);
}

int bench_report_json(const char *path, int argc, char **argv, const struct bench_options *options,
                      const struct bench_result *result)
{
    FILE *file = fopen(path, "w");
    struct json json = json_to(file);

    if (!file) {
        return -1;
    }
    json_object(&json, NULL);
    json_list(&json, "rows");
    json_lines(&json, 2);
    json_object(&json, NULL);
    json_lines(&json, -1);
    write_run(&json, options, result);
    json_list(&json, "arguments");
    json_lines(&json, -1);
    for (int i = 1; i < argc; i++) {
        json_text(&json, NULL, argv[i]);
    }
    json_list_end(&json);
    json_lines(&json, 3);
    if (result->fault[0]) {
        json_text(&json, "fault", result->fault);
    } else {
        write_times(&json, options, result);
    }
    json_lines(&json, 2);
    json_object_end(&json);
    json_lines(&json, 0);
    json_list_end(&json);
    json_lines(&json, -1);
    json_object_end(&json);
    return json_close(&json);
}

int bench_report_path_check(const char *path)
{
    int exists = access(path, F_OK) == 0;
    FILE *file = fopen(path, "a");

    if (!file) {
        return -1;
    }
    fclose(file);
    if (!exists) {
        unlink(path);
    }
    return 0;
}
