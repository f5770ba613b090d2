/*
 * fp8pipe_linear_prepare: once it is done the weight's matrix is not read any more, by no FP8 op of
 * that version, and its memory may be anything else's.
 */
#include <stdlib.h>

#include "chaos.h"
#include "product.h"

enum { TOKENS = 6, SIDE = 32 };

struct prepared {
    struct world w;
    struct product p; /* A: X, B: the weight */
    struct fp8pipe_linear *linear;
    struct test_matrix dy;
    double *dy_seen;
};

static void prepared_open(struct prepared *t, struct fp8pipe *pipe)
{
    struct config c = {.m = TOKENS, .n = SIDE, .k = SIDE, .fp8 = true, .in = FP8PIPE_FP32};

    world_open(&t->w, pipe, 3);
    product_make(&t->w, &t->p, &c);
    t->dy = product_matrix(&t->w, &c, FP8PIPE_FP32, TOKENS, SIDE, 1, &t->dy_seen);
    must(fp8pipe_tensor_destroy(product_quantized(&t->w, &t->dy, 2, t->dy_seen)));
    t->linear = test_linear(pipe, t->p.b.view, t->w.scaling);
}

static void prepared_close(struct prepared *t)
{
    test_drain(t->w.pipe);
    must(fp8pipe_linear_destroy(t->linear));
    test_matrix_free(&t->dy);
    free(t->dy_seen);
    product_free(&t->p);
    world_close(&t->w);
}

static enum fp8pipe_status prepare(struct prepared *t, uint32_t copies, int32_t lane,
                                   fp8pipe_ticket *ticket)
{
    struct fp8pipe_prepare_op op = FP8PIPE_PREPARE_OP_INIT;

    op.submit = ON(lane);
    op.copies = copies;
    return fp8pipe_linear_prepare(t->linear, &op, ticket);
}

static enum fp8pipe_status forward(struct prepared *t, struct fp8pipe_matrix y, int32_t lane,
                                   fp8pipe_ticket *ticket)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit = ON(lane);
    op.submit.flags = FP8PIPE_NO_AMAX;
    op.x = t->p.a.view;
    op.y = y;
    return fp8pipe_linear_forward(t->linear, &op, ticket);
}

static enum fp8pipe_status dgrad(struct prepared *t, struct fp8pipe_matrix dx, int32_t lane,
                                 fp8pipe_ticket *ticket)
{
    struct fp8pipe_dgrad_op op = FP8PIPE_DGRAD_OP_INIT;

    op.submit = ON(lane);
    op.submit.flags = FP8PIPE_NO_AMAX;
    op.dy = t->dy.view;
    op.dx = dx;
    return fp8pipe_linear_dgrad(t->linear, &op, ticket);
}

/* As a part of the allowed error. */
static double error_of(struct prepared *t, struct fp8pipe_matrix d, bool gradient)
{
    struct test_precision precision = {
        .backend = t->w.backend, .fp8 = true, .out = FP8PIPE_FP32, .fast = !gradient};
    struct test_operand x = {t->p.a_seen, SIDE, 1}, w = {t->p.b_seen, SIDE, 1};
    struct test_operand dy = {t->dy_seen, SIDE, 1}, turned = {t->p.b_seen, 1, SIDE};
    double got[TOKENS * SIDE];
    float values[TOKENS * SIDE];

    must(fp8pipe_download(t->w.pipe, values, d.data, sizeof(values)));
    for (int i = 0; i < TOKENS * SIDE; i++)
        got[i] = (double)values[i];
    return test_gemm_error(&precision, TOKENS, SIDE, SIDE, gradient ? dy : x, gradient ? turned : w,
                           NULL, NULL, got);
}

/* A dense FP32 matrix of TOKENS x SIDE where the weight lies. */
static struct fp8pipe_matrix over_weight(const struct prepared *t)
{
    struct fp8pipe_matrix over = t->p.b.view;

    over.rows = TOKENS;
    over.cols = over.stride = SIDE;
    return over;
}

static void weight_is_free(enum fp8pipe_backend backend, enum fp8pipe_mode mode, uint32_t copies)
{
    const char *how = mode_name(mode);
    struct prepared t;
    fp8pipe_ticket ticket;

    prepared_open(&t, async_open(backend, mode, 2, 0, NULL));
    is_int(forward(&t, over_weight(&t), 0, NULL), FP8PIPE_EINVAL,
           "%s, %s: before, an output may not lie over the weight", t.w.name, how);
    must(prepare(&t, copies, 1, &ticket));
    test_wait(t.w.pipe, ticket);
    ok(test_slot(t.w.scaling, 1).amax > 0, "%s, %s: the weight's amax is folded", t.w.name, how);
    test_matrix_poison(&t.p.b);
    must(forward(&t, t.p.d.view, 0, &ticket));
    test_wait(t.w.pipe, ticket);
    ok(error_of(&t, t.p.d.view, false) <= 1, "%s, %s: a forward does not read it any more",
       t.w.name, how);
    must(dgrad(&t, over_weight(&t), 0, &ticket));
    test_wait(t.w.pipe, ticket);
    ok(error_of(&t, over_weight(&t), true) <= 1,
       "%s, %s: nor does a dgrad, whose result may lie in its memory", t.w.name, how);
    must(prepare(&t, FP8PIPE_ROWWISE, 0, NULL));
    must(forward(&t, over_weight(&t), 1, &ticket));
    test_wait(t.w.pipe, ticket);
    ok(error_of(&t, over_weight(&t), false) <= 1, "%s, %s: and a forward's, after another prepare",
       t.w.name, how);
    must(fp8pipe_linear_weight_changed(t.linear, NULL, 0));
    is_int(forward(&t, over_weight(&t), 0, NULL), FP8PIPE_EINVAL,
           "%s, %s: a new version is read again", t.w.name, how);
    prepared_close(&t);
}

/* A prepare that fails leaves the quantize to the next op, and the weight in use. */
static void fails(enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 2, 32, NULL);
    const char *how = mode_name(mode);
    struct prepared t;
    fp8pipe_ticket ticket;

    prepared_open(&t, chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0));
    chaos_fail(CHAOS_QUANTIZE, NULL, 1, FP8PIPE_ELAUNCH);
    must(prepare(&t, FP8PIPE_ROWWISE, 0, &ticket));
    is_int(fp8pipe_wait(t.w.pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ELAUNCH,
           "%s: a prepare fails", how);
    is_int(forward(&t, over_weight(&t), 1, NULL), FP8PIPE_EINVAL, "%s: the weight is still read",
           how);
    must(forward(&t, t.p.d.view, 1, &ticket));
    test_wait(t.w.pipe, ticket);
    ok(error_of(&t, t.p.d.view, false) <= 1, "%s: by the next forward", how);
    prepared_close(&t);
    chaos_check("a prepare that fails");
}

static void refusals(enum fp8pipe_backend backend)
{
    struct fp8pipe_prepare_op op = FP8PIPE_PREPARE_OP_INIT;
    struct fp8pipe_linear *plain;
    struct prepared t;

    prepared_open(&t, async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL));
    plain = test_linear(t.w.pipe, t.p.b.view, NULL);
    is_int(fp8pipe_linear_prepare(plain, &op, NULL), FP8PIPE_EINVAL,
           "%s: an unquantized linear is refused: %s", t.w.name, fp8pipe_last_error());
    is_int(fp8pipe_linear_prepare(NULL, &op, NULL), FP8PIPE_EINVAL, "%s: and none", t.w.name);
    is_int(prepare(&t, 0, 0, NULL), FP8PIPE_EINVAL, "%s: no copies", t.w.name);
    is_int(prepare(&t, FP8PIPE_TRANSPOSED, 0, NULL), FP8PIPE_EINVAL, "%s: not the row-wise one",
           t.w.name);
    is_int(prepare(&t, 7, 0, NULL), FP8PIPE_EINVAL, "%s: a third one", t.w.name);
    op.reserved = 1;
    is_int(fp8pipe_linear_prepare(t.linear, &op, NULL), FP8PIPE_EINVAL, "%s: reserved = 1",
           t.w.name);
    op.reserved = 0;
    op.submit.flags = FP8PIPE_NO_AMAX;
    is_int(fp8pipe_linear_prepare(t.linear, &op, NULL), FP8PIPE_EINVAL,
           "%s: NO_AMAX: a weight's first quantize is always folded", t.w.name);
    must(fp8pipe_linear_destroy(plain));
    prepared_close(&t);
}

static void cases(enum fp8pipe_backend backend)
{
    watchdog("prepare", 60);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        weight_is_free(backend, (enum fp8pipe_mode)mode, FP8PIPE_ROWWISE);
        weight_is_free(backend, (enum fp8pipe_mode)mode, FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED);
    }
    refusals(backend);
}

int main(void)
{
    test_each_backend(cases);
    fails(FP8PIPE_ASYNC);
    fails(FP8PIPE_INLINE);
    return done_testing();
}
