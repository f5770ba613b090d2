#include "bench_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX ((int64_t)1 << 24)
#define DYNAMIC_TOKENS 256

enum kind { KIND_FLAG, KIND_NUMBER, KIND_REAL, KIND_TEXT, KIND_CHOICE };

struct choice {
    const char *name;
    int value;
};

struct option {
    const char *name;
    enum kind kind;
    size_t offset; /* in struct bench_options */
    int64_t least;
    int64_t most;
    const struct choice *choices; /* ended by a NULL */
    const char *help;
};

static const struct choice dtypes[] = {
    {"fp32", BENCH_FP32}, {"bf16", BENCH_BF16}, {"fp8", BENCH_FP8}, {NULL, 0}};
static const struct choice grad_dtypes[] = {{"fp32", BENCH_FP32}, {"bf16", BENCH_BF16}, {NULL, 0}};
static const struct choice modes[] = {{"forward", false}, {"train", true}, {NULL, 0}};
static const struct choice issues[] = {{"async", false}, {"inline", true}, {NULL, 0}};
static const struct choice backends[] = {{"auto", FP8PIPE_BACKEND_AUTO},
                                         {"host", FP8PIPE_BACKEND_HOST},
                                         {"cuda", FP8PIPE_BACKEND_CUDA},
                                         {NULL, 0}};

#define AT(field) offsetof(struct bench_options, field)

static const struct option known[] = {
    {"--batch_size", KIND_NUMBER, AT(batch), 1, 65536, NULL, "samples (8)"},
    {"--seq_length", KIND_NUMBER, AT(sequence), 1, 1048576, NULL, "tokens of a sample (1024)"},
    {"--hidden_size", KIND_NUMBER, AT(hidden), 8, 32768, NULL, "width, a multiple of 8 (2048)"},
    {"--depth", KIND_NUMBER, AT(depth), 1, 1024, NULL, "blocks (32)"},
    {"--mlp_ratio", KIND_NUMBER, AT(mlp_ratio), 1, 16, NULL, "width of the MLP over width (4)"},
    {"--dtype", KIND_CHOICE, AT(dtype), 0, 0, dtypes,
     "of the linear layers: fp32, bf16 or fp8 (fp8)"},
    {"--grad_dtype", KIND_CHOICE, AT(grad_dtype), 0, 0, grad_dtypes,
     "of weight gradients: fp32 or bf16 (bf16; fp32 with --dtype fp32)"},
    {"--mode", KIND_CHOICE, AT(train), 0, 0, modes, "forward or train (train)"},
    {"--dynamic", KIND_FLAG, AT(dynamic), 0, 0, NULL,
     "another aspect ratio each iteration, 240 to 256 tokens, instead of --seq_length"},
    {"--iters", KIND_NUMBER, AT(iterations), 1, 100000, NULL, "timed iterations (20)"},
    {"--warmup", KIND_NUMBER, AT(warm_up), 1, 100000, NULL,
     "iterations before them, at one shape (5)"},
    {"--backend", KIND_CHOICE, AT(backend), 0, 0, backends, "auto, host or cuda (auto)"},
    {"--issue", KIND_CHOICE, AT(is_inline), 0, 0, issues,
     "async: by launcher threads, or inline: by the caller's (async)"},
    {"--lanes", KIND_NUMBER, AT(lanes), 1, 2, NULL,
     "with 2, FP8 weight gradients run on a lane of their own (1)"},
    {"--seed", KIND_NUMBER, AT(seed), 0, INT64_MAX, NULL, "of all random numbers (0)"},
    {"--lr", KIND_REAL, AT(rate), 0, 0, NULL, "learning rate (1e-5)"},
    {"--grad_norm", KIND_FLAG, AT(grad_norm), 0, 0, NULL,
     "the gradients' norm in every step, not only in those that are checked"},
    {"--no_idle", KIND_FLAG, AT(no_idle), 0, 0, NULL,
     "do not measure the GPU's idle time, which costs a query an op"},
    {"--fixed_plans", KIND_FLAG, AT(fixed_plans), 0, 0, NULL,
     "each GEMM keeps its first plan: runs are the same to the bit"},
    {"--tune", KIND_FLAG, AT(tune), 0, 0, NULL, "tune the GEMMs of the warm-up"},
    {"--tune_file", KIND_TEXT, AT(tune_file), 0, 0, NULL,
     "load tuned GEMMs from this file; with --tune write them into it"},
    {"--json", KIND_TEXT, AT(json), 0, 0, NULL, "write the numbers to this file"},
    {"--profile", KIND_TEXT, AT(profile), 0, 0, NULL,
     "write a trace of one more iteration to this file"},
    {"--floor", KIND_FLAG, AT(floor), 0, 0, NULL,
     "also time the bare GEMMs and a copy, and give the ratio to what they allow"},
    {"--loss_run", KIND_NUMBER, AT(loss_run), 1, 1000000, NULL,
     "train so many steps on fresh batches whose target is a fixed random linear of the input"},
    {"--cosine", KIND_FLAG, AT(cosine), 0, 0, NULL,
     "compare FP8's weight gradients with bf16's, in the first step"},
    {"--check", KIND_FLAG, AT(check), 0, 0, NULL,
     "compare fp32's gradients with finite differences (small sizes)"},
    {"--help", KIND_FLAG, AT(help), 0, 0, NULL, "this text"},
};

const char *bench_dtype_name(enum bench_dtype dtype)
{
    return dtypes[dtype].name;
}

void bench_options_help(FILE *file)
{
    fputs("usage: dit_bench [OPTION VALUE]...\n"
          "Times a toy diffusion transformer's forward pass or training step.\n\n",
          file);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        fprintf(file, "  %-13s %s\n", known[i].name, known[i].help);
    }
    fputs(
        "\nWith --dynamic only the largest shape is warmed up, and each iteration begins when the\n"
        "one before is done. The first at each other shape is compared with the later ones at it;\n"
        "--iters 36 has all of them three times.\n",
        file);
}

static int set_number(const struct option *option, const char *value, int64_t *number, char *error,
                      size_t error_bytes)
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

static int set_real(const struct option *option, const char *value, double *number, char *error,
                    size_t error_bytes)
{
    char *end;
    double parsed = strtod(value, &end);

    if (end == value || *end != '\0' || !(parsed > 0.0 && parsed <= 1.0)) {
        snprintf(error, error_bytes, "%s is '%s', but must be a number above 0, at most 1",
                 option->name, value);
        return -1;
    }
    *number = parsed;
    return 0;
}

static int set_choice(const struct option *option, const char *value, void *field, char *error,
                      size_t error_bytes)
{
    size_t used;

    for (const struct choice *choice = option->choices; choice->name; choice++) {
        if (strcmp(value, choice->name) != 0) {
            continue;
        }
        if (option->choices == modes || option->choices == issues) {
            *(bool *)field = choice->value;
        } else {
            *(int *)field = choice->value;
        }
        return 0;
    }
    used =
        (size_t)snprintf(error, error_bytes, "%s is '%s', but must be one of", option->name, value);
    for (const struct choice *choice = option->choices; choice->name && used < error_bytes;
         choice++) {
        used += (size_t)snprintf(error + used, error_bytes - used, " %s", choice->name);
    }
    return -1;
}

static int set(const struct option *option, const char *value, struct bench_options *options,
               char *error, size_t error_bytes)
{
    void *field = (char *)options + option->offset;

    switch (option->kind) {
    case KIND_NUMBER:
        return set_number(option, value, field, error, error_bytes);
    case KIND_REAL:
        return set_real(option, value, field, error, error_bytes);
    case KIND_CHOICE:
        return set_choice(option, value, field, error, error_bytes);
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

/* What one option allows alone and not beside another. */
static int check(struct bench_options *o, char *error, size_t error_bytes)
{
    o->tokens = o->dynamic ? DYNAMIC_TOKENS : o->sequence;
    if (o->hidden % 8 != 0) {
        snprintf(error, error_bytes, "--hidden_size is '%lld', but must be a multiple of 8",
                 (long long)o->hidden);
    } else if (o->batch * o->tokens > TOKENS_MAX) {
        snprintf(error, error_bytes,
                 "--batch_size is '%lld', but with %lld tokens a sample must be at most %lld",
                 (long long)o->batch, (long long)o->tokens, (long long)(TOKENS_MAX / o->tokens));
    } else if (o->check && (o->dtype != BENCH_FP32 || !o->train || o->dynamic)) {
        snprintf(error, error_bytes,
                 "--check needs --dtype fp32 and --mode train, and fixed shapes");
    } else if (o->loss_run && (!o->train || o->dynamic)) {
        snprintf(error, error_bytes, "--loss_run needs --mode train, and fixed shapes");
    } else if (o->cosine && (o->dtype != BENCH_FP8 || !o->train || o->dynamic)) {
        snprintf(error, error_bytes,
                 "--cosine needs --dtype fp8 and --mode train, and fixed shapes");
    } else if (o->floor && o->dynamic) {
        snprintf(error, error_bytes, "--floor needs fixed shapes, and not --dynamic");
    } else if (o->dtype == BENCH_FP32 && o->grad_dtype != BENCH_FP32) {
        snprintf(error, error_bytes, "--grad_dtype is 'bf16', but must be fp32 with --dtype fp32");
    } else {
        return 0;
    }
    return -1;
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

int bench_options_parse(int argc, char **argv, struct bench_options *options, char *error,
                        size_t error_bytes)
{
    *options = (struct bench_options){.batch = 8,
                                      .sequence = 1024,
                                      .hidden = 2048,
                                      .depth = 32,
                                      .mlp_ratio = 4,
                                      .dtype = BENCH_FP8,
                                      .grad_dtype = BENCH_DTYPES,
                                      .train = true,
                                      .iterations = 20,
                                      .warm_up = 5,
                                      .backend = FP8PIPE_BACKEND_AUTO,
                                      .lanes = 1};
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
    if (options->grad_dtype == BENCH_DTYPES) {
        options->grad_dtype = options->dtype == BENCH_FP32 ? BENCH_FP32 : BENCH_BF16;
    }
    if (options->rate == 0.0) {
        options->rate = 1e-5; /* at 1e-4 blocks 2048 wide diverge in any dtype */
    }
    return options->help ? 0 : check(options, error, error_bytes);
}
