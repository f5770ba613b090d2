#include "digits_image.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <png.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In pixels of the picture. */
#define ZOOM 4
#define IMAGE (DIGITS_SIDE * ZOOM)
#define GAP 4
#define PANEL_GAP 20
#define CHANNELS 3

static const png_byte paper[CHANNELS] = {255, 255, 255};
static const png_byte rule[CHANNELS] = {66, 133, 200};

struct canvas {
    png_byte *pixels;
    int width;
    int height;
};

static int fail(const char *path, const char *what, char *error, size_t error_bytes)
{
    snprintf(error, error_bytes, "cannot write %s: %s", path, what);
    return -1;
}

int digits_file_check(const char *path, char *error, size_t error_bytes)
{
    bool there = access(path, F_OK) == 0;
    FILE *file = fopen(path, "ab");

    if (!file) {
        return fail(path, strerror(errno), error, error_bytes);
    }
    fclose(file);
    if (!there) {
        remove(path);
    }
    return 0;
}

static void rectangle(struct canvas *canvas, int left, int top, int width, int height,
                      const png_byte color[CHANNELS])
{
    for (int y = top; y < top + height; y++) {
        for (int x = left; x < left + width; x++) {
            memcpy(canvas->pixels + (y * canvas->width + x) * CHANNELS, color, CHANNELS);
        }
    }
}

/* Ink is dark; what lies outside the data's range is cut off. */
static void draw(struct canvas *canvas, int left, int top, const float image[DIGITS_PIXELS])
{
    for (int i = 0; i < DIGITS_PIXELS; i++) {
        float ink = fminf(fmaxf((image[i] + 1.0f) / 2.0f, 0.0f), 1.0f);
        png_byte shade = (png_byte)lrintf(255.0f * (1.0f - 0.9f * ink));
        png_byte color[CHANNELS] = {shade, shade, shade};

        rectangle(canvas, left + i % DIGITS_SIDE * ZOOM, top + i / DIGITS_SIDE * ZOOM, ZOOM, ZOOM,
                  color);
    }
}

static int panel_width(const struct digits_panel *panel)
{
    return panel->columns * (IMAGE + GAP) - GAP;
}

static void draw_panels(struct canvas *canvas, const struct digits_panel *panels, int count)
{
    int left = GAP;

    rectangle(canvas, 0, 0, canvas->width, canvas->height, paper);
    for (int p = 0; p < count; p++) {
        if (p > 0) {
            rectangle(canvas, left - PANEL_GAP / 2 - 1, 0, 2, canvas->height, rule);
        }
        for (int64_t class = 0; class < DIGITS_CLASSES; class ++) {
            for (int column = 0; column < panels[p].columns; column++) {
                draw(canvas, left + column * (IMAGE + GAP), GAP + (int)class * (IMAGE + GAP),
                     panels[p].images[class * panels[p].per_class + column]);
            }
        }
        left += panel_width(&panels[p]) + PANEL_GAP;
    }
}

int digits_png_write(const char *path, const struct digits_panel *panels, int count, char *error,
                     size_t error_bytes)
{
    struct canvas canvas = {.width = 2 * GAP, .height = DIGITS_CLASSES * (IMAGE + GAP) + GAP};
    png_image image = {.version = PNG_IMAGE_VERSION, .format = PNG_FORMAT_RGB};
    int result = 0;

    for (int p = 0; p < count; p++) {
        canvas.width += panel_width(&panels[p]) + (p > 0 ? PANEL_GAP : 0);
    }
    canvas.pixels = calloc((size_t)canvas.height, (size_t)canvas.width * CHANNELS);
    if (!canvas.pixels) {
        return fail(path, "out of memory", error, error_bytes);
    }
    draw_panels(&canvas, panels, count);
    image.width = (png_uint_32)canvas.width;
    image.height = (png_uint_32)canvas.height;
    if (!png_image_write_to_file(&image, path, 0, canvas.pixels, 0, NULL)) {
        result = fail(path, image.message, error, error_bytes);
    }
    free(canvas.pixels);
    return result;
}

/* Closes a file that was written with stdio, where every earlier error shows at last. */
static int finish(FILE *file, const char *path, char *error, size_t error_bytes)
{
    int failed = ferror(file);

    if (fclose(file) != 0 || failed) {
        return fail(path, strerror(errno), error, error_bytes);
    }
    return 0;
}

int digits_csv_write(const char *path, const struct digits_run *run, char *error,
                     size_t error_bytes)
{
    FILE *file = fopen(path, "w");

    if (!file) {
        return fail(path, strerror(errno), error, error_bytes);
    }
    fprintf(file, "step,dtype,loss\n");
    for (int i = 0; i < run->result_count; i++) {
        const struct digits_result *result = &run->results[i];

        for (int64_t step = 0; step < result->steps; step++) {
            fprintf(file, "%" PRId64 ",%s,%.9g\n", step + 1, result->dtype, result->losses[step]);
        }
    }
    return finish(file, path, error, error_bytes);
}

/* JSON has no inf and no NaN. */
static void write_number(FILE *file, double value)
{
    if (isfinite(value)) {
        fprintf(file, "%.9g", value);
    } else {
        fprintf(file, "null");
    }
}

static void write_result(FILE *file, const struct digits_result *result)
{
    fprintf(file, "    {\n      \"dtype\": \"%s\",\n      \"final_loss\": ", result->dtype);
    write_number(file, result->final_loss);
    fprintf(file,
            ",\n      \"samples\": %" PRId64 ",\n      \"named_right\": %" PRId64
            ",\n      \"train_seconds\": %.3f,\n      \"sample_seconds\": %.3f"
            ",\n      \"train_ops\": %" PRIu64 ",\n      \"submit_ns\": %.0f,\n      \"losses\": [",
            result->sample_count, result->named_right, result->train_seconds,
            result->sample_seconds, result->ops, result->submit_ns);
    for (int64_t step = 0; step < result->steps; step++) {
        fputs(step == 0 ? "" : step % 8 == 0 ? ",\n        " : ", ", file);
        write_number(file, result->losses[step]);
    }
    fprintf(file, "]\n    }");
}

int digits_json_write(const char *path, const struct digits_run *run, char *error,
                      size_t error_bytes)
{
    FILE *file = fopen(path, "w");

    if (!file) {
        return fail(path, strerror(errno), error, error_bytes);
    }
    fprintf(file,
            "{\n  \"backend\": \"%s\",\n  \"steps\": %" PRId64 ",\n  \"hidden\": %" PRId64
            ",\n  \"depth\": %" PRId64 ",\n  \"heads\": %" PRId64 ",\n  \"batch\": %" PRId64
            ",\n  \"seed\": %" PRIu64 ",\n  \"crops\": %s,\n  \"results\": [\n",
            run->backend, run->steps, run->hidden, run->depth, run->heads, run->batch, run->seed,
            run->crops ? "true" : "false");
    for (int i = 0; i < run->result_count; i++) {
        write_result(file, &run->results[i]);
        fputs(i + 1 < run->result_count ? ",\n" : "\n", file);
    }
    fprintf(file, "  ]\n}\n");
    return finish(file, path, error, error_bytes);
}
