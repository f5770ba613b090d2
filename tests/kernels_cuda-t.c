/*
 * The CUDA kernels amax, quantize and partials against their host twins: the same inputs, byte for
 * byte the same memory afterwards, what lies around the outputs included. Where the order of a sum
 * may differ, a bound instead.
 *
 * FP8PIPE_TEST_SMALL=1 leaves out the large shapes (for compute-sanitizer).
 */
#include "twin.h"

#include "kernels/convert.h"

static bool small;
static struct test_rng rng = {1};

/* ---- amax --------------------------------------------------------------------------------- */

static bool amax_agrees(struct twin_matrix *x, uint32_t before, int32_t skip, bool skip_given)
{
    struct twin words = twin_make(8);
    struct kernel_amax_args args = {x->host, NULL, NULL};
    uint32_t *host = twin_host(&words);
    uint32_t *device = twin_device(&words);
    bool equal;

    host[0] = before;
    memcpy(&host[1], &skip, sizeof(skip));
    twin_upload(&words);
    args.amax = &host[0];
    args.skip_if = skip_given ? (int32_t *)&host[1] : NULL;
    kernel_amax_host(&args);
    args.x = x->device;
    args.amax = &device[0];
    args.skip_if = skip_given ? (int32_t *)&device[1] : NULL;
    launched(kernel_amax_cuda(&args, NULL), "amax");
    equal = twin_equal(&words, "amax");
    twin_free(&words);
    return equal;
}

static void test_amax(void)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        bool equal = true, kept = true, skipped = true;

        for (int i = 0; i < (small ? 20 : 60); i++) {
            struct twin_matrix x =
                twin_matrix_random(&rng, dtype, test_random_range(&rng, 1, 300),
                                   test_random_range(&rng, 1, 1500), (enum data)(i % DATA_KINDS));

            equal &= amax_agrees(&x, 0, 0, i % 2);
            kept &= amax_agrees(&x, float_bits(1.0f), 0, i % 2);
            skipped &= amax_agrees(&x, 5, i + 1, true);
            twin_free(&x.memory);
        }
        ok(equal, "amax of %s: the largest bits", test_dtype_name(dtype));
        ok(kept, "amax of %s is folded into what is there", test_dtype_name(dtype));
        ok(skipped, "amax of %s is skipped when its flag is set", test_dtype_name(dtype));
    }
}

/* ---- quantize ----------------------------------------------------------------------------- */

struct quantize_case {
    bool row;
    bool transposed;
    bool amax;
    bool partials;
    bool own;    /* own_amax is given, has_scale is 0 */
    float scale; /* else this one */
    uint32_t own_amax;
    float numerator;
    bool extremes;
};

/* Memory of one quantize, both sides; the args of each. */
struct quantize_twin {
    struct twin row, transposed, partials, words, extremes;
    struct kernel_quantize_args host, device;
};

static struct quantize_twin quantize_twin_make(const struct twin_matrix *x,
                                               enum fp8pipe_format format,
                                               const struct quantize_case *c)
{
    const struct fp8pipe_matrix *m = &x->host;
    /* Mostly no more padding than must be, sometimes much. */
    int64_t row_stride = (m->cols + 15) / 16 * 16 + test_random_range(&rng, 0, 5) / 5 * 208;
    int64_t transposed_stride = (m->rows + 15) / 16 * 16 + test_random_range(&rng, 0, 5) / 5 * 208;
    int64_t parts = (m->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    struct quantize_twin q;
    float *words;

    q.row = twin_make(c->row ? (size_t)(m->rows * row_stride) : 0);
    q.transposed = twin_make(c->transposed ? (size_t)(m->cols * transposed_stride) : 0);
    q.partials = twin_make(c->partials ? (size_t)(parts * m->cols) * sizeof(float) : 0);
    q.words = twin_make(5 * sizeof(float));
    q.extremes = twin_make(2 * sizeof(uint64_t));
    ((uint64_t *)twin_host(&q.extremes))[0] = UINT64_C(0xffffffff);
    ((uint64_t *)twin_host(&q.extremes))[1] = UINT64_C(0x1ffffffff);
    words = twin_host(&q.words);
    words[0] = c->scale;
    words[1] = float_from_bits(c->own ? 0 : 7); /* has_scale */
    words[2] = float_from_bits(c->own_amax);
    words[4] = float_from_bits(c->amax ? 1 : 0x7fffffff);
    twin_upload(&q.row);
    twin_upload(&q.transposed);
    twin_upload(&q.partials);
    twin_upload(&q.words);
    twin_upload(&q.extremes);
    for (int side = 0; side < 2; side++) {
        void *(*at)(const struct twin *) = side == 0 ? twin_host : twin_device;
        struct kernel_quantize_args *args = side == 0 ? &q.host : &q.device;

        words = at(&q.words);
        args->x = side == 0 ? x->host : x->device;
        args->format = format;
        args->scale_numerator = c->numerator;
        args->scale = &words[0];
        args->has_scale = (int32_t *)&words[1];
        args->own_amax = c->own || c->own_amax ? (uint32_t *)&words[2] : NULL;
        args->scale_inv = &words[3];
        args->amax = c->amax ? (uint32_t *)&words[4] : NULL;
        args->row = c->row ? at(&q.row) : NULL;
        args->row_stride = c->row ? row_stride : 0;
        args->transposed = c->transposed ? at(&q.transposed) : NULL;
        args->transposed_stride = c->transposed ? transposed_stride : 0;
        args->partials = c->partials ? at(&q.partials) : NULL;
        args->extremes = c->extremes ? at(&q.extremes) : NULL;
    }
    return q;
}

static void quantize_twin_free(struct quantize_twin *q)
{
    twin_free(&q->row);
    twin_free(&q->transposed);
    twin_free(&q->partials);
    twin_free(&q->words);
    twin_free(&q->extremes);
}

static bool quantize_agrees(const struct twin_matrix *x, enum fp8pipe_format format,
                            const struct quantize_case *c)
{
    struct quantize_twin q = quantize_twin_make(x, format, c);
    bool equal;

    kernel_quantize_host(&q.host);
    launched(kernel_quantize_cuda(&q.device, NULL), "quantize");
    equal = twin_equal(&q.row, "row-wise bytes") & twin_equal(&q.transposed, "transposed bytes") &
            twin_equal(&q.words, "scale, has_scale, own amax, scale_inv, amax") &
            twin_equal(&q.extremes, "saturated, flushed");
    if (c->partials)
        equal &= partials_agree(&x->host, &q.partials);
    if (!equal)
        diag("%s to %s, %lld x %lld, stride %lld, %s%s%s%s%s, scale %a",
             test_dtype_name(x->host.dtype), test_format_name(format), (long long)x->host.rows,
             (long long)x->host.cols, (long long)x->host.stride, c->row ? "row " : "",
             c->transposed ? "transposed " : "", c->amax ? "amax " : "",
             c->partials ? "partials " : "", c->own ? "own" : "given", (double)c->scale);
    quantize_twin_free(&q);
    return equal;
}

static const struct quantize_case all_wanted = {true, true, true,   true, false,
                                                3.0f, 0,    448.0f, false};
static const struct quantize_case row_wanted = {true, false, true,   false, false,
                                                1.0f, 0,     448.0f, false};

static void test_quantize_random(enum fp8pipe_dtype dtype, enum fp8pipe_format format)
{
    bool equal = true;

    for (int i = 0; i < (small ? 40 : 150); i++) {
        struct twin_matrix x =
            twin_matrix_random(&rng, dtype, test_random_range(&rng, 0, i % 5 == 0 ? 3 : 400),
                               test_random_range(&rng, 1, i % 7 == 0 ? 1500 : 200),
                               i % 3 == 0 ? DATA_BITS : DATA_NORMAL);
        struct quantize_case c = {test_random(&rng) % 4 != 0,
                                  test_random(&rng) % 2,
                                  test_random(&rng) % 2,
                                  test_random(&rng) % 2,
                                  test_random(&rng) % 2,
                                  (float)exp2((double)test_random_range(&rng, -8, 12) + 0.3),
                                  float_bits((float)exp2(test_random_range(&rng, -8, 12) + 0.4)),
                                  format == FP8PIPE_E4M3 ? 448.0f : 57344.0f,
                                  test_random(&rng) % 2};

        equal &= quantize_agrees(&x, format, &c);
        twin_free(&x.memory);
    }
    ok(equal, "quantize %s to %s: random shapes, strides, alignments, outputs",
       test_dtype_name(dtype), test_format_name(format));
}

static void test_quantize_edges(enum fp8pipe_dtype dtype, enum fp8pipe_format format)
{
    static const int64_t edge[] = {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129};
    const int count = sizeof(edge) / sizeof(edge[0]);
    bool equal = true;

    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j += small ? 3 : 1) {
            struct twin_matrix x =
                twin_matrix_make(dtype, edge[i], edge[j], (edge[j] + 7) / 8 * 8, 0);

            twin_matrix_fill(&x, &rng, DATA_NORMAL);
            equal &= quantize_agrees(&x, format, &all_wanted);
            equal &= quantize_agrees(&x, format, &row_wanted);
            for (int k = 0; k < 2; k++) {
                struct quantize_case counted = k ? all_wanted : row_wanted;

                counted.extremes = true;
                counted.scale = 0x1p+9f;
                equal &= quantize_agrees(&x, format, &counted);
            }
            twin_free(&x.memory);
        }
    ok(equal, "quantize %s to %s: sizes around those of units and tiles", test_dtype_name(dtype),
       test_format_name(format));
}

/* Every 16-bit value; of fp32 every upper half with lower halves around the ties. */
static void test_quantize_values(enum fp8pipe_dtype dtype, enum fp8pipe_format format)
{
    static const uint32_t lower[] = {0x0000, 0x0001, 0x7fff, 0x8000,
                                     0x8001, 0xffff, 0x4000, 0xc000};
    int64_t rows = dtype == FP8PIPE_FP32 ? 256 * 8 : 256;
    struct twin_matrix x = twin_matrix_make(dtype, rows, 256, 256, 0);
    float scales[] = {1.0f, 0.75f, 0x1p-20f, 0x1p+20f, FLT_MAX, FLT_MIN};
    bool equal = true;

    for (int64_t i = 0; i < rows * 256; i++)
        if (dtype == FP8PIPE_FP32)
            ((uint32_t *)x.host.data)[i] = (uint32_t)(i / 8) << 16 | lower[i % 8];
        else
            ((uint16_t *)x.host.data)[i] = (uint16_t)i;
    twin_upload(&x.memory);
    for (int i = 0; i < 6; i++) {
        struct quantize_case c = row_wanted;

        c.scale = scales[i];
        equal &= quantize_agrees(&x, format, &c);
        c.extremes = true;
        equal &= quantize_agrees(&x, format, &c);
        c.transposed = true;
        equal &= quantize_agrees(&x, format, &c);
        c.extremes = false;
        equal &= quantize_agrees(&x, format, &c);
    }
    ok(equal, "quantize %s to %s: every value, every exponent, ties, inf, NaN",
       test_dtype_name(dtype), test_format_name(format));
    twin_free(&x.memory);
}

static void test_quantize_scales(void)
{
    static const uint32_t amax[] = {0,          1,          0x00800000, 0x00000100, 0x3f800000,
                                    0x7f7fffff, 0x7f800000, 0x7fc00000, 0x7fffffff, 0x43e00000};
    struct twin_matrix x = twin_matrix_make(FP8PIPE_FP32, 33, 41, 44, 0);
    struct twin_matrix none = twin_matrix_make(FP8PIPE_BF16, 0, 41, 41, 0);
    bool equal = true, empty = true;

    twin_matrix_fill(&x, &rng, DATA_BITS);
    twin_matrix_fill(&none, &rng, DATA_NORMAL);
    for (int i = 0; i < 10; i++)
        for (int own = 0; own < 2; own++) {
            struct quantize_case c = {true, true, true, false, own, 0.3f, amax[i], 448.0f, false};

            equal &= quantize_agrees(&x, FP8PIPE_E4M3, &c);
            c.numerator = 57344.0f * 0x1p-64f;
            equal &= quantize_agrees(&x, FP8PIPE_E5M2, &c);
            empty &= quantize_agrees(&none, FP8PIPE_E4M3, &c);
        }
    ok(equal, "quantize: a scale of its own for amax 0, tiny, huge, inf and NaN");
    ok(empty, "quantize of no rows writes scale_inv alone");
    twin_free(&x.memory);
    twin_free(&none.memory);
}

static void test_quantize_large(void)
{
    static const struct {
        enum fp8pipe_dtype dtype;
        int64_t rows, cols;
    } shape[] = {
        {FP8PIPE_BF16, 8192, 2048}, {FP8PIPE_BF16, 1000, 12288}, {FP8PIPE_FP32, 2048, 3000}};
    struct quantize_case tall_wanted = all_wanted;
    struct twin_matrix tall;

    if (small) {
        skip(4, "FP8PIPE_TEST_SMALL is set");
        return;
    }
    for (int i = 0; i < 3; i++) {
        struct twin_matrix x =
            twin_matrix_make(shape[i].dtype, shape[i].rows, shape[i].cols, shape[i].cols, 0);
        bool equal;

        twin_matrix_fill(&x, &rng, DATA_NORMAL);
        equal = quantize_agrees(&x, FP8PIPE_E4M3, &all_wanted);
        equal &= quantize_agrees(&x, FP8PIPE_E5M2, &row_wanted);
        ok(equal, "quantize %s %lld x %lld", test_dtype_name(shape[i].dtype),
           (long long)shape[i].rows, (long long)shape[i].cols);
        twin_free(&x.memory);
    }
    /* More tiles of rows than the grid has blocks in y. */
    tall = twin_matrix_make(FP8PIPE_BF16, INT64_C(65535) * 128 + 1000, 1, 1, 0);
    twin_matrix_fill(&tall, &rng, DATA_NORMAL);
    tall_wanted.row = false;
    ok(quantize_agrees(&tall, FP8PIPE_E4M3, &tall_wanted), "quantize more rows than one grid has");
    twin_free(&tall.memory);
}

/* More columns of tiles than a grid has blocks in y: units whole and not. */
static void test_wide(void)
{
    static const int64_t border = INT64_C(65535) * 64;
    static const struct {
        enum fp8pipe_dtype dtype;
        int64_t rows, cols;
    } shape[] = {{FP8PIPE_BF16, 1, border},
                 {FP8PIPE_BF16, 3, border + 8},
                 {FP8PIPE_BF16, 2, border + 100001},
                 {FP8PIPE_FP32, 2, border + 100000}};

    if (small) {
        skip(4, "FP8PIPE_TEST_SMALL is set");
        return;
    }
    for (int i = 0; i < 4; i++) {
        struct twin_matrix x =
            twin_matrix_make(shape[i].dtype, shape[i].rows, shape[i].cols, shape[i].cols, 0);
        struct quantize_case c = all_wanted;
        bool equal;

        twin_matrix_fill(&x, &rng, DATA_NORMAL);
        equal = amax_agrees(&x, 0, 0, false);
        equal &= quantize_agrees(&x, FP8PIPE_E5M2, &row_wanted);
        equal &= quantize_agrees(&x, FP8PIPE_E4M3, &c);
        c.partials = false;
        equal &= quantize_agrees(&x, FP8PIPE_E5M2, &c);
        c.extremes = true;
        c.scale = 0x1p+9f;
        equal &= quantize_agrees(&x, FP8PIPE_E4M3, &c);
        c = (struct quantize_case){.partials = true, .scale = 2.0f};
        equal &= quantize_agrees(&x, FP8PIPE_E4M3, &c);
        ok(equal, "amax and quantize of %s %lld x %lld", test_dtype_name(shape[i].dtype),
           (long long)shape[i].rows, (long long)shape[i].cols);
        twin_free(&x.memory);
    }
}

static void test_quantize_refused(void)
{
    struct twin_matrix x = twin_matrix_make(FP8PIPE_BF16, 32, 32, 32, 0);
    struct quantize_twin q = quantize_twin_make(&x, FP8PIPE_E4M3, &all_wanted);
    struct kernel_quantize_args args = q.device;

    args.row++;
    is_int(kernel_quantize_cuda(&args, NULL), cudaErrorInvalidValue,
           "misaligned FP8 rows: refused");
    args = q.device;
    args.transposed_stride += 8;
    is_int(kernel_quantize_cuda(&args, NULL), cudaErrorInvalidValue, "an odd FP8 stride: refused");
    args = q.device;
    args.row_stride = 16;
    is_int(kernel_quantize_cuda(&args, NULL), cudaErrorInvalidValue, "too short a stride: refused");
    is_int(cudaPeekAtLastError(), cudaSuccess, "a refusal leaves no error behind");
    twin_free(&x.memory);
    quantize_twin_free(&q);
}

/* ---- partials ----------------------------------------------------------------------------- */

static void test_partials(void)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        bool agree = true, same = true;

        for (int i = 0; i < (small ? 12 : 40); i++) {
            struct twin_matrix x = twin_matrix_random(&rng, dtype, test_random_range(&rng, 1, 500),
                                                      test_random_range(&rng, 1, 300), DATA_NORMAL);
            int64_t parts = (x.host.rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
            struct twin sums = twin_make((size_t)(parts * x.host.cols) * sizeof(float));
            struct quantize_twin q = quantize_twin_make(&x, FP8PIPE_E5M2, &all_wanted);
            struct kernel_partials_args args = {x.host, twin_host(&sums)};
            uint8_t *alone, *beside;

            twin_upload(&sums);
            kernel_partials_host(&args);
            args.x = x.device;
            args.partials = twin_device(&sums);
            launched(kernel_partials_cuda(&args, NULL), "partials");
            agree &= partials_agree(&x.host, &sums);

            launched(kernel_quantize_cuda(&q.device, NULL), "quantize");
            alone = twin_download(&sums);
            beside = twin_download(&q.partials);
            same &= memcmp(alone, beside, sums.bytes) == 0;
            free(alone);
            free(beside);
            twin_free(&x.memory);
            twin_free(&sums);
            quantize_twin_free(&q);
        }
        ok(agree, "partials of %s: within the bound", test_dtype_name(dtype));
        ok(same, "partials of %s: quantize makes the same bits", test_dtype_name(dtype));
    }
}

int main(void)
{
    device_require();
    small = test_environment_is_set("FP8PIPE_TEST_SMALL");
    test_amax();
    for (int dtype = 0; dtype < 3; dtype++)
        for (int format = 0; format < 2; format++) {
            test_quantize_random((enum fp8pipe_dtype)dtype, (enum fp8pipe_format)format);
            test_quantize_edges((enum fp8pipe_dtype)dtype, (enum fp8pipe_format)format);
            test_quantize_values((enum fp8pipe_dtype)dtype, (enum fp8pipe_format)format);
        }
    test_quantize_scales();
    test_quantize_large();
    test_wide();
    test_quantize_refused();
    test_partials();
    return done_testing();
}
