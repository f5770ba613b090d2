#include "digits_data.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Images side by side in a band of a file, and the spaces between two. */
#define BAND_IMAGES 10
#define BAND_GAP 2
#define LINE_BYTES 256

#define PI 3.14159265358979323846

static const char ink[] = ".123456789abcdefg";

struct reader {
    FILE *file;
    char path[4096];
    int line;
    char *error;
    size_t error_bytes;
};

static int fail(const struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int fail(const struct reader *reader, const char *format, ...)
{
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    snprintf(reader->error, reader->error_bytes, "%s, line %d: %s", reader->path, reader->line,
             what);
    return -1;
}

/* The next line without its newline; 1, or 0 at the end of the file, or -1. */
static int read_line(struct reader *reader, char line[LINE_BYTES])
{
    size_t length;

    reader->line++;
    if (!fgets(line, LINE_BYTES, reader->file)) {
        return ferror(reader->file) ? fail(reader, "%s", strerror(errno)) : 0;
    }
    length = strlen(line);
    if (length == 0 || line[length - 1] != '\n') {
        return fail(reader, "longer than %d characters, or the last one without a newline",
                    LINE_BYTES - 2);
    }
    line[length - 1] = '\0';
    return 1;
}

static int reserve(struct digits *digits, const struct reader *reader)
{
    size_t room = (size_t)digits->count + BAND_IMAGES;
    float(*images)[DIGITS_PIXELS] = realloc(digits->images, room * sizeof(*images));
    int32_t *labels;

    if (images) {
        digits->images = images;
    }
    labels = realloc(digits->labels, room * sizeof(*labels));
    if (labels) {
        digits->labels = labels;
    }
    return images && labels ? 0 : fail(reader, "out of memory");
}

/* One line of a band: row `row` of each of its images. Returns how many there are, or -1. */
static int parse_row(const struct reader *reader, struct digits *digits, const char *line, int row)
{
    size_t length = strlen(line);
    int images = (int)(length + BAND_GAP) / (DIGITS_SIDE + BAND_GAP);

    if (images < 1 || images > BAND_IMAGES ||
        length != (size_t)(images * (DIGITS_SIDE + BAND_GAP) - BAND_GAP)) {
        return fail(reader, "%zu characters are not 1 to %d images of %d with %d spaces between",
                    length, BAND_IMAGES, DIGITS_SIDE, BAND_GAP);
    }
    for (int i = 0; i < (int)length; i++) {
        int col = i % (DIGITS_SIDE + BAND_GAP);
        const char *found = strchr(ink, line[i]);

        if (col >= DIGITS_SIDE ? line[i] != ' ' : !found) {
            return fail(reader, "column %d is '%c', which is not %s", i + 1, line[i],
                        col >= DIGITS_SIDE ? "a space" : "one of .123456789abcdefg");
        }
        if (col < DIGITS_SIDE) {
            float *image = digits->images[digits->count + i / (DIGITS_SIDE + BAND_GAP)];

            image[row * DIGITS_SIDE + col] = (float)(found - ink) * (2.0f / DIGITS_INK_MAX) - 1.0f;
        }
    }
    return images;
}

static int read_file(struct reader *reader, struct digits *digits, int32_t label)
{
    char line[LINE_BYTES];
    int got;

    while ((got = read_line(reader, line)) > 0) {
        int images = 0;

        if (line[0] == '#' || line[0] == '\0') {
            continue;
        }
        if (reserve(digits, reader) != 0) {
            return -1;
        }
        for (int row = 0; row < DIGITS_SIDE; row++) {
            int in_row;

            if (row > 0 && (got = read_line(reader, line)) <= 0) {
                return got < 0 ? -1 : fail(reader, "the file ends inside a band");
            }
            in_row = parse_row(reader, digits, line, row);
            if (in_row < 0) {
                return -1;
            }
            if (row > 0 && in_row != images) {
                return fail(reader, "%d images, but %d in the line above", in_row, images);
            }
            images = in_row;
        }
        for (int i = 0; i < images; i++) {
            digits->labels[digits->count++] = label;
        }
    }
    return got;
}

int digits_load(const char *folder, struct digits *digits, char *error, size_t error_bytes)
{
    struct digits loaded = {NULL, NULL, 0};

    for (int32_t label = 0; label < DIGITS_CLASSES; label++) {
        struct reader reader = {.error = error, .error_bytes = error_bytes};
        int64_t before = loaded.count;
        int result;

        snprintf(reader.path, sizeof(reader.path), "%s/%d.txt", folder, label);
        reader.file = fopen(reader.path, "r");
        if (!reader.file) {
            snprintf(error, error_bytes, "cannot read %s: %s", reader.path, strerror(errno));
            digits_free(&loaded);
            return -1;
        }
        result = read_file(&reader, &loaded, label);
        fclose(reader.file);
        if (result == 0 && loaded.count == before) {
            result = fail(&reader, "no image in the file");
        }
        if (result != 0) {
            digits_free(&loaded);
            return -1;
        }
    }
    *digits = loaded;
    return 0;
}

void digits_free(struct digits *digits)
{
    free(digits->images);
    free(digits->labels);
    *digits = (struct digits){NULL, NULL, 0};
}

int32_t digits_classify(const struct digits *digits, const float image[DIGITS_PIXELS])
{
    float distance[3] = {INFINITY, INFINITY, INFINITY};
    int32_t label[3] = {-1, -1, -1};

    for (int64_t i = 0; i < digits->count; i++) {
        float sum = 0.0f;
        int place = 3;

        for (int pixel = 0; pixel < DIGITS_PIXELS; pixel++) {
            float difference = digits->images[i][pixel] - image[pixel];

            sum += difference * difference;
        }
        while (place > 0 && sum < distance[place - 1]) {
            place--;
        }
        if (place == 3) {
            continue;
        }
        for (int later = 2; later > place; later--) {
            distance[later] = distance[later - 1];
            label[later] = label[later - 1];
        }
        distance[place] = sum;
        label[place] = digits->labels[i];
    }
    return label[1] == label[2] ? label[1] : label[0];
}

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

void digits_random_seed(struct digits_random *random, uint64_t seed,
                        enum digits_random_stream stream)
{
    uint64_t state = seed;

    state = splitmix64(&state) + (uint64_t)stream;
    for (int i = 0; i < 4; i++) {
        random->state[i] = splitmix64(&state);
    }
    random->has_spare = 0;
}

static uint64_t rotate_left(uint64_t value, int by)
{
    return value << by | value >> (64 - by);
}

static uint64_t random_next(struct digits_random *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

double digits_random_uniform(struct digits_random *random)
{
    return (double)(random_next(random) >> 11) * 0x1p-53;
}

uint64_t digits_random_below(struct digits_random *random, uint64_t limit)
{
    return (uint64_t)(digits_random_uniform(random) * (double)limit);
}

/* Box and Muller's two numbers of a pair of uniform ones. */
double digits_random_normal(struct digits_random *random)
{
    double radius;
    double angle;

    if (random->has_spare) {
        random->has_spare = 0;
        return random->spare;
    }
    radius = sqrt(-2.0 * log(1.0 - digits_random_uniform(random)));
    angle = 2.0 * PI * digits_random_uniform(random);
    random->spare = radius * sin(angle);
    random->has_spare = 1;
    return radius * cos(angle);
}

/* Patches `height` x `width` of the image, from patch (top, left) on. */
static void cut(const float image[DIGITS_PIXELS], int top, int left, int height, int width,
                float *tokens)
{
    for (int i = 0; i < height * width; i++) {
        int row = (top + i / width) * DIGITS_PATCH;
        int col = (left + i % width) * DIGITS_PATCH;

        for (int pixel = 0; pixel < DIGITS_PATCH_PIXELS; pixel++) {
            *tokens++ =
                image[(row + pixel / DIGITS_PATCH) * DIGITS_SIDE + col + pixel % DIGITS_PATCH];
        }
    }
}

void digits_batch_draw(const struct digits *digits, struct digits_random *random, int crops,
                       struct digits_batch *batch)
{
    int top = 0;
    int left = 0;
    int height = DIGITS_GRID;
    int width = DIGITS_GRID;
    int64_t values;

    if (crops) {
        uint64_t shape = digits_random_below(random, 3);

        height -= shape == 1;
        width -= shape == 2;
        top = (int)digits_random_below(random, (uint64_t)(DIGITS_GRID - height + 1));
        left = (int)digits_random_below(random, (uint64_t)(DIGITS_GRID - width + 1));
    }
    batch->tokens = height * width;
    for (int i = 0; i < height * width; i++) {
        batch->position[i] = (top + i / width) * DIGITS_GRID + left + i % width;
    }
    values = batch->tokens * DIGITS_PATCH_PIXELS;
    for (int64_t i = 0; i < batch->images; i++) {
        uint64_t index = digits_random_below(random, (uint64_t)digits->count);
        bool told = digits_random_uniform(random) >= 0.1;

        cut(digits->images[index], top, left, height, width, batch->image + i * values);
        batch->labels[i] = told ? digits->labels[index] : DIGITS_NO_LABEL;
        batch->t[i] = (float)digits_random_uniform(random);
    }
    for (int64_t i = 0; i < batch->images * values; i++) {
        batch->noise[i] = (float)digits_random_normal(random);
    }
}

void digits_patches(const float image[DIGITS_PIXELS], float *tokens)
{
    cut(image, 0, 0, DIGITS_GRID, DIGITS_GRID, tokens);
}

void digits_unpatch(const float *tokens, float image[DIGITS_PIXELS])
{
    for (int row = 0; row < DIGITS_SIDE; row++) {
        for (int col = 0; col < DIGITS_SIDE; col++) {
            int token = row / DIGITS_PATCH * DIGITS_GRID + col / DIGITS_PATCH;
            int pixel = row % DIGITS_PATCH * DIGITS_PATCH + col % DIGITS_PATCH;

            image[row * DIGITS_SIDE + col] = tokens[token * DIGITS_PATCH_PIXELS + pixel];
        }
    }
}
