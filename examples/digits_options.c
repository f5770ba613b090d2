#include "digits_options.h"

#include <stdlib.h>

#include "arguments.h"

#ifndef DIGITS_DIR
#define DIGITS_DIR "examples/digits"
#endif

/* Where the data are, if no --data says so. */
#define DATA_VARIABLE "DIGITS_DIR"

static const struct argument_choice dtypes[] = {{"fp8", DIGITS_FP8},
                                                {"bf16", DIGITS_BF16},
                                                {"fp32", DIGITS_FP32},
                                                {"compare", DIGITS_DTYPES},
                                                {NULL, 0}};
static const struct argument_choice backends[] = {{"auto", FP8PIPE_BACKEND_AUTO},
                                                  {"host", FP8PIPE_BACKEND_HOST},
                                                  {"cuda", FP8PIPE_BACKEND_CUDA},
                                                  {NULL, 0}};

#define AT(field) offsetof(struct digits_options, field)

static const struct argument known[] = {
    {"--dtype", ARGUMENT_CHOICE, AT(dtype), 0, 0, dtypes,
     "fp8, bf16, fp32, or compare: fp8 and fp32 with the same data and noise (compare)"},
    {"--steps", ARGUMENT_NUMBER, AT(steps), 1, 1000000, NULL, "training steps (600)"},
    {"--hidden", ARGUMENT_NUMBER, AT(hidden), 8, 4096, NULL,
     "width; even, a multiple of --heads (64)"},
    {"--depth", ARGUMENT_NUMBER, AT(depth), 1, 64, NULL, "blocks (3)"},
    {"--heads", ARGUMENT_NUMBER, AT(heads), 1, 64, NULL, "attention heads (4)"},
    {"--batch", ARGUMENT_NUMBER, AT(batch), 1, 4096, NULL, "images in a step (64)"},
    {"--seed", ARGUMENT_NUMBER, AT(seed), 0, INT64_MAX, NULL, "of all random numbers (0)"},
    {"--backend", ARGUMENT_CHOICE, AT(backend), 0, 0, backends, "auto, host or cuda (auto)"},
    {"--out", ARGUMENT_TEXT, AT(out), 0, 0, NULL, "the picture (digits.png)"},
    {"--csv", ARGUMENT_TEXT, AT(csv), 0, 0, NULL, "the loss curves"},
    {"--json", ARGUMENT_TEXT, AT(json), 0, 0, NULL, "the numbers and the loss curves"},
    {"--data", ARGUMENT_TEXT, AT(data), 0, 0, NULL,
     "folder of the digits (environment " DATA_VARIABLE ", or the one in the sources)"},
    {"--crops", ARGUMENT_FLAG, AT(crops), 0, 0, NULL,
     "train on bands of 8 x 6 and 6 x 8 pixels too: batches of 16 or 12 tokens an image"},
    {"--help", ARGUMENT_FLAG, AT(help), 0, 0, NULL, "this text"},
    {.name = NULL},
};

void digits_options_help(FILE *file)
{
    static const struct argument_program program = {
        "dit_digits", "Trains a small diffusion transformer on handwritten digits and draws some."};

    arguments_help(file, &program, known);
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

    *options = (struct digits_options){.dtype = DIGITS_DTYPES,
                                       .steps = 600,
                                       .hidden = 64,
                                       .depth = 3,
                                       .heads = 4,
                                       .batch = 64,
                                       .backend = FP8PIPE_BACKEND_AUTO,
                                       .out = "digits.png",
                                       .data = variable && variable[0] ? variable : DIGITS_DIR};
    if (arguments_parse(known, argc, argv, options, error, error_bytes) != 0) {
        return -1;
    }
    if (options->dtype == DIGITS_DTYPES) {
        options->dtypes[0] = DIGITS_FP8;
        options->dtypes[1] = DIGITS_FP32;
        options->dtype_count = 2;
    } else {
        options->dtypes[0] = options->dtype;
        options->dtype_count = 1;
    }
    return options->help ? 0 : check(options, error, error_bytes);
}
