#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "ec.h"
#include "plan_describe.h"
#include "planner.h"
#include "tune.h"

/* ---- Plans -------------------------------------------------------------------------------- */

/* CUBLAS_STATUS_NOT_SUPPORTED if cuBLASLt has no algorithm for the key. `plan` is described. */
static cublasStatus_t plan_search(const struct cuda_backend *backend, struct plan *plan,
                                  const struct plan_key *key, int most,
                                  cublasLtMatmulHeuristicResult_t *results, int *found)
{
    const struct cublaslt *lt = &backend->lt;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasStatus_t error;

    *found = 0;
    memset(results, 0, (size_t)most * sizeof(*results));
    error = plan_preference(lt, &preference, key, backend->workspace_bytes);
    TRY(error,
        lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, &plan->desc, &plan->a, &plan->b, &plan->c,
                                           &plan->d, &preference, most, results, found));
    if (error == CUBLAS_STATUS_SUCCESS)
        error = *found < 1 ? CUBLAS_STATUS_NOT_SUPPORTED : results[0].state;
    return error;
}

/* Whether an algorithm that was not found for this very key runs it; then it is the plan's. */
static bool plan_adopt(const struct cuda_backend *backend, struct plan *plan,
                       const cublasLtMatmulAlgo_t *algo)
{
    const struct cublaslt *lt = &backend->lt;
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_SUCCESS};

    if (lt->cublasLtMatmulAlgoCheck(lt->handle, &plan->desc, &plan->a, &plan->b, &plan->c, &plan->d,
                                    algo, &result) != CUBLAS_STATUS_SUCCESS ||
        result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > backend->workspace_bytes)
        return false;
    plan->algo = *algo;
    plan->workspace_bytes = result.workspaceSize;
    return true;
}

/* The heuristic's first choice, or what is left where cuBLASLt has none. */
static enum fp8pipe_status plan_decide(const struct cuda_backend *backend, struct plan *plan,
                                       const struct plan_key *key)
{
    cublasLtMatmulHeuristicResult_t result;
    char name[PLAN_KEY_NAME_BYTES];
    cublasStatus_t error = CUBLAS_STATUS_NOT_SUPPORTED;
    int found;

    if (plan_key_is_direct(key)) {
        error = plan_describe(&backend->lt, plan, key);
        TRY(error, plan_search(backend, plan, key, 1, &result, &found));
    }
    plan->heuristic = true;
    if (error == CUBLAS_STATUS_SUCCESS) {
        plan->way = PLAN_DIRECT;
        plan->algo = result.algo;
        plan->workspace_bytes = result.workspaceSize;
    } else if ((error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE) &&
               plan_key_has_epilogue(key)) {
        /* It calls some combinations of types and epilogues invalid. */
        plan->way = PLAN_REFUSED;
    } else if (error == CUBLAS_STATUS_NOT_SUPPORTED && !plan_key_is_plain(key)) {
        plan->way = PLAN_THROUGH_FP32;
    } else {
        return cublaslt_fail(&backend->lt, error, FP8PIPE_ENOTSUP, "cublasLtMatmulAlgoGetHeuristic",
                             plan_key_name(name, key));
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status plan_alloc(struct cuda_backend *backend, struct plan **plan)
{
    *plan = calloc(1, sizeof(**plan));
    if (*plan == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for a GEMM's plan");
    (*plan)->id = __atomic_add_fetch(&backend->plan_ids, 1, __ATOMIC_RELAXED);
    return FP8PIPE_OK;
}

static enum fp8pipe_status plan_make(struct cuda_backend *backend, const struct plan_key *key,
                                     struct plan **out)
{
    enum fp8pipe_status status = plan_alloc(backend, out);

    if (status != FP8PIPE_OK)
        return status;
    status = plan_decide(backend, *out, key);
    if (status != FP8PIPE_OK)
        free(*out);
    return status;
}

/* ---- The cache ---------------------------------------------------------------------------- */

/* The nearest neighbour's algorithm, if it runs this key and the planner has room for it. */
static bool plan_borrow(const struct cuda_backend *backend, struct plan *plan,
                        const struct plan_key *key)
{
    struct plan_entry *neighbour;
    const struct plan *lent;
    bool borrowed;

    if (backend->planner == NULL)
        return false;
    neighbour = plan_cache_nearest(backend->plans, key);
    if (neighbour == NULL)
        return false;
    lent = plan_entry_plan(neighbour);
    borrowed = plan_adopt(backend, plan, &lent->algo) && planner_push(backend->planner, key);
    plan_cache_put(backend->plans, neighbour);
    return borrowed;
}

static enum fp8pipe_status plan_build(void *context, const void *key_bytes, void **out,
                                      bool *provisional)
{
    struct cuda_backend *backend = context;
    const struct plan_key *key = key_bytes;
    char name[PLAN_KEY_NAME_BYTES];
    cublasLtMatmulAlgo_t algo;
    struct plan *plan;
    enum fp8pipe_status status;

    if (gemm_type_is_fp8(key->a_type) && backend->capability < 89)
        return status_fail(FP8PIPE_ENOTSUP,
                           "%s: FP8 needs compute capability 8.9 or more, CUDA device %d has "
                           "%d.%d",
                           plan_key_name(name, key), backend->device, backend->capability / 10,
                           backend->capability % 10);
    status = plan_alloc(backend, &plan);
    if (status != FP8PIPE_OK)
        return status;
    if (plan_key_is_direct(key) &&
        plan_describe(&backend->lt, plan, key) == CUBLAS_STATUS_SUCCESS) {
        plan->way = PLAN_DIRECT;
        plan->tuned = tuner_find(backend->tuner, key, &algo) && plan_adopt(backend, plan, &algo);
        *provisional = !plan->tuned && plan_borrow(backend, plan, key);
    }
    if (!plan->tuned && !*provisional)
        status = plan_decide(backend, plan, key);
    if (status == FP8PIPE_OK)
        *out = plan;
    else
        free(plan);
    return status;
}

static void plan_destroy(void *context, void *plan)
{
    (void)context;
    free(plan);
}

static uint64_t plan_family(const void *key, int family)
{
    return plan_key_family(key, family);
}

static uint64_t plan_distance(const void *key, const void *other, const void *other_plan,
                              int family)
{
    return ((const struct plan *)other_plan)->way == PLAN_DIRECT
               ? plan_key_distance(key, other, family)
               : UINT64_MAX;
}

/* How often the planner looks whether it may load. */
#define LOOK_NS INT64_C(200000)

/* A key that got another plan, or was evicted, needs none any more. */
static void refine(struct cuda_backend *backend, const struct plan_key *key)
{
    struct backend_scope scope;
    struct plan *plan;

    if (!plan_cache_is_provisional(backend->plans, key))
        return;
    cuda_enter(&backend->base, &scope);
    if (plan_make(backend, key, &plan) == FP8PIPE_OK) {
        (void)plan_load(backend, key, plan);
        plan_cache_refine(backend->plans, key, plan);
    }
    cuda_leave(&backend->base, &scope);
}

/* On the planner's thread. */
static void plan_refine(void *context, const void *key, int64_t pushed_ns)
{
    struct cuda_backend *backend = context;

    while (!load_gate_is_open(&backend->load_gate, ec_now_ns(), pushed_ns) || !load_gate_enter())
        if (!planner_sleep(backend->planner, LOOK_NS))
            return;
    refine(backend, key);
    load_gate_leave();
}

enum fp8pipe_status plans_create(struct cuda_backend *backend, enum fp8pipe_plans plans)
{
    const struct plan_cache_options options = {
        .key_bytes = sizeof(struct plan_key),
        .capacity = PLAN_CACHE_CAPACITY,
        .build = plan_build,
        .destroy = plan_destroy,
        .context = backend,
        .family = plan_family,
        .distance = plan_distance,
    };

    backend->plans = plan_cache_create(&options);
    if (backend->plans == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for the plan cache");
    if (plans == FP8PIPE_PLANS_FIXED)
        return FP8PIPE_OK;
    load_gate_watch_exit();
    return planner_create(sizeof(struct plan_key), PLAN_QUEUE_CAPACITY, plan_refine, backend,
                          &backend->planner);
}

void plans_destroy(struct cuda_backend *backend)
{
    planner_destroy(backend->planner);
    if (backend->loading_amax != NULL)
        cuda_forget(cudaFreeAsync(backend->loading_amax, backend->loading));
    if (backend->loading != NULL)
        cuda_forget(cudaStreamDestroy(backend->loading));
    plan_cache_destroy(backend->plans);
}

enum fp8pipe_status plan_get(struct cuda_backend *backend, struct cuda_stream *stream,
                             const struct gemm_args *args, struct plan **plan)
{
    struct plan_key key;
    void *found;
    enum fp8pipe_status status;

    plan_key_make(&key, args);
    status = plan_front_get(&stream->plans, backend->plans, &key, &found);
    if (status == FP8PIPE_OK)
        *plan = found;
    return status;
}

enum fp8pipe_status plan_renew(struct cuda_backend *backend, const struct gemm_args *args)
{
    struct plan_key key;
    struct plan *plan;
    enum fp8pipe_status status;

    plan_key_make(&key, args);
    status = plan_make(backend, &key, &plan);
    return status == FP8PIPE_OK ? plan_cache_set(backend->plans, &key, plan) : status;
}

enum fp8pipe_status plan_set(struct cuda_backend *backend, const struct plan_key *key,
                             const struct plan *chosen)
{
    struct plan *plan;
    enum fp8pipe_status status = plan_alloc(backend, &plan);
    uint64_t id;

    if (status != FP8PIPE_OK)
        return status;
    id = plan->id;
    *plan = *chosen;
    plan->id = id;
    return plan_cache_set(backend->plans, key, plan);
}

enum fp8pipe_status plan_candidates(const struct cuda_backend *backend, const struct plan_key *key,
                                    int most, struct plan *plans, int *found)
{
    cublasLtMatmulHeuristicResult_t results[PLAN_CANDIDATES_MAX];
    char name[PLAN_KEY_NAME_BYTES];
    cublasStatus_t error = CUBLAS_STATUS_NOT_SUPPORTED;
    struct plan base = {0};
    int count = 0;

    if (plan_key_is_direct(key)) {
        error = plan_describe(&backend->lt, &base, key);
        TRY(error, plan_search(backend, &base, key, most, results, &count));
    }
    if (error != CUBLAS_STATUS_SUCCESS)
        return cublaslt_fail(&backend->lt, error, FP8PIPE_ENOTSUP, "cublasLtMatmulAlgoGetHeuristic",
                             plan_key_name(name, key));
    *found = 0;
    for (int i = 0; i < count; i++) {
        struct plan *plan = &plans[*found];

        if (results[i].state != CUBLAS_STATUS_SUCCESS ||
            results[i].workspaceSize > backend->workspace_bytes)
            continue;
        *plan = base;
        plan->way = PLAN_DIRECT;
        plan->tuned = true;
        plan->algo = results[i].algo;
        plan->workspace_bytes = results[i].workspaceSize;
        (*found)++;
    }
    return *found > 0 ? FP8PIPE_OK
                      : status_fail(FP8PIPE_ENOTSUP,
                                    "%s: no algorithm of cuBLASLt's fits into %zu "
                                    "bytes of workspace",
                                    plan_key_name(name, key), backend->workspace_bytes);
}
