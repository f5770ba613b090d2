/*
 * The CUDA kernels of activations against their host twin: the same bytes, scales, amax, counts and
 * results on random data of every kind, in random layouts. NaNs may differ in sign and payload,
 * partial sums in the order of their additions.
 *
 * FP8PIPE_TEST_SMALL=1 runs fewer of them (for compute-sanitizer).
 */
#include <stdio.h>

#include "twin.h"

#include "kernels/convert.h"

static bool small;
static struct test_rng rng = {3};

struct config {
    enum fp8pipe_activation activation;
    bool backward;
    bool biased;
    enum fp8pipe_dtype x, dy, bias, result;
    int64_t rows;
    int64_t inner; /* columns of y, or of dy */
    enum data data;
    bool in_place;
    bool no_result;
    bool row, transposed, sums, extremes, own_amax, has_scale, folds;
    enum fp8pipe_format format;
};

static const char *describe(const struct config *c)
{
    static char text[300];

    snprintf(text, sizeof(text),
             "activation %d%s, %lld x %lld, x %s, dy %s, bias %s, result %s%s, data %d%s%s%s%s%s%s",
             c->activation, c->backward ? " backward" : "", (long long)c->rows, (long long)c->inner,
             test_dtype_name(c->x), test_dtype_name(c->dy),
             c->biased ? test_dtype_name(c->bias) : "none",
             c->no_result ? "none" : test_dtype_name(c->result), c->in_place ? " in place" : "",
             (int)c->data, c->row ? ", row" : "", c->transposed ? ", transposed" : "",
             c->sums ? ", sums" : "", c->extremes ? ", extremes" : "",
             c->own_amax ? ", own amax" : "", c->has_scale ? "" : ", no scale");
    return text;
}

/* Elements that are neither the same nor both NaN. */
static bool results_equal(const struct twin_matrix *m)
{
    size_t element = test_dtype_bytes(m->host.dtype);
    uint8_t *bytes = twin_download(&m->memory);
    size_t begin = (size_t)((uint8_t *)m->host.data - m->memory.host);
    bool equal = true;

    for (size_t at = 0; at < m->memory.bytes && equal; at += element) {
        bool inside = at >= begin &&
                      (at - begin) / element % (size_t)m->host.stride < (size_t)m->host.cols &&
                      (at - begin) / element / (size_t)m->host.stride < (size_t)m->host.rows;
        double a = inside ? test_element_get(m->host.dtype, bytes + at) : 0;
        double b = inside ? test_element_get(m->host.dtype, m->memory.host + at) : 0;

        equal = memcmp(bytes + at, m->memory.host + at, element) == 0 || (isnan(a) && isnan(b));
        if (!equal)
            diag("result: element %lld: device %.9g, host %.9g",
                 ((long long)at - (long long)begin) / (long long)element, a, b);
    }
    free(bytes);
    return equal;
}

/* The words of what is not a matrix: scale, has_scale, own amax, scale_inv, amax, extremes. */
enum { SCALE, HAS_SCALE, OWN_AMAX, SCALE_INV, AMAX, PAD, SATURATED, FLUSHED = 8, WORDS = 10 };

static bool words_equal(const struct twin *words)
{
    uint8_t *bytes = twin_download(words);
    const uint32_t *device = (const uint32_t *)(void *)(bytes + GUARD_BYTES);
    const uint32_t *host = twin_host(words);
    bool equal = true;

    for (int i = 0; i < WORDS; i++) {
        bool amax = i == OWN_AMAX || i == AMAX;

        if (device[i] != host[i] && !(amax && device[i] > 0x7f800000u && host[i] > 0x7f800000u)) {
            diag("word %d: device %08x, host %08x", i, device[i], host[i]);
            equal = false;
        }
    }
    free(bytes);
    return equal;
}

static bool agrees(const struct config *c)
{
    bool gated = c->activation == FP8PIPE_ACTIVATION_SWIGLU;
    int64_t x_cols = gated ? 2 * c->inner : c->inner;
    int64_t cols = c->backward ? x_cols : c->inner;
    int64_t row_stride = (cols + 15) / 16 * 16 + 16 * test_random_range(&rng, 0, 2);
    int64_t turned_stride = (c->rows + 15) / 16 * 16 + 16 * test_random_range(&rng, 0, 2);
    struct twin_matrix x = twin_matrix_random(&rng, c->x, c->rows, x_cols, c->data);
    struct twin_matrix dy = twin_matrix_random(&rng, c->dy, c->rows, c->inner, c->data);
    struct twin_matrix bias = twin_matrix_random(&rng, c->bias, 1, x_cols, DATA_NORMAL);
    struct twin_matrix result = twin_matrix_random(&rng, c->result, c->rows, cols, DATA_ZERO);
    /* The values once more in float32, for the size of sums. */
    struct twin_matrix plain = twin_matrix_random(&rng, FP8PIPE_FP32, c->rows, cols, DATA_ZERO);
    struct twin row = twin_make((size_t)(c->rows * row_stride));
    struct twin turned = twin_make((size_t)(cols * turned_stride));
    struct twin sums = twin_make((size_t)((c->rows + 63) / 64 * cols) * 4);
    struct twin words = twin_make(WORDS * 4);
    uint32_t *w = twin_host(&words);
    bool equal;

    memset(w, 0, WORDS * 4);
    w[SCALE] = float_bits((float)exp2((double)test_random_range(&rng, -3, 12)) * 1.3f);
    w[HAS_SCALE] = c->has_scale;
    w[AMAX] = float_bits(0.25f);
    w[SATURATED] = 5;
    twin_upload(&words);
    twin_upload(&row);
    twin_upload(&turned);
    twin_upload(&sums);
    for (int side = 0; side < 2; side++) {
        void *(*at)(const struct twin *) = side == 0 ? twin_host : twin_device;
        uint32_t *word = at(&words);
        struct fp8pipe_matrix none = FP8PIPE_MATRIX_NONE;
        struct fp8pipe_matrix in = side == 0 ? x.host : x.device;
        struct fp8pipe_matrix slope = side == 0 ? dy.host : dy.device;
        struct fp8pipe_matrix one = side == 0 ? bias.host : bias.device;
        struct kernel_activation_args args = {
            .x = in,
            .dy = c->backward ? slope : none,
            .result = c->in_place    ? in
                      : c->no_result ? none
                      : side == 0    ? result.host
                                     : result.device,
            .activation = c->activation,
            .backward = c->backward,
            .target = {.rows = c->rows,
                       .cols = cols,
                       .format = c->format,
                       .scale_numerator = 448.0f,
                       .scale = (float *)&word[SCALE],
                       .has_scale = (int32_t *)&word[HAS_SCALE],
                       .own_amax = c->own_amax ? &word[OWN_AMAX] : NULL,
                       .scale_inv = (float *)&word[SCALE_INV],
                       .row = c->row ? at(&row) : NULL,
                       .row_stride = row_stride,
                       .transposed = c->transposed ? at(&turned) : NULL,
                       .transposed_stride = turned_stride,
                       .amax = c->folds ? &word[AMAX] : NULL,
                       .partials = c->sums ? at(&sums) : NULL,
                       .extremes = c->extremes ? (uint64_t *)(void *)&word[SATURATED] : NULL},
        };

        if (c->biased)
            args.bias = (struct fp8pipe_vector){one.data, one.cols, one.dtype, 0};
        if (!c->row && !c->transposed) { /* a target without outputs */
            struct fp8pipe_quantize_target target = {.rows = c->rows, .cols = cols};

            args.target = target;
        }
        if (side == 0) {
            struct kernel_activation_args again = args;
            struct fp8pipe_quantize_target target = {.rows = c->rows, .cols = cols};

            again.result = plain.host;
            again.target = target;
            kernel_activation_host(&again);
            kernel_activation_host(&args);
        } else {
            launched(kernel_activation_cuda(&args, NULL), "activation");
        }
    }
    equal = twin_equal(&row, "row") & twin_equal(&turned, "transposed") & words_equal(&words) &
            results_equal(&result) & results_equal(&x) & twin_equal(&dy.memory, "dy");
    if (c->sums && c->data == DATA_NORMAL)
        equal &= partials_agree(&plain.host, &sums);
    if (!equal)
        diag("%s", describe(c));
    twin_free(&x.memory);
    twin_free(&dy.memory);
    twin_free(&bias.memory);
    twin_free(&result.memory);
    twin_free(&plain.memory);
    twin_free(&row);
    twin_free(&turned);
    twin_free(&sums);
    twin_free(&words);
    return equal;
}

static bool flip(void)
{
    return test_random_range(&rng, 0, 1) == 1;
}

static struct config config_random(enum fp8pipe_activation activation, bool backward)
{
    struct config c = {
        .activation = activation,
        .backward = backward,
        .biased = flip(),
        .x = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .dy = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .bias = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .result = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .rows = test_random_range(&rng, 1, small ? 150 : 600),
        .inner = test_random_range(&rng, 1, small ? 100 : 500),
        .data = (enum data)test_random_range(&rng, 0, DATA_KINDS - 1),
        .no_result = test_random_range(&rng, 0, 3) == 0,
        .row = flip(),
        .transposed = flip(),
        .sums = flip(),
        .extremes = test_random_range(&rng, 0, 3) == 0,
        .own_amax = flip(),
        .has_scale = flip(),
        .folds = flip(),
        .format = flip() ? FP8PIPE_E5M2 : FP8PIPE_E4M3,
    };

    if (!c.own_amax)
        c.has_scale = true;
    if (!c.row && !c.transposed)
        c.sums = c.extremes = c.folds = c.no_result = false;
    if (flip()) { /* what has its loads issued ahead */
        c.biased = false;
        c.x = c.dy = c.result = FP8PIPE_BF16;
        c.inner = (c.inner + 7) / 8 * 8;
    }
    if (activation != FP8PIPE_ACTIVATION_SWIGLU && test_random_range(&rng, 0, 3) == 0) {
        c.in_place = true;
        c.no_result = true;
    }
    return c;
}

static void test_random_cases(void)
{
    static const char *const names[] = {"none", "gelu_tanh", "gelu_erf", "silu", "swiglu"};

    for (int kind = 1; kind <= 4; kind++)
        for (int backward = 0; backward < 2; backward++) {
            bool equal = true;

            for (int i = 0; i < (small ? 20 : 150); i++) {
                struct config config = config_random((enum fp8pipe_activation)kind, backward);

                equal &= agrees(&config);
            }
            ok(equal, "%s%s: random shapes, layouts, dtypes, outputs", names[kind],
               backward ? " backward" : "");
        }
}

/* Every bf16, and many float32 where the functions bend. */
static void test_every_value(void)
{
    for (int kind = 1; kind <= 3; kind++)
        for (int backward = 0; backward < 2; backward++)
            for (int wide = 0; wide < 2; wide++) {
                int64_t rows = wide ? (small ? 64 : 2048) : 256, cols = wide ? 2048 : 256;
                enum fp8pipe_dtype dtype = wide ? FP8PIPE_FP32 : FP8PIPE_BF16;
                struct twin_matrix x = twin_matrix_make(dtype, rows, cols, cols, 0);
                struct twin_matrix dy = twin_matrix_make(dtype, rows, cols, cols, 0);
                struct twin_matrix out = twin_matrix_make(FP8PIPE_FP32, rows, cols, cols, 0);
                struct kernel_activation_args args = {.activation = (enum fp8pipe_activation)kind,
                                                      .backward = backward};

                for (int64_t i = 0; i < rows * cols; i++)
                    if (wide) {
                        ((float *)x.host.data)[i] = (float)(30 * test_random_uniform(&rng) - 15);
                        ((float *)dy.host.data)[i] = 1.0f;
                    } else {
                        ((uint16_t *)x.host.data)[i] = (uint16_t)i;
                        ((uint16_t *)dy.host.data)[i] = 0x3f80;
                    }
                twin_upload(&x.memory);
                twin_upload(&dy.memory);
                twin_upload(&out.memory);
                args.target.rows = rows;
                args.target.cols = cols;
                args.x = x.host;
                if (backward)
                    args.dy = dy.host;
                args.result = out.host;
                kernel_activation_host(&args);
                args.x = x.device;
                if (backward)
                    args.dy = dy.device;
                args.result = out.device;
                launched(kernel_activation_cuda(&args, NULL), "activation");
                ok(results_equal(&out), "activation %d%s: %s", kind, backward ? " backward" : "",
                   wide ? "many float32 within 15 of 0" : "every bf16");
                twin_free(&x.memory);
                twin_free(&dy.memory);
                twin_free(&out.memory);
            }
}

int main(void)
{
    device_require();
    small = test_environment_is_set("FP8PIPE_TEST_SMALL");
    test_every_value();
    test_random_cases();
    return done_testing();
}
