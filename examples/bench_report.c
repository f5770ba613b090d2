#include "bench_report.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

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
    if (options->train) {
        fprintf(file, "  %-19s %.6g\n", "loss", result->loss);
    }
    if (result->has_floor) {
        print_floor(file, options, result);
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_text(FILE *file, const char *text)
{
    putc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            putc('\\', file);
        }
        if ((unsigned char)*text >= ' ') {
            putc(*text, file);
        }
    }
    putc('"', file);
}

static void json_number(FILE *file, const char *name, double value)
{
    if (isfinite(value)) {
        fprintf(file, ",\n   \"%s\": %.9g", name, value);
    } else {
        fprintf(file, ",\n   \"%s\": null", name);
    }
}

static void json_floor(FILE *file, const struct bench_options *options,
                       const struct bench_result *result)
{
    const struct bench_floor *floor = &result->floor;

    json_number(file, "floor_ms", floor->ms);
    json_number(file, "floor_gemms_ms", floor->gemms_ms);
    json_number(file, "floor_traffic_bytes", floor->traffic_bytes);
    json_number(file, "copy_bytes_per_s", floor->copy_bytes_per_s);
    json_number(file, "over_floor", result->ms_mean / floor->ms);
    fprintf(file, ",\n   \"gemm_us\": {");
    for (int i = 0; i < BENCH_LAYERS; i++) {
        fprintf(file, "%s\"%s\": {", i ? ", " : "", layer_names[i]);
        for (int kind = 0; kind < (options->train ? BENCH_GEMMS : 1); kind++) {
            fprintf(file, "%s\"%s\": %.3f", kind ? ", " : "", gemm_names[kind],
                    floor->gemm_us[i][kind]);
        }
        fprintf(file, "}");
    }
    fprintf(file, "}");
}

static void json_first(FILE *file, const struct bench_first *first)
{
    json_number(file, "first_at_shape_shapes", (double)first->shapes);
    json_number(file, "first_at_shape_ms_median", first->ms_median);
    json_number(file, "first_at_shape_ratio_median", first->ratio_median);
    json_number(file, "first_at_shape_ratio_worst", first->ratio_worst);
    json_number(file, "first_at_shape_tokens_worst", (double)first->rows_worst);
}

static void json_times(FILE *file, const struct bench_options *options,
                       const struct bench_result *result)
{
    if (options->loss_run) {
        json_number(file, "loss", result->loss);
        return;
    }
    if (result->has_cosine) {
        json_number(file, "cosine_median", result->cosine.median);
        json_number(file, "cosine_worst", result->cosine.worst);
        return;
    }
    json_number(file, "ms_mean", result->ms_mean);
    json_number(file, "ms_median", result->ms_median);
    if (result->first.shapes > 0) {
        json_first(file, &result->first);
    }
    json_number(file, "stream_ms_mean", result->stream_ms_mean);
    json_number(file, "stream_ms_median", result->stream_ms_median);
    json_number(file, "caller_cpu_ms", result->caller_cpu_ms);
    json_number(file, "launcher_cpu_ms", result->launcher_cpu_ms);
    json_number(file, "ops", result->ops);
    json_number(file, "first_ms", result->first_ms);
    json_number(file, "memory_bytes", result->memory_bytes);
    json_number(file, "memory_expected_bytes", result->needed_bytes);
    json_number(file, "plans", result->plans);
    json_number(file, "plans_borrowed", result->plans_borrowed);
    json_number(file, "plans_refined", result->plans_refined);
    if (result->idle_ms >= 0.0) {
        json_number(file, "idle_ms", result->idle_ms);
    }
    if (options->train) {
        json_number(file, "loss", result->loss);
    }
    if (result->has_floor) {
        json_floor(file, options, result);
    }
}

int bench_report_json(const char *path, int argc, char **argv, const struct bench_options *options,
                      const struct bench_result *result)
{
    FILE *file = fopen(path, "w");
    time_t now = time(NULL);
    struct tm utc;
    char date[32] = "";
    int failed;

    if (!file) {
        return -1;
    }
    if (gmtime_r(&now, &utc)) {
        strftime(date, sizeof(date), "%Y-%m-%d", &utc);
    }
    fprintf(
        file,
        "{\"rows\": [\n  {\"program\": \"dit_bench\", \"version\": \"%s\",\n"
        "   \"mode\": \"%s\", \"dtype\": \"%s\", \"case\": \"%lldx%lld%s\", \"backend\": \"%s\","
        " \"issue\": \"%s\",\n   \"finite\": %s, \"date\": \"%s\", \"driver\": %d,\n"
        "   \"card\": ",
        fp8pipe_version(), mode(options), bench_dtype_name(options->dtype),
        (long long)options->batch, (long long)options->sequence, options->dynamic ? " dynamic" : "",
        backend(result), options->is_inline ? "inline" : "async",
        result->fault[0] ? "false" : "true", date, (int)result->device.driver);
    json_text(file, result->device.name);
    json_number(file, "batch_size", (double)options->batch);
    json_number(file, "seq_length", (double)options->sequence);
    json_number(file, "hidden_size", (double)options->hidden);
    json_number(file, "depth", (double)options->depth);
    json_number(file, "mlp_ratio", (double)options->mlp_ratio);
    json_number(file, "iters", (double)options->iterations);
    json_number(file, "lanes", (double)options->lanes);
    json_number(file, "seed", (double)options->seed);
    json_number(file, "parameters", (double)result->parameters);
    fprintf(file, ",\n   \"arguments\": [");
    for (int i = 1; i < argc; i++) {
        fputs(i > 1 ? ", " : "", file);
        json_text(file, argv[i]);
    }
    fprintf(file, "]");
    if (result->fault[0]) {
        fprintf(file, ",\n   \"fault\": ");
        json_text(file, result->fault);
    } else {
        json_times(file, options, result);
    }
    fprintf(file, "\n  }\n]}\n");
    failed = ferror(file);
    return fclose(file) != 0 || failed ? -1 : 0;
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
