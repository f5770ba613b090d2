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

#include "json.h"

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

int digits_csv_write(const char *path, const struct digits_run *run, char *error,
                     size_t error_bytes)
{
    FILE *file = fopen(path, "w");
    int failed;

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
    /* Every earlier error shows here at last. */
    failed = ferror(file);
    return fclose(file) != 0 || failed ? fail(path, strerror(errno), error, error_bytes) : 0;
}

static void write_result(struct json *json, const struct digits_result *result)
{
    json_lines(json, 4);
    json_object(json, NULL);
    json_lines(json, 6);
    json_text(json, "dtype", result->dtype);
    json_number(json, "final_loss", result->final_loss);
    json_integer(json, "samples", result->sample_count);
    json_integer(json, "named_right", result->named_right);
    json_fixed(json, "train_seconds", 3, result->train_seconds);
    json_fixed(json, "sample_seconds", 3, result->sample_seconds);
    json_integer(json, "train_ops", (int64_t)result->ops);
    json_fixed(json, "submit_ns", 0, result->submit_ns);
    json_list(json, "losses");
    for (int64_t step = 0; step < result->steps; step++) {
        json_lines(json, step > 0 && step % 8 == 0 ? 8 : -1);
        json_number(json, NULL, result->losses[step]);
    }
    json_lines(json, -1);
    json_list_end(json);
    json_lines(json, 4);
    json_object_end(json);
}

int digits_json_write(const char *path, const struct digits_run *run, char *error,
                      size_t error_bytes)
{
    FILE *file = fopen(path, "w");
    struct json json = json_to(file);

    if (!file) {
        return fail(path, strerror(errno), error, error_bytes);
    }
    json_object(&json, NULL);
    json_lines(&json, 2);
    json_text(&json, "backend", run->backend);
    json_integer(&json, "steps", run->steps);
    json_integer(&json, "hidden", run->hidden);
    json_integer(&json, "depth", run->depth);
    json_integer(&json, "heads", run->heads);
    json_integer(&json, "batch", run->batch);
    json_integer(&json, "seed", (int64_t)run->seed);
    json_truth(&json, "crops", run->crops);
    json_list(&json, "results");
    for (int i = 0; i < run->result_count; i++) {
        write_result(&json, &run->results[i]);
    }
    json_lines(&json, 2);
    json_list_end(&json);
    json_lines(&json, 0);
    json_object_end(&json);
    return json_close(&json) == 0 ? 0 : fail(path, strerror(errno), error, error_bytes);
}
