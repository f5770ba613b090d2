/*
 * What it costs a launcher to issue, on CUDA.
 *
 *   bench/issue [--runs N] [--json FILE]
 *
 * First table: the FP8 forward of a linear (1024 tokens, 2048 to 2048 features, scales known) of a
 * hot shape, beside a bare launch of its quantize kernel and a bare cublasLtMatmul of its product,
 * one after the other, each into a stream that never fills up. Times are of CLOCK_MONOTONIC; those
 * of forwards are taken on the launcher itself, by a function before and one behind a batch that
 * was enqueued before: so what the caller does meanwhile is not in them.
 *
 * Second table: the same forward with a function behind each, for the median of single ones: of a
 * hot number of tokens, and of numbers that were never seen, which borrow their plans; how long
 * after a forward of such a number alone its plan is refined and its kernel loaded, and after a
 * hundred of them the last plan.
 *
 * Third table: launches a second of 1, 2 and 4 chains of layers (hidden 256, 16 tokens) from as
 * many threads, on as many lanes.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/device.h"
#include "bench/issue.h"
#include "cuda/plan.h"
#include "examples/arguments.h"

#define TOKENS 1024
#define FEATURES 2048
#define BATCH 150 /* ops in a stream at once: three launches each, of the 1,024 that fit */
#define SHAPES 100
#define LONE 20 /* new shapes before those, each alone */

static void cuda_must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "issue: %s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static void lt_must(const struct cublaslt *lt, cublasStatus_t status, const char *what)
{
    if (status != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "issue: %s: %s\n", what, lt->cublasLtGetStatusName(status));
        exit(1);
    }
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static double median_us(int64_t *ns, size_t count)
{
    qsort(ns, count, sizeof(*ns), by_value);
    return (double)ns[count / 2] / 1e3;
}

/* ---- Times on the launcher ------------------------------------------------------------------ */

struct gate {
    atomic_bool open; /* set by the caller once all is enqueued */
    int64_t opened_ns;
};

static enum fp8pipe_status gate_pass(struct fp8pipe_stream *stream, void *arg)
{
    struct gate *gate = arg;

    (void)stream;
    while (!atomic_load_explicit(&gate->open, memory_order_acquire)) {
    }
    gate->opened_ns = now_ns();
    return FP8PIPE_OK;
}

static enum fp8pipe_status stamp(struct fp8pipe_stream *stream, void *arg)
{
    (void)stream;
    *(int64_t *)arg = now_ns();
    return FP8PIPE_OK;
}

static void call(struct fp8pipe *pipe, fp8pipe_call_fn *fn, void *arg)
{
    struct fp8pipe_call_op op = FP8PIPE_CALL_OP_INIT;

    op.submit.lane = 0;
    op.fn = fn;
    op.arg = arg;
    must(fp8pipe_call(pipe, &op, NULL), "call");
}

/* Nanoseconds a forward, of a batch of a hot shape. */
static int64_t time_batch(struct layer *layer)
{
    struct gate gate = {.open = false};
    int64_t end_ns = 0;

    call(layer->pipe, gate_pass, &gate);
    for (int i = 0; i < BATCH; i++) {
        forward(layer, 0, layer->x, layer->y, TOKENS, NULL);
    }
    call(layer->pipe, stamp, &end_ns);
    atomic_store_explicit(&gate.open, true, memory_order_release);
    must(fp8pipe_drain(layer->pipe, -1), "drain");
    return (end_ns - gate.opened_ns) / BATCH;
}

/* Each of count forwards, of the tokens given, with a function behind it. */
static void time_each(struct layer *layer, const int64_t *tokens, int count, int64_t *took_ns)
{
    struct gate gate = {.open = false};
    int64_t *end_ns = host_alloc((size_t)count, sizeof(*end_ns));

    call(layer->pipe, gate_pass, &gate);
    for (int i = 0; i < count; i++) {
        forward(layer, 0, layer->x, layer->y, tokens[i], NULL);
        call(layer->pipe, stamp, &end_ns[i]);
    }
    atomic_store_explicit(&gate.open, true, memory_order_release);
    must(fp8pipe_drain(layer->pipe, -1), "drain");
    for (int i = 0; i < count; i++) {
        took_ns[i] = end_ns[i] - (i == 0 ? gate.opened_ns : end_ns[i - 1]);
    }
    free(end_ns);
}

/* ---- Bare calls ----------------------------------------------------------------------------- */

struct bare {
    struct backend *backend;
    struct fp8pipe_stream *stream;
    struct backend_scope scope;
    uint8_t *memory;
    struct kernel_quantize_args quantize;
    struct gemm_args gemm;
    struct plan plan;
    cublasLtMatmulDescOpaque_t desc;
};

static void bare_make(struct bare *bare)
{
    const size_t bytes = (size_t)TOKENS * FEATURES, weight = (size_t)FEATURES * FEATURES;
    static const struct log log = {.level = FP8PIPE_LOG_WARN};
    /* Each 16 bytes from the one before, as cuBLASLt demands of scales. */
    const float words[16] = {[0] = 1, [4] = 1, [8] = 1};
    const int32_t one = 1;
    struct backend_options options = {
        .workspace_bytes = (size_t)32 << 20, .plans = FP8PIPE_PLANS_FIXED, .log = &log};
    const struct cublaslt *lt;
    struct plan *plan;
    void *memory;
    float *floats;

    must(backend_cuda_ops.open(&options, &bare->backend), "open");
    backend_cuda_ops.enter(bare->backend, &bare->scope);
    must(backend_cuda_ops.stream_create(bare->backend, NULL, &bare->stream), "stream");
    must(backend_cuda_ops.memory_alloc(bare->backend, 5 * bytes + weight + 256, &memory), "alloc");
    must(backend_cuda_ops.memory_fill(bare->backend, memory, 0x30, 5 * bytes + weight), "fill");
    bare->memory = memory;
    floats = (float *)(void *)(bare->memory + 5 * bytes + weight);
    must(backend_cuda_ops.memory_copy(bare->backend, floats, words, sizeof(words)), "copy");
    must(backend_cuda_ops.memory_copy(bare->backend, floats + 13, &one, sizeof(one)), "copy");
    bare->quantize = (struct kernel_quantize_args){
        .x = matrix(bare->memory, TOKENS, FEATURES),
        .format = FP8PIPE_E4M3,
        .scale_numerator = 448,
        .scale = &floats[0],
        .has_scale = (int32_t *)(void *)&floats[13],
        .scale_inv = &floats[4],
        .row = bare->memory + 2 * bytes,
        .row_stride = FEATURES,
        .amax = (uint32_t *)(void *)&floats[12],
    };
    bare->gemm = (struct gemm_args){
        .m = TOKENS,
        .n = FEATURES,
        .k = FEATURES,
        .a = {bare->quantize.row, FEATURES, GEMM_E4M3, false, &floats[4]},
        .b = {bare->memory + 5 * bytes, FEATURES, GEMM_E4M3, false, &floats[8]},
        .d = bare->memory + 3 * bytes,
        .d_stride = FEATURES,
        .d_dtype = FP8PIPE_BF16,
        .fast = true,
    };
    must(backend_cuda_ops.gemm(bare->backend, bare->stream, &bare->gemm), "gemm");
    must(plan_get(cuda_backend_of(bare->backend), cuda_stream_of(bare->stream), &bare->gemm, &plan),
         "plan");
    bare->plan = *plan;
    bare->desc = plan->desc;
    lt = &cuda_backend_of(bare->backend)->lt;
    lt_must(lt,
            lt->cublasLtMatmulDescSetAttribute(&bare->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                               &bare->gemm.b.scale_inv, sizeof(void *)),
            "A_SCALE_POINTER");
    lt_must(lt,
            lt->cublasLtMatmulDescSetAttribute(&bare->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                               &bare->gemm.a.scale_inv, sizeof(void *)),
            "B_SCALE_POINTER");
}

static void bare_finish(struct bare *bare)
{
    cuda_must(cudaStreamSynchronize(cuda_stream_of(bare->stream)->native), "synchronize");
}

static void bare_free(struct bare *bare)
{
    bare_finish(bare);
    must(backend_cuda_ops.memory_free(bare->backend, bare->memory), "free");
    backend_cuda_ops.stream_destroy(bare->backend, bare->stream);
    backend_cuda_ops.leave(bare->backend, &bare->scope);
    backend_cuda_ops.close(bare->backend);
}

/* What is called without anything of the library's around it. */
static void bare_launch(struct bare *bare)
{
    cuda_must(
        (cudaError_t)kernel_quantize_cuda(&bare->quantize, cuda_stream_of(bare->stream)->native),
        "quantize");
}

static void bare_matmul(struct bare *bare)
{
    const struct cublaslt *lt = &cuda_backend_of(bare->backend)->lt;
    const struct cuda_stream *stream = cuda_stream_of(bare->stream);
    const float alpha = 1, beta = 0;

    lt_must(lt,
            lt->cublasLtMatmul(lt->handle, &bare->desc, &alpha, bare->gemm.b.data, &bare->plan.a,
                               bare->gemm.a.data, &bare->plan.b, &beta, bare->gemm.d, &bare->plan.d,
                               bare->gemm.d, &bare->plan.d, &bare->plan.algo, stream->workspace,
                               stream->workspace != NULL ? (size_t)32 << 20 : 0, stream->native),
            "cublasLtMatmul");
}

static void bare_both(struct bare *bare)
{
    bare_launch(bare);
    bare_matmul(bare);
}

static void backend_gemm(struct bare *bare)
{
    must(backend_cuda_ops.gemm(bare->backend, bare->stream, &bare->gemm), "gemm");
}

static int64_t time_bare(struct bare *bare, void (*fn)(struct bare *))
{
    int64_t start = now_ns(), took;

    for (int i = 0; i < BATCH; i++) {
        fn(bare);
    }
    took = (now_ns() - start) / BATCH;
    bare_finish(bare);
    return took;
}

/* ---- The tables ----------------------------------------------------------------------------- */

static void table_hot(int runs)
{
    static const struct {
        const char *name;
        void (*fn)(struct bare *);
    } kinds[] = {
        {"bare launch", bare_launch},
        {"bare cublasLtMatmul", bare_matmul},
        {"bare launch + bare cublasLtMatmul", bare_both},
        {"the backend's gemm", backend_gemm},
    };
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };
    int64_t *took[KINDS + 1];
    struct bare bare;
    struct fp8pipe *pipe = pipe_open(1);
    struct layer layer = layer_make(pipe, TOKENS, FEATURES);
    double us[KINDS + 1];

    bare_make(&bare);
    /* Once around the ring: each place makes its event when it is first used. */
    for (int i = 0; i <= RING_SLOTS / BATCH; i++) {
        (void)time_batch(&layer);
    }
    for (int i = 0; i <= KINDS; i++) {
        took[i] = host_alloc((size_t)runs, sizeof(int64_t));
    }
    /* In turns, so that whatever changes meets them all; the first round is not counted. */
    for (int run = -1; run < runs; run++) {
        for (int i = 0; i <= KINDS; i++) {
            int64_t ns = i < KINDS ? time_bare(&bare, kinds[i].fn) : time_batch(&layer);

            if (run >= 0) {
                took[i][run] = ns;
            }
        }
    }
    for (int i = 0; i <= KINDS; i++) {
        us[i] = median_us(took[i], (size_t)runs);
        report(i < KINDS ? kinds[i].name : "forward of a hot shape, by the launcher", "us", us[i]);
        free(took[i]);
    }
    report("forward / (bare launch + bare cublasLtMatmul)", "x", us[KINDS] / us[2]);
    bare_free(&bare);
    layer_free(&layer);
    must(fp8pipe_close(pipe, 0, -1), "close");
}

static struct fp8pipe_stats stats_of(struct fp8pipe *pipe)
{
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;

    must(fp8pipe_stats_get(pipe, -1, &stats), "stats");
    return stats;
}

/* Microseconds until what was borrowed is refined. */
static double await_refined(struct fp8pipe *pipe)
{
    struct timespec nap = {0, 100000};
    int64_t start = now_ns();

    while (stats_of(pipe).plans_refined < stats_of(pipe).plans_borrowed &&
           now_ns() - start < INT64_C(5000000000)) {
        nanosleep(&nap, NULL);
    }
    return (double)(now_ns() - start) / 1e3;
}

/* No two of a run, up to 1,000, are the same. */
static int64_t new_tokens(int run, int i)
{
    return TOKENS - 1 - (i * 37 + run) % (TOKENS - 2);
}

static void table_new(int runs)
{
    int64_t hot[SHAPES], new[SHAPES], *took = host_alloc((size_t)runs * SHAPES, sizeof(int64_t));
    int64_t *took_new = host_alloc((size_t)runs * SHAPES, sizeof(int64_t));
    int64_t *lone = host_alloc((size_t)runs * LONE, sizeof(int64_t)), longest = 0;
    double refined_us = 0, hot_us, new_us;
    uint64_t borrowed = 0;

    for (int run = 0; run < runs; run++) {
        struct fp8pipe *pipe = pipe_open(1);
        struct layer layer = layer_make(pipe, TOKENS, FEATURES);
        double us;

        for (int i = 0; i < SHAPES; i++) {
            hot[i] = TOKENS;
            new[i] = new_tokens(run, i);
        }
        /* Twice: the first has the weight quantized, and memory to get. */
        time_each(&layer, hot, SHAPES, took + run * SHAPES);
        time_each(&layer, hot, SHAPES, took + run * SHAPES);
        /* Before the others, which load kernels for them too. */
        for (int i = 0; i < LONE; i++) {
            int64_t *ns = &lone[run * LONE + i], tokens = new_tokens(run, SHAPES + i), start;
            int64_t took_one;

            start = now_ns();
            time_each(&layer, &tokens, 1, &took_one);
            (void)await_refined(pipe);
            *ns = now_ns() - start;
            longest = *ns > longest ? *ns : longest;
        }
        time_each(&layer, new, SHAPES, took_new + run * SHAPES);
        us = await_refined(pipe);
        refined_us = us > refined_us ? us : refined_us;
        borrowed += stats_of(pipe).plans_borrowed;
        layer_free(&layer);
        must(fp8pipe_close(pipe, 0, -1), "close");
    }
    hot_us = median_us(took, (size_t)runs * SHAPES);
    new_us = median_us(took_new, (size_t)runs * SHAPES);
    report("forward of a hot shape, and a function, single", "us", hot_us);
    report("forward of a shape never seen, and a function", "us", new_us);
    report("shape never seen above a hot one, median", "us", new_us - hot_us);
    report("borrowed plans, of all new shapes", "x",
           (double)borrowed / (double)(runs * (SHAPES + LONE)));
    report("a shape alone is refined after, median", "us", median_us(lone, (size_t)runs * LONE));
    report("the same, longest", "us", (double)longest / 1e3);
    report("last plan refined after the batch, longest", "us", refined_us);
    free(lone);
    free(took);
    free(took_new);
}

struct arguments {
    int64_t runs;
    FILE *json; /* or NULL */
    bool help;
};

static struct arguments parse(int argc, char **argv)
{
    static const struct argument_program program = {
        "issue", "Times what it costs a launcher to issue ops, on CUDA."};
    static const struct argument known[] = {
        {"--runs", ARGUMENT_NUMBER, offsetof(struct arguments, runs), 1, 100000, NULL,
         "times of which the median is taken (20)"},
        {"--json", ARGUMENT_OUTPUT, offsetof(struct arguments, json), 0, 0, NULL,
         "write the numbers to this file"},
        {"--help", ARGUMENT_FLAG, offsetof(struct arguments, help), 0, 0, NULL, "this text"},
        {.name = NULL},
    };
    struct arguments arguments = {.runs = 20};

    arguments_take(&program, known, argc, argv, &arguments);
    return arguments;
}

int main(int argc, char **argv)
{
    struct arguments arguments = parse(argc, argv);
    int runs = (int)arguments.runs;

    device_find("issue");
    issue_json = json_to(arguments.json);
    json_object(&issue_json, NULL);
    json_text(&issue_json, "version", fp8pipe_version());
    json_text(&issue_json, "backend", "cuda");
    json_list(&issue_json, "results");
    json_lines(&issue_json, 2);
    json_object(&issue_json, NULL);
    json_lines(&issue_json, -1);
    json_text(&issue_json, "name", "runs");
    json_text(&issue_json, "unit", "");
    json_integer(&issue_json, "value", runs);
    json_object_end(&issue_json);
    table_hot(runs);
    table_new(runs < 5 ? runs : 5);
    issue_chains();
    json_lines(&issue_json, 0);
    json_list_end(&issue_json);
    json_lines(&issue_json, -1);
    json_object_end(&issue_json);
    if (json_close(&issue_json) != 0) {
        fprintf(stderr, "issue: --json: %s\n", strerror(errno));
        return 1;
    }
    return 0;
}
