#include "digits_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifndef DIGITS_DIR
#define DIGITS_DIR "examples/digits"
#endif

/* Where the data are, if no --data says so. */
#define DATA_VARIABLE "DIGITS_DIR"

enum kind { KIND_FLAG, KIND_NUMBER, KIND_TEXT, KIND_DTYPE, KIND_BACKEND };

struct option {
    const char *name;
    enum kind kind;
    size_t offset; /* in struct digits_options */
    int64_t least;
    int64_t most;
    const char *help;
};

#define AT(field) offsetof(struct digits_options, field)

static const struct option known[] = {
    {"--dtype", KIND_DTYPE, 0, 0, 0,
     "fp8, bf16, fp32, or compare: fp8 and fp32 with the same data and noise (compare)"},
    {"--steps", KIND_NUMBER, AT(steps), 1, 1000000, "training steps (600)"},
    {"--hidden", KIND_NUMBER, AT(hidden), 8, 4096, "width; even, a multiple of --heads (64)"},
    {"--depth", KIND_NUMBER, AT(depth), 1, 64, "blocks (3)"},
    {"--heads", KIND_NUMBER, AT(heads), 1, 64, "attention heads (4)"},
    {"--batch", KIND_NUMBER, AT(batch), 1, 4096, "images in a step (64)"},
    {"--seed", KIND_NUMBER, AT(seed), 0, INT64_MAX, "of all random numbers (0)"},
    {"--backend", KIND_BACKEND, 0, 0, 0, "auto, host or cuda (auto)"},
    {"--out", KIND_TEXT, AT(out), 0, 0, "the picture (digits.png)"},
    {"--csv", KIND_TEXT, AT(csv), 0, 0, "the loss curves"},
    {"--json", KIND_TEXT, AT(json), 0, 0, "the numbers and the loss curves"},
    {"--data", KIND_TEXT, AT(data), 0, 0,
     "folder of the digits (environment " DATA_VARIABLE ", or the one in the sources)"},
    {"--crops", KIND_FLAG, AT(crops), 0, 0,
     "train on bands of 8 x 6 and 6 x 8 pixels too: batches of 16 or 12 tokens an image"},
    {"--help", KIND_FLAG, AT(help), 0, 0, "this text"},
};

void digits_options_help(FILE *file)
{
    fputs("usage: dit_digits [OPTION VALUE]...\n"
          "Trains a small diffusion transformer on handwritten digits and draws some.\n\n",
          file);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        fprintf(file, "  %-10s %s\n", known[i].name, known[i].help);
    }
}

static int parse_number(const struct option *option, const char *value, int64_t *number,
                        char *error, size_t error_bytes)
{
    char *end;
    long long parsed;

    errno = 0;
    parsed = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || parsed < option->least ||
        parsed > option->most) {
        snprintf(error, error_bytes, "%s is '%s', but must be a whole number from %lld to %lld",
                 option->name, value, (long long)option->least, (long long)option->most);
        return -1;
    }
    *number = parsed;
    return 0;
}

static int parse_dtype(const char *value, struct digits_options *options, char *error,
                       size_t error_bytes)
{
    if (strcmp(value, "compare") == 0) {
        options->dtypes[0] = DIGITS_FP8;
        options->dtypes[1] = DIGITS_FP32;
        options->dtype_count = 2;
        return 0;
    }
    for (int dtype = 0; dtype < DIGITS_DTYPES; dtype++) {
        if (strcmp(value, digits_dtype_name((enum digits_dtype)dtype)) == 0) {
            options->dtypes[0] = (enum digits_dtype)dtype;
            options->dtype_count = 1;
            return 0;
        }
    }
    snprintf(error, error_bytes, "--dtype is '%s', but must be fp8, bf16, fp32 or compare", value);
    return -1;
}

static int parse_backend(const char *value, struct digits_options *options, char *error,
                         size_t error_bytes)
{
    if (strcmp(value, "auto") == 0) {
        options->backend = FP8PIPE_BACKEND_AUTO;
    } else if (strcmp(value, "host") == 0) {
        options->backend = FP8PIPE_BACKEND_HOST;
    } else if (strcmp(value, "cuda") == 0) {
        options->backend = FP8PIPE_BACKEND_CUDA;
    } else {
        snprintf(error, error_bytes, "--backend is '%s', but must be auto, host or cuda", value);
        return -1;
    }
    return 0;
}

static int set(const struct option *option, const char *value, struct digits_options *options,
               char *error, size_t error_bytes)
{
    void *field = (char *)options + option->offset;

    switch (option->kind) {
    case KIND_NUMBER:
        return parse_number(option, value, field, error, error_bytes);
    case KIND_DTYPE:
        return parse_dtype(value, options, error, error_bytes);
    case KIND_BACKEND:
        return parse_backend(value, options, error, error_bytes);
    case KIND_TEXT:
        if (value[0] == '\0') {
            snprintf(error, error_bytes, "%s is '', but must be a path", option->name);
            return -1;
        }
        *(const char **)field = value;
        return 0;
    case KIND_FLAG:
        break;
    }
    *(bool *)field = true;
    return 0;
}

static const struct option *find(const char *argument, size_t length)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strlen(known[i].name) == length && memcmp(known[i].name, argument, length) == 0) {
            return &known[i];
        }
    }
    return NULL;
}

static int check(const struct digits_options *options, char *error, size_t error_bytes)
{
    if (options->hidden % options->heads != 0 || options->hidden % 2 != 0) {
        snprintf(error, error_bytes,
                 "--hidden is '%lld', but must be even and a multiple of --heads, which is %lld",
                 (long long)options->hidden, (long long)options->heads);
        return -1;
    }
    return 0;
}

int digits_options_parse(int argc, char **argv, struct digits_options *options, char *error,
                         size_t error_bytes)
{
    const char *variable = getenv(DATA_VARIABLE);

    *options = (struct digits_options){.dtypes = {DIGITS_FP8, DIGITS_FP32},
                                       .dtype_count = 2,
                                       .steps = 600,
                                       .hidden = 64,
                                       .depth = 3,
                                       .heads = 4,
                                       .batch = 64,
                                       .backend = FP8PIPE_BACKEND_AUTO,
                                       .out = "digits.png",
                                       .data = variable && variable[0] ? variable : DIGITS_DIR};
    for (int i = 1; i < argc; i++) {
        size_t length = strcspn(argv[i], "=");
        const char *value = argv[i][length] == '=' ? argv[i] + length + 1 : NULL;
        const struct option *option = find(argv[i], length);

        if (!option) {
            snprintf(error, error_bytes, "%.*s is not an option; --help lists them", (int)length,
                     argv[i]);
            return -1;
        }
        if (option->kind == KIND_FLAG && value) {
            snprintf(error, error_bytes, "%s is '%s', but takes no value", option->name, value);
            return -1;
        }
        if (option->kind != KIND_FLAG && !value) {
            if (++i == argc) {
                snprintf(error, error_bytes, "%s is the last argument, but needs a value",
                         option->name);
                return -1;
            }
            value = argv[i];
        }
        if (set(option, value, options, error, error_bytes) != 0) {
            return -1;
        }
    }
    return options->help ? 0 : check(options, error, error_bytes);
}
