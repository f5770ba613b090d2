/*
 * Shapes: every combination of small and awkward sides, zeros too, for layers and quantized
 * tensors. What has to be padded inside never shows outside; what is empty writes what the sums of
 * nothing are, touches no amax and has a ticket all the same.
 */
#include <stdlib.h>

#include "layer.h"
#include "util.h"

static const int64_t sides[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33};
#define SIDES ((int)(sizeof(sides) / sizeof(sides[0])))

struct counts {
    int64_t layers;
    int64_t wrong_y, wrong_dx, wrong_dw, wrong_db; /* too far from float64 */
    int64_t inexact_empty; /* not exactly the bias, zero or what was there */
    int64_t touched_amax;
    int64_t unfinished;
    int64_t damage;
};

static bool is_done(struct fp8pipe *pipe, fp8pipe_ticket ticket)
{
    struct fp8pipe_state state = FP8PIPE_STATE_INIT;

    if (ticket == 0 || fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS) != FP8PIPE_OK)
        return false;
    must(fp8pipe_state_get(pipe, ticket, &state));
    return state.issued && state.done && state.outcome == FP8PIPE_OUTCOME_OK;
}

/* The error if more is wrong than may be; says of which layer. */
static int64_t wrong(double error, const char *what, const struct layer_config *c)
{
    if (error <= 1)
        return 0;
    diag("%s of m %lld, n %lld, k %lld, quantized %d: %g of the allowed error; gradient %d, "
         "bias %d, accumulate %d, ragged %d, y %s, dx %s, dw %s",
         what, (long long)c->m, (long long)c->n, (long long)c->k, c->quantized, error,
         (int)c->gradient, c->has_bias, c->accumulate, c->ragged, test_dtype_name(c->y_dtype),
         test_dtype_name(c->dx_dtype), test_dtype_name(c->dw_dtype));
    return 1;
}

static void run_layer(struct fp8pipe *pipe, const struct layer_config *config, struct test_rng *rng,
                      struct counts *counts)
{
    struct layer layer = layer_make(pipe, config, rng);
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    fp8pipe_ticket forward = layer_forward(&layer, FP8PIPE_KEEP_ALL, submit);
    fp8pipe_ticket dgrad = layer_dgrad(&layer, submit);
    fp8pipe_ticket wgrad = layer_wgrad(&layer, submit);
    double y, dx, dw, db;

    counts->layers++;
    counts->unfinished += !is_done(pipe, forward) + !is_done(pipe, dgrad) + !is_done(pipe, wgrad);
    y = layer_y_error(&layer);
    dx = layer_dx_error(&layer);
    dw = layer_dw_error(&layer);
    db = layer_db_error(&layer);
    counts->wrong_y += wrong(y, "forward", config);
    counts->wrong_dx += wrong(dx, "dgrad", config);
    counts->wrong_dw += wrong(dw, "wgrad", config);
    counts->wrong_db += wrong(db, "bias gradient", config);
    /* A bias is rounded to the output's dtype; sums without terms are exact. */
    counts->inexact_empty += (config->k == 0 && !config->has_bias && y != 0) +
                             (config->n == 0 && dx != 0) + (config->m == 0 && (dw != 0 || db != 0));
    if (config->quantized && config->first_scale != LAYER_SCALE_DELAYED)
        for (uint32_t slot = 0; slot < 3; slot++)
            if (config->m == 0 || (config->k == 0 && slot < 2))
                counts->touched_amax += test_slot(layer.scaling, slot).amax != 0;
    counts->damage += layer_damage(&layer);
    layer_free(&layer);
}

static void test_layers(struct fp8pipe *pipe, const char *backend, bool quantized, int step)
{
    const char *kind = quantized ? "FP8" : "unquantized";
    struct test_rng rng = {quantized ? 21 : 22};
    struct counts counts = {0};

    for (int i = 0; i < SIDES * SIDES * SIDES; i += step) {
        struct layer_config config = layer_config_random(&rng, 1, 1);

        config.m = sides[i % SIDES];
        config.n = sides[i / SIDES % SIDES];
        config.k = sides[i / SIDES / SIDES];
        config.quantized = quantized;
        run_layer(pipe, &config, &rng, &counts);
    }
    note("%s: %lld %s layers, sides from 0 to 33", backend, (long long)counts.layers, kind);
    is_int(counts.wrong_y, 0, "%s: %s: forward at every shape", backend, kind);
    is_int(counts.wrong_dx, 0, "%s: %s: dgrad at every shape", backend, kind);
    is_int(counts.wrong_dw, 0, "%s: %s: wgrad at every shape", backend, kind);
    is_int(counts.wrong_db, 0, "%s: %s: bias gradient at every shape", backend, kind);
    is_int(counts.inexact_empty, 0,
           "%s: %s: sums without terms are exactly zero, or leave exactly what was there", backend,
           kind);
    is_int(counts.touched_amax, 0, "%s: %s: empty ops touch no amax", backend, kind);
    is_int(counts.unfinished, 0, "%s: %s: every op has a ticket that gets done", backend, kind);
    is_int(counts.damage, 0, "%s: %s: no padding in the caller's memory, no input changed", backend,
           kind);
}

/* ---- Quantized tensors -------------------------------------------------------------------- */

/* Both copies of every small shape are each other's transpose, dense, with sums of the columns. */
static void test_tensors(struct fp8pipe *pipe, const char *backend)
{
    struct test_rng rng = {23};
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensor;
    int64_t misplaced = 0, damage = 0, sums_wrong = 0;

    scaling = test_scaling(pipe, 1, 1);
    must(fp8pipe_tensor_create(pipe, &tensor));
    for (int i = 0; i < SIDES * SIDES; i++) {
        int64_t rows = sides[i % SIDES], cols = sides[i / SIDES];
        struct test_matrix x =
            test_matrix_make(pipe, FP8PIPE_BF16, rows, cols, cols + i % 3, i % 9);
        struct test_matrix sums = test_matrix_make(pipe, FP8PIPE_FP32, 1, cols, 0, i % 5);
        double *values = test_calloc((size_t)(rows * cols), sizeof(*values));
        double *sum = test_calloc((size_t)cols, sizeof(*sum));
        struct fp8pipe_quantize_op op = FP8PIPE_QUANTIZE_OP_INIT;
        struct test_fp8 fp8;

        for (int64_t j = 0; j < rows * cols; j++) /* whole numbers that E4M3 and the sums keep */
            values[j] = (double)test_random_range(&rng, -16, 16);
        test_matrix_set(&x, values);
        op.x = x.view;
        op.scaling = scaling;
        op.copies = FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED;
        if (cols > 0)
            op.column_sums = test_vector(&sums);
        must(fp8pipe_tensor_quantize(tensor, &op, NULL));
        fp8 = test_tensor_read(pipe, tensor);
        test_matrix_get(&sums, sum);
        misplaced += fp8.rows != rows || fp8.cols != cols;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t col = 0; col < cols; col++) {
                double want = values[row * cols + col];

                misplaced += test_fp8_value(FP8PIPE_E4M3, fp8.rowwise[row * cols + col]) != want ||
                             test_fp8_value(FP8PIPE_E4M3, fp8.transposed[col * rows + row]) != want;
                sum[col] -= want;
            }
        for (int64_t col = 0; col < cols; col++)
            sums_wrong += sum[col] != 0;
        damage += fp8.damage + test_matrix_damage(&x) + test_matrix_damage(&sums);
        test_fp8_free(&fp8);
        test_matrix_free(&x);
        test_matrix_free(&sums);
        free(values);
        free(sum);
    }
    is_int(misplaced, 0, "%s: tensors of every shape hold each element in its place, twice",
           backend);
    is_int(sums_wrong, 0, "%s: and the sums of their columns, zeros of no rows", backend);
    is_int(damage, 0, "%s: and write nothing else", backend);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
}

/* An empty matrix may have no data at all. */
static void test_null(struct fp8pipe *pipe, const char *backend)
{
    struct layer_config config = {.m = 0,
                                  .n = 5,
                                  .k = 3,
                                  .quantized = true,
                                  .has_bias = true,
                                  .accumulate = true,
                                  .dy_deviation = 1};
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    struct test_rng rng = {24};
    struct layer layer = layer_make(pipe, &config, &rng);
    struct fp8pipe_quantize_op quantize = FP8PIPE_QUANTIZE_OP_INIT;
    fp8pipe_ticket tickets[4];
    bool done = true;

    layer.x.view.data = layer.y.view.data = layer.dx.view.data = layer.dy.view.data = NULL;
    tickets[0] = layer_forward(&layer, FP8PIPE_KEEP_ALL, submit);
    tickets[1] = layer_dgrad(&layer, submit);
    tickets[2] = layer_wgrad(&layer, submit);
    quantize.x = layer.x.view;
    quantize.scaling = layer.scaling;
    must(fp8pipe_tensor_quantize(layer.x_tensor, &quantize, &tickets[3]));
    for (int i = 0; i < 4; i++)
        done = done && is_done(pipe, tickets[i]);
    ok(done && layer_dw_error(&layer) == 0 && layer_db_error(&layer) == 0,
       "%s: matrices without rows need no data", backend);
    layer_free(&layer);
}

/* A step of empty ops between two others: the amax of those is all that an update sees. */
static void test_update_after_empty(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 1, 1, 0, 0);
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensor;
    const double eight = 8;

    options.slots = 1;
    options.history = 1;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    must(fp8pipe_tensor_create(pipe, &tensor));
    test_matrix_set(&x, &eight);
    test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, test_submit(0, 0, 0, 0));
    test_update(scaling);
    x.view.rows = 0;
    test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, test_submit(0, 0, 0, 0));
    test_update(scaling);
    test_drain(pipe);
    ok(test_slot(scaling, 0).scale == 56.0f, "%s: a step of empty ops moves no scale", backend);
    x.view.rows = 1;
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
    test_matrix_free(&x);
}

static void cases(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = test_open_poisoned(backend);
    const char *name = test_backend_name(backend);

    test_layers(pipe, name, true, 1);
    test_layers(pipe, name, false, 3); /* 3 does not divide the sides: all of them still occur */
    test_tensors(pipe, name);
    test_null(pipe, name);
    test_update_after_empty(pipe, name);
    test_close(pipe);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
