#include "plan_describe.h"

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

static cublasStatus_t desc_set(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                               cublasLtMatmulDescAttributes_t attribute, const void *value,
                               size_t bytes)
{
    return lt->cublasLtMatmulDescSetAttribute(desc, attribute, value, bytes);
}

cublasStatus_t plan_point(const struct cublaslt *lt, cublasLtMatmulDescOpaque_t *desc,
                          const struct plan_pointers *to)
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
    const struct plan_pointers some = {
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
    TRY(error, plan_point(lt, desc, &some));
    return error;
}

/* A row-major matrix of `rows` x `cols`, `stride` elements between rows. */
static cublasStatus_t layout_make(const struct cublaslt *lt, cublasLtMatrixLayoutOpaque_t *layout,
                                  int type, int64_t rows, int64_t cols, int64_t stride)
{
    return lt->cublasLtMatrixLayoutInit_internal(layout, sizeof(*layout), gemm_type_cuda(type),
                                                 (uint64_t)cols, (uint64_t)rows, stride);
}

cublasStatus_t plan_preference(const struct cublaslt *lt,
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

cublasStatus_t plan_describe(const struct cublaslt *lt, struct plan *plan,
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
