#include "tune.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ec.h"
#include "kernels/fp8.h"
#include "plan.h"
#include "tune_file.h"

_Static_assert(sizeof(((struct tune_entry *)0)->key) == sizeof(struct plan_key) &&
                   sizeof(((struct tune_entry *)0)->algo) == sizeof(cublasLtMatmulAlgo_t),
               "what a tune file keeps");

struct tuner {
    pthread_mutex_t tuning; /* held by cuda_tune all the while */
    pthread_mutex_t lock;   /* of the table; a leaf */
    struct tune_card card;
    struct tune_table table;
    int32_t l2_bytes;
};

/* ---- The table ---------------------------------------------------------------------------- */

static enum fp8pipe_status card_make(struct cuda_backend *backend, struct tuner *tuner)
{
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, backend->device);

    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ENODEV, "cudaGetDeviceProperties", "CUDA device %d",
                         backend->device);
    tuner->card.library = backend->lt.version;
    tuner->card.capability = (uint32_t)backend->capability;
    tuner->card.multiprocessors = (uint32_t)properties.multiProcessorCount;
    tune_card_name(&tuner->card, properties.name);
    tuner->l2_bytes = properties.l2CacheSize;
    return FP8PIPE_OK;
}

enum fp8pipe_status tuner_create(struct cuda_backend *backend, const char *file)
{
    struct tuner *tuner = calloc(1, sizeof(*tuner));
    enum fp8pipe_status status;

    if (tuner == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for tuned plans");
    pthread_mutex_init(&tuner->tuning, NULL);
    pthread_mutex_init(&tuner->lock, NULL);
    backend->tuner = tuner;
    status = card_make(backend, tuner);
    if (status == FP8PIPE_OK && file != NULL) {
        if (tune_file_read(file, &tuner->card, &tuner->table) == FP8PIPE_OK)
            log_line(backend->log, FP8PIPE_LOG_INFO, "tune file %s: %zu plans for %s", file,
                     tuner->table.count, tuner->card.name);
        else
            log_line(backend->log, FP8PIPE_LOG_WARN, "%s; it is ignored", status_sentence());
    }
    return status;
}

void tuner_destroy(struct tuner *tuner)
{
    if (tuner == NULL)
        return;
    tune_table_free(&tuner->table);
    pthread_mutex_destroy(&tuner->lock);
    pthread_mutex_destroy(&tuner->tuning);
    free(tuner);
}

bool tuner_find(struct tuner *tuner, const struct plan_key *key, cublasLtMatmulAlgo_t *algo)
{
    uint64_t words[TUNE_KEY_WORDS];
    const struct tune_entry *entry;

    memcpy(words, key, sizeof(words));
    pthread_mutex_lock(&tuner->lock);
    entry = tune_table_find(&tuner->table, words);
    if (entry != NULL)
        memcpy(algo, entry->algo, sizeof(*algo));
    pthread_mutex_unlock(&tuner->lock);
    return entry != NULL;
}

static enum fp8pipe_status tuner_keep(struct tuner *tuner, const struct plan_key *key,
                                      const cublasLtMatmulAlgo_t *algo)
{
    struct tune_entry entry;
    enum fp8pipe_status status;

    memcpy(entry.key, key, sizeof(entry.key));
    memcpy(entry.algo, algo, sizeof(entry.algo));
    pthread_mutex_lock(&tuner->lock);
    status = tune_table_put(&tuner->table, &entry);
    pthread_mutex_unlock(&tuner->lock);
    return status;
}

/* ---- A key's operands --------------------------------------------------------------------- */

/* As in use: A was written just before and lies in the cache if it fits, the weights and what is
 * written over do not. So B and D take turns through more than the cache holds. */
#define SETS_MAX 32
#define A_SETS 2
/* Random values repeat after so many; odd enough for no two rows to be alike. */
#define PATTERN 65552

struct operands {
    struct plan_key key;
    char *memory;
    size_t bytes;
    int sets;
    /* Offsets of the first, and bytes between one and the next. */
    size_t a, a_bytes;
    size_t b, b_bytes;
    size_t d, d_bytes;
    size_t residual, residual_bytes;
    size_t pre, pre_bytes;
    size_t bias;
    size_t words; /* two float32 of 1, and one word for an amax */
};

static size_t round_up(size_t bytes)
{
    return (bytes + PLAN_ALIGN_MAX - 1) / PLAN_ALIGN_MAX * PLAN_ALIGN_MAX;
}

/* Room for rows at an alignment of no more than the key's. */
static size_t matrix_bytes(int64_t rows, int64_t stride, int type)
{
    return round_up((size_t)rows * (size_t)stride * gemm_type_bytes(type) + PLAN_ALIGN_MAX);
}

static size_t take(size_t *end, size_t bytes)
{
    size_t at = *end;

    *end += bytes;
    return at;
}

static void operands_lay_out(struct operands *operands, const struct plan_key *key,
                             int32_t l2_bytes)
{
    const int64_t b_rows = (key->n + KERNEL_FP8_PAD - 1) / KERNEL_FP8_PAD * KERNEL_FP8_PAD;
    size_t end = 0, turn;

    memset(operands, 0, sizeof(*operands));
    operands->key = *key;
    operands->a_bytes =
        matrix_bytes(key->a_transposed ? key->k : key->m, key->a_stride, key->a_type);
    operands->b_bytes =
        matrix_bytes(key->b_transposed ? key->k : b_rows, key->b_stride, key->b_type);
    operands->d_bytes = matrix_bytes(key->m, key->d_stride, key->d_type);
    operands->residual_bytes = matrix_bytes(key->m, key->residual_stride, key->d_type);
    operands->pre_bytes = matrix_bytes(key->m, key->pre_stride, key->d_type);
    turn = operands->b_bytes + operands->d_bytes + operands->residual_bytes + operands->pre_bytes;
    operands->sets = (int)(2 * (size_t)l2_bytes / turn) + 2;
    if (operands->sets > SETS_MAX)
        operands->sets = SETS_MAX;
    operands->a = take(&end, A_SETS * operands->a_bytes);
    operands->b = take(&end, (size_t)operands->sets * operands->b_bytes);
    operands->d = take(&end, (size_t)operands->sets * operands->d_bytes);
    operands->residual = take(&end, (size_t)operands->sets * operands->residual_bytes);
    operands->pre = take(&end, (size_t)operands->sets * operands->pre_bytes);
    operands->bias = take(&end, matrix_bytes(1, key->n, GEMM_FP32));
    operands->words = take(&end, PLAN_ALIGN_MAX);
    operands->bytes = end;
}

static void *aligned_at(const struct operands *operands, size_t first, size_t bytes, int set,
                        uint8_t align)
{
    const size_t offset = 1u << align < PLAN_ALIGN_MAX ? 1u << align : 0;

    return operands->memory + first + (size_t)set * bytes + offset;
}

static enum fp8pipe_dtype dtype_of(int type)
{
    return type == GEMM_FP32 ? FP8PIPE_FP32 : type == GEMM_BF16 ? FP8PIPE_BF16 : FP8PIPE_FP16;
}

/* The args of the turn'th call, whose key is the operands'. */
static struct gemm_args operands_args(const struct operands *operands, int turn)
{
    const struct plan_key *key = &operands->key;
    const int set = turn % operands->sets;
    const float *words = (const float *)(operands->memory + operands->words);
    struct gemm_args args = {
        .m = key->m,
        .n = key->n,
        .k = key->k,
        .a = {.data =
                  aligned_at(operands, operands->a, operands->a_bytes, turn % A_SETS, key->a_align),
              .stride = key->a_stride,
              .type = (enum gemm_type)key->a_type,
              .transposed = key->a_transposed},
        .b = {.data = aligned_at(operands, operands->b, operands->b_bytes, set, key->b_align),
              .stride = key->b_stride,
              .type = (enum gemm_type)key->b_type,
              .transposed = key->b_transposed},
        .d = aligned_at(operands, operands->d, operands->d_bytes, set, key->d_align),
        .d_stride = key->d_stride,
        .d_dtype = dtype_of(key->d_type),
        .accumulate = key->accumulate,
        .fast = key->fast,
        .activation = (enum fp8pipe_activation)key->activation,
    };

    if (gemm_type_is_fp8(key->a_type)) {
        args.a.scale_inv = &words[0];
        args.b.scale_inv = &words[1];
    }
    if (gemm_type_is_fp8(key->d_type)) {
        args.d_scale = &words[0];
        args.d_format = key->d_type == GEMM_E4M3 ? FP8PIPE_E4M3 : FP8PIPE_E5M2;
        args.d_amax =
            key->amax ? (uint32_t *)(void *)(operands->memory + operands->words) + 2 : NULL;
    }
    if (key->bias_type != PLAN_NO_BIAS) {
        args.bias = operands->memory + operands->bias;
        args.bias_dtype = dtype_of(key->bias_type);
    }
    if (key->residual_stride != 0) {
        args.residual = aligned_at(operands, operands->residual, operands->residual_bytes, set,
                                   key->residual_align);
        args.residual_stride = key->residual_stride;
    }
    if (key->pre_stride != 0) {
        args.pre = aligned_at(operands, operands->pre, operands->pre_bytes, set, 8);
        args.pre_stride = key->pre_stride;
    }
    return args;
}

/* Values between -1 and 1 of a type. */
static void pattern_make(void *to, int type)
{
    uint32_t random = 12345;

    for (size_t i = 0; i < PATTERN; i++) {
        float value;

        random = random * 1664525 + 1013904223;
        value = (float)(int32_t)random * 0x1p-31f;
        switch ((enum gemm_type)type) {
        case GEMM_FP32:
            ((float *)to)[i] = value;
            break;
        case GEMM_BF16:
            ((uint16_t *)to)[i] = bf16_from_float(value);
            break;
        case GEMM_FP16:
            ((uint16_t *)to)[i] = fp16_from_float(value);
            break;
        case GEMM_E4M3:
        case GEMM_E5M2:
            ((uint8_t *)to)[i] =
                fp8_from_float(value, type == GEMM_E4M3 ? FP8PIPE_E4M3 : FP8PIPE_E5M2);
            break;
        }
    }
}

/* The pattern over and over, by copies that double. Blocking. */
static enum fp8pipe_status region_fill(struct backend *base, char *to, size_t bytes, int type,
                                       void *pattern)
{
    size_t filled = PATTERN * gemm_type_bytes(type);
    enum fp8pipe_status status;

    pattern_make(pattern, type);
    if (filled > bytes)
        filled = bytes;
    status = cuda_memory_copy(base, to, pattern, filled);
    while (status == FP8PIPE_OK && filled < bytes) {
        const size_t more = filled < bytes - filled ? filled : bytes - filled;

        status = cuda_memory_copy(base, to + filled, to, more);
        filled += more;
    }
    return status;
}

static enum fp8pipe_status operands_make(struct cuda_backend *backend, struct operands *operands,
                                         const struct plan_key *key)
{
    const float words[] = {1.0f, 1.0f, 0.0f};
    struct backend *base = &backend->base;
    void *pattern = malloc(PATTERN * sizeof(float));
    enum fp8pipe_status status;
    void *memory;

    if (pattern == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory to tune a GEMM with");
    operands_lay_out(operands, key, backend->tuner->l2_bytes);
    status = cuda_alloc(base, NULL, operands->bytes, &memory);
    if (status != FP8PIPE_OK)
        goto free_pattern;
    operands->memory = memory;
    /* D, residual and `pre` lie side by side, and are of one type. */
    status = region_fill(base, operands->memory + operands->a, operands->b - operands->a,
                         key->a_type, pattern);
    if (status == FP8PIPE_OK)
        status = region_fill(base, operands->memory + operands->b, operands->d - operands->b,
                             key->b_type, pattern);
    if (status == FP8PIPE_OK)
        status = region_fill(base, operands->memory + operands->d, operands->bias - operands->d,
                             key->d_type, pattern);
    if (status == FP8PIPE_OK)
        status =
            region_fill(base, operands->memory + operands->bias, operands->words - operands->bias,
                        key->bias_type == PLAN_NO_BIAS ? (int)GEMM_FP32 : key->bias_type, pattern);
    if (status == FP8PIPE_OK)
        status = cuda_memory_copy(base, operands->memory + operands->words, words, sizeof(words));
    if (status != FP8PIPE_OK)
        cuda_free(base, NULL, operands->memory, operands->bytes);
free_pattern:
    free(pattern);
    return status;
}

/* ---- Timing ------------------------------------------------------------------------------- */

#define ROUND_US 200.0 /* of GEMMs in a row between two events */
#define RUNS_MAX 20
#define ROUNDS 5
#define FINALISTS 4
/* What the fastest has to be faster than the heuristic's first choice by. */
#define MARGIN 0.99
/* Far above what a round takes to enqueue. */
#define GATE_SECONDS 2

struct bench {
    struct cuda_backend *backend;
    struct cuda_stream *stream;
    const struct operands *operands;
    cudaEvent_t start;
    cudaEvent_t stop;
    sem_t gate;
    int turn;
};

/* Keeps the stream back until all is enqueued, or the time of small GEMMs would be that of their
 * launches. */
static void gate_wait(void *arg)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += GATE_SECONDS;
    while (sem_timedwait(arg, &until) != 0 && errno == EINTR) {
    }
}

static enum fp8pipe_status bench_enqueue(struct bench *bench, struct plan *plan, int runs)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    for (int i = 0; i < runs && status == FP8PIPE_OK; i++) {
        const struct gemm_args args = operands_args(bench->operands, bench->turn++);

        status = plan_run(bench->backend, bench->stream, plan, &args);
    }
    return status;
}

static enum fp8pipe_status bench_wait(struct bench *bench)
{
    cudaError_t error = cudaStreamSynchronize(bench->stream->native);

    return error == cudaSuccess
               ? FP8PIPE_OK
               : cuda_fail(error, FP8PIPE_EDEVICE, "cudaStreamSynchronize", "a GEMM to be timed");
}

/* Microseconds a run, set on success only. The kernels are loaded: to load one may wait for the
 * device, and so for the gate. */
static enum fp8pipe_status bench_round(struct bench *bench, struct plan *plan, int runs, double *us)
{
    cudaStream_t native = bench->stream->native;
    enum fp8pipe_status status = FP8PIPE_OK, waited;
    cudaError_t error;
    float ms = 0;

    error = cudaLaunchHostFunc(native, gate_wait, &bench->gate);
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaLaunchHostFunc", "a GEMM to be timed");
    error = cudaEventRecord(bench->start, native);
    if (error == cudaSuccess) {
        status = bench_enqueue(bench, plan, runs);
        error = cudaEventRecord(bench->stop, native);
    }
    sem_post(&bench->gate);
    waited = bench_wait(bench);
    if (waited != FP8PIPE_OK || status != FP8PIPE_OK)
        return waited != FP8PIPE_OK ? waited : status;
    if (error == cudaSuccess)
        error = cudaEventElapsedTime(&ms, bench->start, bench->stop);
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaEventRecord", "a GEMM to be timed");
    *us = (double)ms * 1000.0 / runs;
    return FP8PIPE_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct candidate {
    struct plan *plan;
    double us; /* INFINITY: it does not run */
    double rounds[ROUNDS];
};

/* A first look at all; *runs: how many make a round. EDEVICE alone ends it. */
static enum fp8pipe_status look_at_all(struct bench *bench, struct candidate *candidates, int count,
                                       int *runs)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    *runs = 2;
    for (int i = 0; i < count && status != FP8PIPE_EDEVICE; i++) {
        candidates[i].us = INFINITY;
        status = bench_enqueue(bench, candidates[i].plan, 1);
        if (status == FP8PIPE_OK)
            status = bench_wait(bench);
        if (status == FP8PIPE_OK)
            status = bench_round(bench, candidates[i].plan, *runs, &candidates[i].us);
        if (status == FP8PIPE_OK && *runs == 2 && candidates[i].us < ROUND_US / 2) {
            *runs = candidates[i].us > ROUND_US / RUNS_MAX ? (int)(ROUND_US / candidates[i].us)
                                                           : RUNS_MAX;
            status = bench_round(bench, candidates[i].plan, *runs, &candidates[i].us);
        }
    }
    return status == FP8PIPE_EDEVICE ? status : FP8PIPE_OK;
}

static int by_us(const void *a, const void *b)
{
    return by_value(&((const struct candidate *)a)->us, &((const struct candidate *)b)->us);
}

/* The rounds of all finalists take turns, so that a change of clocks meets them all. */
static enum fp8pipe_status look_again(struct bench *bench, struct candidate *finalists, int count,
                                      int runs)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count && status == FP8PIPE_OK; i++)
            status = bench_round(bench, finalists[i].plan, runs, &finalists[i].rounds[round]);
    for (int i = 0; i < count; i++) {
        qsort(finalists[i].rounds, ROUNDS, sizeof(double), by_value);
        finalists[i].us = finalists[i].rounds[ROUNDS / 2];
    }
    return status;
}

/* The fastest, or the first if that is not faster by the margin. */
static enum fp8pipe_status bench_choose(struct bench *bench, struct plan *plans, int count,
                                        struct plan **best)
{
    struct candidate candidates[PLAN_CANDIDATES_MAX] = {0}, finalists[FINALISTS + 1];
    enum fp8pipe_status status;
    double first = INFINITY;
    int finals = 0, runs;

    for (int i = 0; i < count; i++)
        candidates[i].plan = &plans[i];
    status = look_at_all(bench, candidates, count, &runs);
    if (status != FP8PIPE_OK)
        return status;
    finalists[finals++] = candidates[0];
    qsort(candidates, (size_t)count, sizeof(*candidates), by_us);
    if (!isfinite(candidates[0].us))
        return status_fail(FP8PIPE_ELAUNCH, "none of cuBLASLt's algorithms runs: %s",
                           status_sentence());
    for (int i = 0; i < count && finals < FINALISTS + 1 && isfinite(candidates[i].us); i++)
        if (candidates[i].plan != &plans[0])
            finalists[finals++] = candidates[i];
    if (isfinite(finalists[0].us)) {
        status = look_again(bench, finalists, finals, runs);
        first = finalists[0].us;
    } else {
        status = look_again(bench, finalists + 1, finals - 1, runs);
    }
    if (status != FP8PIPE_OK)
        return status;
    qsort(finalists, (size_t)finals, sizeof(*finalists), by_us);
    *best = finalists[0].us < MARGIN * first ? finalists[0].plan : &plans[0];
    return FP8PIPE_OK;
}

static enum fp8pipe_status bench_open(struct bench *bench, struct cuda_backend *backend)
{
    struct fp8pipe_stream *stream;
    enum fp8pipe_status status = cuda_stream_create(&backend->base, NULL, &stream);
    cudaError_t error;

    if (status != FP8PIPE_OK)
        return status;
    memset(bench, 0, sizeof(*bench));
    bench->backend = backend;
    bench->stream = cuda_stream_of(stream);
    sem_init(&bench->gate, 0, 0);
    error = cudaEventCreate(&bench->start);
    if (error == cudaSuccess) {
        error = cudaEventCreate(&bench->stop);
        if (error == cudaSuccess)
            return FP8PIPE_OK;
        cuda_forget(cudaEventDestroy(bench->start));
    }
    sem_destroy(&bench->gate);
    cuda_stream_destroy(&backend->base, stream);
    return cuda_fail(error, FP8PIPE_ELAUNCH, "cudaEventCreate", "CUDA device %d", backend->device);
}

static void bench_close(struct bench *bench)
{
    struct backend *base = &bench->backend->base;

    cuda_forget(cudaEventDestroy(bench->start));
    cuda_forget(cudaEventDestroy(bench->stop));
    cuda_stream_destroy(base, &bench->stream->base);
    sem_destroy(&bench->gate);
}

/* ---- Tuning ------------------------------------------------------------------------------- */

static enum fp8pipe_status tune_key(struct bench *bench, const struct plan_key *key, int candidates)
{
    struct cuda_backend *backend = bench->backend;
    struct plan *plans = calloc((size_t)candidates + 1, sizeof(*plans));
    struct plan *best = NULL;
    struct operands operands;
    enum fp8pipe_status status;
    struct plan *kept;
    int found = 0;

    if (plans == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory to tune a GEMM with");
    status = plan_candidates(backend, key, candidates, plans, &found);
    if (status == FP8PIPE_OK)
        status = operands_make(backend, &operands, key);
    if (status != FP8PIPE_OK)
        goto free_plans;
    bench->operands = &operands;
    status = bench_choose(bench, plans, found, &best);
    cuda_free(&backend->base, NULL, operands.memory, operands.bytes);
    if (status != FP8PIPE_OK)
        goto free_plans;
    kept = malloc(sizeof(*kept));
    if (kept == NULL) {
        status = status_fail(FP8PIPE_ENOMEM, "no host memory for a GEMM's plan");
        goto free_plans;
    }
    *kept = *best;
    status = tuner_keep(backend->tuner, key, &best->algo);
    /* A full table: this pipe has the plan all the same. */
    if (status == FP8PIPE_OK || status == FP8PIPE_EAGAIN)
        status = plan_cache_set(backend->plans, key, kept);
    else
        free(kept);
free_plans:
    free(plans);
    return status;
}

/* As lib/gemm.c would ask for it: FP8 operands padded, D by itself. */
static struct plan_key key_of_shape(const struct fp8pipe_tune_shape *shape)
{
    void *some = (void *)(uintptr_t)PLAN_ALIGN_MAX;
    const bool fp8 = gemm_type_is_fp8((int)shape->a);
    const int64_t pad = fp8 ? KERNEL_FP8_PAD : 1;
    const int64_t n = (shape->n + pad - 1) / pad * pad, k = (shape->k + pad - 1) / pad * pad;
    const bool to_fp8 = gemm_type_is_fp8((int)shape->d);
    const enum fp8pipe_dtype d_dtype = dtype_of((int)shape->d);
    struct gemm_args args = {
        .m = shape->m,
        .n = n,
        .k = k,
        .a = {.data = some,
              .stride = shape->a_transposed ? shape->m : k,
              .type = (enum gemm_type)shape->a,
              .transposed = shape->a_transposed != 0},
        .b = {.data = some,
              .stride = shape->b_transposed ? n : k,
              .type = (enum gemm_type)shape->b,
              .transposed = shape->b_transposed != 0},
        .d = some,
        .d_stride = n,
        .d_dtype = d_dtype,
        .bias = shape->bias ? some : NULL,
        .bias_dtype = to_fp8 || (fp8 && d_dtype == FP8PIPE_FP32) ? FP8PIPE_BF16 : d_dtype,
        .accumulate = shape->residual == 2,
        .fast = shape->fast != 0,
        .residual = shape->residual == 1 ? some : NULL,
        .residual_stride = n,
        .activation = shape->activation,
        .d_scale = to_fp8 ? some : NULL,
        .d_format = shape->d == FP8PIPE_GEMM_E5M2 ? FP8PIPE_E5M2 : FP8PIPE_E4M3,
        .d_amax = some,
    };
    struct plan_key key;

    plan_key_make(&key, &args);
    return key;
}

/* Keys of the cache that are worth timing: not those that cuBLASLt does not run. */
static bool key_is_wanted(struct cuda_backend *backend, const struct plan_key *key, bool untuned)
{
    struct plan_entry *entry;
    const struct plan *plan;
    bool wanted;

    if (plan_cache_get(backend->plans, key, &entry) != FP8PIPE_OK)
        return false;
    plan = plan_entry_plan(entry);
    wanted = plan->way == PLAN_DIRECT && !(untuned && plan->tuned);
    plan_cache_put(backend->plans, entry);
    return wanted;
}

static enum fp8pipe_status tune_cached(struct bench *bench, const struct backend_tune *tune,
                                       size_t *tuned)
{
    struct cuda_backend *backend = bench->backend;
    struct plan_key *keys = calloc(PLAN_CACHE_CAPACITY, sizeof(*keys));
    enum fp8pipe_status status = FP8PIPE_OK;
    uint32_t count;

    if (keys == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for the list of plans");
    count = plan_cache_keys(backend->plans, keys, PLAN_CACHE_CAPACITY);
    for (uint32_t i = 0; i < count && status == FP8PIPE_OK && ec_now_ns() < tune->deadline_ns; i++)
        if (key_is_wanted(backend, &keys[i], tune->untuned)) {
            status = tune_key(bench, &keys[i], tune->candidates);
            *tuned += status == FP8PIPE_OK;
        }
    free(keys);
    return status;
}

static enum fp8pipe_status tune_shapes(struct bench *bench, const struct backend_tune *tune,
                                       size_t *tuned)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    for (size_t i = 0;
         i < tune->shape_count && status == FP8PIPE_OK && ec_now_ns() < tune->deadline_ns; i++) {
        const struct plan_key key = key_of_shape(&tune->shapes[i]);

        status = tune_key(bench, &key, tune->candidates);
        *tuned += status == FP8PIPE_OK;
    }
    return status;
}

/* A copy: other pipes of the process may write the file meanwhile, and launchers look keys up. */
static enum fp8pipe_status tuner_save(const struct cuda_backend *backend, const char *file)
{
    struct tuner *tuner = backend->tuner;
    struct tune_table copy = {NULL, 0, 0};
    enum fp8pipe_status status;
    bool damaged = false;

    pthread_mutex_lock(&tuner->lock);
    status = tune_table_copy(&copy, &tuner->table);
    pthread_mutex_unlock(&tuner->lock);
    if (status == FP8PIPE_OK)
        status = tune_file_write(file, &tuner->card, &copy, &damaged);
    if (damaged)
        log_line(backend->log, FP8PIPE_LOG_WARN, "tune file %s was damaged, and has been replaced",
                 file);
    tune_table_free(&copy);
    return status;
}

enum fp8pipe_status cuda_tune(struct backend *base, const struct backend_tune *tune)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    enum fp8pipe_status status = FP8PIPE_OK, saved = FP8PIPE_OK;
    struct bench bench;
    size_t tuned = 0;

    if (tune->file != NULL)
        status = tune_file_check(tune->file);
    if (status != FP8PIPE_OK)
        return status;
    pthread_mutex_lock(&backend->tuner->tuning);
    status = bench_open(&bench, backend);
    if (status == FP8PIPE_OK) {
        status = tune->shapes == NULL ? tune_cached(&bench, tune, &tuned)
                                      : tune_shapes(&bench, tune, &tuned);
        bench_close(&bench);
    }
    pthread_mutex_unlock(&backend->tuner->tuning);
    if (tune->file != NULL && (tuned > 0 || !tune->untuned)) {
        char sentence[STATUS_SENTENCE_BYTES];

        strcpy(sentence, status_sentence());
        saved = tuner_save(backend, tune->file);
        if (status != FP8PIPE_OK)
            status_fail(status, "%s", sentence);
    }
    return status != FP8PIPE_OK ? status : saved;
}
