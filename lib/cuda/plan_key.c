#include "plan_key.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan_cache.h"

static uint8_t alignment_of(const void *data, int64_t stride, int type)
{
    const uint64_t bits = (uintptr_t)data | (uint64_t)(stride * (int64_t)gemm_type_bytes(type));

    return (uint8_t)__builtin_ctzll(bits | PLAN_ALIGN_MAX);
}

void plan_key_make(struct plan_key *key, const struct gemm_args *args)
{
    const bool fp8 = gemm_type_is_fp8((int)args->a.type);

    memset(key, 0, sizeof(*key));
    key->m = args->m;
    key->n = args->n;
    key->k = args->k;
    key->a_stride = args->a.stride;
    key->b_stride = args->b.stride;
    key->d_stride = args->d_stride;
    key->a_type = (uint8_t)args->a.type;
    key->b_type = (uint8_t)args->b.type;
    if (args->d_scale != NULL) {
        key->d_type = args->d_format == FP8PIPE_E4M3 ? GEMM_E4M3 : GEMM_E5M2;
        key->amax = args->d_amax != NULL;
    } else {
        key->d_type = (uint8_t)gemm_type_of_dtype(args->d_dtype);
    }
    key->bias_type = PLAN_NO_BIAS;
    if (args->bias != NULL) {
        key->bias_type = (uint8_t)gemm_type_of_dtype(args->bias_dtype);
        key->bias_aligned = (uintptr_t)args->bias % PLAN_ALIGN_MIN == 0;
    }
    key->a_transposed = args->a.transposed;
    key->b_transposed = args->b.transposed;
    key->accumulate = args->accumulate;
    key->fast = args->fast && fp8;
    key->a_align = alignment_of(args->a.data, args->a.stride, key->a_type);
    key->b_align = alignment_of(args->b.data, args->b.stride, key->b_type);
    key->d_align = alignment_of(args->d, args->d_stride, key->d_type);
    if (args->residual != NULL) {
        key->residual_stride = args->residual_stride;
        key->residual_align = alignment_of(args->residual, args->residual_stride, key->d_type);
    }
    key->activation = (uint8_t)args->activation;
}

const char *plan_key_name(char name[PLAN_KEY_NAME_BYTES], const struct plan_key *key)
{
    static const char *const types[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2"};

    snprintf(name, PLAN_KEY_NAME_BYTES,
             "GEMM %" PRId64 " x %" PRId64 " x %" PRId64 ", %s . %s to %s%s%s%s", key->m, key->n,
             key->k, types[key->a_type], types[key->b_type], types[key->d_type],
             key->bias_type != PLAN_NO_BIAS ? " with bias" : "",
             key->activation != FP8PIPE_ACTIVATION_NONE ? " with activation" : "",
             key->residual_stride != 0 ? " with residual" : "");
    return name;
}

bool plan_key_has_epilogue(const struct plan_key *key)
{
    return key->activation != FP8PIPE_ACTIVATION_NONE || key->residual_stride != 0 ||
           gemm_type_is_fp8(key->d_type);
}

/* cuBLASLt adds C before the activation. */
static bool epilogue_is_direct(const struct plan_key *key)
{
    const bool active = key->activation != FP8PIPE_ACTIVATION_NONE;
    const bool added = key->residual_stride != 0 || key->accumulate;
    const bool to_fp8 = gemm_type_is_fp8(key->d_type);

    if (active && (added || key->activation != FP8PIPE_ACTIVATION_GELU_TANH))
        return false;
    return !(to_fp8 && added) && !(key->residual_stride != 0 && key->accumulate);
}

bool plan_key_is_direct(const struct plan_key *key)
{
    const bool fp8 = gemm_type_is_fp8(key->a_type);
    const bool to_fp8 = gemm_type_is_fp8(key->d_type);

    if (!epilogue_is_direct(key) || (to_fp8 && !fp8))
        return false;
    if (key->bias_type != PLAN_NO_BIAS) {
        const uint8_t type =
            to_fp8 || (fp8 && key->d_type == GEMM_FP32) ? (uint8_t)GEMM_BF16 : key->d_type;

        if (key->bias_type != type || !key->bias_aligned)
            return false;
    }
    return fp8 || key->d_type == GEMM_FP32 || key->a_type == key->d_type;
}

bool plan_key_is_plain(const struct plan_key *key)
{
    return key->d_type == GEMM_FP32 && key->bias_type == PLAN_NO_BIAS && !key->accumulate &&
           !plan_key_has_epilogue(key);
}

/* ---- Families ----------------------------------------------------------------------------- */

static uint8_t align_class(uint8_t align)
{
    return 1 << align < PLAN_ALIGN_MIN ? align : (uint8_t)__builtin_ctz(PLAN_ALIGN_MIN);
}

/* Only whether there is a residual stays of its stride. */
static void family_make(struct plan_key *family, const struct plan_key *key, int which)
{
    *family = *key;
    if (which == 0)
        family->m = 0;
    else
        family->k = 0;
    family->a_stride = 0;
    family->b_stride = 0;
    family->d_stride = 0;
    family->residual_stride = key->residual_stride != 0;
    family->a_align = align_class(key->a_align);
    family->b_align = align_class(key->b_align);
    family->d_align = align_class(key->d_align);
    family->residual_align = align_class(key->residual_align);
}

uint64_t plan_key_family(const struct plan_key *key, int family)
{
    struct plan_key common;

    family_make(&common, key, family);
    return plan_cache_hash(&common, sizeof(common));
}

uint64_t plan_key_distance(const struct plan_key *key, const struct plan_key *other, int family)
{
    const int64_t tokens = family == 0 ? key->m : key->k;
    const int64_t others = family == 0 ? other->m : other->k;
    struct plan_key one, two;

    family_make(&one, key, family);
    family_make(&two, other, family);
    if (memcmp(&one, &two, sizeof(one)) != 0)
        return UINT64_MAX;
    return (uint64_t)(tokens > others ? tokens - others : others - tokens);
}
