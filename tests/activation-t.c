/*
 * Guards fp8pipe_activation and its backward: results against the formulas in float64, derivatives
 * against finite differences, what is quantized against fp8pipe_tensor_quantize of the same values;
 * every dtype, strides and alignments, in place, with a bias, empty.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "fp8pipe_fused.h"
#include "kernels/activation.h"

#define BOTH (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)
#define ACTIVATIONS 4

static struct fp8pipe *pipe;
static struct test_rng rng = {5};

static const char *name_of(enum fp8pipe_activation activation)
{
    static const char *const names[] = {"none", "gelu_tanh", "gelu_erf", "silu", "swiglu"};

    return names[activation];
}

/* ---- The formulas ------------------------------------------------------------------------- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double value_of(enum fp8pipe_activation activation, double x)
{
    double c = sqrt(2 / M_PI);

    switch (activation) {
    case FP8PIPE_ACTIVATION_GELU_TANH: /* x/2 (1 + tanh u) = x sigmoid(2u), without cancellation */
        return x * sigmoid(2 * c * (x + 0.044715 * x * x * x));
    case FP8PIPE_ACTIVATION_GELU_ERF:
        return x / 2 * erfc(-x / sqrt(2));
    default:
        return x * sigmoid(x);
    }
}

static double slope_of(enum fp8pipe_activation activation, double x)
{
    double c = 2 * sqrt(2 / M_PI), t = c * (x + 0.044715 * x * x * x);

    switch (activation) {
    case FP8PIPE_ACTIVATION_GELU_TANH:
        return sigmoid(t) + x * sigmoid(t) * sigmoid(-t) * c * (1 + 3 * 0.044715 * x * x);
    case FP8PIPE_ACTIVATION_GELU_ERF:
        return erfc(-x / sqrt(2)) / 2 + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    default:
        return sigmoid(x) + x * sigmoid(x) * sigmoid(-x);
    }
}

/* What kernels/activation.h promises, at every exponent. */
static void accuracy(void)
{
    static const struct {
        enum fp8pipe_activation activation;
        float (*value)(float x);
        float (*slope)(float x);
    } table[] = {
        {FP8PIPE_ACTIVATION_GELU_TANH, activation_gelu_tanh, activation_gelu_tanh_slope},
        {FP8PIPE_ACTIVATION_GELU_ERF, activation_gelu_erf, activation_gelu_erf_slope},
        {FP8PIPE_ACTIVATION_SILU, activation_silu, activation_silu_slope},
    };

    for (int i = 0; i < 3; i++) {
        double value_error = 0, slope_error = 0;

        for (uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += TEST_SANITIZED ? 49999 : 4999)
            for (uint32_t sign = 0; sign < 2; sign++) {
                float x = test_float_from_bits(bits | sign << 31);
                double value = fabs(table[i].value(x) - value_of(table[i].activation, x)) / fabs(x);
                double slope = fabs(table[i].slope(x) - slope_of(table[i].activation, x));

                /* Far out the formulas themselves give 0 times inf. */
                if (fabs((double)x) > 1e15) {
                    value = fabs(table[i].value(x) - (x > 0 ? x : 0.0f)) / fabs(x);
                    slope = fabs(table[i].slope(x) - (x > 0));
                }
                value_error = value <= value_error ? value_error : value;
                slope_error = slope <= slope_error ? slope_error : slope;
            }
        ok(value_error <= 2.5e-7 && slope_error <= 2.5e-7,
           "%s: off by at most 2.5e-7 |x|, its derivative by 2.5e-7 (%.2g, %.2g)",
           name_of(table[i].activation), value_error, slope_error);
        ok(isnan(table[i].value(NAN)) && isnan(table[i].slope(NAN)) &&
               table[i].value(INFINITY) == INFINITY && !isfinite(table[i].value(-INFINITY)) &&
               table[i].slope(INFINITY) == 1.0f && fabsf(table[i].slope(-INFINITY)) < 1e-30f &&
               signbit(table[i].value(-0.0f)) && table[i].value(0.0f) == 0.0f &&
               table[i].slope(0.0f) == 0.5f,
           "%s: NaN stays, inf is seen, zeros keep their sign", name_of(table[i].activation));
    }
}

/* ---- One case ----------------------------------------------------------------------------- */

struct config {
    enum fp8pipe_activation activation;
    bool backward;
    bool biased;
    int64_t rows;
    int64_t inner; /* columns of y, or of dy */
    enum fp8pipe_dtype x, dy, bias, result;
    bool ragged;
    double deviation;
};

struct operands {
    struct config config;
    struct test_matrix x, dy, bias, result;
    double *x_values, *dy_values, *bias_values, *want, *bound;
    int64_t cols; /* of the result */
};

static struct test_matrix matrix(enum fp8pipe_dtype dtype, int64_t rows, int64_t cols,
                                 const struct config *config, double **dense)
{
    int64_t stride = config->ragged ? cols + test_random_range(&rng, 0, 9) : 0;
    int64_t offset = config->ragged ? test_random_range(&rng, 0, 7) : 0;

    return test_matrix_random(pipe, dtype, rows, cols, stride, offset, config->deviation, &rng,
                              dense);
}

/* want and how far a result may be from it, before it is rounded to its dtype. */
static void reference(struct operands *o)
{
    const struct config *c = &o->config;
    bool gated = c->activation == FP8PIPE_ACTIVATION_SWIGLU;
    int64_t x_cols = gated ? 2 * c->inner : c->inner;

    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t col = 0; col < o->cols; col++) {
            int64_t at = row * o->cols + col, first = col % c->inner;
            const double *x = o->x_values + row * x_cols;
            double b = c->biased ? o->bias_values[first] : 0;
            double in = (float)(x[first] + b);
            double gate = gated ? (float)(x[c->inner + first] +
                                          (c->biased ? o->bias_values[c->inner + first] : 0))
                                : 1;
            double dy = c->backward ? o->dy_values[row * c->inner + first] : 1;

            if (!c->backward || col >= c->inner) {
                double factor = c->backward ? dy : gate;

                o->want[at] = value_of(c->activation, in) * factor;
                o->bound[at] = 5e-7 * fabs(in * factor);
            } else {
                o->want[at] = slope_of(c->activation, in) * dy * gate;
                o->bound[at] = 5e-7 * fabs(dy * gate);
            }
        }
}

static struct operands operands_make(const struct config *config)
{
    bool gated = config->activation == FP8PIPE_ACTIVATION_SWIGLU;
    int64_t x_cols = gated ? 2 * config->inner : config->inner;
    struct operands o = {.config = *config, .cols = config->backward ? x_cols : config->inner};
    size_t count = (size_t)(config->rows * o.cols);

    o.x = matrix(config->x, config->rows, x_cols, config, &o.x_values);
    if (config->backward)
        o.dy = matrix(config->dy, config->rows, config->inner, config, &o.dy_values);
    if (config->biased)
        o.bias = matrix(config->bias, 1, x_cols, config, &o.bias_values);
    o.result = matrix(config->result, config->rows, o.cols, config, NULL);
    test_matrix_poison(&o.result);
    o.want = test_calloc(count, sizeof(double));
    o.bound = test_calloc(count, sizeof(double));
    reference(&o);
    return o;
}

static void operands_free(struct operands *o)
{
    test_matrix_free(&o->x);
    test_matrix_free(&o->dy);
    test_matrix_free(&o->bias);
    test_matrix_free(&o->result);
    free(o->x_values);
    free(o->dy_values);
    free(o->bias_values);
    free(o->want);
    free(o->bound);
}

static enum fp8pipe_status submit(const struct operands *o, struct fp8pipe_matrix x,
                                  struct fp8pipe_matrix dy, struct fp8pipe_matrix result,
                                  const struct fp8pipe_quantized *out, uint32_t flags,
                                  fp8pipe_ticket *ticket)
{
    struct fp8pipe_vector bias = FP8PIPE_VECTOR_NONE;

    if (o->config.biased)
        bias = test_vector(&o->bias);
    if (o->config.backward) {
        struct fp8pipe_activation_backward_op op = FP8PIPE_ACTIVATION_BACKWARD_OP_INIT;

        op.submit = test_submit(0, flags, 0, 0);
        op.activation = o->config.activation;
        op.x = x;
        op.dy = dy;
        op.bias = bias;
        op.dx = result;
        op.out = *out;
        return fp8pipe_activation_backward(pipe, &op, ticket);
    } else {
        struct fp8pipe_activation_op op = FP8PIPE_ACTIVATION_OP_INIT;

        op.submit = test_submit(0, flags, 0, 0);
        op.activation = o->config.activation;
        op.x = x;
        op.bias = bias;
        op.y = result;
        op.out = *out;
        return fp8pipe_activation(pipe, &op, ticket);
    }
}

static bool result_right(const struct operands *o, const struct test_matrix *result)
{
    static const double step[] = {0x1p-23, 0x1p-8, 0x1p-11}; /* twice the rounding's */
    static const double tiny[] = {1e-37, 1e-37, 0x1p-24};
    size_t count = (size_t)(o->config.rows * o->cols);
    double *got = test_calloc(count, sizeof(double));
    bool right = true;

    test_matrix_get(result, got);
    for (size_t i = 0; i < count && right; i++) {
        enum fp8pipe_dtype dtype = result->view.dtype;
        double allowed = o->bound[i] + step[dtype] * fabs(o->want[i]) + tiny[dtype];

        right = fabs(got[i] - o->want[i]) <= allowed;
        if (!right)
            diag("%s%s [%lld of %lld x %lld]: %.9g, wanted %.9g", name_of(o->config.activation),
                 o->config.backward ? " backward" : "", (long long)i, (long long)o->config.rows,
                 (long long)o->cols, got[i], o->want[i]);
    }
    free(got);
    return right;
}

static struct config config_random(enum fp8pipe_activation activation, bool backward)
{
    struct config config = {
        .activation = activation,
        .backward = backward,
        .biased = test_random_range(&rng, 0, 1) == 1,
        .rows = test_random_range(&rng, 1, 150),
        .inner = test_random_range(&rng, 1, 300),
        .x = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .dy = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .bias = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .result = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2),
        .ragged = test_random_range(&rng, 0, 1) == 1,
        .deviation = 2,
    };

    /* The way that kernels are made for. */
    if (test_random_range(&rng, 0, 2) == 0) {
        config.x = config.dy = config.result = FP8PIPE_BF16;
        config.biased = false;
    }
    return config;
}

static const struct fp8pipe_quantized nothing = FP8PIPE_QUANTIZED_NONE;

static void against_formulas(const char *where)
{
    for (int kind = 1; kind <= ACTIVATIONS; kind++)
        for (int backward = 0; backward < 2; backward++) {
            bool right = true;

            for (int i = 0; i < TEST_CASES(25); i++) {
                struct config config = config_random((enum fp8pipe_activation)kind, backward);
                struct operands o = operands_make(&config);
                fp8pipe_ticket ticket;

                must(submit(&o, o.x.view, o.dy.view, o.result.view, &nothing, 0, &ticket));
                test_wait(pipe, ticket);
                right &= result_right(&o, &o.result) && test_matrix_damage(&o.result) == 0;
                operands_free(&o);
            }
            ok(right, "%s: %s%s of random shapes, dtypes and layouts", where,
               name_of((enum fp8pipe_activation)kind), backward ? " backward" : "");
        }
}

/* ---- Quantized ---------------------------------------------------------------------------- */

static bool same(const void *a, const void *b, int64_t bytes)
{
    return a != NULL && b != NULL && memcmp(a, b, (size_t)bytes) == 0;
}

/* The sums of two float32 orders. */
static bool sums_close(const struct test_matrix *got, const struct test_matrix *want, int64_t rows,
                       const struct operands *o)
{
    int64_t cols = got->view.cols;
    double *a = test_calloc((size_t)cols, 8), *b = test_calloc((size_t)cols, 8);
    bool close = true;

    test_matrix_get(got, a);
    test_matrix_get(want, b);
    for (int64_t col = 0; col < cols; col++) {
        double size = 0;

        for (int64_t row = 0; row < rows; row++)
            size += fabs(o->want[row * cols + col]);
        close &= fabs(a[col] - b[col]) <= 1e-5 * size + 1e-30;
    }
    free(a);
    free(b);
    return close;
}

/* The op's tensor against a quantize of its float32 result, before there is a scale and after. */
static bool quantized_agrees(const struct config *config, bool in_place, bool no_amax)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct operands o = operands_make(config);
    struct test_matrix sums = test_matrix_make(pipe, FP8PIPE_FP32, 1, o.cols, 0, 0);
    struct test_matrix sums_want = test_matrix_make(pipe, FP8PIPE_FP32, 1, o.cols, 0, 0);
    struct fp8pipe_scaling *scaling[2];
    struct fp8pipe_tensor *tensor[2];
    uint32_t slot = config->backward ? 2 : 0, flags = no_amax ? FP8PIPE_NO_AMAX : 0;
    bool agrees = true;

    options.slots = 3;
    options.count_extremes = 1;
    for (int i = 0; i < 2; i++) {
        must(fp8pipe_scaling_create(pipe, &options, &scaling[i]));
        must(fp8pipe_tensor_create(pipe, &tensor[i]));
    }
    for (int step = 0; step < 3; step++) {
        struct fp8pipe_quantized out = {tensor[0],          scaling[0], slot, BOTH,
                                        test_vector(&sums), step == 2,  0};
        struct fp8pipe_quantize_op quantize = FP8PIPE_QUANTIZE_OP_INIT;
        struct fp8pipe_slot_state a, b;
        struct test_fp8 got, want;

        /* The reference's float32 result first: in place the operand is gone after. */
        must(submit(&o, o.x.view, o.dy.view, o.result.view, &nothing, 0, NULL));
        quantize.submit = test_submit(0, flags, 0, 0);
        quantize.x = o.result.view;
        quantize.scaling = scaling[1];
        quantize.slot = slot;
        quantize.copies = BOTH;
        quantize.column_sums = test_vector(&sums_want);
        quantize.column_sums_accumulate = step == 2;
        must(fp8pipe_tensor_quantize(tensor[1], &quantize, NULL));
        must(submit(&o, o.x.view, o.dy.view,
                    in_place    ? (config->backward && step == 1 ? o.dy.view : o.x.view)
                    : step == 0 ? (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE
                                : o.result.view,
                    &out, flags, NULL));
        test_drain(pipe);
        got = test_tensor_read(pipe, tensor[0]);
        want = test_tensor_read(pipe, tensor[1]);
        a = test_slot(scaling[0], slot);
        b = test_slot(scaling[1], slot);
        agrees &= same(got.rowwise, want.rowwise, want.rows * want.cols) &&
                  same(got.transposed, want.transposed, want.rows * want.cols) &&
                  got.scale_inv == want.scale_inv && got.format == want.format &&
                  a.amax == b.amax && a.saturated == b.saturated && a.flushed == b.flushed &&
                  (no_amax ? a.amax == 0 : a.amax > 0) &&
                  sums_close(&sums, &sums_want, config->rows, &o);
        test_fp8_free(&got);
        test_fp8_free(&want);
        if (in_place) { /* other values for the next step */
            test_matrix_set(&o.x, o.x_values);
            if (config->backward)
                test_matrix_set(&o.dy, o.dy_values);
        }
        test_update(scaling[0]);
        test_update(scaling[1]);
    }
    test_drain(pipe);
    for (int i = 0; i < 2; i++) {
        must(fp8pipe_tensor_destroy(tensor[i]));
        must(fp8pipe_scaling_destroy(scaling[i]));
    }
    test_matrix_free(&sums);
    test_matrix_free(&sums_want);
    operands_free(&o);
    return agrees;
}

static void against_quantize(const char *where)
{
    for (int kind = 1; kind <= ACTIVATIONS; kind++)
        for (int backward = 0; backward < 2; backward++) {
            bool agrees = true;

            for (int i = 0; i < TEST_CASES(12); i++) {
                struct config config = config_random((enum fp8pipe_activation)kind, backward);

                config.result = FP8PIPE_FP32;
                agrees &= quantized_agrees(&config, false, i % 3 == 2);
                if (kind != FP8PIPE_ACTIVATION_SWIGLU) {
                    config.x = config.dy = FP8PIPE_FP32;
                    agrees &= quantized_agrees(&config, true, false);
                }
            }
            ok(agrees, "%s: %s%s: its tensor is the quantized result, in place too", where,
               name_of((enum fp8pipe_activation)kind), backward ? " backward" : "");
        }
}

/* bf16 straight to FP8: the tensor is of the float32 values, not of the rounded result. */
static void fast_way(const char *where)
{
    bool agrees = true;

    for (int kind = 1; kind <= ACTIVATIONS; kind++)
        for (int backward = 0; backward < 2; backward++)
            for (int i = 0; i < TEST_CASES(4); i++) {
                struct config config = {(enum fp8pipe_activation)kind,
                                        backward,
                                        false,
                                        test_random_range(&rng, 1, 300),
                                        8 * test_random_range(&rng, 1, 40),
                                        FP8PIPE_BF16,
                                        FP8PIPE_BF16,
                                        FP8PIPE_BF16,
                                        FP8PIPE_FP32,
                                        i % 2 == 1,
                                        2};

                agrees &= quantized_agrees(&config, false, false);
            }
    ok(agrees, "%s: bf16 operands: the tensor is of the values in float32", where);
}

/* ---- Derivatives -------------------------------------------------------------------------- */

static void differences(const char *where)
{
    const double h = 0x1p-6;

    for (int kind = 1; kind <= ACTIVATIONS; kind++) {
        struct config forward = {(enum fp8pipe_activation)kind,
                                 false,
                                 false,
                                 7,
                                 33,
                                 FP8PIPE_FP32,
                                 FP8PIPE_FP32,
                                 FP8PIPE_FP32,
                                 FP8PIPE_FP32,
                                 false,
                                 1.5};
        struct config backward = forward;
        struct operands f = operands_make(&forward), b;
        bool gated = kind == FP8PIPE_ACTIVATION_SWIGLU;
        int64_t inner = forward.inner, x_cols = gated ? 2 * inner : inner;
        double *plus = test_calloc((size_t)(7 * inner), 8);
        double *minus = test_calloc((size_t)(7 * inner), 8);
        double *got = test_calloc((size_t)(7 * x_cols), 8);
        double *moved = test_calloc((size_t)(7 * x_cols), 8);
        double worst = 0;

        backward.backward = true;
        b = operands_make(&backward);
        test_matrix_set(&b.x, f.x_values);
        must(submit(&b, b.x.view, b.dy.view, b.result.view, &nothing, 0, NULL));
        test_drain(pipe);
        test_matrix_get(&b.result, got);
        for (int half = 0; half < 1 + gated; half++) {
            for (int sign = -1; sign <= 1; sign += 2) {
                for (int64_t i = 0; i < 7 * x_cols; i++)
                    moved[i] = f.x_values[i] + (i % x_cols / inner == half ? sign * h : 0);
                test_matrix_set(&f.x, moved);
                must(submit(&f, f.x.view, f.dy.view, f.result.view, &nothing, 0, NULL));
                test_drain(pipe);
                test_matrix_get(&f.result, sign < 0 ? minus : plus);
            }
            for (int64_t i = 0; i < 7 * inner; i++) {
                int64_t at = i / inner * x_cols + half * inner + i % inner;
                double want = (plus[i] - minus[i]) / (2 * h) * b.dy_values[i];

                worst = fmax(worst, fabs(got[at] - want) / (1 + fabs(b.dy_values[i])));
            }
        }
        ok(worst < 5e-4, "%s: %s: dx is dy times the slope (%.1e)", where,
           name_of((enum fp8pipe_activation)kind), worst);
        operands_free(&f);
        operands_free(&b);
        free(plus);
        free(minus);
        free(got);
        free(moved);
    }
}

/* ---- Empty -------------------------------------------------------------------------------- */

static void empty(const char *where)
{
    static const int64_t shapes[][2] = {{0, 16}, {5, 0}, {0, 0}};
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensor;
    bool right = true;

    must(fp8pipe_scaling_create(pipe, (options.slots = 3, &options), &scaling));
    must(fp8pipe_tensor_create(pipe, &tensor));
    for (int i = 0; i < 3; i++)
        for (int backward = 0; backward < 2; backward++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                struct config config = {FP8PIPE_ACTIVATION_SWIGLU,
                                        backward,
                                        false,
                                        shapes[i][0],
                                        shapes[i][1],
                                        FP8PIPE_BF16,
                                        FP8PIPE_BF16,
                                        FP8PIPE_BF16,
                                        FP8PIPE_BF16,
                                        false,
                                        1};
                struct operands o = operands_make(&config);
                struct test_matrix sums = test_matrix_make(pipe, FP8PIPE_FP32, 1, o.cols, 0, 0);
                double *got = test_calloc((size_t)o.cols, 8);
                struct fp8pipe_quantized out = {tensor,     scaling, 0, BOTH, test_vector(&sums),
                                                accumulate, 0};
                struct test_fp8 fp8;

                for (int64_t col = 0; col < o.cols; col++)
                    got[col] = 3;
                test_matrix_set(&sums, got);
                must(submit(&o, o.x.view, o.dy.view, o.result.view, &out, 0, NULL));
                test_drain(pipe);
                fp8 = test_tensor_read(pipe, tensor);
                test_matrix_get(&sums, got);
                for (int64_t col = 0; col < o.cols; col++)
                    right &= got[col] == (accumulate ? 3 : 0);
                right &= fp8.rows == shapes[i][0] && fp8.cols == o.cols && fp8.scale_inv == 1.0f;
                test_fp8_free(&fp8);
                test_matrix_free(&sums);
                operands_free(&o);
                free(got);
            }
    ok(right, "%s: without rows or columns the tensor is filled and the sums are set", where);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
}

static void cases(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        char where[64];

        snprintf(where, sizeof(where), "%s, %s", test_backend_name(backend),
                 mode_name((enum fp8pipe_mode)mode));
        watchdog("activation", 240);
        pipe = async_open(backend, (enum fp8pipe_mode)mode, 1, 0, NULL);
        against_formulas(where);
        against_quantize(where);
        fast_way(where);
        differences(where);
        empty(where);
        test_close(pipe);
    }
}

int main(void)
{
    accuracy();
    test_each_backend(cases);
    return done_testing();
}
