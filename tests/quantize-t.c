/*
 * Quantized tensors: the FP8 bytes against a definition of its own (a search for the nearest
 * value), the captured inverse scale, the folded amax, the first scale, the column sums.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

#define SLOT_E4M3 0 /* of a hybrid scaling without roles */
#define SLOT_E5M2 2

/* ---- The definition ----------------------------------------------------------------------- */

/* The finite values >= 0 in ascending order; an index is the value's byte. */
struct grid {
    int last;
    double value[128];
};

static struct grid grid_make(enum fp8pipe_format format)
{
    struct grid grid = {0};

    for (int byte = 0; isfinite(test_fp8_value(format, (uint8_t)byte)); byte++) {
        grid.value[byte] = test_fp8_value(format, (uint8_t)byte);
        grid.last = byte;
    }
    return grid;
}

/* The byte nearest to x, of two as near the even one; all that lies above the largest is that. */
static uint8_t nearest(const struct grid *grid, float x)
{
    double magnitude = fabs((double)x), middle;
    int low = 0, high = grid->last;

    if (isnan(x))
        return 0x7F;
    if (magnitude >= grid->value[grid->last]) {
        low = grid->last;
    } else {
        while (high - low > 1) {
            int half = (low + high) / 2;

            if (grid->value[half] <= magnitude)
                low = half;
            else
                high = half;
        }
        middle = (grid->value[low] + grid->value[high]) / 2;
        if (magnitude > middle || (magnitude == middle && low % 2 == 1))
            low = high;
    }
    return (uint8_t)(low | (signbit(x) ? 0x80 : 0));
}

/* float32 product, whatever the compiler makes of excess precision: the double's is exact. */
static float scaled(float x, float scale)
{
    return (float)((double)x * (double)scale);
}

/* Bytes of both copies that differ from the definition's. */
static int64_t count_wrong(const struct test_fp8 *fp8, const float *x, float scale)
{
    struct grid grid = grid_make(fp8->format);
    int64_t wrong = 0;

    for (int64_t row = 0; row < fp8->rows; row++)
        for (int64_t col = 0; col < fp8->cols; col++) {
            int64_t at = row * fp8->cols + col, across = col * fp8->rows + row;
            uint8_t want = nearest(&grid, scaled(x[at], scale));
            bool bad = (fp8->rowwise && fp8->rowwise[at] != want) ||
                       (fp8->transposed && fp8->transposed[across] != want);

            if (bad && wrong++ == 0)
                diag("[%lld, %lld] %a times %a: row-wise %02x, transposed %02x, wanted %02x",
                     (long long)row, (long long)col, (double)x[at], (double)scale,
                     fp8->rowwise ? fp8->rowwise[at] : 0,
                     fp8->transposed ? fp8->transposed[across] : 0, want);
        }
    return wrong;
}

/* ---- Helpers ------------------------------------------------------------------------------ */

static struct fp8pipe_tensor *make_tensor(struct fp8pipe *pipe)
{
    struct fp8pipe_tensor *tensor;

    must(fp8pipe_tensor_create(pipe, &tensor));
    return tensor;
}

/* Quantizes and reads back. */
static struct test_fp8 quantized(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling,
                                 uint32_t slot, const struct test_matrix *x, uint32_t copies,
                                 uint32_t flags)
{
    struct fp8pipe_tensor *tensor = make_tensor(pipe);
    struct test_fp8 fp8;

    test_wait(pipe, test_quantize(tensor, x->view, scaling, slot, copies,
                                  test_submit(FP8PIPE_LANE_AUTO, flags, 0, 0)));
    fp8 = test_tensor_read(pipe, tensor);
    must(fp8pipe_tensor_destroy(tensor));
    return fp8;
}

/* ---- Every value -------------------------------------------------------------------------- */

/*
 * 2^24 float32 values: every sign and exponent, with the upper 12 fraction bits in all ways. Ties
 * have at most 5 fraction bits, so the lower 11 bits put each tie, and what lies one and two units
 * beside it, among them.
 */
#define FP32_SIDE (TEST_SANITIZED ? 1024 : 4096)
#define FP32_SHARE (TEST_SANITIZED ? 16u : 1u) /* of so many values one is taken */

static uint32_t fp32_case(uint32_t index)
{
    static const uint32_t lower[8] = {0, 1, 2, 0x3FF, 0x400, 0x401, 0x7FE, 0x7FF};

    return index >> 15 << 23 | (index >> 3 & 0xFFF) << 11 | lower[index & 7];
}

static void test_every_value(struct fp8pipe *pipe, const char *backend, enum fp8pipe_dtype dtype,
                             uint32_t slot)
{
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 3, 1.0f);
    int64_t side = dtype == FP8PIPE_FP32 ? FP32_SIDE : 256;
    struct test_matrix x = test_matrix_make(pipe, dtype, side, side, 0, 0);
    size_t count = (size_t)(side * side), element = test_dtype_bytes(dtype);
    uint8_t *raw = test_calloc(count, element);
    float *values = test_calloc(count, sizeof(*values));
    struct test_fp8 fp8;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits32 = fp32_case(i * FP32_SHARE + i % FP32_SHARE);
        uint16_t bits16 = (uint16_t)i;

        memcpy(raw + i * element, dtype == FP8PIPE_FP32 ? (void *)&bits32 : (void *)&bits16,
               element);
        values[i] = dtype == FP8PIPE_FP32 ? test_float_from_bits(bits32)
                                          : (float)test_element_get(dtype, raw + i * element);
    }
    test_matrix_set_raw(&x, raw);
    fp8 = quantized(pipe, scaling, slot, &x, FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED, 0);
    is_int(count_wrong(&fp8, values, 1.0f), 0,
           "%s: %zu %s values to %s: nearest, ties to even, saturated, -0 kept, NaN 0x7F", backend,
           count, test_dtype_name(dtype), test_format_name(fp8.format));
    ok(fp8.format == (slot == SLOT_E5M2 ? FP8PIPE_E5M2 : FP8PIPE_E4M3) && fp8.scale_inv == 1.0f &&
           fp8.damage == 0,
       "%s: in the slot's format, with scale_inv 1, the read writing nothing else", backend);
    ok(isnan(test_slot(scaling, slot).amax), "%s: NaN exceeds every other value in the amax",
       backend);
    test_fp8_free(&fp8);
    test_matrix_free(&x);
    free(raw);
    free(values);
    must(fp8pipe_scaling_destroy(scaling));
}

/* ---- Random matrices ---------------------------------------------------------------------- */

struct random_counts {
    int64_t wrong_bytes;
    int64_t wrong_scale_inv;
    int64_t wrong_amax;
    int64_t wrong_sums;
    int64_t wrong_info;
    int64_t damage;
};

/* Normal values, from matrix to matrix of another size, among them a few of every other kind. */
static float random_value(struct test_rng *rng, double deviation, bool specials)
{
    static const uint32_t special[] = {0x80000000, 0,          1,          0x807FFFFF,
                                       0x7F7FFFFF, 0x7F800000, 0xFF800000, 0xFFC00001};

    if (specials && test_random_range(rng, 0, 15) == 0)
        return test_float_from_bits(special[test_random(rng) % 8]);
    return (float)(deviation * test_random_normal(rng));
}

/* Partial sums of 64 rows, then the sum of those: so many roundings at most, in any order. */
static int64_t count_wrong_sums(const struct test_matrix *sums, const float *x, int64_t rows,
                                const double *before)
{
    int64_t cols = sums->view.cols, wrong = 0;
    double *got = test_calloc((size_t)cols, sizeof(*got));

    test_matrix_get(sums, got);
    for (int64_t col = 0; col < cols; col++) {
        double sum = before ? before[col] : 0, magnitude = fabs(sum);

        for (int64_t row = 0; row < rows; row++) {
            sum += (double)x[row * cols + col];
            magnitude += fabs((double)x[row * cols + col]);
        }
        if (fabs(got[col] - sum) <= (double)(64 + rows / 64 + 2) * 0x1p-24 * magnitude)
            continue;
        if (magnitude < (double)FLT_MAX && wrong++ == 0)
            diag("column %lld: sum %a, wanted %a", (long long)col, got[col], sum);
    }
    free(got);
    return wrong;
}

static void random_case(struct fp8pipe *pipe, struct test_rng *rng, int64_t max_side,
                        struct random_counts *counts)
{
    enum fp8pipe_dtype dtype = (enum fp8pipe_dtype)test_random_range(rng, 0, 2);
    uint32_t slot = test_random(rng) & 1 ? SLOT_E4M3 : SLOT_E5M2;
    uint32_t copies = (uint32_t)test_random_range(rng, 1, 3);
    uint32_t flags = test_random_range(rng, 0, 3) == 0 ? FP8PIPE_NO_AMAX : 0;
    int64_t rows = test_random_range(rng, 1, max_side), cols = test_random_range(rng, 1, max_side);
    int64_t stride = cols + (test_random(rng) & 1 ? test_random_range(rng, 0, 19) : 0);
    int64_t offset = test_random(rng) & 1 ? test_random_range(rng, 0, 9) : 0;
    bool specials = test_random_range(rng, 0, 2) == 0, accumulate = test_random(rng) & 1;
    float initial = test_random(rng) & 1 ? (float)exp(20 * test_random_uniform(rng) - 10) : 0;
    double deviation = exp(16 * test_random_uniform(rng) - 10);
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 3, initial);
    struct fp8pipe_tensor *tensor = make_tensor(pipe);
    struct test_matrix x = test_matrix_make(pipe, dtype, rows, cols, stride, offset);
    struct test_matrix sums = test_matrix_make(pipe, FP8PIPE_FP32, 1, cols, 0, offset & 3);
    struct fp8pipe_quantize_op op = FP8PIPE_QUANTIZE_OP_INIT;
    size_t count = (size_t)(rows * cols), element = test_dtype_bytes(dtype);
    uint8_t *raw = test_calloc(count, element);
    float *values = test_calloc(count, sizeof(*values)), scale = initial;
    double *before = test_calloc((size_t)cols, sizeof(*before));
    uint32_t amax = 0, got_amax;
    fp8pipe_ticket ticket;
    struct test_fp8 fp8;

    for (size_t i = 0; i < count; i++) {
        test_element_set(dtype, raw + i * element, (double)random_value(rng, deviation, specials));
        values[i] = (float)test_element_get(dtype, raw + i * element);
        if ((test_float_bits(values[i]) & 0x7FFFFFFF) > amax)
            amax = test_float_bits(values[i]) & 0x7FFFFFFF;
    }
    for (int64_t col = 0; col < cols; col++)
        before[col] = (double)(float)test_random_normal(rng);
    test_matrix_set_raw(&x, raw);
    test_matrix_set(&sums, before);
    op.submit.flags = flags;
    op.x = x.view;
    op.scaling = scaling;
    op.slot = slot;
    op.copies = copies;
    op.column_sums = test_vector(&sums);
    op.column_sums_accumulate = accumulate;
    must(fp8pipe_tensor_quantize(tensor, &op, &ticket));
    test_wait(pipe, ticket);
    fp8 = test_tensor_read(pipe, tensor);

    if (initial == 0) {
        scale = (float)test_fp8_max(fp8.format) / test_float_from_bits(amax);
        if (amax == 0 || amax >= 0x7F800000)
            scale = 1;
        else if (isinf(scale))
            scale = FLT_MAX;
        else if (scale < FLT_MIN)
            scale = FLT_MIN;
    }
    got_amax = test_float_bits(test_slot(scaling, slot).amax);
    counts->wrong_bytes += count_wrong(&fp8, values, scale);
    counts->wrong_scale_inv += test_float_bits(fp8.scale_inv) != test_float_bits(1.0f / scale);
    if (flags & FP8PIPE_NO_AMAX)
        counts->wrong_amax += got_amax != 0;
    else
        counts->wrong_amax += amax > 0x7F800000 ? got_amax <= 0x7F800000 : got_amax != amax;
    counts->wrong_sums += count_wrong_sums(&sums, values, rows, accumulate ? before : NULL);
    counts->wrong_info += fp8.rows != rows || fp8.cols != cols ||
                          !fp8.rowwise == !!(copies & FP8PIPE_ROWWISE) ||
                          !fp8.transposed == !!(copies & FP8PIPE_TRANSPOSED);
    counts->damage += fp8.damage + test_matrix_damage(&x) + test_matrix_damage(&sums);

    test_fp8_free(&fp8);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
    test_matrix_free(&x);
    test_matrix_free(&sums);
    free(raw);
    free(values);
    free(before);
}

static void test_random_matrices(struct fp8pipe *pipe, const char *backend, int cases,
                                 int64_t max_side, uint64_t seed)
{
    struct random_counts counts = {0};
    struct test_rng rng = {seed};

    for (int i = 0; i < cases; i++)
        random_case(pipe, &rng, max_side, &counts);
    note("%s: %d matrices of up to %lld x %lld, any dtype, stride and alignment", backend, cases,
         (long long)max_side, (long long)max_side);
    is_int(counts.wrong_bytes, 0, "%s: bytes are cast(x * scale), in every copy asked for",
           backend);
    is_int(counts.wrong_scale_inv, 0, "%s: scale_inv is 1 / scale", backend);
    is_int(counts.wrong_amax, 0, "%s: the amax is that of the matrix; with NO_AMAX none", backend);
    is_int(counts.wrong_sums, 0, "%s: column sums are set or added to", backend);
    is_int(counts.wrong_info, 0, "%s: a tensor has the copies that were asked for", backend);
    is_int(counts.damage, 0, "%s: nothing is written outside of the outputs", backend);
}

/* ---- Rules, one by one -------------------------------------------------------------------- */

static void test_first_scale(struct fp8pipe *pipe, const char *backend, const char *what,
                             float value, uint32_t slot, float want_scale, uint8_t want_byte)
{
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 3, 0);
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 3, 5, 0, 0);
    float values[15];
    struct test_fp8 fp8;

    for (int i = 0; i < 15; i++)
        values[i] = value;
    test_matrix_set_raw(&x, values);
    fp8 = quantized(pipe, scaling, slot, &x, FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED, 0);
    if (!ok(fp8.scale_inv == 1.0f / want_scale && fp8.rowwise[14] == want_byte &&
                fp8.transposed[14] == want_byte,
            "%s: before the first update %s", backend, what))
        diag("scale_inv %a, byte %02x", (double)fp8.scale_inv, fp8.rowwise[14]);
    test_fp8_free(&fp8);
    test_matrix_free(&x);
    must(fp8pipe_scaling_destroy(scaling));
}

/* The same slot again, without and with an update in between. */
static void test_delayed(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 3, 0);
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 1, 1, 0, 0);
    const double values[4] = {2, 7, 1, 1000};
    float inverse[4];

    for (int i = 0; i < 4; i++) {
        struct test_fp8 fp8;

        test_matrix_set(&x, &values[i]);
        fp8 = quantized(pipe, scaling, SLOT_E4M3, &x, FP8PIPE_ROWWISE, 0);
        inverse[i] = fp8.scale_inv;
        if (i == 3)
            is_int(fp8.rowwise[0], 0x7E, "%s: what exceeds the delayed scale's range saturates",
                   backend);
        test_fp8_free(&fp8);
        if (i == 1)
            test_wait(pipe, test_update(scaling));
    }
    ok(inverse[0] == 1.0f / 224 && inverse[1] == 1.0f / 64,
       "%s: each tensor before the first update has a scale of its own", backend);
    ok(inverse[2] == 1.0f / 64 && inverse[3] == 1.0f / 64,
       "%s: after it the slot's, whatever the tensor", backend);
    test_matrix_free(&x);
    must(fp8pipe_scaling_destroy(scaling));
}

static void test_refill(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 3, 1);
    struct fp8pipe_tensor *tensor = make_tensor(pipe);
    struct test_matrix small = test_matrix_make(pipe, FP8PIPE_FP32, 1, 1, 0, 0);
    struct test_matrix large = test_matrix_make(pipe, FP8PIPE_BF16, 2, 3, 0, 0);
    const double one = 1, six[6] = {1, 2, 3, 4, 5, 6};
    static const uint8_t want[6] = {0x3C, 0x44, 0x40, 0x45, 0x42, 0x46}; /* E5M2, transposed */
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    struct test_fp8 fp8;

    must(fp8pipe_tensor_info_get(tensor, &info));
    ok(!info.filled, "%s: a new tensor is empty", backend);
    test_matrix_set(&small, &one);
    test_matrix_set(&large, six);
    test_quantize(tensor, small.view, scaling, SLOT_E4M3, FP8PIPE_ROWWISE, test_submit(0, 0, 0, 0));
    test_quantize(tensor, large.view, scaling, SLOT_E5M2, FP8PIPE_TRANSPOSED,
                  test_submit(0, 0, 0, 0));
    fp8 = test_tensor_read(pipe, tensor);
    ok(fp8.rows == 2 && fp8.cols == 3 && fp8.format == FP8PIPE_E5M2 && !fp8.rowwise &&
           fp8.transposed && memcmp(fp8.transposed, want, 6) == 0,
       "%s: a new filling replaces size, format and copies", backend);
    test_fp8_free(&fp8);
    test_quantize(tensor, (struct fp8pipe_matrix){NULL, INT64_C(1) << 40, 0, 0, FP8PIPE_BF16, 0},
                  scaling, SLOT_E4M3, FP8PIPE_ROWWISE, test_submit(0, 0, 0, 0));
    must(fp8pipe_drain(pipe, -1));
    must(fp8pipe_tensor_info_get(tensor, &info));
    ok(info.rows == INT64_C(1) << 40 && info.cols == 0,
       "%s: rows without columns, however many, take no time", backend);
    must(fp8pipe_tensor_clear(tensor));
    must(fp8pipe_tensor_info_get(tensor, &info));
    ok(!info.filled && !info.rowwise && !info.transposed, "%s: clear empties", backend);
    must(fp8pipe_tensor_destroy(tensor));
    test_matrix_free(&small);
    test_matrix_free(&large);
    must(fp8pipe_scaling_destroy(scaling));
}

/* Tall enough for many tiles; the order must not depend on how threads happen to run. */
static void test_sums_repeat(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 3, 1);
    struct test_rng rng = {77};
    struct test_matrix x = test_matrix_random(pipe, FP8PIPE_BF16, 5003, 37, 0, 0, 1, &rng, NULL);
    struct test_matrix sums = test_matrix_make(pipe, FP8PIPE_FP32, 1, 37, 0, 0);
    struct fp8pipe_tensor *tensor = make_tensor(pipe);
    struct fp8pipe_quantize_op op = FP8PIPE_QUANTIZE_OP_INIT;
    float first[37], again[37];
    fp8pipe_ticket ticket;
    bool same = true;

    op.x = x.view;
    op.scaling = scaling;
    op.column_sums = test_vector(&sums);
    for (int i = 0; i < 6; i++) {
        op.copies = (uint32_t)(1 + i % 3);
        must(fp8pipe_tensor_quantize(tensor, &op, &ticket));
        test_wait(pipe, ticket);
        test_matrix_get_raw(&sums, i == 0 ? first : again);
        same = same && (i == 0 || memcmp(first, again, sizeof(first)) == 0);
    }
    ok(same, "%s: column sums have the same bits every time, whichever copies are made", backend);
    must(fp8pipe_tensor_destroy(tensor));
    test_matrix_free(&x);
    test_matrix_free(&sums);
    must(fp8pipe_scaling_destroy(scaling));
}

static void cases(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = test_open_poisoned(backend);
    const char *name = test_backend_name(backend);

    for (int dtype = FP8PIPE_FP32; dtype <= FP8PIPE_FP16; dtype++) {
        test_every_value(pipe, name, (enum fp8pipe_dtype)dtype, SLOT_E4M3);
        test_every_value(pipe, name, (enum fp8pipe_dtype)dtype, SLOT_E5M2);
    }
    test_random_matrices(pipe, name, TEST_CASES(150), 40, 1);
    test_random_matrices(pipe, name, TEST_CASES(40), 300, 2);

    test_first_scale(pipe, name, "gradients of 1e-8 keep their precision", 1e-8f, SLOT_E5M2,
                     57344.0f / 1e-8f, 0x7B);
    test_first_scale(pipe, name, "a negative matrix is scaled by its magnitude", -7.0f, SLOT_E4M3,
                     64.0f, 0xFE);
    test_first_scale(pipe, name, "a matrix of zeros is scaled by 1", 0.0f, SLOT_E4M3, 1, 0);
    test_first_scale(pipe, name, "-0 stays -0", -0.0f, SLOT_E5M2, 1, 0x80);
    test_first_scale(pipe, name, "an infinite matrix is scaled by 1 and saturates", INFINITY,
                     SLOT_E4M3, 1, 0x7E);
    test_first_scale(pipe, name, "a matrix of NaN is scaled by 1", NAN, SLOT_E5M2, 1, 0x7F);
    test_first_scale(pipe, name, "an amax too small for a finite scale is scaled by FLT_MAX",
                     0x1p-127f, SLOT_E4M3, FLT_MAX, 0x40);
    test_delayed(pipe, name);
    test_refill(pipe, name);
    test_sums_repeat(pipe, name);
    test_close(pipe);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
