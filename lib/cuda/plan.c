#include "plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * D[m,n] = A[m,k] . B[n,k]^T in row-major terms is D^T[n,m] = B . A^T in cuBLASLt's column-major
 * ones: its A is B, its B is A, and a row-major [rows, cols] is a column-major cols x rows. An
 * operand that is not transposed here is k x rows there: its A needs op T, its B op N, which is
 * what FP8 demands.
 */

/* Plain words without padding: compared byte by byte. */
struct plan_key {
    int64_t m;
    int64_t n;
    int64_t k;
    int64_t a_stride;
    int64_t b_stride;
    int64_t d_stride;
    uint64_t version; /* of cuBLASLt */
    uint64_t workspace_bytes;
    int32_t device;
    int32_t a_type;
    int32_t b_type;
    int32_t d_dtype;
    int32_t bias_dtype; /* -1: no bias */
    int32_t a_align;    /* of data and rows, bytes, a power of two up to PLAN_ALIGN_MAX */
    int32_t b_align;
    int32_t d_align;
    int32_t bias_align;
    int32_t a_transposed;
    int32_t b_transposed;
    int32_t accumulate;
    int32_t fast;
    int32_t reserved;
};
_Static_assert(sizeof(struct plan_key) == 8 * 8 + 14 * 4, "the key has no padding");
_Static_assert(sizeof(struct plan_key) % 8 == 0, "what the cache asks of a key");

struct plan {
    bool through_fp32; /* nothing else is set */
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a; /* cuBLASLt's A, which is B here */
    cublasLtMatrixLayoutOpaque_t b;
    cublasLtMatrixLayoutOpaque_t d;
    cublasLtMatmulAlgo_t algo;
};

/* cuBLASLt's own highest, and its default. */
#define PLAN_ALIGN_MAX 256
/* Its heuristic is not told how a bias is aligned: it may pick kernels that fault on less. */
#define PLAN_BIAS_ALIGN 16
/* Stands for any aligned device pointer while the heuristic only looks at alignment. */
#define PLAN_SOME_POINTER ((void *)(uintptr_t)PLAN_ALIGN_MAX)

static size_t gemm_type_bytes(enum gemm_type type)
{
    return type == GEMM_FP32 ? 4 : type == GEMM_BF16 || type == GEMM_FP16 ? 2 : 1;
}

static size_t dtype_bytes(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? 4 : 2;
}

static bool type_is_fp8(int32_t type)
{
    return type == GEMM_E4M3 || type == GEMM_E5M2;
}

static cudaDataType_t gemm_type_cuda(int32_t type)
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

static cudaDataType_t dtype_cuda(int32_t dtype)
{
    return dtype == FP8PIPE_FP32 ? CUDA_R_32F : dtype == FP8PIPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* ---- Keys --------------------------------------------------------------------------------- */

static int32_t alignment_of(const void *data, int64_t stride_bytes)
{
    const uint64_t bits = (uintptr_t)data | (uint64_t)stride_bytes | PLAN_ALIGN_MAX;

    return (int32_t)(bits & -bits);
}

static int32_t operand_alignment(const struct gemm_operand *operand)
{
    return alignment_of(operand->data, operand->stride * (int64_t)gemm_type_bytes(operand->type));
}

static void key_make(struct plan_key *key, const struct cuda_backend *backend,
                     const struct gemm_args *args)
{
    memset(key, 0, sizeof(*key));
    key->m = args->m;
    key->n = args->n;
    key->k = args->k;
    key->a_stride = args->a.stride;
    key->b_stride = args->b.stride;
    key->d_stride = args->d_stride;
    key->version = backend->lt.version;
    key->workspace_bytes = backend->workspace_bytes;
    key->device = backend->device;
    key->a_type = (int32_t)args->a.type;
    key->b_type = (int32_t)args->b.type;
    key->d_dtype = (int32_t)args->d_dtype;
    key->a_align = operand_alignment(&args->a);
    key->b_align = operand_alignment(&args->b);
    key->d_align = alignment_of(args->d, args->d_stride * (int64_t)dtype_bytes(args->d_dtype));
    key->bias_dtype = -1;
    if (args->bias != NULL) {
        key->bias_dtype = (int32_t)args->bias_dtype;
        key->bias_align = alignment_of(args->bias, 0) < PLAN_BIAS_ALIGN ? 1 : PLAN_BIAS_ALIGN;
    }
    key->a_transposed = args->a.transposed;
    key->b_transposed = args->b.transposed;
    key->accumulate = args->accumulate;
    key->fast = args->fast && type_is_fp8(key->a_type);
}

#define KEY_NAME_BYTES 128

static const char *key_name(char name[KEY_NAME_BYTES], const struct plan_key *key)
{
    static const char *const types[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2"};
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};

    snprintf(name, KEY_NAME_BYTES, "GEMM %" PRId64 " x %" PRId64 " x %" PRId64 ", %s . %s to %s%s",
             key->m, key->n, key->k, types[key->a_type], types[key->b_type], dtypes[key->d_dtype],
             key->bias_dtype >= 0 ? " with bias" : "");
    return name;
}

/* Whether cuBLASLt has kernels for these types at all, and none that fault. */
static bool key_is_direct(const struct plan_key *key)
{
    const bool fp8 = type_is_fp8(key->a_type);

    if (key->bias_dtype >= 0) {
        const int32_t dtype =
            fp8 && key->d_dtype == FP8PIPE_FP32 ? FP8PIPE_BF16 : (int32_t)key->d_dtype;

        if (key->bias_dtype != dtype || key->bias_align < PLAN_BIAS_ALIGN)
            return false;
    }
    if (key->d_dtype == FP8PIPE_FP32 || fp8)
        return true;
    return (key->a_type == GEMM_BF16 && key->d_dtype == FP8PIPE_BF16) ||
           (key->a_type == GEMM_FP16 && key->d_dtype == FP8PIPE_FP16);
}

/* What the way through fp32 is built on; there is no other way for it. */
static bool key_is_plain(const struct plan_key *key)
{
    return key->d_dtype == FP8PIPE_FP32 && key->bias_dtype < 0 && !key->accumulate;
}

/* ---- Plans -------------------------------------------------------------------------------- */

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

/* The pointers of one call. NULL scales: none. */
static cublasStatus_t desc_point(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                                 const void *a_scale, const void *b_scale, const void *bias)
{
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;

    if (a_scale != NULL) {
        TRY(error,
            desc_set(lt, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b_scale, sizeof(b_scale)));
        TRY(error,
            desc_set(lt, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a_scale, sizeof(a_scale)));
    }
    if (bias != NULL)
        TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
    return error;
}

static cublasStatus_t desc_make(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                                const struct plan_key *key)
{
    const cublasOperation_t a_op = key->b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t b_op = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const void *scale = type_is_fp8(key->a_type) ? PLAN_SOME_POINTER : NULL;
    const void *bias = key->bias_dtype >= 0 ? PLAN_SOME_POINTER : NULL;
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int8_t fast = key->fast != 0;
    cublasStatus_t error;

    /* 32F and not 32F_FAST_TF32: fp32 operands are multiplied in fp32. */
    error =
        lt->cublasLtMatmulDescInit_internal(desc, sizeof(*desc), CUBLAS_COMPUTE_32F, CUDA_R_32F);
    TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_TRANSA, &a_op, sizeof(a_op)));
    TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_TRANSB, &b_op, sizeof(b_op)));
    if (scale != NULL)
        TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
    if (bias != NULL) {
        const int32_t type = (int32_t)dtype_cuda(key->bias_dtype);

        TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
        TRY(error, desc_set(lt, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type)));
    }
    TRY(error, desc_point(lt, desc, scale, scale, bias));
    return error;
}

/* A row-major matrix of `rows` x `cols`, `stride` elements between rows. */
static cublasStatus_t layout_make(const struct cublaslt *lt, cublasLtMatrixLayoutOpaque_t *layout,
                                  cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride)
{
    return lt->cublasLtMatrixLayoutInit_internal(layout, sizeof(*layout), type, (uint64_t)cols,
                                                 (uint64_t)rows, stride);
}

static cublasStatus_t preference_make(const struct cublaslt *lt,
                                      cublasLtMatmulPreferenceOpaque_t *preference,
                                      const struct plan_key *key)
{
    /* Or none. In place adds and rounds in D's type; so does OUTPUT_TYPE. */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t value;
    } words[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->b_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->a_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->d_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->d_align},
    };
    cublasStatus_t error;

    error = lt->cublasLtMatmulPreferenceInit_internal(preference, sizeof(*preference));
    TRY(error, lt->cublasLtMatmulPreferenceSetAttribute(
                   preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace_bytes,
                   sizeof(key->workspace_bytes)));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        TRY(error, lt->cublasLtMatmulPreferenceSetAttribute(
                       preference, words[i].attribute, &words[i].value, sizeof(words[i].value)));
    return error;
}

/* CUBLAS_STATUS_NOT_SUPPORTED if cuBLASLt has no algorithm for the key. */
static cublasStatus_t plan_find(const struct cublaslt *lt, struct plan *plan,
                                const struct plan_key *key)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    cublasStatus_t error;
    int found = 0;

    memset(&result, 0, sizeof(result));
    error = desc_make(lt, &plan->desc, key);
    TRY(error,
        layout_make(lt, &plan->a, gemm_type_cuda(key->b_type), key->b_transposed ? key->k : key->n,
                    key->b_transposed ? key->n : key->k, key->b_stride));
    TRY(error,
        layout_make(lt, &plan->b, gemm_type_cuda(key->a_type), key->a_transposed ? key->k : key->m,
                    key->a_transposed ? key->m : key->k, key->a_stride));
    TRY(error, layout_make(lt, &plan->d, dtype_cuda(key->d_dtype), key->m, key->n, key->d_stride));
    TRY(error, preference_make(lt, &preference, key));
    TRY(error,
        lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, &plan->desc, &plan->a, &plan->b, &plan->d,
                                           &plan->d, &preference, 1, &result, &found));
    if (error == CUBLAS_STATUS_SUCCESS)
        error = found < 1 ? CUBLAS_STATUS_NOT_SUPPORTED : result.state;
    plan->algo = result.algo;
    return error;
}

static enum fp8pipe_status plan_build(void *context, const void *key_bytes, void **out)
{
    const struct cuda_backend *backend = context;
    const struct plan_key *key = key_bytes;
    struct plan *plan = calloc(1, sizeof(*plan));
    enum fp8pipe_status status;
    char name[KEY_NAME_BYTES];
    cublasStatus_t error;

    if (plan == NULL)
        return status_fail(FP8PIPE_ENOMEM, "%s: no host memory for a plan", key_name(name, key));
    if (type_is_fp8(key->a_type) && backend->capability < 89) {
        status = status_fail(FP8PIPE_ENOTSUP,
                             "%s: FP8 needs compute capability 8.9 or more, CUDA device %d has "
                             "%d.%d",
                             key_name(name, key), backend->device, backend->capability / 10,
                             backend->capability % 10);
        goto free_plan;
    }
    plan->through_fp32 = !key_is_direct(key);
    if (!plan->through_fp32) {
        error = plan_find(&backend->lt, plan, key);
        plan->through_fp32 = error == CUBLAS_STATUS_NOT_SUPPORTED && !key_is_plain(key);
        if (error != CUBLAS_STATUS_SUCCESS && !plan->through_fp32) {
            status = cublaslt_fail(&backend->lt, error, FP8PIPE_ENOTSUP,
                                   "cublasLtMatmulAlgoGetHeuristic", key_name(name, key));
            goto free_plan;
        }
    }
    *out = plan;
    return FP8PIPE_OK;

free_plan:
    free(plan);
    return status;
}

static void plan_destroy(void *context, void *plan)
{
    (void)context;
    free(plan);
}

enum fp8pipe_status plans_create(struct cuda_backend *backend)
{
    const struct plan_cache_options options = {
        .key_bytes = sizeof(struct plan_key),
        .capacity = PLAN_CACHE_CAPACITY,
        .build = plan_build,
        .destroy = plan_destroy,
        .context = backend,
    };

    backend->plans = plan_cache_create(&options);
    if (backend->plans == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for the plan cache");
    return FP8PIPE_OK;
}

/* ---- Running ------------------------------------------------------------------------------ */

enum fp8pipe_status plan_get(struct cuda_backend *backend, struct cuda_stream *stream,
                             const struct gemm_args *args, struct plan **plan)
{
    struct plan_key key;
    void *found;
    enum fp8pipe_status status;

    key_make(&key, backend, args);
    status = plan_front_get(&stream->plans, backend->plans, &key, &found);
    if (status == FP8PIPE_OK)
        *plan = found;
    return status;
}

bool plan_is_through_fp32(const struct plan *plan)
{
    return plan->through_fp32;
}

enum fp8pipe_status plan_run(const struct cuda_backend *backend, const struct cuda_stream *stream,
                             struct plan *plan, const struct gemm_args *args)
{
    const struct cublaslt *lt = &backend->lt;
    /* A copy, for the plan is shared with other streams: the descriptor is plain data. */
    cublasLtMatmulDescOpaque_t desc = plan->desc;
    const float alpha = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    struct plan_key key;
    char name[KEY_NAME_BYTES];
    cublasStatus_t error;

    error = desc_point(lt, &desc, args->a.scale_inv, args->b.scale_inv, args->bias);
    TRY(error,
        lt->cublasLtMatmul(lt->handle, &desc, &alpha, args->b.data, &plan->a, args->a.data,
                           &plan->b, &beta, args->d, &plan->d, args->d, &plan->d, &plan->algo,
                           stream->workspace, backend->workspace_bytes, stream->native));
    if (error == CUBLAS_STATUS_SUCCESS)
        return FP8PIPE_OK;
    key_make(&key, backend, args);
    return cublaslt_fail(lt, error, FP8PIPE_ELAUNCH, "cublasLtMatmul", key_name(name, &key));
}
