#include "bench_options.h"

#include "arguments.h"

#define TOKENS_MAX ((int64_t)1 << 24)
#define SEQUENCE 1024
#define DYNAMIC_TOKENS 256

static const struct argument_choice dtypes[] = {
    {"fp32", BENCH_FP32}, {"bf16", BENCH_BF16}, {"fp8", BENCH_FP8}, {NULL, 0}};
static const struct argument_choice grad_dtypes[] = {
    {"fp32", BENCH_FP32}, {"bf16", BENCH_BF16}, {NULL, 0}};
static const struct argument_choice modes[] = {{"forward", false}, {"train", true}, {NULL, 0}};
static const struct argument_choice issues[] = {{"async", false}, {"inline", true}, {NULL, 0}};
static const struct argument_choice backends[] = {{"auto", FP8PIPE_BACKEND_AUTO},
                                                  {"host", FP8PIPE_BACKEND_HOST},
                                                  {"cuda", FP8PIPE_BACKEND_CUDA},
                                                  {NULL, 0}};

#define AT(field) offsetof(struct bench_options, field)

static const struct argument known[] = {
    {"--batch_size", ARGUMENT_NUMBER, AT(batch), 1, 65536, NULL, "samples (8)"},
    {"--seq_length", ARGUMENT_NUMBER, AT(tokens), 1, 1048576, NULL, "tokens of a sample (1024)"},
    {"--hidden_size", ARGUMENT_NUMBER, AT(hidden), 8, 32768, NULL, "width, a multiple of 8 (2048)"},
    {"--depth", ARGUMENT_NUMBER, AT(depth), 1, 1024, NULL, "blocks (32)"},
    {"--mlp_ratio", ARGUMENT_NUMBER, AT(mlp_ratio), 1, 16, NULL, "width of the MLP over width (4)"},
    {"--dtype", ARGUMENT_CHOICE, AT(dtype), 0, 0, dtypes,
     "of the linear layers: fp32, bf16 or fp8 (fp8)"},
    {"--grad_dtype", ARGUMENT_CHOICE, AT(grad_dtype), 0, 0, grad_dtypes,
     "of weight gradients: fp32 or bf16 (bf16; fp32 with --dtype fp32)"},
    {"--mode", ARGUMENT_SWITCH, AT(train), 0, 0, modes, "forward or train (train)"},
    {"--dynamic", ARGUMENT_FLAG, AT(dynamic), 0, 0, NULL,
     "another aspect ratio each iteration, of 240 to 256 tokens; takes no --seq_length"},
    {"--iters", ARGUMENT_NUMBER, AT(iterations), 1, 100000, NULL, "timed iterations (20)"},
    {"--warmup", ARGUMENT_NUMBER, AT(warm_up), 1, 100000, NULL,
     "iterations before them, at one shape (5)"},
    {"--backend", ARGUMENT_CHOICE, AT(backend), 0, 0, backends, "auto, host or cuda (auto)"},
    {"--issue", ARGUMENT_SWITCH, AT(is_inline), 0, 0, issues,
     "async: by launcher threads, or inline: by the caller's (async)"},
    {"--lanes", ARGUMENT_NUMBER, AT(lanes), 1, 2, NULL,
     "with 2, FP8 weight gradients run on a lane of their own (1)"},
    {"--seed", ARGUMENT_NUMBER, AT(seed), 0, INT64_MAX, NULL, "of all random numbers (0)"},
    {"--lr", ARGUMENT_REAL, AT(rate), 0, 0, NULL, "learning rate (1e-5)"},
    {"--grad_norm", ARGUMENT_FLAG, AT(grad_norm), 0, 0, NULL,
     "the gradients' norm in every step, not only in those that are checked"},
    {"--no_idle", ARGUMENT_FLAG, AT(no_idle), 0, 0, NULL,
     "do not measure the GPU's idle time, which costs a query an op"},
    {"--fixed_plans", ARGUMENT_FLAG, AT(fixed_plans), 0, 0, NULL,
     "each GEMM keeps its first plan: runs are the same to the bit"},
    {"--no_replays", ARGUMENT_FLAG, AT(no_replays), 0, 0, NULL,
     "issue every GEMM call through cuBLASLt, also one that is recorded and comes again"},
    {"--tune", ARGUMENT_FLAG, AT(tune), 0, 0, NULL, "tune the GEMMs of the warm-up (cuda)"},
    {"--tune_file", ARGUMENT_TEXT, AT(tune_file), 0, 0, NULL,
     "load tuned GEMMs from this file; with --tune write them into it (cuda)"},
    {"--json", ARGUMENT_TEXT, AT(json), 0, 0, NULL, "write the numbers to this file"},
    {"--profile", ARGUMENT_TEXT, AT(profile), 0, 0, NULL,
     "write a trace of one more iteration to this file"},
    {"--floor", ARGUMENT_FLAG, AT(floor), 0, 0, NULL,
     "also time the bare GEMMs and a copy, and give the ratio to what they allow"},
    {"--loss_run", ARGUMENT_NUMBER, AT(loss_run), 1, 1000000, NULL,
     "train so many steps on fresh batches whose target is a fixed random linear of the input"},
    {"--cosine", ARGUMENT_FLAG, AT(cosine), 0, 0, NULL,
     "compare FP8's weight gradients with bf16's, in the first step"},
    {"--check", ARGUMENT_FLAG, AT(check), 0, 0, NULL,
     "compare fp32's gradients with finite differences (small sizes)"},
    {"--help", ARGUMENT_FLAG, AT(help), 0, 0, NULL, "this text"},
    {.name = NULL},
};

const char *bench_dtype_name(enum bench_dtype dtype)
{
    return dtypes[dtype].name;
}

void bench_options_help(FILE *file)
{
    static const struct argument_program program = {
        "dit_bench", "Times a toy diffusion transformer's forward pass or training step."};

    arguments_help(file, &program, known);
    fputs(
        "\nWith --dynamic only the largest shape is warmed up, and each iteration begins when the\n"
        "one before is done. The first at each other shape is compared with the later ones at it;\n"
        "--iters 36 has all of them three times.\n",
        file);
}

/* What one option allows alone and not beside another. */
static int check(struct bench_options *o, char *error, size_t error_bytes)
{
    if (o->dynamic && o->tokens != 0) {
        snprintf(error, error_bytes,
                 "--seq_length is '%lld', but --dynamic takes none: its shapes are of 240 to %d "
                 "tokens",
                 (long long)o->tokens, DYNAMIC_TOKENS);
        return -1;
    }
    if (o->tokens == 0) {
        o->tokens = o->dynamic ? DYNAMIC_TOKENS : SEQUENCE;
    }
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
    } else if ((o->check || o->cosine || o->loss_run) && (o->profile || o->floor || o->tune)) {
        snprintf(error, error_bytes,
                 "--profile, --floor and --tune need iterations that are timed, and not --check, "
                 "--cosine or --loss_run");
    } else if (o->floor && o->dynamic) {
        snprintf(error, error_bytes, "--floor needs fixed shapes, and not --dynamic");
    } else if (o->dtype == BENCH_FP32 && o->grad_dtype != BENCH_FP32) {
        snprintf(error, error_bytes, "--grad_dtype is 'bf16', but must be fp32 with --dtype fp32");
    } else {
        return 0;
    }
    return -1;
}

int bench_options_parse(int argc, char **argv, struct bench_options *options, char *error,
                        size_t error_bytes)
{
    *options = (struct bench_options){.batch = 8,
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
    if (arguments_parse(known, argc, argv, options, error, error_bytes) != 0) {
        return -1;
    }
    if (options->grad_dtype == BENCH_DTYPES) {
        options->grad_dtype = options->dtype == BENCH_FP32 ? BENCH_FP32 : BENCH_BF16;
    }
    if (options->rate == 0.0) {
        options->rate = 1e-5; /* at 1e-4 blocks 2048 wide diverge in any dtype */
    }
    return options->help ? 0 : check(options, error, error_bytes);
}
