/*
 * Keys of GEMM plans: whatever changes how a GEMM is run changes its key, nothing else does; which
 * keys are neighbours; and what cuBLASLt is not asked for.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/plan_key.h"
#include "tap.h"

static char memory[4096] __attribute__((aligned(4096)));

static struct gemm_args fp8_args(void)
{
    return (struct gemm_args){
        .m = 512,
        .n = 256,
        .k = 1024,
        .a = {memory, 1024, GEMM_E4M3, false, (const float *)(const void *)memory},
        .b = {memory, 1024, GEMM_E4M3, false, (const float *)(const void *)memory},
        .d = memory,
        .d_stride = 256,
        .d_dtype = FP8PIPE_BF16,
    };
}

static struct plan_key key_of(struct gemm_args args)
{
    struct plan_key key;

    memset(&key, 0x5A, sizeof(key)); /* make sets every byte */
    plan_key_make(&key, &args);
    return key;
}

static bool same(struct gemm_args one, struct gemm_args two)
{
    struct plan_key a = key_of(one), b = key_of(two);

    return memcmp(&a, &b, sizeof(a)) == 0;
}

/* VARIES(change) and STAYS(change): of the args of an FP8 GEMM with everything. */
#define CHANGED(change)                                                                            \
    struct gemm_args args = full;                                                                  \
    change

#define VARIES(change)                                                                             \
    do {                                                                                           \
        CHANGED(change);                                                                           \
        ok(!same(full, args), "another key: %s", #change);                                         \
    } while (0)

#define STAYS(change)                                                                              \
    do {                                                                                           \
        CHANGED(change);                                                                           \
        ok(same(full, args), "the same key: %s", #change);                                         \
    } while (0)

static void test_fields(void)
{
    struct gemm_args full = fp8_args();

    full.bias = memory;
    full.bias_dtype = FP8PIPE_BF16;
    full.residual = memory;
    full.residual_stride = 256;
    full.activation = FP8PIPE_ACTIVATION_GELU_TANH;
    VARIES(args.m = 513);
    VARIES(args.n = 272);
    VARIES(args.k = 1040);
    VARIES(args.a.stride = 2048);
    VARIES(args.b.stride = 2048);
    VARIES(args.d_stride = 512);
    VARIES(args.a.type = GEMM_E5M2);
    VARIES(args.b.type = GEMM_E5M2);
    VARIES(args.d_dtype = FP8PIPE_FP32);
    VARIES(args.d_dtype = FP8PIPE_FP16);
    VARIES(args.a.transposed = true);
    VARIES(args.b.transposed = true);
    VARIES(args.accumulate = true);
    VARIES(args.fast = true);
    VARIES(args.bias = NULL);
    VARIES(args.bias = memory + 4);
    VARIES(args.bias_dtype = FP8PIPE_FP32);
    VARIES(args.residual = NULL);
    VARIES(args.residual_stride = 512);
    VARIES(args.residual = memory + 16);
    VARIES(args.activation = FP8PIPE_ACTIVATION_NONE);
    VARIES(args.a.data = memory + 16);
    VARIES(args.b.data = memory + 32);
    VARIES(args.d = memory + 64);
    VARIES(args.d_scale = (const float *)(const void *)memory);
    STAYS(args.a.data = memory + 256);
    STAYS(args.d = memory + 2048);
    STAYS(args.bias = memory + 16);
    STAYS(args.residual = memory + 1024);
    STAYS(args.a.scale_inv = (const float *)(const void *)(memory + 4));
    STAYS(args.d_format = FP8PIPE_E5M2);
    full.d_scale = (const float *)(const void *)memory;
    VARIES(args.d_format = FP8PIPE_E5M2);
    VARIES(args.d_amax = (uint32_t *)(void *)memory);
    STAYS(args.d_dtype = FP8PIPE_FP32);
    full.d_scale = NULL;
    full.a.type = GEMM_BF16;
    full.b.type = GEMM_BF16;
    STAYS(args.fast = true);
}

#define DIRECT(wanted, change)                                                                     \
    do {                                                                                           \
        struct gemm_args args = fp8_args();                                                        \
        struct plan_key key;                                                                       \
        change;                                                                                    \
        key = key_of(args);                                                                        \
        is_int(plan_key_is_direct(&key), wanted, "%s: %s", wanted ? "cuBLASLt may" : "not asked",  \
               #change);                                                                           \
    } while (0)

static void test_direct(void)
{
    const float *scale = (const float *)(const void *)memory;

    DIRECT(1, (void)0);
    DIRECT(1, args.d_dtype = FP8PIPE_FP32);
    DIRECT(1, args.bias = memory; args.bias_dtype = FP8PIPE_BF16);
    DIRECT(0, args.bias = memory; args.bias_dtype = FP8PIPE_FP32);
    DIRECT(0, args.bias = memory + 2; args.bias_dtype = FP8PIPE_BF16);
    DIRECT(1, args.bias = memory; args.bias_dtype = FP8PIPE_BF16; args.d_dtype = FP8PIPE_FP32);
    DIRECT(1, args.residual = memory; args.residual_stride = 256);
    DIRECT(1, args.activation = FP8PIPE_ACTIVATION_GELU_TANH);
    DIRECT(0, args.activation = FP8PIPE_ACTIVATION_GELU_ERF);
    DIRECT(0, args.activation = FP8PIPE_ACTIVATION_GELU_TANH; args.residual = memory;
           args.residual_stride = 256);
    DIRECT(0, args.activation = FP8PIPE_ACTIVATION_GELU_TANH; args.accumulate = true);
    DIRECT(1, args.d_scale = scale);
    DIRECT(1, args.d_scale = scale; args.activation = FP8PIPE_ACTIVATION_GELU_TANH);
    DIRECT(0, args.d_scale = scale; args.residual = memory; args.residual_stride = 256);
    DIRECT(0, args.d_scale = scale; args.bias = memory; args.bias_dtype = FP8PIPE_FP32);
    DIRECT(1, args.d_scale = scale; args.bias = memory; args.bias_dtype = FP8PIPE_BF16);
    DIRECT(0, args.d_scale = scale; args.a.type = GEMM_BF16; args.b.type = GEMM_BF16);
    DIRECT(0, args.a.type = GEMM_FP32; args.b.type = GEMM_FP32);
    DIRECT(1, args.a.type = GEMM_BF16; args.b.type = GEMM_BF16);
    DIRECT(0, args.a.type = GEMM_FP16; args.b.type = GEMM_FP16);
}

static uint64_t apart(struct gemm_args one, struct gemm_args two, int family)
{
    struct plan_key a = key_of(one), b = key_of(two);
    uint64_t distance = plan_key_distance(&a, &b, family);

    if ((distance == UINT64_MAX) == (plan_key_family(&a, family) == plan_key_family(&b, family)))
        fail("the number of a family and the distance in it disagree");
    return distance;
}

static void test_families(void)
{
    struct gemm_args one = fp8_args(), two = fp8_args();

    two.m = 600;
    is_int(apart(one, two, 0), 88, "a forward of other tokens is a neighbour");
    ok(apart(one, two, 1) == UINT64_MAX, "but not as a wgrad");
    two.d_stride = 512;
    two.d = memory + 16;
    is_int(apart(one, two, 0), 88, "also at other strides and alignments that kernels do not need");
    two.d = memory + 8;
    ok(apart(one, two, 0) == UINT64_MAX, "but not at one that some need");
    two = fp8_args();
    two.k = 528;
    two.a.stride = 528;
    two.b.stride = 528;
    is_int(apart(one, two, 1), 496,
           "a wgrad of other tokens is a neighbour, whose rows are shorter");
    ok(apart(one, two, 0) == UINT64_MAX, "but not as a forward");
    two = fp8_args();
    two.n = 272;
    ok(apart(one, two, 0) == UINT64_MAX && apart(one, two, 1) == UINT64_MAX,
       "layers of other widths are no neighbours");
    two = fp8_args();
    two.residual = memory;
    two.residual_stride = 256;
    ok(apart(one, two, 0) == UINT64_MAX, "nor are GEMMs with another epilogue");
    one.residual = memory;
    one.residual_stride = 512;
    is_int(apart(one, two, 0), 0, "a residual's stride does not matter");
}

static void test_name(void)
{
    struct gemm_args args = fp8_args();
    char name[PLAN_KEY_NAME_BYTES];
    struct plan_key key;

    args.bias = memory;
    key = key_of(args);
    is_str(plan_key_name(name, &key), "GEMM 512 x 256 x 1024, e4m3 . e4m3 to bf16 with bias",
           "a key has a name");
    args.m = args.n = args.k = INT64_MAX;
    args.activation = FP8PIPE_ACTIVATION_GELU_TANH;
    args.residual = memory;
    args.residual_stride = 1;
    key = key_of(args);
    ok(strstr(plan_key_name(name, &key), "with residual") != NULL, "the longest one fits");
}

int main(void)
{
    test_fields();
    test_direct();
    test_families();
    test_name();
    return done_testing();
}
