/*
 * Epilogues among other ops: when a scale of the slot's is taken, what the backend is asked for and
 * what happens where it refuses, failures, and layers that hand their results in FP8 to the next.
 */
#include <math.h>
#include <stdlib.h>

#include "chaos.h"
#include "product.h"

#define BOTH (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)

/* ---- Which way ----------------------------------------------------------------------------- */

/* Load makes a scaling count as scaled, skip does not; and an update counts from its submit on. */
static void scaled_from_submit(enum fp8pipe_backend backend)
{
    struct config c = {.m = 8, .n = 32, .k = 64, .fp8 = true, .in = FP8PIPE_BF16};
    struct gate gate = GATE_INIT;
    struct fp8pipe_gemm_op op;
    fp8pipe_ticket ticket;
    struct test_fp8 got;
    struct product p;
    struct world w;
    size_t bytes;
    void *saved;

    world_open(&w, async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL), 9);
    product_make(&w, &p, &c);
    op = product_quantizing_op(&w, &p, SLOT_RESULT, FP8PIPE_ROWWISE);
    test_skip(w.scaling);
    product_run(&w, &op);
    got = test_tensor_read(w.pipe, w.result);
    ok(got.scale_inv != 1.0f, "%s: after a skip: its own amax", w.name);
    test_fp8_free(&got);
    submit_host_call(w.pipe, ON(1), gate_work, &gate);
    op.submit = ON(1); /* folds behind the gate, so that the update comes after it */
    op.epilogue.slot = SLOT_ZEROS;
    must(fp8pipe_gemm(w.pipe, &op, NULL));
    test_update(w.scaling);
    op.submit = ON(0);
    op.epilogue.slot = SLOT_RESULT;
    must(fp8pipe_gemm(w.pipe, &op, &ticket));
    is_int(fp8pipe_wait(w.pipe, ticket, FP8PIPE_DONE, 20 * MS_NS), FP8PIPE_ETIMEDOUT,
           "%s: a result waits for the update before it", w.name);
    gate_open(&gate);
    test_wait(w.pipe, ticket);
    got = test_tensor_read(w.pipe, w.result);
    ok(got.scale_inv == 1.0f / test_slot(w.scaling, SLOT_RESULT).scale,
       "%s: and is scaled by what that made", w.name);
    test_fp8_free(&got);
    ok(test_slot(w.scaling, SLOT_ZEROS).has_scale,
       "%s: an update comes after the results before it", w.name);

    must(fp8pipe_scaling_state_bytes(w.scaling, &bytes));
    saved = test_calloc(bytes, 1);
    must(fp8pipe_scaling_save(w.scaling, saved, bytes));
    product_free(&p);
    world_close(&w);
    world_open(&w, async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL), 9);
    product_make(&w, &p, &c);
    must(fp8pipe_scaling_load(w.scaling, saved, bytes));
    op = product_quantizing_op(&w, &p, SLOT_RESULT, FP8PIPE_ROWWISE);
    product_run(&w, &op);
    got = test_tensor_read(w.pipe, w.result);
    ok(got.scale_inv == 1.0f / test_slot(w.scaling, SLOT_RESULT).scale, "%s: a load gives scales",
       w.name);
    test_fp8_free(&got);
    free(saved);
    product_free(&p);
    world_close(&w);
}

/* What the backend is asked for, and what happens where it refuses. */
static void ways(enum fp8pipe_mode mode)
{
    struct config c = {.m = 24,
                       .n = 32,
                       .k = 64,
                       .fp8 = true,
                       .in = FP8PIPE_BF16,
                       .out = FP8PIPE_BF16,
                       .activation = FP8PIPE_ACTIVATION_GELU_TANH};
    struct fp8pipe_options options = async_options(mode, 2, 32, NULL);
    const char *name = mode_name(mode);
    struct fp8pipe_gemm_op op;
    struct test_fp8 got;
    struct product p;
    struct world w;
    float scale;

    world_open(&w, chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0), 4);
    product_give_scales(&w);
    product_make(&w, &p, &c);
    scale = test_slot(w.scaling, SLOT_RESULT).scale;
    op = product_quantizing_op(&w, &p, SLOT_RESULT, BOTH);
    for (int refused = 0; refused <= 1; refused++) {
        uint64_t gemms = chaos_count(CHAOS_GEMM), after;

        after = chaos_count(CHAOS_QUANTIZE) + chaos_count(CHAOS_ACTIVATION);
        if (refused)
            chaos_fail(CHAOS_GEMM, NULL, 1, FP8PIPE_ENOTSUP);
        product_run(&w, &op);
        is_int(chaos_count(CHAOS_GEMM) - gemms, 1 + refused, "%s: an FP8 result %s", name,
               refused ? "that the GEMM refuses takes a second one" : "is written by the GEMM");
        is_int(chaos_count(CHAOS_QUANTIZE) + chaos_count(CHAOS_ACTIVATION) - after, refused,
               "%s: with %d kernels that quantize after it", name, refused);
        got = test_tensor_read(w.pipe, w.result);
        ok(product_tensor_is_right(&w, &p, &got, scale), "%s: the same result", name);
        test_fp8_free(&got);
    }
    op = product_op(&p);
    for (int refused = 0; refused <= 1; refused++) {
        int64_t count = c.m * c.n;
        double *product = test_calloc((size_t)count, sizeof(double));
        double *want = test_calloc((size_t)count, sizeof(double));
        double *values = test_calloc((size_t)count, sizeof(double)), norm;
        uint64_t stores = chaos_count(CHAOS_STORE);

        if (refused)
            chaos_fail(CHAOS_GEMM, NULL, 1, FP8PIPE_ENOTSUP);
        product_run(&w, &op);
        is_int(chaos_count(CHAOS_STORE) - stores, refused, "%s: a GELU is done %s", name,
               refused ? "after a GEMM that refuses it" : "by the GEMM");
        product_reference(&p, product, want, &norm);
        test_matrix_get(&p.d, values);
        ok(product_distance(count, values, want) / norm <= product_allowed(&w, &c, c.out),
           "%s: the same result", name);
        free(product);
        free(want);
        free(values);
    }
    product_free(&p);
    world_close(&w);
    chaos_check("ways of an epilogue");
}

/* A result that fails cancels its reader; a refused op leaves what was there. */
static void failures(enum fp8pipe_mode mode)
{
    struct config c = {.m = 8, .n = 16, .k = 32, .fp8 = true, .in = FP8PIPE_FP32};
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    struct fp8pipe_options options = async_options(mode, 2, 32, NULL);
    struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
    const char *name = mode_name(mode);
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    fp8pipe_ticket writer, reader;
    struct fp8pipe_gemm_op op;
    struct product p;
    struct world w;

    world_open(&w, chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0), 5);
    product_give_scales(&w);
    product_make(&w, &p, &c);
    op = product_quantizing_op(&w, &p, SLOT_RESULT, FP8PIPE_ROWWISE);
    op.submit.lane = FP8PIPE_LANE_AUTO;
    read.submit.lane = FP8PIPE_LANE_AUTO;
    chaos_fail(CHAOS_GEMM, NULL, 1, FP8PIPE_ELAUNCH);
    must(fp8pipe_gemm(w.pipe, &op, &writer));
    must(fp8pipe_tensor_read(w.result, &read, &reader));
    is_int(fp8pipe_wait(w.pipe, reader, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ELAUNCH,
           "%s: the reader of a result that failed is cancelled", name);
    is_int(fp8pipe_wait(w.pipe, writer, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ELAUNCH,
           "%s: as the writer failed", name);
    op.submit.after_count = 1;
    op.submit.after[0] = submit_call(w.pipe, ON(1), call_fails, &fails);
    must(fp8pipe_gemm(w.pipe, &op, &writer));
    must(fp8pipe_tensor_read(w.result, &read, &reader));
    is_int(fp8pipe_wait(w.pipe, reader, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ECALL,
           "%s: and of one that is cancelled", name);
    op.submit.after_count = 0;
    product_run(&w, &op);
    op.epilogue.copies = 0;
    is_int(fp8pipe_gemm(w.pipe, &op, NULL), FP8PIPE_EINVAL, "%s: a refused op", name);
    must(fp8pipe_tensor_info_get(w.result, &info));
    ok(info.filled && info.rowwise && info.rows == c.m && info.cols == c.n,
       "%s: leaves what was there", name);
    for (unsigned nth = 1; nth <= 3; nth++) {
        op.epilogue.copies = FP8PIPE_TRANSPOSED;
        chaos_fail(CHAOS_ALLOC, NULL, nth, FP8PIPE_ENOMEM);
        must(fp8pipe_gemm(w.pipe, &op, &writer));
        (void)fp8pipe_wait(w.pipe, writer, FP8PIPE_DONE, TEST_TIMEOUT_NS);
        chaos_disarm();
    }
    product_free(&p);
    world_close(&w);
    chaos_check("failures of an epilogue");
}

/* ---- Linears ------------------------------------------------------------------------------- */

/* Two layers and a GELU: the first's result is the second's X, also for its backward. */
static void layers(enum fp8pipe_backend backend, enum fp8pipe_mode mode, int64_t m, int64_t h)
{
    enum { IN = 48, OUT = 40 };
    struct config c = {.m = m,
                       .n = h,
                       .k = IN,
                       .fp8 = true,
                       .has_bias = true,
                       .has_pre = true,
                       .in = FP8PIPE_BF16,
                       .bias = FP8PIPE_BF16,
                       .pre = FP8PIPE_BF16,
                       .activation = FP8PIPE_ACTIVATION_GELU_TANH};
    struct fp8pipe_linear_options first = FP8PIPE_LINEAR_OPTIONS_INIT,
                                  second = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_forward_op up = FP8PIPE_FORWARD_OP_INIT, down = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe_wgrad_op wgrad = FP8PIPE_WGRAD_OP_INIT;
    struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
    const char *how = mode_name(mode);
    struct fp8pipe_linear *linears[2];
    struct fp8pipe_tensor *saved[2];
    struct test_matrix w2, y, dy, dw, dx, added;
    double *w2_seen, *dy_seen, *hidden, *got, *before;
    fp8pipe_ticket ticket;
    struct test_fp8 fp8;
    struct product p;
    struct world w;
    int wrong = 0;

    world_open(&w, async_open(backend, mode, 2, 0, NULL), (uint64_t)(m + h));
    product_make(&w, &p, &c);
    w2 = product_matrix(&w, &c, FP8PIPE_BF16, OUT, h, 1, &w2_seen);
    y = product_matrix(&w, &c, FP8PIPE_FP32, m, OUT, 1, NULL);
    dy = product_matrix(&w, &c, FP8PIPE_BF16, m, OUT, 1, &dy_seen);
    dw = product_matrix(&w, &c, FP8PIPE_FP32, OUT, h, 1, NULL);
    dx = product_matrix(&w, &c, FP8PIPE_FP32, m, h, 1, NULL);
    added = product_matrix(&w, &c, FP8PIPE_FP32, m, h, sqrt(OUT), &before);
    hidden = test_calloc((size_t)(m * h), sizeof(double));
    got = test_calloc((size_t)(h * OUT + m * h + m * OUT), sizeof(double));
    must(fp8pipe_tensor_create(w.pipe, &saved[0]));
    must(fp8pipe_tensor_create(w.pipe, &saved[1]));
    first.in_features = IN;
    first.out_features = h;
    first.weight = p.b.view;
    first.bias = test_vector(&p.bias);
    first.scaling = w.scaling;
    must(fp8pipe_linear_create(w.pipe, &first, &linears[0]));
    second.in_features = h;
    second.out_features = OUT;
    second.weight = w2.view;
    second.scaling = w.scaling;
    second.slot_x = SLOT_RESULT;
    must(fp8pipe_linear_create(w.pipe, &second, &linears[1]));

    up.x = p.a.view;
    up.saved = saved[0];
    up.keep = FP8PIPE_KEEP_ALL;
    up.epilogue = product_quantizing_op(&w, &p, SLOT_RESULT, BOTH).epilogue;
    down.x_tensor = w.result;
    down.y = y.view;
    down.saved = saved[1];
    down.keep = FP8PIPE_KEEP_ALL;
    dgrad.dy = dy.view;
    dgrad.dx = dx.view;
    wgrad.dy = dy.view;
    wgrad.dw = dw.view;
    for (int step = 0; step < 3; step++) {
        struct test_precision precision = {
            .backend = backend, .fp8 = true, .out = FP8PIPE_FP32, .fast = true};
        struct test_operand hidden_rows = {hidden, h, 1};
        double error;

        must(fp8pipe_linear_forward(linears[0], &up, &ticket));
        down.submit.flags = 0;
        must(fp8pipe_linear_forward(linears[1], &down, &ticket));
        fp8 = test_tensor_read(w.pipe, w.result);
        test_fp8_dequantize(&fp8, hidden);
        wrong += !product_tensor_is_right(&w, &p, &fp8, 1.0f / fp8.scale_inv);
        test_fp8_free(&fp8);
        test_wait(w.pipe, ticket);
        /* The weight's bytes by the same scale: its slot's, or its own amax. */
        {
            double *seen = test_calloc((size_t)(OUT * h), sizeof(double));
            struct fp8pipe_tensor *tensor;

            must(fp8pipe_linear_weight_changed(linears[1], NULL, 0));
            must(fp8pipe_linear_forward(linears[1], &down, &ticket));
            tensor = product_quantized(&w, &w2, 1, seen);
            test_wait(w.pipe, ticket);
            test_matrix_get(&y, got);
            error = test_gemm_error(&precision, m, OUT, h, hidden_rows,
                                    (struct test_operand){seen, h, 1}, NULL, NULL, got);
            wrong += !(error <= 1);
            /* dX = dY . W + what is there, and apart from it. */
            for (int apart = 0; apart <= 1; apart++) {
                double *dy_bytes = test_calloc((size_t)(m * OUT), sizeof(double));
                struct fp8pipe_tensor *dy_tensor = product_quantized(&w, &dy, 2, dy_bytes);

                test_matrix_set(&dx, before);
                dgrad.residual = apart ? added.view : dx.view;
                dgrad.saved = saved[1];
                must(fp8pipe_linear_dgrad(linears[1], &dgrad, &ticket));
                test_wait(w.pipe, ticket);
                test_matrix_get(&dx, got);
                error =
                    test_gemm_error(&precision, m, h, OUT, (struct test_operand){dy_bytes, OUT, 1},
                                    (struct test_operand){seen, 1, h}, NULL, before, got);
                wrong += !(error <= 1);
                must(fp8pipe_tensor_destroy(dy_tensor));
                free(dy_bytes);
            }
            must(fp8pipe_tensor_destroy(tensor));
            free(seen);
        }
        wgrad.saved = saved[1];
        must(fp8pipe_linear_wgrad(linears[1], &wgrad, &ticket));
        test_wait(w.pipe, ticket);
        test_update(w.scaling);
    }
    is_int(wrong, 0,
           "%s, %s, %lld tokens, %lld hidden: a layer's result in FP8 is the next one's X", w.name,
           how, (long long)m, (long long)h);
    must(fp8pipe_linear_destroy(NULL));
    must(fp8pipe_tensor_destroy(saved[0]));
    must(fp8pipe_tensor_destroy(saved[1]));
    must(fp8pipe_linear_destroy(linears[0]));
    must(fp8pipe_linear_destroy(linears[1]));
    is_int(product_damage(&p) + test_matrix_damage(&dx) + test_matrix_damage(&y), 0,
           "%s, %s: and nothing else is written", w.name, how);
    product_free(&p);
    test_matrix_free(&w2);
    test_matrix_free(&y);
    test_matrix_free(&dy);
    test_matrix_free(&dw);
    test_matrix_free(&dx);
    test_matrix_free(&added);
    free(w2_seen);
    free(dy_seen);
    free(before);
    free(hidden);
    free(got);
    world_close(&w);
}

static void cases(enum fp8pipe_backend backend)
{
    watchdog("layers", 120);
    scaled_from_submit(backend);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        layers(backend, (enum fp8pipe_mode)mode, 24, 64);
        layers(backend, (enum fp8pipe_mode)mode, 7, 37);
    }
}

int main(void)
{
    test_each_backend(cases);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        watchdog("ways and failures", 60);
        ways((enum fp8pipe_mode)mode);
        failures((enum fp8pipe_mode)mode);
    }
    return done_testing();
}
