/*
 * Functors of fp8pipe_quantize.cuh, launched from inside calls, against the same arithmetic in C
 * and the host's quantize of its values: all outputs, byte for byte, what lies around them
 * included; operands through rows_of, of one row, of any layout; results, in place too; the pass
 * in front.
 *
 * FP8PIPE_TEST_SMALL=1 runs fewer cases (for compute-sanitizer).
 */
#include "twin.h"

#include "functors.h"
#include "kernels/convert.h"
#include "util.h"

static bool small;
static struct test_rng rng = {7};
static struct fp8pipe *pipe_;

/* ---- A target on both sides --------------------------------------------------------------- */

enum word { SCALE, HAS_SCALE, OWN_AMAX, SCALE_INV, AMAX, WORDS };

struct target {
    struct twin row, transposed, partials, words, extremes;
    struct twin_matrix values; /* the host's side is the values, as float32 */
    struct kernel_quantize_args host;
    struct fp8pipe_quantize_target device;
};

/* outputs: which of row, transposed, amax, partials, extremes, own amax, by bit. */
static struct target target_make(int64_t rows, int64_t cols, unsigned outputs)
{
    struct target t;
    int64_t parts = (rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    int64_t row_stride = (cols + 15) / 16 * 16 + 16 * test_random_range(&rng, 0, 3);
    int64_t transposed_stride = (rows + 15) / 16 * 16 + 16 * test_random_range(&rng, 0, 3);
    enum fp8pipe_format format = (enum fp8pipe_format)test_random_range(&rng, 0, 1);
    float *words, *device;

    memset(&t, 0, sizeof(t));
    t.values = twin_matrix_make(FP8PIPE_FP32, rows, cols, cols, 0);
    t.row = twin_make((size_t)(rows * row_stride));
    t.transposed = twin_make((size_t)(cols * transposed_stride));
    t.partials = twin_make((size_t)(parts * cols) * sizeof(float));
    t.words = twin_make(WORDS * sizeof(float));
    t.extremes = twin_make(2 * sizeof(uint64_t));
    words = twin_host(&t.words);
    device = twin_device(&t.words);
    memset(words, 0, WORDS * sizeof(float));
    words[SCALE] = 37.0f;
    words[HAS_SCALE] = float_from_bits((uint32_t)test_random_range(&rng, 0, 1));
    if (!(outputs & 32))
        words[HAS_SCALE] = float_from_bits(1);
    memset(twin_host(&t.extremes), 0, 2 * sizeof(uint64_t));
    twin_upload(&t.row);
    twin_upload(&t.transposed);
    twin_upload(&t.partials);
    twin_upload(&t.words);
    twin_upload(&t.extremes);
    t.host = (struct kernel_quantize_args){
        .x = t.values.host,
        .format = format,
        .scale_numerator = 448.0f,
        .scale = &words[SCALE],
        .has_scale = (const int32_t *)&words[HAS_SCALE],
        .own_amax = outputs & 32 ? (uint32_t *)&words[OWN_AMAX] : NULL,
        .scale_inv = &words[SCALE_INV],
        .row = outputs & 1 ? twin_host(&t.row) : NULL,
        .row_stride = outputs & 1 ? row_stride : 0,
        .transposed = outputs & 2 ? twin_host(&t.transposed) : NULL,
        .transposed_stride = outputs & 2 ? transposed_stride : 0,
        .amax = outputs & 4 ? (uint32_t *)&words[AMAX] : NULL,
        .partials = outputs & 8 ? twin_host(&t.partials) : NULL,
        .extremes = outputs & 16 ? twin_host(&t.extremes) : NULL,
    };
    t.device = (struct fp8pipe_quantize_target){
        .rows = rows,
        .cols = cols,
        .format = format,
        .scale_numerator = 448.0f,
        .scale = &device[SCALE],
        .has_scale = (const int32_t *)&device[HAS_SCALE],
        .own_amax = outputs & 32 ? (uint32_t *)&device[OWN_AMAX] : NULL,
        .scale_inv = &device[SCALE_INV],
        .row = outputs & 1 ? twin_device(&t.row) : NULL,
        .row_stride = t.host.row_stride,
        .transposed = outputs & 2 ? twin_device(&t.transposed) : NULL,
        .transposed_stride = t.host.transposed_stride,
        .amax = outputs & 4 ? (uint32_t *)&device[AMAX] : NULL,
        .partials = outputs & 8 ? twin_device(&t.partials) : NULL,
        .extremes = outputs & 16 ? twin_device(&t.extremes) : NULL,
    };
    return t;
}

/* Once the host has its values and the device's kernels are done. */
static bool target_agrees(struct target *t)
{
    bool equal;

    if (t->host.own_amax != NULL) {
        struct kernel_amax_args amax = {t->values.host, t->host.has_scale,
                                        (uint32_t *)t->host.own_amax};

        kernel_amax_host(&amax);
    }
    kernel_quantize_host(&t->host);
    equal = twin_equal(&t->row, "row-wise bytes") & twin_equal(&t->transposed, "transposed") &
            twin_equal(&t->words, "scale, has_scale, own amax, scale_inv, amax") &
            twin_equal(&t->extremes, "saturated, flushed");
    if (t->host.partials != NULL)
        equal &= partials_agree(&t->values.host, &t->partials);
    return equal;
}

static void target_free(struct target *t)
{
    twin_free(&t->values.memory);
    twin_free(&t->row);
    twin_free(&t->transposed);
    twin_free(&t->partials);
    twin_free(&t->words);
    twin_free(&t->extremes);
}

/* ---- Elements by conversions of the library's --------------------------------------------- */

static void *at(const struct fp8pipe_matrix *m, int64_t row, int64_t col)
{
    return (uint8_t *)m->data + (size_t)(row * m->stride + col) * test_dtype_bytes(m->dtype);
}

static float get(const struct fp8pipe_matrix *m, int64_t row, int64_t col)
{
    uint16_t bits;
    float value;

    if (m->dtype == FP8PIPE_FP32) {
        memcpy(&value, at(m, row, col), sizeof(value));
        return value;
    }
    memcpy(&bits, at(m, row, col), sizeof(bits));
    return m->dtype == FP8PIPE_BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

static void set(const struct fp8pipe_matrix *m, int64_t row, int64_t col, float value)
{
    uint16_t bits = m->dtype == FP8PIPE_BF16 ? bf16_from_float(value) : fp16_from_float(value);

    if (m->dtype == FP8PIPE_FP32)
        memcpy(at(m, row, col), &value, sizeof(value));
    else
        memcpy(at(m, row, col), &bits, sizeof(bits));
}

/* ---- Calls -------------------------------------------------------------------------------- */

struct run {
    int kind; /* -1: halves */
    struct functor_gated gated;
    const struct fp8pipe_quantize_target *target;
};

static enum fp8pipe_status launch(struct fp8pipe_stream *stream, void *arg)
{
    const struct run *run = arg;

    if (run->kind < 0)
        return functor_halves(&run->gated.x, stream, run->target);
    return functor_gated(run->kind, &run->gated, stream, run->target);
}

static void run_call(struct run *run)
{
    struct fp8pipe_call_op op = FP8PIPE_CALL_OP_INIT;
    fp8pipe_ticket ticket;

    op.fn = launch;
    op.arg = run;
    must(fp8pipe_call(pipe_, &op, &ticket));
    test_wait(pipe_, ticket);
}

/* ---- Tests -------------------------------------------------------------------------------- */

static bool gated_agrees(int kind, bool aligned, int i)
{
    static const enum fp8pipe_dtype dtypes[FUNCTOR_GATED_KINDS][3] = FUNCTOR_GATED_DTYPES;
    const enum fp8pipe_dtype *dtype = dtypes[kind];
    int64_t rows = test_random_range(&rng, 1, i % 4 == 0 ? 3 : 300);
    int64_t cols = test_random_range(&rng, 1, i % 5 == 0 ? 1100 : 200);
    int64_t gates = i % 3 == 0 ? 1 : i % 3 == 1 ? rows : test_random_range(&rng, 2, 9);
    bool in_place = dtype[0] == dtype[2] && i % 2;
    unsigned outputs = i % 7 == 0 ? 0 : (unsigned)test_random_range(&rng, 0, 63);
    struct twin rows_of = twin_make((size_t)rows * sizeof(int32_t));
    struct twin_matrix x, gate, bias, out;
    struct target t;
    struct run run;
    bool equal;

    if (aligned && i % 2 == 0)
        cols = (cols + 7) / 8 * 8;
    x = twin_matrix_random(&rng, dtype[0], rows, cols, DATA_NORMAL);
    gate = twin_matrix_random(&rng, dtype[1], gates, cols, DATA_NORMAL);
    bias = twin_matrix_random(&rng, dtype[0], 1, cols, DATA_NORMAL);
    out = twin_matrix_random(&rng, dtype[2], rows, cols, DATA_NORMAL);
    for (int64_t row = 0; row < rows; row++)
        ((int32_t *)twin_host(&rows_of))[row] = (int32_t)test_random_range(&rng, 0, gates - 1);
    twin_upload(&rows_of);
    t = target_make(rows, cols, outputs);
    run = (struct run){
        kind, {x.device, gate.device, bias.device, out.device, NULL, aligned}, &t.device};
    if (i % 3 == 2)
        run.gated.rows_of = twin_device(&rows_of);
    if (in_place)
        run.gated.out = x.device;
    run_call(&run);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < cols; col++) {
            int64_t from = gates == 1                  ? 0
                           : run.gated.rows_of == NULL ? row
                                                       : ((int32_t *)twin_host(&rows_of))[row];
            float product = get(&x.host, row, col) * get(&gate.host, from, col);
            float value = product + get(&bias.host, 0, col);

            set(&t.values.host, row, col, value);
            set(in_place ? &x.host : &out.host, row, col, value);
        }
    equal = target_agrees(&t) & twin_equal(&x.memory, "x") & twin_equal(&out.memory, "out");
    if (!equal)
        diag("kind %d, case %d: %lld x %lld, %lld gates, outputs %x%s", kind, i, (long long)rows,
             (long long)cols, (long long)gates, outputs, in_place ? ", in place" : "");
    twin_free(&x.memory);
    twin_free(&gate.memory);
    twin_free(&bias.memory);
    twin_free(&out.memory);
    twin_free(&rows_of);
    target_free(&t);
    return equal;
}

static void test_gated(void)
{
    for (int kind = 0; kind < FUNCTOR_GATED_KINDS; kind++)
        for (int aligned = 0; aligned < (kind == 0 ? 2 : 1); aligned++) {
            bool equal = true;

            for (int i = 0; i < (small ? 20 : 120); i++)
                equal &= gated_agrees(kind, aligned, i);
            ok(equal, "functor %d%s: operands, results and outputs", kind,
               aligned ? ", which says whether it is aligned" : "");
        }
}

static void test_halves(void)
{
    bool equal = true;

    for (int i = 0; i < (small ? 10 : 60); i++) {
        int64_t rows = test_random_range(&rng, 1, 200);
        int64_t cols = test_random_range(&rng, 1, 150);
        struct twin_matrix x;
        struct target t;
        struct run run = {.kind = -1};

        if (i % 2)
            cols = (cols + 7) / 8 * 8;
        x = twin_matrix_random(&rng, FP8PIPE_BF16, rows, 2 * cols, DATA_NORMAL);
        t = target_make(rows, cols, (unsigned)test_random_range(&rng, 0, 63));
        run.gated.x = x.device;
        run.target = &t.device;
        run_call(&run);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t col = 0; col < cols; col++) {
                float a = get(&x.host, row, col), b = get(&x.host, row, cols + col);

                set(&t.values.host, row, col, a * b);
                set(&x.host, row, col, b + 1.0f);
                set(&x.host, row, cols + col, a + 1.0f);
            }
        equal &= target_agrees(&t) & twin_equal(&x.memory, "x");
        twin_free(&x.memory);
        target_free(&t);
    }
    ok(equal, "two halves of a row, written in place, once though the pass in front runs too");
}

static void test_convert(void)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        bool equal = true;

        for (int i = 0; i < (small ? 10 : 40); i++) {
            int64_t rows = test_random_range(&rng, 1, 90), cols = test_random_range(&rng, 1, 300);
            struct twin_matrix x =
                twin_matrix_random(&rng, FP8PIPE_FP32, rows, cols, (enum data)(i % DATA_KINDS));
            struct twin_matrix out =
                twin_matrix_random(&rng, (enum fp8pipe_dtype)dtype, rows, cols, DATA_NORMAL);

            must(functor_convert(&x.device, &out.device, NULL));
            cuda_must(cudaDeviceSynchronize());
            for (int64_t row = 0; row < rows; row++)
                for (int64_t col = 0; col < cols; col++)
                    set(&out.host, row, col, get(&x.host, row, col));
            equal &= twin_equal(&out.memory, "out");
            twin_free(&x.memory);
            twin_free(&out.memory);
        }
        ok(equal, "results in %s: rounding, inf, NaN, to the bit", test_dtype_name(dtype));
    }
}

static void test_empty(void)
{
    const struct fp8pipe_matrix none = FP8PIPE_MATRIX_NONE;
    struct fp8pipe_matrix wrong = none;

    is_int(functor_convert(&none, &none, NULL), FP8PIPE_OK, "no elements: nothing to do");
    wrong.rows = -1;
    is_int(functor_convert(&wrong, &none, NULL), FP8PIPE_EINVAL, "fewer rows than none: refused");
    is_int(cudaPeekAtLastError(), cudaSuccess, "a refusal leaves no error behind");
}

static enum fp8pipe_status launch_on_host(struct fp8pipe_stream *stream, void *arg)
{
    const struct fp8pipe_quantize_target target = {.rows = 1, .cols = 1};
    struct functor_gated gated = {.aligned = false};

    *(enum fp8pipe_status *)arg = functor_gated(0, &gated, stream, &target);
    return FP8PIPE_OK;
}

static void test_host(void)
{
    struct fp8pipe *host = test_open(FP8PIPE_BACKEND_HOST, NULL);
    struct fp8pipe_call_op op = FP8PIPE_CALL_OP_INIT;
    enum fp8pipe_status status = FP8PIPE_OK;
    fp8pipe_ticket ticket;

    op.fn = launch_on_host;
    op.arg = &status;
    must(fp8pipe_call(host, &op, &ticket));
    test_wait(host, ticket);
    is_int(status, FP8PIPE_ENOTSUP, "a functor on the host backend's stream: ENOTSUP");
    test_close(host);
}

int main(void)
{
    device_require();
    small = test_environment_is_set("FP8PIPE_TEST_SMALL");
    pipe_ = test_open(FP8PIPE_BACKEND_CUDA, NULL);
    test_gated();
    test_halves();
    test_convert();
    test_empty();
    test_host();
    test_close(pipe_);
    return done_testing();
}
