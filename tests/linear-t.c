/*
 * Linear layers: forward, dgrad and wgrad of random layers against float64 on the operands as
 * quantized; what a forward keeps, which version of the weight counts, which amax is folded.
 */
#include <math.h>
#include <stdlib.h>

#include "layer.h"
#include "util.h"

/* ---- Random layers ------------------------------------------------------------------------ */

struct worst {
    double error;
    struct layer_config config;
};

static void keep_worst(struct worst *worst, double error, const struct layer_config *config)
{
    if (error > worst->error)
        *worst = (struct worst){error, *config};
}

static void report(const struct worst *worst, const char *backend, const char *what)
{
    const struct layer_config *c = &worst->config;

    if (ok(worst->error <= 1, "%s: %s: within what accumulation and dtype allow (%.2f of it)",
           backend, what, worst->error))
        return;
    diag("m %lld, n %lld, k %lld, quantized %d, recipe %d, first scale %d, gradient %d, "
         "x_quantized %d, bias %d, accumulate %d, ragged %d, accumulation %d",
         (long long)c->m, (long long)c->n, (long long)c->k, c->quantized, (int)c->recipe,
         (int)c->first_scale, (int)c->gradient, c->x_quantized, c->has_bias, c->accumulate,
         c->ragged, (int)c->accumulation);
    diag("x %s, w %s, bias %s, dy %s (%g), y %s, dx %s, dw %s", test_dtype_name(c->x_dtype),
         test_dtype_name(c->w_dtype), test_dtype_name(c->bias_dtype), test_dtype_name(c->dy_dtype),
         c->dy_deviation, test_dtype_name(c->y_dtype), test_dtype_name(c->dx_dtype),
         test_dtype_name(c->dw_dtype));
}

/* The three ops on lanes of the pipe's choice, with no tickets: `saved` and dy_saved order them. */
static void test_random_layers(struct fp8pipe *pipe, const char *backend, int cases,
                               int64_t max_side, int64_t max_long, uint64_t seed)
{
    struct worst y = {-1, {0}}, dx = {-1, {0}}, dw = {-1, {0}}, db = {-1, {0}};
    struct test_rng rng = {seed};
    int64_t damage = 0;

    for (int i = 0; i < cases; i++) {
        struct layer_config config = layer_config_random(&rng, max_side, max_long);
        struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
        struct layer layer = layer_make(pipe, &config, &rng);
        fp8pipe_ticket forward, dgrad, wgrad;

        forward = layer_forward(&layer, FP8PIPE_KEEP_ALL, submit);
        dgrad = layer_dgrad(&layer, submit);
        wgrad = layer_wgrad(&layer, submit);
        test_wait(pipe, forward);
        test_wait(pipe, dgrad);
        test_wait(pipe, wgrad);
        keep_worst(&y, layer_y_error(&layer), &config);
        keep_worst(&dx, layer_dx_error(&layer), &config);
        keep_worst(&dw, layer_dw_error(&layer), &config);
        keep_worst(&db, layer_db_error(&layer), &config);
        damage += layer_damage(&layer);
        layer_free(&layer);
    }
    note("%s: %d layers, sides up to %lld, long ones to %lld", backend, cases, (long long)max_side,
         (long long)max_long);
    report(&y, backend, "forward");
    report(&dx, backend, "dgrad");
    report(&dw, backend, "wgrad");
    report(&db, backend, "bias gradient");
    is_int(damage, 0, "%s: nothing outside of the matrices is written", backend);
}

/* ---- Rules, on one layer of 24 x 40 x 56 -------------------------------------------------- */

static const struct layer_config plain = {
    .m = 24,
    .n = 40,
    .k = 56,
    .quantized = true,
    .recipe = FP8PIPE_HYBRID,
    .first_scale = LAYER_SCALE_GIVEN,
    .x_dtype = FP8PIPE_BF16,
    .w_dtype = FP8PIPE_BF16,
    .bias_dtype = FP8PIPE_FP32,
    .dy_dtype = FP8PIPE_BF16,
    .y_dtype = FP8PIPE_FP32,
    .dx_dtype = FP8PIPE_FP32,
    .dw_dtype = FP8PIPE_FP32,
    .accumulation = FP8PIPE_ACCUMULATION_SPLIT,
    .dy_deviation = 1.0,
};

static struct fp8pipe_tensor_info info_of(struct fp8pipe_tensor *tensor)
{
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;

    must(fp8pipe_tensor_info_get(tensor, &info));
    return info;
}

static double largest(const double *dense, int64_t count)
{
    double amax = 0;

    for (int64_t i = 0; i < count; i++)
        amax = fmax(amax, fabs(dense[i]));
    return amax;
}

static double slot_amax(const struct layer *layer, uint32_t slot)
{
    return (double)test_slot(layer->scaling, slot).amax;
}

static void test_keep(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    struct fp8pipe_submit last = test_submit(FP8PIPE_LANE_AUTO, FP8PIPE_LAST_USE, 0, 0);
    struct fp8pipe_wgrad_op wgrad = FP8PIPE_WGRAD_OP_INIT;
    struct test_rng rng = {11};
    struct layer layer = layer_make(pipe, &plain, &rng);
    struct fp8pipe_tensor_info info;

    test_wait(pipe, layer_forward(&layer, FP8PIPE_KEEP_NOTHING, submit));
    ok(layer_y_error(&layer) <= 1 && !info_of(layer.saved).filled,
       "%s: KEEP_NOTHING: a forward without a tensor", backend);

    layer_forward(&layer, FP8PIPE_KEEP_DGRAD, submit);
    info = info_of(layer.saved);
    ok(info.filled && info.weight && !info.transposed && !info.rowwise,
       "%s: KEEP_DGRAD keeps the weight's version and no X", backend);
    test_wait(pipe, layer_dgrad(&layer, submit));
    ok(layer_dx_error(&layer) <= 1, "%s: which is enough for dgrad", backend);
    wgrad.saved = layer.saved;
    wgrad.dy_tensor = layer.dy_saved;
    wgrad.dw = layer.dw.view;
    is_int(fp8pipe_linear_wgrad(layer.linear, &wgrad, NULL), FP8PIPE_EINVAL,
           "%s: and not for wgrad, which is refused", backend);
    test_drain(pipe);
    is_int(test_matrix_written(&layer.dw), 0, "%s: with no effect", backend);

    layer_forward(&layer, FP8PIPE_KEEP_ALL, submit);
    info = info_of(layer.saved);
    ok(info.filled && info.weight && info.transposed && info.rows == plain.m &&
           info.cols == plain.k && info.format == FP8PIPE_E4M3,
       "%s: KEEP_ALL keeps X transposed too", backend);
    layer_dgrad(&layer, submit);
    info = info_of(layer.dy_saved);
    ok(info.filled && info.transposed && info.rows == plain.m && info.cols == plain.n &&
           info.format == FP8PIPE_E5M2 && info_of(layer.saved).filled,
       "%s: dgrad keeps dY transposed, in its own format", backend);
    test_wait(pipe, layer_wgrad(&layer, last));
    ok(layer_dw_error(&layer) <= 1 && !info_of(layer.saved).filled &&
           !info_of(layer.dy_saved).filled,
       "%s: the last use empties what it reads, and still reads it", backend);
    is_int(layer_damage(&layer), 0, "%s: nothing else is written", backend);
    layer_free(&layer);
}

/* Each op folds the amax of what it quantizes itself, once, into the slot of that role. */
static void test_amax(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    struct fp8pipe_submit quiet = test_submit(FP8PIPE_LANE_AUTO, FP8PIPE_NO_AMAX, 0, 0);
    struct test_rng rng = {12};
    struct layer layer = layer_make(pipe, &plain, &rng);
    double x_amax = largest(layer.x_values, plain.m * plain.k);
    double w_amax = largest(layer.w_values, plain.n * plain.k);
    double dy_amax = largest(layer.dy_values, plain.m * plain.n);

    test_wait(pipe, layer_forward(&layer, FP8PIPE_KEEP_ALL, quiet));
    ok(slot_amax(&layer, 0) == 0 && slot_amax(&layer, 1) == w_amax,
       "%s: NO_AMAX folds no X, the first use of a weight always the weight", backend);
    test_wait(pipe, layer_dgrad(&layer, quiet));
    ok(slot_amax(&layer, 2) == 0, "%s: nor dY", backend);
    test_wait(pipe, layer_forward(&layer, FP8PIPE_KEEP_ALL, submit));
    ok(slot_amax(&layer, 0) == x_amax && slot_amax(&layer, 2) == 0, "%s: a forward folds X",
       backend);
    test_wait(pipe, layer_dgrad(&layer, submit));
    ok(slot_amax(&layer, 2) == dy_amax && slot_amax(&layer, 0) == x_amax, "%s: a dgrad dY",
       backend);
    test_skip(layer.scaling);
    test_wait(pipe, layer_wgrad(&layer, submit));
    ok(slot_amax(&layer, 0) == 0 && slot_amax(&layer, 2) == 0,
       "%s: a wgrad of tensors quantized before folds nothing", backend);
    test_wait(pipe, layer_forward(&layer, FP8PIPE_KEEP_ALL, submit));
    ok(slot_amax(&layer, 1) == 0, "%s: a weight already quantized is not folded again", backend);
    must(fp8pipe_linear_weight_changed(layer.linear, NULL, 0));
    test_wait(pipe, layer_forward(&layer, FP8PIPE_KEEP_ALL, submit));
    ok(slot_amax(&layer, 1) == w_amax, "%s: its next version is", backend);
    layer_free(&layer);
}

/* An FP8 weight keeps the inverse scale of its quantize, and its transposed copy the same bytes. */
static void test_cached_weight(struct fp8pipe *pipe, const char *backend)
{
    struct layer_config config = plain;
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    struct test_rng rng = {13};
    struct layer layer;

    config.x_quantized = true;
    config.gradient = LAYER_DY_QUANTIZED;
    layer = layer_make(pipe, &config, &rng);
    layer_forward(&layer, FP8PIPE_KEEP_NOTHING, submit);
    test_wait(pipe, test_update(layer.scaling));
    ok(test_slot(layer.scaling, 1).scale != 24.0f, "%s: an update moves the weight's scale",
       backend);
    test_matrix_poison(&layer.y);
    test_wait(pipe, layer_forward(&layer, FP8PIPE_KEEP_ALL, submit));
    ok(layer_y_error(&layer) <= 1, "%s: a cached weight is read with the scale that made it",
       backend);
    test_wait(pipe, layer_dgrad(&layer, submit));
    ok(layer_dx_error(&layer) <= 1, "%s: its transposed copy is made of those bytes", backend);
    layer_free(&layer);
}

/* Two versions in matrices of their own, without a wait between submits. */
static void test_versions(struct fp8pipe *pipe, const char *backend, bool quantized)
{
    const char *kind = quantized ? "FP8" : "unquantized";
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    struct layer_config config = plain;
    struct test_rng rng = {14};
    struct layer old, new;
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
    fp8pipe_ticket tickets[4];

    config.quantized = quantized;
    old = layer_make(pipe, &config, &rng);
    new = layer_make(pipe, &config, &rng); /* its weight becomes old.linear's second version */
    tickets[0] = layer_forward(&old, FP8PIPE_KEEP_ALL, submit);
    must(fp8pipe_linear_weight_changed(old.linear, &new.w.view, 0));
    forward.x = new.x.view;
    forward.y = new.y.view;
    forward.accumulation = FP8PIPE_ACCUMULATION_SPLIT;
    must(fp8pipe_linear_forward(old.linear, &forward, &tickets[1]));
    tickets[2] = layer_dgrad(&old, submit);
    dgrad.dy = new.dy.view;
    dgrad.dx = new.dx.view;
    must(fp8pipe_linear_dgrad(old.linear, &dgrad, &tickets[3]));
    for (int i = 0; i < 4; i++)
        test_wait(pipe, tickets[i]);
    ok(layer_y_error(&old) <= 1 && layer_y_error(&new) <= 1,
       "%s: %s: a forward uses the version current at its submit", backend, kind);
    ok(layer_dx_error(&old) <= 1, "%s: %s: its dgrad the same, after a change", backend, kind);
    ok(layer_dx_error(&new) <= 1, "%s: %s: a dgrad without a forward's tensor the current one",
       backend, kind);

    /* In place: the second version's matrix gets the first one's values. */
    test_matrix_set(&new.w, old.w_values);
    must(fp8pipe_linear_weight_changed(old.linear, NULL, 0));
    test_matrix_poison(&old.y);
    test_wait(pipe, layer_forward(&old, FP8PIPE_KEEP_NOTHING, submit));
    ok(layer_y_error(&old) <= 1, "%s: %s: a matrix written again is a new version", backend, kind);
    must(fp8pipe_tensor_clear(old.saved));
    test_drain(pipe);
    layer_free(&new);
    layer_free(&old);
}

/*
 * Two lanes use a new version at once, without tickets: one quantizes it, which takes far longer
 * than an op takes to be issued, the other has to wait for that; the same with its transposed copy.
 */
static void test_two_lanes(struct fp8pipe *pipe, const char *backend)
{
    struct layer_config config = plain;
    struct test_rng rng = {17};
    struct layer layers[2];
    double worst = 0;

    config.m = 1;
    config.n = 768;
    config.k = 1024;
    layers[0] = layer_make(pipe, &config, &rng);
    layers[1] = layer_make(pipe, &config, &rng); /* for its matrices and tensors */
    for (int round = 0; round < 6; round++) {
        struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
        struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;

        must(fp8pipe_linear_weight_changed(layers[0].linear, &layers[round % 2].w.view, 0));
        for (int32_t lane = 0; lane < 2; lane++) {
            forward.submit.lane = lane;
            forward.x = layers[lane].x.view;
            forward.y = layers[lane].y.view;
            forward.accumulation = FP8PIPE_ACCUMULATION_SPLIT;
            must(fp8pipe_linear_forward(layers[0].linear, &forward, NULL));
        }
        for (int32_t lane = 0; lane < 2; lane++) {
            dgrad.submit.lane = lane;
            dgrad.dy = layers[lane].dy.view;
            dgrad.dx = layers[lane].dx.view;
            must(fp8pipe_linear_dgrad(layers[0].linear, &dgrad, NULL));
        }
        test_drain(pipe);
        for (int32_t lane = 0; lane < 2; lane++) {
            struct layer seen = layers[lane];

            seen.w_seen = layers[round % 2].w_seen;
            worst = fmax(worst, fmax(layer_y_error(&seen), layer_dx_error(&seen)));
            test_matrix_poison(&layers[lane].y);
            test_matrix_poison(&layers[lane].dx);
        }
    }
    ok(worst <= 1, "%s: a lane waits for the quantize of a version that another lane issued",
       backend);
    layer_free(&layers[1]);
    layer_free(&layers[0]);
}

/* One tensor read by two layers gives the same bits as the matrix that it was made of. */
static void test_shared_x(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;
    struct layer_config config = plain;
    struct test_rng rng = {15};
    size_t count = (size_t)(plain.m * plain.n);
    float *direct = test_calloc(count, sizeof(*direct));
    float *shared = test_calloc(count, sizeof(*shared));
    struct fp8pipe_linear *other;
    struct fp8pipe_tensor *rowwise;
    struct layer layer;

    config.x_quantized = true;
    layer = layer_make(pipe, &config, &rng);
    /* The same slots as the layer's own linear. */
    other = test_linear(pipe, layer.w.view, layer.scaling);
    op.x = layer.x.view;
    op.y = layer.y.view;
    op.accumulation = config.accumulation;
    op.submit.flags = FP8PIPE_NO_AMAX;
    must(fp8pipe_linear_forward(layer.linear, &op, NULL));
    test_drain(pipe);
    test_matrix_get_raw(&layer.y, direct);
    test_matrix_poison(&layer.y);
    test_wait(pipe, layer_forward(&layer, FP8PIPE_KEEP_ALL, submit));
    test_matrix_get_raw(&layer.y, shared);
    is_mem(shared, direct, count * sizeof(float),
           "%s: X quantized before gives the bits of X quantized by the forward", backend);
    ok(slot_amax(&layer, 0) == 0, "%s: a forward of a quantized X folds no amax", backend);

    op.x = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    op.x_tensor = layer.x_tensor;
    test_matrix_poison(&layer.y);
    must(fp8pipe_linear_forward(other, &op, NULL));
    test_drain(pipe);
    test_matrix_get_raw(&layer.y, shared);
    is_mem(shared, direct, count * sizeof(float),
           "%s: and to a second linear that names the same slots", backend);
    layer_dgrad(&layer, submit);
    test_wait(pipe, layer_wgrad(&layer, submit));
    ok(layer_dw_error(&layer) <= 1, "%s: wgrad reads the shared X", backend);

    must(fp8pipe_tensor_create(pipe, &rowwise));
    test_quantize(rowwise, layer.x.view, layer.scaling, 0, FP8PIPE_ROWWISE, submit);
    op.x_tensor = rowwise;
    op.saved = layer.saved;
    op.keep = FP8PIPE_KEEP_ALL;
    is_int(fp8pipe_linear_forward(other, &op, NULL), FP8PIPE_EINVAL,
           "%s: KEEP_ALL of a shared X without its transposed copy is refused", backend);
    test_drain(pipe);
    must(fp8pipe_tensor_destroy(rowwise));
    must(fp8pipe_linear_destroy(other));
    layer_free(&layer);
    free(direct);
    free(shared);
}

/* Three microbatches into one gradient. */
static void test_microbatches(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_submit submit = test_submit(0, 0, 0, 0);
    struct layer_config config = plain;
    struct test_rng rng = {16};
    struct layer layer;
    int64_t count = plain.n * plain.k;

    config.accumulate = true;
    layer = layer_make(pipe, &config, &rng);
    for (int i = 0; i < 3; i++) {
        layer_forward(&layer, FP8PIPE_KEEP_ALL, submit);
        layer_dgrad(&layer, submit);
        layer_wgrad(&layer, submit);
    }
    test_drain(pipe);
    /* dw = before + 3 * product: the third addition's own `before` is before + 2 * product. */
    for (int i = 0; i < 2; i++) {
        double *product = test_calloc((size_t)count, sizeof(*product));

        test_gemm64(plain.n, plain.k, plain.m, (struct test_operand){layer.dy_seen, 1, plain.n},
                    (struct test_operand){layer.x_seen, 1, plain.k}, product);
        for (int64_t j = 0; j < count; j++)
            layer.dw_before[j] += product[j];
        for (int64_t j = 0; j < plain.n; j++)
            for (int64_t row = 0; row < plain.m; row++)
                layer.db_before[j] += layer.dy_values[row * plain.n + j];
        free(product);
    }
    ok(layer_dw_error(&layer) <= 1, "%s: wgrad adds every microbatch to the first ones", backend);
    ok(layer_db_error(&layer) <= 3, "%s: so does the bias gradient", backend);
    layer_free(&layer);
}

static void cases(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = test_open_poisoned(backend);
    const char *name = test_backend_name(backend);
    bool gpu = backend == FP8PIPE_BACKEND_CUDA;

    test_random_layers(pipe, name, TEST_CASES(200), 70, 600, 1);
    test_random_layers(pipe, name, TEST_CASES(gpu ? 60 : 20), gpu ? 200 : 130, gpu ? 8192 : 2000,
                       2);
    test_keep(pipe, name);
    test_amax(pipe, name);
    test_cached_weight(pipe, name);
    test_versions(pipe, name, true);
    test_versions(pipe, name, false);
    test_two_lanes(pipe, name);
    test_shared_x(pipe, name);
    test_microbatches(pipe, name);
    test_close(pipe);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
