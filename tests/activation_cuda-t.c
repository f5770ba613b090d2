/*
 * The CUDA kernels of activations against their host twin on random data of every kind, in random
 * layouts. Values may be off by TOLERANCE |x| (derivatives: TOLERANCE) times what they are
 * multiplied by; what is made of them - results, codes, amax, scale, counts, sums - has to be what
 * values within that are rounded to. NaNs may differ in sign and payload. All else, padding and
 * surroundings included, has to be the same.
 *
 * FP8PIPE_TEST_SMALL=1 runs fewer of them (for compute-sanitizer).
 */
#include <stdio.h>

#include "twin.h"

#include "kernels/fp8.h"

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

#define TOLERANCE 1e-6

/* What the values may be: float32, row by row. */
struct range {
    int64_t rows;
    int64_t cols;
    float *low;
    float *high;
    double *slack;
};

/* Of value +- slack. What is not finite has to be met. */
static void range_set(struct range *r, int64_t at, float value, double slack)
{
    bool exact = !isfinite(value) || (value == 0 && slack == 0);

    r->slack[at] = exact ? 0 : slack + 3 * 0x1p-149;
    r->low[at] = exact ? value : (float)((double)value - r->slack[at]);
    r->high[at] = exact ? value : (float)((double)value + r->slack[at]);
}

static struct range range_make(int64_t rows, int64_t cols)
{
    size_t count = (size_t)(rows * cols);
    struct range r = {rows, cols, test_calloc(count, 4), test_calloc(count, 4),
                      test_calloc(count, 8)};

    return r;
}

static void range_free(struct range *r)
{
    free(r->low);
    free(r->high);
    free(r->slack);
}

static double get(const struct fp8pipe_matrix *m, int64_t row, int64_t col)
{
    return test_element_get(m->dtype, (const uint8_t *)m->data + (size_t)(row * m->stride + col) *
                                                                     test_dtype_bytes(m->dtype));
}

/* x + bias, as the kernels have it. */
static double biased(const struct kernel_activation_args *args, int64_t row, int64_t col)
{
    struct fp8pipe_matrix bias = {args->bias.data,  1, args->bias.count, args->bias.count,
                                  args->bias.dtype, 0};
    float x = (float)get(&args->x, row, col);

    return bias.data == NULL ? x : x + (float)get(&bias, 0, col);
}

/* Around the host's float32 results in `plain`, of `args` on the host's memory. */
static struct range range_of(const struct kernel_activation_args *args,
                             const struct fp8pipe_matrix *plain)
{
    bool gated = args->activation == FP8PIPE_ACTIVATION_SWIGLU;
    int64_t half = args->x.cols / 2, inner = gated ? half : args->x.cols;
    struct range r = range_make(plain->rows, plain->cols);

    for (int64_t row = 0; row < plain->rows; row++)
        for (int64_t col = 0; col < plain->cols; col++) {
            bool by_gate = col >= inner;
            double slack = TOLERANCE;

            if (!args->backward || by_gate)
                slack *= fabs(biased(args, row, col % inner));
            if (gated && !by_gate)
                slack *= fabs(biased(args, row, half + col));
            if (args->backward)
                slack *= fabs(get(&args->dy, row, col % inner));
            range_set(&r, row * plain->cols + col, (float)get(plain, row, col), slack);
        }
    return r;
}

static bool between(double low, double x, double high)
{
    return (low <= x && x <= high) || (isnan(x) && isnan(low));
}

/* Of a matrix that was written within `r`; r NULL: not written. Around it nothing changed. */
static bool results_agree(const struct twin_matrix *m, const struct range *r)
{
    enum fp8pipe_dtype dtype = m->host.dtype;
    size_t element = test_dtype_bytes(dtype);
    uint8_t *bytes = twin_download(&m->memory);
    size_t begin = (size_t)((uint8_t *)m->host.data - m->memory.host);
    bool agree = true;

    for (size_t at = 0; at < m->memory.bytes && agree; at += element) {
        size_t stride = (size_t)m->host.stride, index = (at - begin) / element;
        bool inside = at >= begin && index % stride < (size_t)m->host.cols &&
                      index / stride < (size_t)m->host.rows;
        double a, low, high;

        if (!inside || r == NULL) {
            agree = memcmp(bytes + at, m->memory.host + at, element) == 0;
        } else {
            size_t in_range = index / stride * (size_t)m->host.cols + index % stride;
            uint8_t rounded[4];

            a = test_element_get(dtype, bytes + at);
            test_element_set(dtype, rounded, (double)r->low[in_range]);
            low = test_element_get(dtype, rounded);
            test_element_set(dtype, rounded, (double)r->high[in_range]);
            high = test_element_get(dtype, rounded);
            agree = between(low, a, high);
            if (!agree)
                diag("result: element %zu: %.9g, not from %.9g to %.9g", index, a, low, high);
        }
    }
    free(bytes);
    return agree;
}

/* The words of what is not a matrix: scale, has_scale, own amax, scale_inv, amax, extremes. */
enum { SCALE, HAS_SCALE, OWN_AMAX, SCALE_INV, AMAX, PAD, SATURATED, FLUSHED = 8, WORDS = 10 };

static bool is_nan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

/* Whether `amax` is the largest magnitude, from `first` on, of values within r. */
static bool amax_agrees(const struct range *r, uint32_t first, uint32_t amax)
{
    double low = (double)test_float_from_bits(first), high = low;
    bool nan = false;

    for (int64_t i = 0; i < r->rows * r->cols; i++) {
        double a = fabs((double)r->low[i]), b = fabs((double)r->high[i]);
        bool across = r->low[i] < 0 && r->high[i] > 0;

        nan |= isnan(a);
        low = fmax(low, across ? 0 : fmin(a, b));
        high = fmax(high, fmax(a, b));
    }
    return nan ? is_nan(amax) : between(low, (double)test_float_from_bits(amax), high);
}

struct counts {
    uint64_t low;
    uint64_t high;
};

/* Of values from low to high, whose codes are code_low and code_high. */
static void counts_add(struct counts *saturated, struct counts *flushed, float low, float high,
                       float scale, float largest, uint8_t code_low, uint8_t code_high)
{
    bool over_low = fabsf(low * scale) > largest, over_high = fabsf(high * scale) > largest;
    bool zero_low = (code_low & 0x7f) == 0, zero_high = (code_high & 0x7f) == 0;
    bool only_zero = low == 0 && high == 0;

    /* What may be of either sign may be small, too. */
    saturated->low += over_low && over_high && !(low < 0 && high > 0);
    saturated->high += over_low || over_high;
    flushed->low += zero_low && zero_high && (low > 0 || high < 0);
    flushed->high += (zero_low || zero_high || (low < 0 && high > 0)) && !only_zero;
}

/* Codes of values within r, in rows of `stride` bytes; the values' columns if `transposed`. Counts
 * how many of them may saturate and may be flushed. */
static bool codes_agree(const struct twin *memory, const struct range *r, bool transposed,
                        int64_t stride, enum fp8pipe_format format, float scale,
                        struct counts *saturated, struct counts *flushed)
{
    uint8_t *bytes = twin_download(memory);
    int64_t rows = transposed ? r->cols : r->rows, cols = transposed ? r->rows : r->cols;
    bool agree = memcmp(bytes, memory->host, GUARD_BYTES) == 0 &&
                 memcmp(bytes + memory->bytes - GUARD_BYTES,
                        memory->host + memory->bytes - GUARD_BYTES, GUARD_BYTES) == 0;

    for (int64_t row = 0; row < rows && agree; row++)
        for (int64_t col = 0; col < stride && agree; col++) {
            uint8_t code = bytes[GUARD_BYTES + row * stride + col];
            int64_t at = transposed ? col * rows + row : row * cols + col;
            uint8_t low, high;

            if (col >= cols) {
                agree = code == 0;
                continue;
            }
            low = fp8_from_float(r->low[at] * scale, format);
            high = fp8_from_float(r->high[at] * scale, format);
            agree = between(fp8_to_float(low, format), fp8_to_float(code, format),
                            fp8_to_float(high, format));
            if (!agree)
                diag("%s [%lld, %lld]: code %02x, not from %02x to %02x",
                     transposed ? "transposed" : "row", (long long)row, (long long)col, code, low,
                     high);
            counts_add(saturated, flushed, r->low[at], r->high[at], scale, fp8_max(format), low,
                       high);
        }
    free(bytes);
    return agree;
}

static void words_get(const struct twin *words, uint32_t device[WORDS])
{
    uint8_t *bytes = twin_download(words);

    memcpy(device, bytes + GUARD_BYTES, WORDS * 4);
    free(bytes);
}

/* *scale: what the device had to quantize by. */
static bool scale_agrees(const struct config *c, const struct twin *words, const struct range *r,
                         float *scale)
{
    const uint32_t *host = twin_host(words);
    uint32_t device[WORDS];
    bool agree;
    float amax;

    words_get(words, device);
    agree = device[SCALE] == host[SCALE] && device[HAS_SCALE] == host[HAS_SCALE];
    *scale = test_float_from_bits(host[SCALE]);
    if (!c->own_amax || c->has_scale || (!c->row && !c->transposed)) {
        agree &= device[OWN_AMAX] == 0;
    } else {
        amax = test_float_from_bits(device[OWN_AMAX]);
        agree &= amax_agrees(r, 0, device[OWN_AMAX]);
        *scale = amax > 0 && isfinite(amax) ? fp8_scale(448.0f / amax) : 1.0f;
    }
    if (!agree)
        diag("own amax: device %08x, host %08x", device[OWN_AMAX], host[OWN_AMAX]);
    return agree;
}

/* first: the slot's amax before the kernel ran. */
static bool words_agree(const struct config *c, const struct twin *words, const struct range *r,
                        uint32_t first, float scale, const struct counts *saturated,
                        const struct counts *flushed)
{
    uint32_t device[WORDS];
    uint64_t counted[2];
    bool agree;

    words_get(words, device);
    memcpy(counted, &device[SATURATED], sizeof(counted));
    if (!c->row && !c->transposed)
        return device[SCALE_INV] == 0 && device[AMAX] == first && counted[0] == 5 &&
               counted[1] == 0;
    agree = test_float_from_bits(device[SCALE_INV]) == 1 / scale &&
            (c->folds ? amax_agrees(r, first, device[AMAX]) : device[AMAX] == first);
    if (c->extremes)
        agree &= counted[0] >= 5 + saturated->low && counted[0] <= 5 + saturated->high &&
                 counted[1] >= flushed->low && counted[1] <= flushed->high;
    else
        agree &= counted[0] == 5 && counted[1] == 0;
    if (!agree)
        diag("1 / scale %08x, scale %a; amax %08x; counts %llu of %llu to %llu, %llu of %llu to "
             "%llu",
             device[SCALE_INV], (double)scale, device[AMAX], (unsigned long long)counted[0],
             (unsigned long long)saturated->low + 5, (unsigned long long)saturated->high + 5,
             (unsigned long long)counted[1], (unsigned long long)flushed->low,
             (unsigned long long)flushed->high);
    return agree;
}

/* |device - host| of sums over 64 rows: what their additions may lose, and the values' ranges. */
static bool sums_agree(const struct twin *sums, const struct range *r)
{
    uint8_t *bytes = twin_download(sums);
    const float *device = (const float *)(void *)(bytes + GUARD_BYTES);
    bool agree = true;

    for (int64_t row = 0; row < r->rows; row += KERNEL_SUM_ROWS)
        for (int64_t col = 0; col < r->cols && agree; col++) {
            double sum = 0, size = 0, slack = 0,
                   got = device[row / KERNEL_SUM_ROWS * r->cols + col];

            for (int64_t i = row; i < r->rows && i < row + KERNEL_SUM_ROWS; i++) {
                double value = ((double)r->low[i * r->cols + col] + r->high[i * r->cols + col]) / 2;

                sum += value;
                size += fabs(value);
                slack += r->slack[i * r->cols + col];
            }
            agree = fabs(got - sum) <= 64 * FLT_EPSILON * size + slack;
            if (!agree)
                diag("sums [%lld, %lld]: %g, not %g", (long long)(row / KERNEL_SUM_ROWS),
                     (long long)col, got, sum);
        }
    free(bytes);
    return agree;
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
    /* The values once more in float32. */
    struct twin_matrix plain = twin_matrix_random(&rng, FP8PIPE_FP32, c->rows, cols, DATA_ZERO);
    struct twin row = twin_make((size_t)(c->rows * row_stride));
    struct twin turned = twin_make((size_t)(cols * turned_stride));
    struct twin sums = twin_make((size_t)((c->rows + 63) / 64 * cols) * 4);
    struct twin words = twin_make(WORDS * 4);
    uint32_t *w = twin_host(&words);
    struct range range = {0};
    struct counts saturated = {0}, flushed = {0};
    float scale;
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
            range = range_of(&args, &plain.host);
            kernel_activation_host(&args);
        } else {
            launched(kernel_activation_cuda(&args, NULL), "activation");
        }
    }
    equal = scale_agrees(c, &words, &range, &scale);
    if (c->row)
        equal &=
            codes_agree(&row, &range, false, row_stride, c->format, scale, &saturated, &flushed);
    else
        equal &= twin_equal(&row, "row");
    if (c->transposed) {
        struct counts again[2] = {0};

        equal &= codes_agree(&turned, &range, true, turned_stride, c->format, scale, &again[0],
                             &again[1]);
        if (!c->row) {
            saturated = again[0];
            flushed = again[1];
        }
    } else {
        equal &= twin_equal(&turned, "transposed");
    }
    equal &= words_agree(c, &words, &range, float_bits(0.25f), scale, &saturated, &flushed);
    equal &= results_agree(&result, c->in_place || c->no_result ? NULL : &range);
    equal &= results_agree(&x, c->in_place ? &range : NULL);
    equal &= twin_equal(&dy.memory, "dy");
    if (c->sums && c->data == DATA_NORMAL)
        equal &= sums_agree(&sums, &range);
    range_free(&range);
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

/* SWIGLU's backward where a unit lies across both halves, all rows aligned or none. */
static void test_border(void)
{
    bool equal = true;

    for (int64_t inner = 1; inner < 40; inner++)
        for (int i = 0; i < 6; i++) {
            struct config config = config_random(FP8PIPE_ACTIVATION_SWIGLU, true);

            config.inner = inner;
            config.x = config.dy = config.result = (enum fp8pipe_dtype)(i % 3);
            config.rows = test_random_range(&rng, 1, 40);
            equal &= agrees(&config);
        }
    ok(equal, "swiglu backward: halves of every width, whole units or not");
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
                struct range range = range_of(&args, &out.host);
                args.x = x.device;
                if (backward)
                    args.dy = dy.device;
                args.result = out.device;
                launched(kernel_activation_cuda(&args, NULL), "activation");
                ok(results_agree(&out, &range), "activation %d%s: %s", kind,
                   backward ? " backward" : "",
                   wide ? "many float32 within 15 of 0" : "every bf16");
                range_free(&range);
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
    test_border();
    test_random_cases();
    return done_testing();
}
