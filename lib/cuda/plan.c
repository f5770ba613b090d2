#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "planner.h"
#include "replay.h"
#include "tune.h"

/*
 * D[m,n] = A[m,k] . B[n,k]^T in row-major terms is D^T[n,m] = B . A^T in cuBLASLt's column-major
 * ones: its A is B, its B is A, and a row-major [rows, cols] is a column-major cols x rows. An
 * operand that is not transposed here is k x rows there: its A needs op T, its B op N, which is
 * what FP8 demands.
 */

/* Stands for any aligned device pointer while the heuristic only looks at alignment. */
#define PLAN_SOME_POINTER ((void *)(uintptr_t)PLAN_ALIGN_MAX)

static cudaDataType_t gemm_type_cuda(int type)
{
    switch ((enum gemm_type)type) {
    case GEMM_FP32:
        return CUDA_R_32F;
    case GEMM_BF16:
        return CUDA_R_16BF;
    case GEMM_FP16:
        return CUDA_R_16F;
    case GEMM_E4M3:
        return CUDA_R_8F_E4M3;
    case GEMM_E5M2:
        return CUDA_R_8F_E5M2;
    }
    return CUDA_R_32F;
}

/* ---- Descriptors -------------------------------------------------------------------------- */

/* The first error of a row of calls. */
#define TRY(error, call)                                                                           \
    do {                                                                                           \
        if ((error) == CUBLAS_STATUS_SUCCESS)                                                      \
            (error) = (call);                                                                      \
    } while (0)

static cublasStatus_t desc_set(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                               cublasLtMatmulDescAttributes_t attribute, const void *value,
                               size_t bytes)
{
    return lt->cublasLtMatmulDescSetAttribute(desc, attribute, value, bytes);
}

/* The pointers of one call. NULL: the descriptor has none. */
struct pointers {
    const void *a_scale;
    const void *b_scale;
    const void *bias;
    const void *d_scale;
    const void *d_amax;
};

static cublasStatus_t desc_point(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                                 const struct pointers *to)
{
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
    } pointers[] = {
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, to->b_scale},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, to->a_scale},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, to->bias},
        {CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, to->d_scale},
        {CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, to->d_amax},
    };
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++)
        if (pointers[i].value != NULL)
            TRY(error, desc_set(lt, desc, pointers[i].attribute, &pointers[i].value,
                                sizeof(pointers[i].value)));
    return error;
}

static cublasLtEpilogue_t epilogue_of(const struct plan_key *key)
{
    const bool bias = key->bias_type != PLAN_NO_BIAS;

    if (key->activation == FP8PIPE_ACTIVATION_NONE)
        return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

static cublasStatus_t desc_make(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                                const struct plan_key *key)
{
    const cublasOperation_t a_op = key->b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t b_op = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const bool fp8 = gemm_type_is_fp8(key->a_type);
    const struct pointers some = {
        .a_scale = fp8 ? PLAN_SOME_POINTER : NULL,
        .b_scale = fp8 ? PLAN_SOME_POINTER : NULL,
        .bias = key->bias_type != PLAN_NO_BIAS ? PLAN_SOME_POINTER : NULL,
        .d_scale = gemm_type_is_fp8(key->d_type) ? PLAN_SOME_POINTER : NULL,
        .d_amax = key->amax ? PLAN_SOME_POINTER : NULL,
    };
    const uint32_t epilogue = epilogue_of(key);
    const int8_t fast = key->fast != 0;
    cublasStatus_t error;

    /* 32F and not 32F_FAST_TF32: fp32 operands are multiplied in fp32. */
    error =
        lt->cublasLtMatmulDescInit_internal(desc, sizeof(*desc), CUBLAS_COMPUTE_32F, CUDA_R_32F);
    TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_TRANSA, &a_op, sizeof(a_op)));
    TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_TRANSB, &b_op, sizeof(b_op)));
    if (fp8)
        TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (some.bias != NULL) {
        const int32_t type = (int32_t)gemm_type_cuda(key->bias_type);

        TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type)));
    }
    TRY(error, desc_point(lt, desc, &some));
    return error;
}

/* A row-major matrix of `rows` x `cols`, `stride` elements between rows. */
static cublasStatus_t layout_make(const struct cublaslt *lt, cublasLtMatrixLayoutOpaque_t *layout,
                                  int type, int64_t rows, int64_t cols, int64_t stride)
{
    return lt->cublasLtMatrixLayoutInit_internal(layout, sizeof(*layout), gemm_type_cuda(type),
                                                 (uint64_t)cols, (uint64_t)rows, stride);
}

static cublasStatus_t preference_make(const struct cublaslt *lt,
                                      cublasLtMatmulPreferenceOpaque_t *preference,
                                      const struct plan_key *key, uint64_t workspace_bytes)
{
    const uint8_t c_align = key->residual_stride != 0 ? key->residual_align : key->d_align;
    /* Or none. In place adds and rounds in D's type; so does OUTPUT_TYPE. */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } words[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 1u << key->b_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 1u << key->a_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 1u << c_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 1u << key->d_align},
    };
    cublasStatus_t error;

    error = lt->cublasLtMatmulPreferenceInit_internal(preference, sizeof(*preference));
    TRY(error, lt->cublasLtMatmulPreferenceSetAttribute(preference,
                                                        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        &workspace_bytes, sizeof(workspace_bytes)));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        TRY(error, lt->cublasLtMatmulPreferenceSetAttribute(
                       preference, words[i].attribute, &words[i].value, sizeof(words[i].value)));
    return error;
}

/* ---- Plans -------------------------------------------------------------------------------- */

/* Descriptors and layouts of a plan that was all zero; the algorithm is still to come. */
static cublasStatus_t plan_describe(const struct cublaslt *lt, struct plan *plan,
                                    const struct plan_key *key)
{
    /* Without a residual C is D, or, for an FP8 D, absent; its layout is one of bf16 then. */
    const int c_type = gemm_type_is_fp8(key->d_type) ? (int)GEMM_BF16 : key->d_type;
    cublasStatus_t error;

    error = desc_make(lt, &plan->desc, key);
    TRY(error, layout_make(lt, &plan->a, key->b_type, key->b_transposed ? key->k : key->n,
                           key->b_transposed ? key->n : key->k, key->b_stride));
    TRY(error, layout_make(lt, &plan->b, key->a_type, key->a_transposed ? key->k : key->m,
                           key->a_transposed ? key->m : key->k, key->a_stride));
    TRY(error, layout_make(lt, &plan->c, c_type, key->m, key->n,
                           key->residual_stride != 0 ? key->residual_stride : key->d_stride));
    TRY(error, layout_make(lt, &plan->d, key->d_type, key->m, key->n, key->d_stride));
    return error;
}

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
    error = preference_make(lt, &preference, key, backend->workspace_bytes);
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

/* On the planner's thread. A key that got another plan, or was evicted, needs none any more. */
static void plan_refine(void *context, const void *key)
{
    struct cuda_backend *backend = context;
    struct backend_scope scope;
    struct plan *plan;

    if (!plan_cache_is_provisional(backend->plans, key))
        return;
    cuda_enter(&backend->base, &scope);
    if (plan_make(backend, key, &plan) == FP8PIPE_OK)
        plan_cache_refine(backend->plans, key, plan);
    cuda_leave(&backend->base, &scope);
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
    return planner_create(sizeof(struct plan_key), PLAN_QUEUE_CAPACITY, plan_refine, backend,
                          &backend->planner);
}

void plans_destroy(struct cuda_backend *backend)
{
    planner_destroy(backend->planner);
    plan_cache_destroy(backend->plans);
}

/* ---- Running ------------------------------------------------------------------------------ */

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

/* What cuBLASLt adds to the product, if beta is 1. */
static const void *c_of(const struct gemm_args *args)
{
    if (args->residual != NULL)
        return args->residual;
    return args->d_scale != NULL ? NULL : args->d;
}

static bool adds(const struct gemm_args *args)
{
    return args->accumulate || args->residual != NULL;
}

static cublasStatus_t plan_call(const struct cuda_backend *backend,
                                const struct cuda_stream *stream, struct plan *plan,
                                const struct gemm_args *args, cudaStream_t native)
{
    const struct cublaslt *lt = &backend->lt;
    /* A copy, for the plan is shared with other streams: the descriptor is plain data. */
    cublasLtMatmulDescOpaque_t desc = plan->desc;
    const struct pointers to = {
        .a_scale = args->a.scale_inv,
        .b_scale = args->b.scale_inv,
        .bias = args->bias,
        .d_scale = args->d_scale,
        .d_amax = args->d_scale != NULL ? args->d_amax : NULL,
    };
    const float alpha = 1.0f, beta = adds(args) ? 1.0f : 0.0f;
    cublasStatus_t error = desc_point(lt, &desc, &to);

    TRY(error, lt->cublasLtMatmul(
                   lt->handle, &desc, &alpha, args->b.data, &plan->a, args->a.data, &plan->b, &beta,
                   c_of(args), &plan->c, args->d, &plan->d, &plan->algo, stream->workspace,
                   stream->workspace != NULL ? backend->workspace_bytes : 0, native));
    return error;
}

/* Issues the call from a record, if there is one or it is time to make it. */
static enum fp8pipe_status plan_replay(struct cuda_backend *backend, struct cuda_stream *stream,
                                       struct plan *plan, const struct gemm_args *args,
                                       bool *issued)
{
    const struct replay_key key = {
        .plan = plan->id,
        .a = args->a.data,
        .b = args->b.data,
        .c = c_of(args),
        .d = args->d,
        .bias = args->bias,
        .a_scale = args->a.scale_inv,
        .b_scale = args->b.scale_inv,
        .d_scale = args->d_scale,
        .d_amax = args->d_amax,
        .adds = adds(args),
    };
    struct replay_place *place;
    enum fp8pipe_status status = replay_run(backend, stream, &key, issued, &place);
    cudaStream_t capture;

    if (place == NULL || !replay_begin(stream, place, &capture))
        return status;
    if (!replay_end(backend, stream, place,
                    plan_call(backend, stream, plan, args, capture) == CUBLAS_STATUS_SUCCESS))
        return status;
    return replay_run(backend, stream, &key, issued, &place);
}

enum fp8pipe_status plan_run(struct cuda_backend *backend, struct cuda_stream *stream,
                             struct plan *plan, const struct gemm_args *args)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    char name[PLAN_KEY_NAME_BYTES];
    struct plan_key key;
    cublasStatus_t error;
    bool issued = false;

    /* Of the size that any plan may need. */
    if (plan->workspace_bytes > 0 && stream->workspace == NULL)
        status =
            cuda_alloc(&backend->base, &stream->base, backend->workspace_bytes, &stream->workspace);
    if (status == FP8PIPE_OK && plan->id != 0)
        status = plan_replay(backend, stream, plan, args, &issued);
    if (status != FP8PIPE_OK || issued)
        return status;
    error = plan_call(backend, stream, plan, args, stream->native);
    if (error == CUBLAS_STATUS_SUCCESS)
        return FP8PIPE_OK;
    plan_key_make(&key, args);
    return cublaslt_fail(&backend->lt, error, FP8PIPE_ELAUNCH, "cublasLtMatmul",
                         plan_key_name(name, &key));
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
