/*
 * Epilogues of fp8pipe_gemm: activations, what they are applied to, residuals, results in FP8.
 * Against float64, and where the bits are laid down, bit for bit.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/fp8.h"
#include "product.h"

#define BOTH (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)

static int64_t random_side(struct test_rng *rng, int64_t longest)
{
    int64_t side = test_random_range(rng, 1, longest);

    return test_random(rng) & 1 ? (side + 15) / 16 * 16 : side;
}

static struct config random_config(struct test_rng *rng, bool fp8)
{
    struct config c = {
        .m = random_side(rng, 90),
        .n = random_side(rng, 90),
        .k = random_side(rng, 90),
        .fp8 = fp8,
        .ragged = test_random(rng) & 1,
        .has_bias = test_random(rng) & 1,
        .has_pre = test_random_range(rng, 0, 2) == 0,
        .in = (enum fp8pipe_dtype)test_random_range(rng, 0, 2),
        .out = (enum fp8pipe_dtype)test_random_range(rng, 0, 2),
        .bias = (enum fp8pipe_dtype)test_random_range(rng, 0, 2),
        .pre = (enum fp8pipe_dtype)test_random_range(rng, 0, 2),
        .activation = (enum fp8pipe_activation)test_random_range(rng, 0, FP8PIPE_ACTIVATION_SILU),
        .residual = (enum residual)test_random_range(rng, 0, 2),
    };

    return c;
}

/* ---- D as a matrix ------------------------------------------------------------------------- */

/* By how much of |x| the backends' activations may differ; see fp8pipe_activation. */
#define ACTIVATION_ERROR 1e-6f

/* D from what was kept before the activation: float32 in a given order, then one rounding. */
static int64_t wrong_from_pre(const struct product *p)
{
    const struct config *c = &p->c;
    int64_t count = c->m * c->n, wrong = 0;
    double *pre = test_calloc((size_t)count, sizeof(*pre));
    double *got = test_calloc((size_t)count, sizeof(*got));

    test_matrix_get(&p->pre, pre);
    test_matrix_get(&p->d, got);
    for (int64_t i = 0; i < count; i++) {
        double bounds[2];

        for (int side = 0; side < 2; side++) {
            float value = product_activated(c->activation, (float)pre[i]);
            uint32_t element = 0;

            value += (side == 0 ? -1 : 1) * ACTIVATION_ERROR * fabsf((float)pre[i]);
            if (c->residual != RESIDUAL_NONE)
                value += (float)p->residual_seen[i];
            test_element_set(c->out, &element, (double)value);
            bounds[side] = test_element_get(c->out, &element);
        }
        wrong += !(bounds[0] <= got[i] && got[i] <= bounds[1]);
    }
    free(pre);
    free(got);
    return wrong;
}

static void matrices(struct world *w, bool fp8, int cases)
{
    double worst = 0, worst_pre = 0;
    int64_t damage = 0, wrong = 0;

    for (int i = 0; i < cases; i++) {
        struct config c = random_config(&w->rng, fp8);
        int64_t count = c.m * c.n;
        double *product = test_calloc((size_t)count, sizeof(double));
        double *want = test_calloc((size_t)count, sizeof(double));
        double *got = test_calloc((size_t)count, sizeof(double)), norm, error;
        struct fp8pipe_gemm_op op;
        struct product p;

        product_make(w, &p, &c);
        op = product_op(&p);
        product_run(w, &op);
        product_reference(&p, product, want, &norm);
        test_matrix_get(&p.d, got);
        error = product_distance(count, got, want) / norm / product_allowed(w, &c, c.out);
        if (error > 1)
            product_say(&c);
        worst = fmax(worst, error);
        if (c.has_pre) {
            struct config plain = {.m = c.m, .n = c.n, .in = c.in, .fp8 = c.fp8};

            test_matrix_get(&p.pre, got);
            error =
                product_distance(count, got, product) / norm / product_allowed(w, &plain, c.pre);
            worst_pre = fmax(worst_pre, error);
            wrong += wrong_from_pre(&p);
        }
        damage += product_damage(&p);
        product_free(&p);
        free(product);
        free(want);
        free(got);
    }
    ok(worst <= 1, "%s: %d epilogues of %s into matrices: %.2f of the allowed error", w->name,
       cases, fp8 ? "tensors" : "matrices", worst);
    ok(worst_pre <= 1, "%s: what the activation is applied to is kept: %.2f of the allowed error",
       w->name, worst_pre);
    is_int(wrong, 0, "%s: and D is made of what was kept", w->name);
    is_int(damage, 0, "%s: nothing is written outside of the outputs", w->name);
}

/* ---- D in FP8 ------------------------------------------------------------------------------ */

static float largest(const struct product *p)
{
    int64_t count = p->c.m * p->c.n;
    double *product = test_calloc((size_t)count, sizeof(double));
    double *want = test_calloc((size_t)count, sizeof(double)), norm, most = 0;

    product_reference(p, product, want, &norm);
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs(want[i]));
    free(product);
    free(want);
    return (float)most;
}

static bool close_to(const struct world *w, float got, float want)
{
    return fabsf(got - want) <= want * (w->backend == FP8PIPE_BACKEND_CUDA ? 2e-2f : 1e-2f);
}

static void tensors(struct world *w, bool fp8, bool updated, int cases)
{
    static const uint32_t copies[] = {FP8PIPE_ROWWISE, FP8PIPE_TRANSPOSED, BOTH};
    int wrong = 0, wrong_amax = 0;
    int64_t damage = 0;

    for (int i = 0; i < cases; i++) {
        struct config c = random_config(&w->rng, fp8);
        uint32_t slot = i % 4 == 0 ? SLOT_GRADIENT : SLOT_RESULT;
        bool folds = i % 5 != 0;
        struct fp8pipe_gemm_op op;
        struct fp8pipe_slot_state state;
        struct test_fp8 got;
        struct product p;
        float scale;

        c.residual = RESIDUAL_NONE;
        product_make(w, &p, &c);
        op = product_quantizing_op(w, &p, slot, copies[i % 3]);
        op.submit.flags = folds ? 0 : FP8PIPE_NO_AMAX;
        product_run(w, &op);
        got = test_tensor_read(w->pipe, w->result);
        state = test_slot(w->scaling, slot);
        /* Without a scale of the slot's: the tensor's own amax, which its inverse scale tells. */
        scale = state.has_scale ? state.scale : 1.0f / got.scale_inv;
        wrong += state.has_scale != updated || !product_tensor_is_right(w, &p, &got, scale);
        wrong += got.format != (slot == SLOT_GRADIENT ? FP8PIPE_E5M2 : FP8PIPE_E4M3) ||
                 !got.rowwise != !(copies[i % 3] & FP8PIPE_ROWWISE) ||
                 !got.transposed != !(copies[i % 3] & FP8PIPE_TRANSPOSED);
        wrong_amax += folds ? !close_to(w, state.amax, largest(&p)) : state.amax != 0;
        if (!updated)
            wrong_amax += !close_to(w, scale * largest(&p), (float)test_fp8_max(got.format));
        if (wrong_amax > 0 && i == 0)
            diag("amax %g, largest %g, scale %g", (double)state.amax, (double)largest(&p),
                 (double)scale);
        test_skip(w->scaling);
        damage += product_damage(&p);
        test_fp8_free(&got);
        product_free(&p);
    }
    is_int(wrong, 0, "%s: %d results in FP8 of %s, %s an update: codes, copies, inverse scale",
           w->name, cases, fp8 ? "tensors" : "matrices", updated ? "after" : "before");
    is_int(wrong_amax, 0, "%s: their amax is folded unless NO_AMAX", w->name);
    is_int(damage, 0, "%s: nothing is written outside of the outputs", w->name);
}

/* After an update a slot without a scale counts as one with a scale of 1, in every shape. */
static void zeros(struct world *w)
{
    int wrong = 0;

    for (int i = 0; i < 8; i++) {
        struct config c = {.m = 20, .n = i & 1 ? 33 : 32, .k = 48, .fp8 = i & 2, .has_pre = i & 4};
        struct fp8pipe_gemm_op op;
        struct test_fp8 got;
        struct product p;

        product_make(w, &p, &c);
        op = product_quantizing_op(w, &p, SLOT_ZEROS, BOTH);
        op.submit.flags = FP8PIPE_NO_AMAX;
        product_run(w, &op);
        got = test_tensor_read(w->pipe, w->result);
        wrong += !product_tensor_is_right(w, &p, &got, 1.0f);
        test_fp8_free(&got);
        product_free(&p);
    }
    is_int(wrong, 0, "%s: a slot that an update has not moved scales by 1", w->name);
}

/* With what is kept before the activation, and a scale: the bits are laid down. */
static void bits_from_pre(struct world *w)
{
    int64_t wrong = 0;

    for (int i = 0; i < 24; i++) {
        struct config c = random_config(&w->rng, i & 1);
        struct fp8pipe_slot_state state = test_slot(w->scaling, SLOT_RESULT);
        int64_t count = c.m * c.n;
        double *pre = test_calloc((size_t)count, sizeof(*pre));
        struct fp8pipe_gemm_op op;
        struct test_fp8 got;
        struct product p;

        c.has_pre = true;
        c.residual = RESIDUAL_NONE;
        product_make(w, &p, &c);
        op = product_quantizing_op(w, &p, SLOT_RESULT, BOTH);
        op.submit.flags = FP8PIPE_NO_AMAX;
        product_run(w, &op);
        got = test_tensor_read(w->pipe, w->result);
        test_matrix_get(&p.pre, pre);
        for (int64_t j = 0; j < count; j++) {
            float value = product_activated(c.activation, (float)pre[j]) * state.scale;
            uint8_t code = fp8_from_float(value, FP8PIPE_E4M3);

            wrong += got.rowwise[j] != code || got.transposed[j % c.n * c.m + j / c.n] != code;
        }
        test_fp8_free(&got);
        product_free(&p);
        free(pre);
    }
    is_int(wrong, 0, "%s: codes of what was kept, to the bit", w->name);
}

/* An inf saturates, a NaN stays one, and both count in the amax: the update sees them. */
static void nonfinite(struct world *w)
{
    static const double values[] = {INFINITY, -INFINITY, NAN};

    for (int i = 0; i < 6; i++) {
        struct config c = {.m = 5,
                           .n = i & 1 ? 33 : 32,
                           .k = 32,
                           .fp8 = true,
                           .has_bias = true,
                           .in = FP8PIPE_BF16,
                           .bias = FP8PIPE_BF16};
        double value = values[i / 2], bias[33] = {[7] = value};
        uint8_t want = fp8_from_float((float)value, FP8PIPE_E4M3);
        struct fp8pipe_slot_state state;
        struct fp8pipe_gemm_op op;
        struct test_fp8 got;
        struct product p;
        int wrong = 0;

        product_make(w, &p, &c);
        test_matrix_set(&p.bias, bias);
        op = product_quantizing_op(w, &p, SLOT_RESULT, BOTH);
        product_run(w, &op);
        got = test_tensor_read(w->pipe, w->result);
        state = test_slot(w->scaling, SLOT_RESULT);
        for (int64_t row = 0; row < c.m; row++) {
            uint8_t code = got.rowwise[row * c.n + 7];

            wrong += isnan(value) ? (code & 0x7f) != 0x7f : code != want;
            wrong += (got.rowwise[row * c.n + 8] & 0x7f) == 0x7f;
        }
        is_int(wrong, 0, "%s, N = %d: %g in a result in FP8", w->name, (int)c.n, value);
        ok(!isfinite(state.amax), "%s, N = %d: its amax, %g, says so", w->name, (int)c.n,
           (double)state.amax);
        test_skip(w->scaling);
        test_fp8_free(&got);
        product_free(&p);
    }
}

/* Sides of 0: the tensor is filled all the same; K = 0 gives the bias. */
static void small(struct world *w)
{
    static const int64_t sides[] = {0, 1, 16};
    int wrong = 0;

    for (int i = 0; i < 27 * 4; i++) {
        struct config c = {.m = sides[i % 3],
                           .n = sides[i / 3 % 3],
                           .k = sides[i / 9 % 3],
                           .has_bias = true,
                           .bias = FP8PIPE_BF16,
                           .fp8 = i / 27 & 1,
                           .activation = FP8PIPE_ACTIVATION_GELU_TANH,
                           .has_pre = i / 54};
        struct fp8pipe_slot_state state = test_slot(w->scaling, SLOT_RESULT);
        struct fp8pipe_gemm_op op;
        struct test_fp8 got;
        struct product p;

        product_make(w, &p, &c);
        op = product_quantizing_op(w, &p, SLOT_RESULT, BOTH);
        op.submit.flags = FP8PIPE_NO_AMAX;
        product_run(w, &op);
        got = test_tensor_read(w->pipe, w->result);
        wrong += !product_tensor_is_right(w, &p, &got, state.scale);
        test_fp8_free(&got);
        op = product_op(&p);
        product_run(w, &op);
        wrong += product_damage(&p) != 0;
        product_free(&p);
    }
    is_int(wrong, 0, "%s: sides of 0 and 1", w->name);
}

static void cases(enum fp8pipe_backend backend)
{
    struct world w;

    watchdog("epilogues", 300);
    world_open(&w, test_open_poisoned(backend), 1);
    for (int fp8 = 0; fp8 <= 1; fp8++) {
        matrices(&w, fp8, 150);
        tensors(&w, fp8, false, 60);
    }
    product_give_scales(&w);
    for (int fp8 = 0; fp8 <= 1; fp8++)
        tensors(&w, fp8, true, 60);
    zeros(&w);
    bits_from_pre(&w);
    nonfinite(&w);
    small(&w);
    world_close(&w);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
