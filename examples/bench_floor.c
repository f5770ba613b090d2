#include "bench_floor.h"

#include <fp8pipe_tune.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define REPEATS 20
#define COPY_BYTES ((size_t)512 << 20)
#define COPY_BYTES_HOST ((size_t)32 << 20)

double bench_floor_traffic(const struct bench_options *options)
{
    bool quantized = options->dtype == BENCH_FP8;
    double e = options->dtype == BENCH_FP32 ? 4.0 : 2.0; /* bytes of an activation */
    double r = (double)options->mlp_ratio;
    double n = (double)(options->batch * options->tokens) * (double)options->hidden;
    double c = !quantized ? 0.0 : options->train ? 2.0 : 1.0; /* bytes of a quantized X */
    double dy = quantized ? 2.0 : 0.0;
    double wide = quantized ? 2.0 : e; /* bytes of a dY that is made of another one */
    double block;
    double weights = (12.0 + 2.0 * r) * (double)options->hidden * (double)options->hidden;
    double state = 4.0 * 6.0 + (options->grad_dtype == BENCH_FP32 ? 4.0 : 2.0);

    /* x quantized; modulate; x2; x3 */
    block = (quantized ? e + c : 0.0) + (4.0 * e + c) + 2.0 * (3.0 * e + c);
    if (options->train) {
        block += 2.0 * e;                                /* u and v */
        block += quantized ? 2.0 * r : 0.0;              /* mlp2's X transposed */
        block += quantized ? (2.0 + r) * (e + dy) : 0.0; /* dY of mlp2, q and mlp1 */
        block += (e + 2.0 * wide) + (e + 3.0 * wide);    /* and of kv and self_attn */
        block += 3.0 * e + e + 6.0 * wide;               /* modulate's backward */
    }
    if (!options->train) {
        return (double)options->depth * n * block;
    }
    state += quantized ? 2.0 : options->dtype == BENCH_BF16 ? 2.0 : 0.0;
    return (double)options->depth * (n * block + weights * state) + n * 3.0 * e;
}

/* One GEMM's operands, quantized or not, and its output. */
struct bare {
    struct fp8pipe_matrix x;  /* [T, K] */
    struct fp8pipe_matrix w;  /* [N, K] */
    struct fp8pipe_matrix dy; /* [T, N] */
    struct fp8pipe_matrix y;
    struct fp8pipe_matrix dw;
    struct fp8pipe_tensor *tensors[3]; /* of x, w and dy */
    struct fp8pipe_scaling *scaling;
};

static void fill(struct bench_chain *chain, struct fp8pipe_matrix matrix, uint64_t key, float bound)
{
    struct bench_op op = {.kind = BENCH_FILL, .fill = {matrix, key, -bound, 2.0f * bound}};

    bench_chain_call(chain, "fill", &op);
}

static void quantize(struct bench_chain *chain, struct bare *bare, int which,
                     struct fp8pipe_matrix x)
{
    struct fp8pipe_quantize_op op = FP8PIPE_QUANTIZE_OP_INIT;

    op.submit = bench_chain_submit(BENCH_LANE_CHAIN, "quantize");
    op.x = x;
    op.scaling = bare->scaling;
    op.slot = (uint32_t)which;
    op.copies = FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED;
    if (chain->status == FP8PIPE_OK) {
        bench_chain_submitted(
            chain, fp8pipe_tensor_quantize(bare->tensors[which], &op, &chain->last), "quantize");
    }
}

/* D = A . B^T of one kind. a, b: which of x, w and dy. */
static struct fp8pipe_gemm_op gemm_op(const struct bare *bare, bool quantized, enum bench_gemm kind)
{
    static const int which[BENCH_GEMMS][2] = {{0, 1}, {2, 1}, {2, 0}};
    const struct fp8pipe_matrix matrices[] = {bare->x, bare->w, bare->dy};
    struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;
    int a = which[kind][0];
    int b = which[kind][1];

    op.submit = bench_chain_submit(BENCH_LANE_CHAIN, "gemm");
    if (quantized) {
        op.a_tensor = bare->tensors[a];
        op.b_tensor = bare->tensors[b];
    } else {
        op.a = matrices[a];
        op.b = matrices[b];
    }
    op.a_transposed = kind == BENCH_GEMM_WGRAD;
    op.b_transposed = kind != BENCH_GEMM_FORWARD;
    op.d = kind == BENCH_GEMM_FORWARD ? bare->y : kind == BENCH_GEMM_DGRAD ? bare->x : bare->dw;
    if (kind == BENCH_GEMM_DGRAD) {
        /* Beside the operands, which a repetition reads again. */
        op.d.data = bare->y.data;
    }
    op.accumulation =
        kind == BENCH_GEMM_FORWARD ? FP8PIPE_ACCUMULATION_FAST : FP8PIPE_ACCUMULATION_SPLIT;
    return op;
}

static void mark(struct bench_chain *chain, struct bench_marks *marks, int64_t index)
{
    struct bench_op op = {.kind = BENCH_MARK, .mark = {marks, index}};

    bench_chain_call(chain, "mark", &op);
}

static void gemms(struct bench_chain *chain, const struct fp8pipe_gemm_op *op, int count)
{
    for (int i = 0; i < count && chain->status == FP8PIPE_OK; i++) {
        bench_chain_submitted(chain, fp8pipe_gemm(chain->pipe, op, &chain->last), "gemm");
    }
}

/* Holds a stream back until all that is to be timed is in it: else small GEMMs would be timed by
 * their launches. */
struct hold {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended;
};

static void hold_wait(void *arg)
{
    struct hold *hold = arg;

    pthread_mutex_lock(&hold->lock);
    while (!hold->ended) {
        pthread_cond_wait(&hold->changed, &hold->lock);
    }
    pthread_mutex_unlock(&hold->lock);
}

static void hold_begin(struct bench_chain *chain, struct hold *hold)
{
    struct fp8pipe_host_call_op op = FP8PIPE_HOST_CALL_OP_INIT;

    op.submit = bench_chain_submit(BENCH_LANE_CHAIN, "hold");
    op.fn = hold_wait;
    op.arg = hold;
    if (chain->status == FP8PIPE_OK) {
        bench_chain_submitted(chain, fp8pipe_host_call(chain->pipe, &op, &chain->last), "hold");
    }
}

/* Once what came after it is issued, and in any case: nothing else ends it. */
static void hold_end(struct bench_chain *chain, struct hold *hold)
{
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_wait(chain->pipe, chain->last, FP8PIPE_ISSUED, -1),
                         "waiting until the GEMMs are issued");
    }
    pthread_mutex_lock(&hold->lock);
    hold->ended = true;
    pthread_cond_signal(&hold->changed);
    pthread_mutex_unlock(&hold->lock);
}

/* The tuned time of one, in us. */
static double time_gemm(struct bench_chain *chain, const struct fp8pipe_gemm_op *op, bool tunes,
                        struct bench_marks *marks)
{
    struct fp8pipe_tune_options tuning = FP8PIPE_TUNE_OPTIONS_INIT;
    struct hold hold = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};

    gemms(chain, op, 2);
    bench_chain_drain(chain);
    if (tunes && chain->status == FP8PIPE_OK) {
        enum fp8pipe_status status = fp8pipe_tune(chain->pipe, &tuning);

        bench_chain_keep(chain, status == FP8PIPE_ENOTSUP ? FP8PIPE_OK : status, "tuning");
    }
    hold_begin(chain, &hold);
    gemms(chain, op, 1);
    mark(chain, marks, 0);
    gemms(chain, op, REPEATS);
    mark(chain, marks, 1);
    hold_end(chain, &hold);
    bench_chain_drain(chain);
    return chain->status == FP8PIPE_OK ? 1e3 * bench_marks_ms(marks, 0, 1) / REPEATS : NAN;
}

/* The three of one layer, on memory for the largest. */
static void time_layer(struct bench_chain *chain, const struct bench_options *options,
                       struct bare bare, struct bench_marks *marks, int64_t outputs, int64_t inputs,
                       double *us)
{
    bool quantized = options->dtype == BENCH_FP8;

    bare.x.cols = bare.x.stride = inputs;
    bare.w.rows = outputs;
    bare.w.cols = bare.w.stride = inputs;
    bare.dy.cols = bare.dy.stride = outputs;
    bare.y.cols = bare.y.stride = outputs;
    bare.dw.rows = outputs;
    bare.dw.cols = bare.dw.stride = inputs;
    fill(chain, bare.x, 1, 1.0f);
    fill(chain, bare.w, 2, 1.0f / sqrtf((float)inputs));
    fill(chain, bare.dy, 3, 1.0f);
    if (quantized) {
        quantize(chain, &bare, 0, bare.x);
        quantize(chain, &bare, 1, bare.w);
        quantize(chain, &bare, 2, bare.dy);
    }
    for (int kind = 0; kind < (options->train ? BENCH_GEMMS : 1); kind++) {
        struct fp8pipe_gemm_op op = gemm_op(&bare, quantized, (enum bench_gemm)kind);

        us[kind] = time_gemm(chain, &op, options->tune, marks);
    }
}

static double copy_bandwidth(struct bench_chain *chain, void *memory, size_t bytes,
                             struct bench_marks *marks)
{
    struct fp8pipe_copy_op op = FP8PIPE_COPY_OP_INIT;

    op.submit = bench_chain_submit(BENCH_LANE_CHAIN, "copy");
    op.from = memory;
    op.to = (char *)memory + bytes;
    op.bytes = bytes;
    for (int i = 0; i <= REPEATS && chain->status == FP8PIPE_OK; i++) {
        bench_chain_submitted(chain, fp8pipe_copy(chain->pipe, &op, &chain->last), "copy");
        if (i == 0) {
            mark(chain, marks, 0);
        }
    }
    mark(chain, marks, 1);
    bench_chain_drain(chain);
    return chain->status == FP8PIPE_OK
               ? 2.0 * (double)bytes * REPEATS / (1e-3 * bench_marks_ms(marks, 0, 1))
               : NAN;
}

/* Memory for the largest layer, then for a copy. */
static struct fp8pipe_matrix take(char **at, int64_t rows, int64_t cols, enum fp8pipe_dtype dtype)
{
    struct fp8pipe_matrix matrix = {*at, rows, cols, cols, dtype, 0};
    size_t bytes = (size_t)(rows * cols) * (dtype == FP8PIPE_FP32 ? sizeof(float) : 2);

    *at += (bytes + 255) / 256 * 256;
    return matrix;
}

static size_t take_all(const struct bench_options *options, char *memory, struct bare *bare)
{
    enum fp8pipe_dtype dtype = options->dtype == BENCH_FP32 ? FP8PIPE_FP32 : FP8PIPE_BF16;
    enum fp8pipe_dtype gradient = options->grad_dtype == BENCH_FP32 ? FP8PIPE_FP32 : FP8PIPE_BF16;
    int64_t rows = options->batch * options->tokens;
    int64_t ratio = options->mlp_ratio;
    int64_t wide = (ratio > 6 ? ratio : 6) * options->hidden;
    char *at = memory;

    bare->x = take(&at, rows, ratio * options->hidden, dtype);
    bare->w = take(&at, wide, options->hidden, dtype);
    bare->dy = take(&at, rows, wide, dtype);
    bare->y = take(&at, rows, wide, dtype);
    bare->dw = take(&at, wide, options->hidden, gradient);
    return (size_t)(at - memory);
}

static void create(struct bench_chain *chain, bool quantized, struct bare *bare)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;

    options.slots = 3;
    for (int i = 0; i < 3 && quantized && chain->status == FP8PIPE_OK; i++) {
        bench_chain_keep(chain, fp8pipe_tensor_create(chain->pipe, &bare->tensors[i]), "tensor");
    }
    if (quantized && chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_scaling_create(chain->pipe, &options, &bare->scaling),
                         "scaling");
    }
}

void bench_floor_measure(struct bench_chain *chain, const struct bench_options *options,
                         enum fp8pipe_backend backend, struct bench_floor *floor)
{
    const int64_t shapes[BENCH_LAYERS][2] = {
        {6, 1}, {3, 1}, {1, 1}, {2, 1}, {options->mlp_ratio, 1}, {1, options->mlp_ratio}};
    size_t copy = backend == FP8PIPE_BACKEND_CUDA ? COPY_BYTES : COPY_BYTES_HOST;
    struct bench_marks marks;
    struct bare bare = {.scaling = NULL};
    size_t bytes = take_all(options, NULL, &bare);
    void *memory = NULL;

    *floor = (struct bench_floor){.traffic_bytes = bench_floor_traffic(options)};
    bytes = bytes > 2 * copy ? bytes : 2 * copy;
    if (bench_marks_create(&marks, backend, 2) != 0) {
        bench_chain_keep(chain, FP8PIPE_ENOMEM, "floor");
        return;
    }
    bench_chain_keep(chain, fp8pipe_alloc(chain->pipe, bytes, &memory), "memory for the floor");
    if (chain->status == FP8PIPE_OK) {
        struct bench_op zeros = {
            .kind = BENCH_FILL,
            .fill = {{memory, 1, (int64_t)(copy / 4), (int64_t)(copy / 4), FP8PIPE_FP32, 0},
                     4,
                     0.0f,
                     1.0f}};

        bench_chain_call(chain, "fill", &zeros);
        floor->copy_bytes_per_s = copy_bandwidth(chain, memory, copy, &marks);
        take_all(options, memory, &bare);
        create(chain, options->dtype == BENCH_FP8, &bare);
    }
    for (int i = 0; i < BENCH_LAYERS && chain->status == FP8PIPE_OK; i++) {
        time_layer(chain, options, bare, &marks, shapes[i][0] * options->hidden,
                   shapes[i][1] * options->hidden, floor->gemm_us[i]);
        for (int kind = 0; kind < BENCH_GEMMS; kind++) {
            floor->gemms_ms += 1e-3 * floor->gemm_us[i][kind] * (double)options->depth;
        }
    }
    floor->ms = floor->gemms_ms + 1e3 * floor->traffic_bytes / floor->copy_bytes_per_s;
    fp8pipe_drain(chain->pipe, -1);
    for (int i = 0; i < 3; i++) {
        fp8pipe_tensor_destroy(bare.tensors[i]);
    }
    fp8pipe_scaling_destroy(bare.scaling);
    fp8pipe_free(chain->pipe, memory);
    bench_marks_clear(&marks);
}
