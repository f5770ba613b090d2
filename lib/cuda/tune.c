#include "tune.h"

#include <stdlib.h>
#include <string.h>

#include "ec.h"
#include "tune_bench.h"
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

/* ---- Tuning ------------------------------------------------------------------------------- */

static enum fp8pipe_status tune_key(struct cuda_backend *backend, struct tune_bench *bench,
                                    const struct plan_key *key, int candidates)
{
    struct plan *plans = calloc((size_t)candidates, sizeof(*plans));
    struct plan *best = NULL;
    enum fp8pipe_status status;
    int found = 0;

    if (plans == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory to tune a GEMM with");
    status = plan_candidates(backend, key, candidates, plans, &found);
    if (status == FP8PIPE_OK)
        status = tune_bench_choose(bench, key, plans, found, &best);
    if (status != FP8PIPE_OK)
        goto free_plans;
    status = tuner_keep(backend->tuner, key, &best->algo);
    /* A full table: this pipe has the plan all the same. */
    if (status == FP8PIPE_OK || status == FP8PIPE_EAGAIN)
        status = plan_set(backend, key, best);
free_plans:
    free(plans);
    return status;
}

static enum fp8pipe_dtype dtype_of(enum fp8pipe_gemm_type type)
{
    return type == FP8PIPE_GEMM_FP32   ? FP8PIPE_FP32
           : type == FP8PIPE_GEMM_BF16 ? FP8PIPE_BF16
                                       : FP8PIPE_FP16;
}

/* As lib/gemm.c would ask for it: FP8 operands padded, D by itself. */
static struct plan_key key_of_shape(const struct fp8pipe_tune_shape *shape)
{
    void *some = (void *)(uintptr_t)PLAN_ALIGN_MAX;
    const bool fp8 = gemm_type_is_fp8((int)shape->a);
    const int64_t pad = fp8 ? KERNEL_FP8_PAD : 1;
    const int64_t n = (shape->n + pad - 1) / pad * pad, k = (shape->k + pad - 1) / pad * pad;
    const bool to_fp8 = gemm_type_is_fp8((int)shape->d);
    const enum fp8pipe_dtype d_dtype = dtype_of(shape->d);
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

static enum fp8pipe_status tune_cached(struct cuda_backend *backend, struct tune_bench *bench,
                                       const struct backend_tune *tune, size_t *tuned)
{
    struct plan_key *keys = calloc(PLAN_CACHE_CAPACITY, sizeof(*keys));
    enum fp8pipe_status status = FP8PIPE_OK;
    uint32_t count;

    if (keys == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for the list of plans");
    count = plan_cache_keys(backend->plans, keys, PLAN_CACHE_CAPACITY);
    for (uint32_t i = 0; i < count && status == FP8PIPE_OK && ec_now_ns() < tune->deadline_ns; i++)
        if (key_is_wanted(backend, &keys[i], tune->untuned)) {
            status = tune_key(backend, bench, &keys[i], tune->candidates);
            *tuned += status == FP8PIPE_OK;
        }
    free(keys);
    return status;
}

static enum fp8pipe_status tune_shapes(struct cuda_backend *backend, struct tune_bench *bench,
                                       const struct backend_tune *tune, size_t *tuned)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    for (size_t i = 0;
         i < tune->shape_count && status == FP8PIPE_OK && ec_now_ns() < tune->deadline_ns; i++) {
        const struct plan_key key = key_of_shape(&tune->shapes[i]);

        status = tune_key(backend, bench, &key, tune->candidates);
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
    struct tune_bench *bench;
    size_t tuned = 0;

    if (tune->file != NULL)
        status = tune_file_check(tune->file);
    if (status != FP8PIPE_OK)
        return status;
    pthread_mutex_lock(&backend->tuner->tuning);
    /* A load may wait for the device, and so for what holds a round back until it is enqueued. */
    load_gate_block();
    status = tune_bench_create(backend, backend->tuner->l2_bytes, &bench);
    if (status == FP8PIPE_OK) {
        status = tune->shapes == NULL ? tune_cached(backend, bench, tune, &tuned)
                                      : tune_shapes(backend, bench, tune, &tuned);
        tune_bench_destroy(bench);
    }
    load_gate_unblock();
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
