/*
 * The CUDA kernels around GEMMs and the scale update against their host twins, as in
 * kernels_cuda-t.c.
 *
 * FP8PIPE_TEST_SMALL=1 runs fewer of them (for compute-sanitizer).
 */
#include "twin.h"

#include "kernels/convert.h"

static bool small;
static struct test_rng rng = {2};

/* ---- transpose ---------------------------------------------------------------------------- */

/* Words for a capture: scale, inverse scale, own amax, amax; the amax may be left alone. */
static struct kernel_capture_args capture_of(uint8_t *words, bool folds)
{
    return (struct kernel_capture_args){
        .scale = (const float *)(const void *)words,
        .scale_inv = (float *)(void *)(words + 4),
        .own_amax = (uint32_t *)(void *)(words + 8),
        .amax = folds ? (uint32_t *)(void *)(words + 12) : NULL,
    };
}

static struct twin capture_words(float scale, uint32_t own_amax, uint32_t amax)
{
    struct twin words = twin_make(16);
    const uint32_t values[4] = {test_float_bits(scale), 0, own_amax, amax};

    memcpy(twin_host(&words), values, sizeof(values));
    twin_upload(&words);
    return words;
}

static void test_capture(void)
{
    static const uint32_t amaxes[] = {0, 1, 0x3f800000, 0x7f7fffff, 0x7f800000, 0xffc00000};
    bool equal = true;

    for (int i = 0; i < 72; i++) {
        struct twin words = capture_words(ldexpf((float)test_random_normal(&rng), i - 36),
                                          amaxes[i % 6], amaxes[i / 6 % 5]);
        struct kernel_capture_args args = capture_of(twin_host(&words), i % 3);

        kernel_capture_host(&args);
        args = capture_of(twin_device(&words), i % 3);
        launched(kernel_capture_cuda(&args, NULL), "capture");
        equal &= twin_equal(&words, "capture");
        twin_free(&words);
    }
    ok(equal, "capture: inverse scale and amax, folded or not");
}

static bool transpose_agrees(int64_t rows, int64_t cols, int64_t in_pad, int64_t out_pad)
{
    int64_t in_stride = (cols + 15) / 16 * 16 + in_pad;
    int64_t out_stride = (rows + 15) / 16 * 16 + out_pad;
    struct twin in = twin_make((size_t)(rows * in_stride));
    struct twin out = twin_make((size_t)(cols * out_stride));
    struct twin words = capture_words(48.0f, 0x40000000, 0x3f800000);
    bool captures = test_random(&rng) & 1;
    struct kernel_transpose_args args = {
        .in = twin_host(&in),
        .out = twin_host(&out),
        .rows = rows,
        .cols = cols,
        .in_stride = in_stride,
        .out_stride = out_stride,
    };
    bool equal;

    for (size_t i = 0; i < in.bytes; i++)
        in.host[i] = (uint8_t)test_random(&rng);
    twin_upload(&in);
    twin_upload(&out);
    if (captures)
        args.capture = capture_of(twin_host(&words), true);
    kernel_transpose_host(&args);
    args.in = twin_device(&in);
    args.out = twin_device(&out);
    if (captures)
        args.capture = capture_of(twin_device(&words), true);
    launched(kernel_transpose_cuda(&args, NULL), "transpose");
    equal = twin_equal(&out, "transpose") & twin_equal(&in, "what was transposed") &
            twin_equal(&words, "what was captured");
    if (!equal)
        diag("%lld x %lld", (long long)rows, (long long)cols);
    twin_free(&in);
    twin_free(&out);
    twin_free(&words);
    return equal;
}

static void test_transpose(void)
{
    bool equal = true;

    for (int i = 0; i < (small ? 20 : 100); i++)
        equal &= transpose_agrees(test_random_range(&rng, 0, 500), test_random_range(&rng, 0, 500),
                                  16 * test_random_range(&rng, 0, 2),
                                  16 * test_random_range(&rng, 0, 9));
    equal &= transpose_agrees(1, 1, 0, 0) & transpose_agrees(128, 64, 0, 0) &
             transpose_agrees(129, 65, 0, 256);
    ok(equal, "transpose: random shapes and paddings");
}

/* ---- column sums --------------------------------------------------------------------------- */

static void test_column_sums(void)
{
    bool equal = true;

    for (int i = 0; i < (small ? 20 : 60); i++) {
        int64_t rows = test_random_range(&rng, 0, i % 4 == 0 ? 300 : 70);
        int64_t cols = test_random_range(&rng, 1, 500);
        struct twin_matrix partials = twin_matrix_make(FP8PIPE_FP32, rows, cols, cols, 0);
        struct twin_matrix out = twin_matrix_make(FP8PIPE_FP32, 1, cols, cols, i % 3);
        struct kernel_column_sums_args args = {partials.host.data, rows, cols, out.host.data,
                                               i % 2};

        twin_matrix_fill(&partials, &rng, i % 5 == 0 ? DATA_ZERO : DATA_NORMAL);
        twin_matrix_fill(&out, &rng, DATA_NORMAL);
        kernel_column_sums_host(&args);
        args.partials = partials.device.data;
        args.out = out.device.data;
        launched(kernel_column_sums_cuda(&args, NULL), "column_sums");
        equal &= twin_equal(&out.memory, "column sums");
        twin_free(&partials.memory);
        twin_free(&out.memory);
    }
    ok(equal, "column sums: the same bits, set and added to");
}

/* ---- store -------------------------------------------------------------------------------- */

static bool store_agrees(struct twin_matrix *to, struct twin_matrix *from, struct twin_matrix *bias,
                         bool accumulate, enum fp8pipe_activation activation,
                         struct twin_matrix *residual)
{
    struct kernel_store_args args = {
        .to = to->host, .accumulate = accumulate, .activation = activation};
    bool equal;

    if (from != NULL)
        args.from = from->host;
    if (bias != NULL)
        args.bias = (struct fp8pipe_vector){bias->host.data, to->host.cols, bias->host.dtype, 0};
    if (residual != NULL)
        args.residual = residual->host;
    kernel_store_host(&args);
    args.to = to->device;
    if (residual != NULL)
        args.residual = residual->device;
    if (from != NULL)
        args.from = from->device;
    if (bias != NULL)
        args.bias.data = bias->device.data;
    launched(kernel_store_cuda(&args, NULL), "store");
    equal = twin_equal(&to->memory, "store");
    if (!equal)
        diag("%s from %s, bias %s, %lld x %lld, stride %lld%s, activation %d, residual %s",
             test_dtype_name(to->host.dtype),
             from != NULL ? test_dtype_name(from->host.dtype) : "nothing",
             bias != NULL ? test_dtype_name(bias->host.dtype) : "none", (long long)to->host.rows,
             (long long)to->host.cols, (long long)to->host.stride, accumulate ? ", added" : "",
             (int)activation,
             residual == NULL ? "none"
             : residual == to ? "itself"
                              : "apart");
    return equal;
}

static void test_store(void)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        bool equal = true;

        for (int i = 0; i < (small ? 36 : 120); i++) {
            int64_t rows = test_random_range(&rng, 1, 90), cols = test_random_range(&rng, 1, 700);
            enum data data = i % 7 == 0 ? DATA_ZERO : DATA_NORMAL;
            struct twin_matrix to = twin_matrix_random(&rng, dtype, rows, cols, data);
            struct twin_matrix from =
                twin_matrix_random(&rng, (enum fp8pipe_dtype)(i % 3), rows, cols, data);
            struct twin_matrix bias =
                twin_matrix_random(&rng, (enum fp8pipe_dtype)(i / 3 % 3), 1, cols, data);
            struct twin_matrix residual = twin_matrix_random(&rng, dtype, rows, cols, data);
            int given = i / 9 % 4;

            equal &=
                store_agrees(&to,
                             i % 11 == 0 ? &to
                             : given & 1 ? &from
                                         : NULL,
                             given & 2 ? &bias : NULL, i % 2, (enum fp8pipe_activation)(i / 5 % 4),
                             i % 13 == 0 ? &to
                             : i % 4 > 1 ? &residual
                                         : NULL);
            twin_free(&to.memory);
            twin_free(&from.memory);
            twin_free(&residual.memory);
            twin_free(&bias.memory);
        }
        ok(equal,
           "store to %s: any source, bias, stride, alignment; in place; added; activations and "
           "residuals",
           test_dtype_name(dtype));
    }
}

/* Narrowing alone: every exponent of float32, ties, overflow; not NaN, whose payload is free. */
static void test_store_values(void)
{
    struct twin_matrix from = twin_matrix_make(FP8PIPE_FP32, 1024, 256, 256, 0);

    for (int64_t i = 0; i < 1024 * 256; i++) {
        uint32_t bits = (uint32_t)(i / 4) << 16 | (uint32_t)(i % 4) * 0x4000u;

        if (i % 16 > 3)
            bits |= (uint32_t)test_random(&rng) & 0x3fff;
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            bits = 0x7f800000u;
        ((uint32_t *)from.host.data)[i] = bits;
    }
    twin_upload(&from.memory);
    for (int dtype = 0; dtype < 3; dtype++) {
        struct twin_matrix to = twin_matrix_make(dtype, 1024, 256, 256, 0);

        twin_upload(&to.memory);
        ok(store_agrees(&to, &from, NULL, false, FP8PIPE_ACTIVATION_NONE, NULL),
           "store fp32 to %s: every exponent and tie", test_dtype_name(dtype));
        twin_free(&to.memory);
    }
    twin_free(&from.memory);
}

/* ---- scale_update ------------------------------------------------------------------------- */

/* What a step of training leaves in a slot's history[0]. */
static uint32_t random_amax(void)
{
    switch (test_random_range(&rng, 0, 9)) {
    case 0:
        return 0;
    case 1:
        return 0x7f800000u;
    case 2:
        return 0x7fc00001u;
    case 3:
        return 1 + (uint32_t)test_random_range(&rng, 0, 1000);
    case 4:
        return 0x7f7fffffu;
    default:
        return float_bits((float)exp2(20 * test_random_uniform(&rng) - 10));
    }
}

static bool scale_update_agrees(int64_t slots, int64_t history, enum fp8pipe_amax algorithm,
                                int steps)
{
    struct twin window = twin_make((size_t)(slots * (history - 1)) * 4);
    struct twin amax = twin_make((size_t)slots * 4);
    const size_t words_bytes = (size_t)slots * (4 + KERNEL_SCALE_STRIDE) * 4 + 4 * 4;
    struct twin state = twin_make(words_bytes);
    bool equal = true;

    memset(twin_host(&window), 0, (size_t)(slots * (history - 1)) * 4);
    memset(twin_host(&state), 0, words_bytes);
    for (int64_t slot = 0; slot < slots; slot++)
        ((float *)twin_host(&state))[slot] = slot % 3 == 2 ? 57344.0f : 448.0f * 0x1p-3f;
    twin_upload(&window);
    twin_upload(&state);
    for (int step = 0; step < steps; step++) {
        bool quiet = step % 3 == 2;

        for (int64_t slot = 0; slot < slots; slot++) {
            uint32_t bits = random_amax();

            ((uint32_t *)twin_host(&amax))[slot] = quiet && bits >= 0x7f800000u ? 0 : bits;
        }
        twin_upload(&amax);
        /* The word behind the scratch, now and then any_nonfinite itself. */
        ((uint32_t *)twin_host(&state))[4 * slots + 3] = step % 5 == 3;
        twin_upload(&state);
        for (int side = 0; side < 2; side++) {
            void *(*at)(const struct twin *) = side == 0 ? twin_host : twin_device;
            uint32_t *words = at(&state);
            struct kernel_scale_update_args args = {slots,
                                                    history,
                                                    algorithm,
                                                    (float *)words,
                                                    (float *)words + 4 * slots + 4,
                                                    (int32_t *)words + slots,
                                                    at(&amax),
                                                    at(&window),
                                                    words + 2 * slots,
                                                    (int32_t *)words + 3 * slots,
                                                    (int32_t *)words + 4 * slots,
                                                    words + 4 * slots + 1,
                                                    (int32_t *)words + 4 * slots +
                                                        (step % 7 == 6 ? 0 : 3)};

            if (side == 0)
                kernel_scale_update_host(&args);
            else
                launched(kernel_scale_update_cuda(&args, NULL), "scale_update");
        }
        equal = equal && twin_equal(&amax, "amax") && twin_equal(&window, "window") &&
                twin_equal(&state,
                           "numerator, has_scale, cursor, nonfinite, any, scratch, skip, scale");
    }
    if (!equal)
        diag("%lld slots, history %lld", (long long)slots, (long long)history);
    twin_free(&window);
    twin_free(&amax);
    twin_free(&state);
    return equal;
}

static void test_scale_update(void)
{
    static const int64_t slots[] = {1, 8, 9, 100, 3000};
    static const int64_t history[] = {1, 2, 16, 33, 1024, 1025, 3000};

    for (int algorithm = 0; algorithm < 2; algorithm++) {
        bool equal = true;

        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 7; j++)
                if (slots[i] * history[j] < (small ? 20000 : 1000000))
                    equal &= scale_update_agrees(slots[i], history[j], (enum fp8pipe_amax)algorithm,
                                                 small ? 7 : 40);
        ok(equal, "scale_update (%s): many steps of finite, zero, inf and NaN amax",
           algorithm == FP8PIPE_AMAX_MAX ? "max" : "most recent");
    }
    ok(scale_update_agrees(2, small ? 5000 : 65536, FP8PIPE_AMAX_MAX, 5),
       "scale_update: the longest history");
}

int main(void)
{
    device_require();
    small = test_environment_is_set("FP8PIPE_TEST_SMALL");
    test_capture();
    test_transpose();
    test_column_sums();
    test_store();
    test_store_values();
    test_scale_update();
    return done_testing();
}
