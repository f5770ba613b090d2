#include "tune_bench.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/fp8.h"

/* ---- A key's operands --------------------------------------------------------------------- */

/* As in use: A was written just before and lies in the cache if it fits, the weights and what is
 * written over do not. So B and D take turns through more than the cache holds. */
#define SETS_MAX 32
#define A_SETS 2
/* Random values repeat after so many; odd enough for no two rows to be alike. */
#define PATTERN 65552

/* Each 16 bytes from the one before, as cuBLASLt demands. */
enum { WORD_A = 0, WORD_B = 4, WORD_AMAX = 8, WORDS = 12 };

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
    size_t bias;
    size_t words; /* WORDS: float32 scales of 1, and a word for an amax */
};

struct tune_bench {
    struct cuda_backend *backend;
    struct cuda_stream *stream;
    struct operands operands; /* of the key that is timed */
    int32_t l2_bytes;
    cudaEvent_t start;
    cudaEvent_t stop;
    sem_t gate;
    int turn;
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
    turn = operands->b_bytes + operands->d_bytes + operands->residual_bytes;
    operands->sets = (int)(2 * (size_t)l2_bytes / turn) + 2;
    if (operands->sets > SETS_MAX)
        operands->sets = SETS_MAX;
    operands->a = take(&end, A_SETS * operands->a_bytes);
    operands->b = take(&end, (size_t)operands->sets * operands->b_bytes);
    operands->d = take(&end, (size_t)operands->sets * operands->d_bytes);
    operands->residual = take(&end, (size_t)operands->sets * operands->residual_bytes);
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
        args.a.scale_inv = &words[WORD_A];
        args.b.scale_inv = &words[WORD_B];
    }
    if (gemm_type_is_fp8(key->d_type)) {
        args.d_scale = &words[WORD_A];
        args.d_format = key->d_type == GEMM_E4M3 ? FP8PIPE_E4M3 : FP8PIPE_E5M2;
        args.d_amax =
            key->amax ? (uint32_t *)(void *)(operands->memory + operands->words) + WORD_AMAX : NULL;
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

static enum fp8pipe_status operands_make(struct tune_bench *bench, const struct plan_key *key)
{
    struct cuda_backend *backend = bench->backend;
    struct operands *operands = &bench->operands;
    const float words[WORDS] = {[WORD_A] = 1.0f, [WORD_B] = 1.0f};
    struct backend *base = &backend->base;
    void *pattern = malloc(PATTERN * sizeof(float));
    enum fp8pipe_status status;
    void *memory;

    if (pattern == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory to tune a GEMM with");
    operands_lay_out(operands, key, bench->l2_bytes);
    status = cuda_alloc(base, NULL, operands->bytes, &memory);
    if (status != FP8PIPE_OK)
        goto free_pattern;
    operands->memory = memory;
    /* D and residual lie side by side, and are of one type. */
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

static enum fp8pipe_status bench_enqueue(struct tune_bench *bench, struct plan *plan, int runs)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    for (int i = 0; i < runs && status == FP8PIPE_OK; i++) {
        const struct gemm_args args = operands_args(&bench->operands, bench->turn++);

        status = plan_run(bench->backend, bench->stream, plan, &args);
    }
    return status;
}

static enum fp8pipe_status bench_wait(struct tune_bench *bench)
{
    cudaError_t error = cudaStreamSynchronize(bench->stream->native);

    return error == cudaSuccess
               ? FP8PIPE_OK
               : cuda_fail(error, FP8PIPE_EDEVICE, "cudaStreamSynchronize", "a GEMM to be timed");
}

/* Microseconds a run, set on success only. The kernels are loaded: to load one may wait for the
 * device, and so for the gate. */
static enum fp8pipe_status bench_round(struct tune_bench *bench, struct plan *plan, int runs,
                                       double *us)
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
static enum fp8pipe_status look_at_all(struct tune_bench *bench, struct candidate *candidates,
                                       int count, int *runs)
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
static enum fp8pipe_status look_again(struct tune_bench *bench, struct candidate *finalists,
                                      int count, int runs)
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
static enum fp8pipe_status bench_choose(struct tune_bench *bench, struct plan *plans, int count,
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

enum fp8pipe_status tune_bench_choose(struct tune_bench *bench, const struct plan_key *key,
                                      struct plan *plans, int count, struct plan **best)
{
    struct backend *base = &bench->backend->base;
    enum fp8pipe_status status = operands_make(bench, key);

    if (status != FP8PIPE_OK)
        return status;
    status = bench_choose(bench, plans, count, best);
    cuda_free(base, NULL, bench->operands.memory, bench->operands.bytes);
    return status;
}

enum fp8pipe_status tune_bench_create(struct cuda_backend *backend, int32_t l2_bytes,
                                      struct tune_bench **out)
{
    struct tune_bench *bench = calloc(1, sizeof(*bench));
    struct fp8pipe_stream *stream;
    enum fp8pipe_status status;
    cudaError_t error;

    if (bench == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory to tune GEMMs with");
    status = cuda_stream_create(&backend->base, NULL, &stream);
    if (status != FP8PIPE_OK)
        goto free_bench;
    bench->backend = backend;
    bench->stream = cuda_stream_of(stream);
    bench->l2_bytes = l2_bytes;
    sem_init(&bench->gate, 0, 0);
    error = cudaEventCreate(&bench->start);
    if (error != cudaSuccess)
        goto destroy_stream;
    error = cudaEventCreate(&bench->stop);
    if (error != cudaSuccess)
        goto destroy_start;
    *out = bench;
    return FP8PIPE_OK;

destroy_start:
    cuda_forget(cudaEventDestroy(bench->start));
destroy_stream:
    status =
        cuda_fail(error, FP8PIPE_ELAUNCH, "cudaEventCreate", "CUDA device %d", backend->device);
    sem_destroy(&bench->gate);
    cuda_stream_destroy(&backend->base, stream);
free_bench:
    free(bench);
    return status;
}

void tune_bench_destroy(struct tune_bench *bench)
{
    if (bench == NULL)
        return;
    cuda_forget(cudaEventDestroy(bench->start));
    cuda_forget(cudaEventDestroy(bench->stop));
    cuda_stream_destroy(&bench->backend->base, &bench->stream->base);
    sem_destroy(&bench->gate);
    free(bench);
}
