/* Guards failure: who is cancelled, what is answered and logged, that nothing is left half-done. */
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "chaos.h"

#define M 5
#define N 24
#define K 20

enum kind {
    QUANTIZE,
    GEMM,
    FORWARD,
    DGRAD,
    WGRAD,
    UPDATE,
    SKIP,
    COPY,
    CALL,
    HOST_CALL,
    READ,
    KINDS
};

static const char *const kind_names[KINDS] = {"quantize", "gemm",      "forward", "dgrad",
                                              "wgrad",    "update",    "skip",    "copy",
                                              "call",     "host_call", "read"};

/* A pipe on the chaos backend, with what every kind of op needs. */
struct scene {
    struct fp8pipe *pipe;
    enum fp8pipe_mode mode;
    struct log_lines *log;
    struct test_matrix x, w, y, dy, dx, dw, bytes, copied;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *shared;   /* X, both copies */
    struct fp8pipe_tensor *saved;    /* a forward's, KEEP_ALL */
    struct fp8pipe_tensor *filled;   /* what QUANTIZE fills */
    struct fp8pipe_tensor *dy_saved; /* what DGRAD fills */
};

static fp8pipe_ticket submit_forward(struct scene *s, struct fp8pipe_submit submit,
                                     struct fp8pipe_tensor *x_tensor, struct test_matrix *y,
                                     struct fp8pipe_tensor *saved)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = submit;
    if (x_tensor)
        op.x_tensor = x_tensor;
    else
        op.x = s->x.view;
    op.y = y->view;
    op.saved = saved;
    op.keep = saved ? FP8PIPE_KEEP_ALL : FP8PIPE_KEEP_NOTHING;
    must(fp8pipe_linear_forward(s->linear, &op, &ticket));
    return ticket;
}

static fp8pipe_ticket submit_dgrad(struct scene *s, struct fp8pipe_submit submit)
{
    struct fp8pipe_dgrad_op op = FP8PIPE_DGRAD_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = submit;
    op.dy = s->dy.view;
    op.saved = s->saved;
    op.dx = s->dx.view;
    op.dy_saved = s->dy_saved;
    must(fp8pipe_linear_dgrad(s->linear, &op, &ticket));
    return ticket;
}

static fp8pipe_ticket submit_wgrad(struct scene *s, struct fp8pipe_submit submit, bool from_dgrad)
{
    struct fp8pipe_wgrad_op op = FP8PIPE_WGRAD_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = submit;
    if (from_dgrad)
        op.dy_tensor = s->dy_saved;
    else
        op.dy = s->dy.view;
    op.saved = s->saved;
    op.dw = s->dw.view;
    must(fp8pipe_linear_wgrad(s->linear, &op, &ticket));
    return ticket;
}

static fp8pipe_ticket submit_gemm(struct scene *s, struct fp8pipe_submit submit,
                                  struct fp8pipe_tensor *tensor)
{
    struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = submit;
    if (tensor)
        op.a_tensor = op.b_tensor = tensor;
    else
        op.a = op.b = s->x.view;
    op.d = s->dx.view; /* [M, K] holds [M, M] */
    op.d.cols = M;
    must(fp8pipe_gemm(s->pipe, &op, &ticket));
    return ticket;
}

static fp8pipe_ticket submit_read(struct scene *s, struct fp8pipe_submit submit,
                                  struct fp8pipe_tensor *tensor)
{
    struct fp8pipe_read_op op = FP8PIPE_READ_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = submit;
    op.rowwise = s->bytes.view.data;
    must(fp8pipe_tensor_read(tensor, &op, &ticket));
    return ticket;
}

static fp8pipe_ticket submit_kind(struct scene *s, enum kind kind, struct fp8pipe_submit submit)
{
    static enum fp8pipe_status fails = FP8PIPE_ELAUNCH;
    struct fp8pipe_scaling_op scaling_op = FP8PIPE_SCALING_OP_INIT;
    fp8pipe_ticket ticket = 0;

    scaling_op.submit = submit;
    switch (kind) {
    case QUANTIZE:
        return test_quantize(s->filled, s->x.view, s->scaling, 0,
                             FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED, submit);
    case GEMM:
        return submit_gemm(s, submit, s->shared);
    case FORWARD:
        return submit_forward(s, submit, NULL, &s->y, s->saved);
    case DGRAD:
        return submit_dgrad(s, submit);
    case WGRAD:
        return submit_wgrad(s, submit, false);
    case UPDATE:
        must(fp8pipe_scaling_update(s->scaling, &scaling_op, &ticket));
        return ticket;
    case SKIP:
        must(fp8pipe_scaling_skip(s->scaling, &scaling_op, &ticket));
        return ticket;
    case COPY:
        must(try_copy(s->pipe, submit, s->copied.view.data, s->x.view.data, M * K * sizeof(float),
                      &ticket));
        return ticket;
    case CALL:
        return submit_call(s->pipe, submit, call_fails, &fails);
    case HOST_CALL:
        return submit_host_call(s->pipe, submit, work_nothing, NULL);
    case READ:
        return submit_read(s, submit, s->shared);
    case KINDS:
        break;
    }
    bail("no such kind");
}

static void scene_open(struct scene *s, enum fp8pipe_backend backend, enum fp8pipe_mode mode,
                       struct log_lines *log)
{
    struct fp8pipe_options options = async_options(mode, 3, 0, log);
    struct test_rng rng = {7};

    memset(s, 0, sizeof(*s));
    s->mode = mode;
    s->log = log;
    s->pipe = chaos_open_pipe(backend, &options, 0);
    s->x = test_matrix_random(s->pipe, FP8PIPE_FP32, M, K, 0, 0, 1, &rng, NULL);
    s->w = test_matrix_random(s->pipe, FP8PIPE_FP32, N, K, 0, 0, 1, &rng, NULL);
    s->dy = test_matrix_random(s->pipe, FP8PIPE_FP32, M, N, 0, 0, 1, &rng, NULL);
    s->y = test_matrix_make(s->pipe, FP8PIPE_FP32, M, N, 0, 0);
    s->dx = test_matrix_make(s->pipe, FP8PIPE_FP32, M, K, 0, 0);
    s->dw = test_matrix_make(s->pipe, FP8PIPE_FP32, N, K, 0, 0);
    s->bytes = test_matrix_make(s->pipe, FP8PIPE_FP32, M, K, 0, 0);
    s->copied = test_matrix_make(s->pipe, FP8PIPE_FP32, M, K, 0, 0);
    s->scaling = test_scaling(s->pipe, 3, 16);
    s->linear = test_linear(s->pipe, s->w.view, s->scaling);
    must(fp8pipe_tensor_create(s->pipe, &s->shared));
    must(fp8pipe_tensor_create(s->pipe, &s->saved));
    must(fp8pipe_tensor_create(s->pipe, &s->filled));
    must(fp8pipe_tensor_create(s->pipe, &s->dy_saved));
    test_quantize(s->shared, s->x.view, s->scaling, 0, FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED, ON(0));
    submit_forward(s, ON(0), NULL, &s->y, s->saved);
    test_drain(s->pipe);
}

static void scene_close(struct scene *s)
{
    test_matrix_free(&s->x);
    test_matrix_free(&s->w);
    test_matrix_free(&s->dy);
    test_matrix_free(&s->y);
    test_matrix_free(&s->dx);
    test_matrix_free(&s->dw);
    test_matrix_free(&s->bytes);
    test_matrix_free(&s->copied);
    test_close(s->pipe);
    must(fp8pipe_tensor_destroy(s->shared));
    must(fp8pipe_tensor_destroy(s->saved));
    must(fp8pipe_tensor_destroy(s->filled));
    must(fp8pipe_tensor_destroy(s->dy_saved));
    must(fp8pipe_linear_destroy(s->linear));
    must(fp8pipe_scaling_destroy(s->scaling));
    chaos_check("failure");
}

/* A call that lets the nth following piece of work in its own stream fail. */
static enum fp8pipe_status arm(struct fp8pipe_stream *stream, void *nth)
{
    chaos_fail(CHAOS_WORK, stream, *(unsigned *)nth, FP8PIPE_ELAUNCH);
    return FP8PIPE_OK;
}

/* ---- Who is cancelled --------------------------------------------------------------------- */

#define STEPS 29
#define CANCELLED 13
#define UPDATED 21 /* the step that is an update */

struct step {
    fp8pipe_ticket ticket;
    enum fp8pipe_outcome want;
    int ran;
    struct answer issued, done;
};

static void step_add(struct scene *s, struct step *step, struct fp8pipe_submit submit,
                     enum fp8pipe_outcome want)
{
    step->want = want;
    step->ticket = submit_host_call(s->pipe, submit, work_count, &step->ran);
}

/* True if everything that can be asked about the op gives the same and right answer. */
static bool step_is_right(struct scene *s, struct step *step, fp8pipe_ticket root)
{
    bool good = step->want == FP8PIPE_OUTCOME_OK;
    enum fp8pipe_status want = good ? FP8PIPE_OK : FP8PIPE_ELAUNCH;
    enum fp8pipe_status issued, done;
    struct fp8pipe_state state;
    char sentence[200] = "unset";

    issued = fp8pipe_wait(s->pipe, step->ticket, FP8PIPE_ISSUED, TEST_TIMEOUT_NS);
    done = fp8pipe_wait(s->pipe, step->ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS);
    answer_await(&step->issued);
    answer_await(&step->done);
    state = state_of(s->pipe, step->ticket);
    must(fp8pipe_error_get(s->pipe, step->ticket, sentence, sizeof(sentence)));
    return issued == want && done == want && step->issued.status == want &&
           step->done.status == want && step->issued.calls == 1 && step->done.calls == 1 &&
           step->done.ticket == step->ticket && state.issued && state.done &&
           state.outcome == step->want && state.status == want && state.root == (good ? 0 : root) &&
           (sentence[0] == '\0') == good;
}

/* What surrounds the failing op (step 2), on lanes 0 and 1, automatic ones, and 2 as a witness. */
static void chain(struct scene *s, enum kind kind, bool queued, struct step steps[STEPS])
{
    const enum fp8pipe_outcome good = FP8PIPE_OUTCOME_OK, bad = FP8PIPE_OUTCOME_CANCELLED;
    static unsigned first = 1;
    static struct gate gate; /* the launcher may still be leaving it when this returns */
    struct fp8pipe_submit submit;

    gate = (struct gate)GATE_INIT;
    memset(steps, 0, STEPS * sizeof(*steps));
    if (queued) {
        submit_call(s->pipe, ON(0), gate_call, &gate);
        gate_await(&gate, 1);
    }
    step_add(s, &steps[0], ON(0), good);
    if (kind == CALL)
        step_add(s, &steps[1], ON(0), good);
    else
        steps[1].ticket = submit_call(s->pipe, ON(0), arm, &first);
    submit = ON(0);
    submit.name = "the-culprit";
    steps[2].ticket = submit_kind(s, kind, submit);
    steps[2].want = FP8PIPE_OUTCOME_FAILED;
    step_add(s, &steps[3], AFTER(1, steps[2].ticket), bad); /* names it */
    step_add(s, &steps[4], ON(1), bad);                     /* behind 3 */
    step_add(s, &steps[5], ON(0), bad);                     /* behind it */
    for (int i = 6; i < 12; i++) /* so many that each lane gets some: they end nothing */
        step_add(s, &steps[i], ON(FP8PIPE_LANE_AUTO), good);
    step_add(s, &steps[12], ON(0), bad);
    step_add(s, &steps[13], ON(1), bad);
    for (int i = 14; i < 20; i++) /* nor do these start anything; they name 2 or 4 */
        step_add(s, &steps[i], AFTER(FP8PIPE_LANE_AUTO, steps[2 + i % 2 * 2].ticket), bad);
    step_add(s, &steps[20], ON(2), good);
    steps[UPDATED].ticket = submit_kind(s, UPDATE, ON(2)); /* ordered by the library only */
    step_add(s, &steps[22], AFTER(FP8PIPE_LANE_AUTO, steps[20].ticket), good);
    step_add(s, &steps[23], test_submit(0, FP8PIPE_RESUME, 0, 0), good);
    step_add(s, &steps[24], ON(0), good);
    step_add(s, &steps[25], test_submit(1, FP8PIPE_RESUME, steps[2].ticket, 0), bad);
    step_add(s, &steps[26], ON(1), bad); /* the RESUME before it was cancelled */
    step_add(s, &steps[27], test_submit(1, FP8PIPE_RESUME, steps[24].ticket, 0), good);
    step_add(s, &steps[28], ON(1), good);
    for (int i = 0; i < STEPS; i++) {
        must(fp8pipe_defer(s->pipe, steps[i].ticket, FP8PIPE_DONE, answer_take, &steps[i].done, 0));
        must(fp8pipe_defer(s->pipe, steps[i].ticket, FP8PIPE_ISSUED, answer_take, &steps[i].issued,
                           0));
    }
    if (queued)
        gate_open(&gate);
}

static void cancelled_ones(struct scene *s, enum kind kind, bool queued, const char *what)
{
    struct fp8pipe_stats before = stats_of(s->pipe, -1), after;
    struct step *steps = test_calloc(STEPS, sizeof(*steps));
    int wrong = 0, ran_wrongly = 0;
    char sentence[200];
    fp8pipe_ticket late;

    log_lines_clear(s->log);
    chain(s, kind, queued, steps);
    is_int(fp8pipe_drain(s->pipe, TEST_TIMEOUT_NS), FP8PIPE_OK, "%s %s: drain does not mind", what,
           kind_names[kind]);
    for (int i = 0; i < STEPS; i++) {
        bool counts = i != 2 && i != UPDATED && !(i == 1 && kind != CALL);

        if (!step_is_right(s, &steps[i], steps[2].ticket)) {
            struct fp8pipe_state state = state_of(s->pipe, steps[i].ticket);

            wrong++;
            diag("step %d: outcome %d, %s, root %jx", i, (int)state.outcome,
                 fp8pipe_status_name(state.status), (uintmax_t)state.root);
        }
        ran_wrongly += counts && steps[i].ran != (steps[i].want == FP8PIPE_OUTCOME_OK);
    }
    is_int(wrong, 0, "%s %s: exactly the right ops are cancelled, every question answered", what,
           kind_names[kind]);
    is_int(ran_wrongly, 0, "%s %s: what is cancelled has not run, the rest has", what,
           kind_names[kind]);
    must(fp8pipe_error_get(s->pipe, steps[26].ticket, sentence, sizeof(sentence)));
    ok(kind == CALL || strstr(sentence, "chaos"), "%s %s: the root's sentence is kept (%s)", what,
       kind_names[kind], sentence);
    if (!ok(log_lines_count(s->log) == 1 && log_lines_hold(s->log, "the-culprit"),
            "%s %s: one line in the log, with the op's name", what, kind_names[kind]))
        diag("%d lines, first: %s", log_lines_count(s->log), s->log->line[0]);
    after = stats_of(s->pipe, -1);
    ok(after.failed - before.failed == 1 && after.cancelled - before.cancelled == CANCELLED,
       "%s %s: the stats count one failed and the cancelled", what, kind_names[kind]);
    late = submit_host_call(s->pipe, AFTER(-1, steps[2].ticket), work_nothing, NULL);
    is_int(fp8pipe_wait(s->pipe, late, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ELAUNCH,
           "%s %s: an op that names it later is cancelled too", what, kind_names[kind]);
    free(steps);
    submit_forward(s, ON(2), NULL, &s->y, s->saved); /* which the failure may have emptied */
    test_drain(s->pipe);
}

static void kinds(enum fp8pipe_backend backend)
{
    static struct log_lines log = LOG_LINES_INIT;
    struct scene scene;

    for (int variant = 0; variant < 3; variant++) {
        const char *const names[3] = {"async, racing,", "async, queued,", "inline,"};

        watchdog(names[variant], 60);
        scene_open(&scene, backend, variant == 2 ? FP8PIPE_INLINE : FP8PIPE_ASYNC, &log);
        for (int kind = 0; kind < KINDS; kind++)
            cancelled_ones(&scene, (enum kind)kind, variant == 1, names[variant]);
        scene_close(&scene);
    }
}

/* ---- Half-failed ops ---------------------------------------------------------------------- */

/* The result of a kind, as bytes; outputs of a kind that has none are empty. */
static size_t result_of(struct scene *s, enum kind kind, uint8_t result[N * K * sizeof(float)])
{
    struct test_matrix *const outputs[KINDS] = {
        [GEMM] = &s->dx, /* [M, M] in a [M, K] matrix: the rest is poison, which is stable too */
        [FORWARD] = &s->y,   [DGRAD] = &s->dx,   [WGRAD] = &s->dw,
        [COPY] = &s->copied, [READ] = &s->bytes,
    };
    struct test_matrix *from = outputs[kind];

    if (kind == QUANTIZE) {
        struct test_fp8 fp8 = test_tensor_read(s->pipe, s->filled);

        memcpy(result, fp8.rowwise, M * K);
        memcpy(result + M * K, fp8.transposed, M * K);
        test_fp8_free(&fp8);
        return 2 * M * K;
    }
    if (!from)
        return 0;
    test_matrix_get_raw(from, result);
    return (size_t)(from->view.rows * from->view.cols) * sizeof(float);
}

static void poison_results(struct scene *s)
{
    test_matrix_poison(&s->y);
    test_matrix_poison(&s->dx);
    test_matrix_poison(&s->dw);
    test_matrix_poison(&s->copied);
    test_matrix_poison(&s->bytes);
}

static int64_t written_results(struct scene *s)
{
    return test_matrix_written(&s->y) + test_matrix_written(&s->dx) + test_matrix_written(&s->dw) +
           test_matrix_written(&s->copied) + test_matrix_written(&s->bytes);
}

/* Fails each piece of work of an op in turn, behind a stream that is held. */
static void half_failed(struct scene *s, enum kind kind)
{
    static uint8_t want[N * K * sizeof(float)], got[sizeof(want)];
    unsigned pieces, kernels, broken = 0, early = 0, late = 0, differs = 0;
    uint64_t before, allocs_before;
    size_t bytes;

    must(fp8pipe_linear_weight_changed(s->linear, NULL, 0));
    poison_results(s);
    before = chaos_count(CHAOS_WORK);
    allocs_before = chaos_count(CHAOS_ALLOC);
    test_wait(s->pipe, submit_kind(s, kind, ON(0)));
    pieces = (unsigned)(chaos_count(CHAOS_WORK) - before);
    kernels = pieces - (unsigned)(chaos_count(CHAOS_ALLOC) - allocs_before);
    bytes = result_of(s, kind, want);
    for (unsigned nth = 1; nth <= pieces; nth++) {
        struct gate gate = GATE_INIT;
        fp8pipe_ticket failed;

        must(fp8pipe_linear_weight_changed(s->linear, NULL, 0));
        submit_host_call(s->pipe, ON(0), gate_work, &gate);
        submit_call(s->pipe, ON(0), arm, &nth);
        failed = submit_kind(s, kind, ON(0));
        broken += fp8pipe_wait(s->pipe, failed, FP8PIPE_ISSUED, TEST_TIMEOUT_NS) != FP8PIPE_ELAUNCH;
        if (nth == pieces && kernels > 1) /* at least one was launched before */
            early += state_of(s->pipe, failed).done != 0;
        gate_open(&gate);
        broken += fp8pipe_wait(s->pipe, failed, FP8PIPE_DONE, TEST_TIMEOUT_NS) != FP8PIPE_ELAUNCH;
        poison_results(s);
        test_wait(s->pipe, submit_host_call(s->pipe, test_submit(0, FP8PIPE_RESUME, 0, 0),
                                            work_nothing, NULL));
        late += written_results(s) != 0;
        if (kind == FORWARD || kind == QUANTIZE) { /* what the failure emptied */
            submit_forward(s, ON(0), NULL, &s->y, s->saved);
            test_drain(s->pipe);
            poison_results(s);
        }
        test_wait(s->pipe, submit_kind(s, kind, ON(0)));
        differs += result_of(s, kind, got) != bytes || memcmp(got, want, bytes) != 0;
    }
    ok(pieces > 0 && broken == 0, "%s: each of its %u pieces of work can fail it", kind_names[kind],
       pieces);
    is_int(early, 0, "%s: is final only when what it launched has finished", kind_names[kind]);
    is_int(late, 0, "%s: nothing is written after the final mark", kind_names[kind]);
    is_int(differs, 0, "%s: the next one gives the right bits", kind_names[kind]);
}

static void halves(enum fp8pipe_backend backend)
{
    const enum kind able[] = {QUANTIZE, GEMM, FORWARD, DGRAD, WGRAD, COPY, READ};

    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        struct scene scene;

        scene_open(&scene, backend, (enum fp8pipe_mode)mode, NULL);
        for (size_t i = 0; i < sizeof(able) / sizeof(able[0]); i++) {
            watchdog(kind_names[able[i]], 60);
            half_failed(&scene, able[i]);
        }
        scene_close(&scene);
    }
}

/* ---- What depends through tensors and weights --------------------------------------------- */

static enum fp8pipe_outcome outcome(struct scene *s, fp8pipe_ticket ticket, fp8pipe_ticket root)
{
    struct fp8pipe_state state;

    (void)fp8pipe_wait(s->pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS);
    state = state_of(s->pipe, ticket);
    if (state.outcome != FP8PIPE_OUTCOME_OK && state.root != root)
        diag("the root is %jx", (uintmax_t)state.root);
    return state.outcome;
}

#define IS_CANCELLED(ticket, root, ...)                                                            \
    is_int(outcome(s, ticket, root), FP8PIPE_OUTCOME_CANCELLED, __VA_ARGS__)
#define IS_GOOD(ticket, ...) is_int(outcome(s, ticket, 0), FP8PIPE_OUTCOME_OK, __VA_ARGS__)

static void through_tensors(struct scene *s)
{
    const int32_t any = FP8PIPE_LANE_AUTO;
    unsigned first = 1;
    fp8pipe_ticket armed, root, reader[4];

    armed = submit_call(s->pipe, ON(0), arm, &first);
    root = submit_kind(s, QUANTIZE, AFTER(0, armed));
    reader[0] = submit_read(s, ON(any), s->filled);
    reader[1] = submit_gemm(s, ON(any), s->filled);
    reader[2] = submit_forward(s, ON(any), s->filled, &s->y, NULL);
    IS_CANCELLED(reader[0], root, "a failed quantize cancels a read of its tensor");
    IS_CANCELLED(reader[1], root, "and a gemm with it");
    IS_CANCELLED(reader[2], root, "and a forward from it");
    submit_kind(s, QUANTIZE, test_submit(0, FP8PIPE_RESUME, 0, 0));
    IS_GOOD(submit_read(s, ON(any), s->filled), "a new filling can be read again");

    submit_call(s->pipe, ON(0), arm, &first);
    root = submit_forward(s, ON(0), NULL, &s->y, s->saved);
    reader[0] = submit_dgrad(s, ON(any));
    reader[1] = submit_wgrad(s, ON(any), false);
    reader[2] = submit_wgrad(s, ON(any), true);
    reader[3] = submit_kind(s, UPDATE, ON(any));
    IS_CANCELLED(reader[0], root, "a failed forward cancels its dgrad");
    IS_CANCELLED(reader[1], root, "and its wgrad");
    IS_CANCELLED(reader[2], root, "and the wgrad from the cancelled dgrad's dY");
    IS_GOOD(reader[3], "an update after it runs");

    submit_forward(s, test_submit(0, FP8PIPE_RESUME, 0, 0), NULL, &s->y, s->saved);
    submit_call(s->pipe, ON(0), arm, &first);
    root = submit_dgrad(s, ON(0));
    IS_CANCELLED(submit_wgrad(s, ON(any), true), root, "a failed dgrad cancels a wgrad of its dY");
    IS_GOOD(submit_wgrad(s, ON(any), false), "and not one that quantizes dY itself");
    IS_GOOD(submit_forward(s, test_submit(0, FP8PIPE_RESUME, 0, 0), NULL, &s->y, s->saved),
            "the lane goes on");
}

static void through_weights(struct scene *s)
{
    struct test_matrix elsewhere = test_matrix_make(s->pipe, FP8PIPE_FP32, M, N, 0, 0);
    uint8_t want[M * N * sizeof(float)], got[sizeof(want)];
    enum fp8pipe_status fails = FP8PIPE_ELAUNCH;
    struct gate gate = GATE_INIT;
    unsigned first = 1;
    fp8pipe_ticket root, other;

    must(fp8pipe_linear_weight_changed(s->linear, NULL, 0)); /* quantized with today's scale */
    test_wait(s->pipe, submit_forward(s, ON(1), s->shared, &s->y, NULL));
    test_matrix_get_raw(&s->y, want);
    must(fp8pipe_linear_weight_changed(s->linear, NULL, 0));
    if (s->mode == FP8PIPE_ASYNC)
        submit_call(s->pipe, ON(1), gate_call, &gate); /* the other is submitted before it fails */
    submit_call(s->pipe, ON(0), arm, &first);
    root = submit_forward(s, ON(0), s->shared, &s->y, NULL);
    other = submit_forward(s, ON(1), s->shared, &elsewhere, NULL);
    is_int(fp8pipe_wait(s->pipe, root, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ELAUNCH,
           "the op that was to quantize a weight fails");
    gate_open(&gate);
    IS_GOOD(other, "another lane's quantizes it");
    test_matrix_get_raw(&elsewhere, got);
    is_mem(got, want, sizeof(want), "and has the right result");

    /* a version whose writer failed */
    must(fp8pipe_linear_weight_changed(s->linear, NULL, 0));
    submit_forward(s, test_submit(0, FP8PIPE_RESUME, 0, 0), NULL, &s->y, s->saved);
    root = submit_call(s->pipe, ON(2), call_fails, &fails);
    must(fp8pipe_linear_weight_changed(s->linear, NULL, root));
    IS_CANCELLED(submit_forward(s, ON(FP8PIPE_LANE_AUTO), NULL, &s->y, NULL), root,
                 "a forward with a weight whose writer failed is cancelled");
    IS_GOOD(submit_dgrad(s, ON(0)), "the dgrad of a forward before it is not");
    must(fp8pipe_linear_weight_changed(s->linear, NULL, 0));
    IS_GOOD(submit_forward(s, ON(0), NULL, &s->y, s->saved),
            "nor is a forward of the next version");
    test_matrix_free(&elsewhere);
}

static void dependents(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        struct scene scene;

        watchdog("dependents", 60);
        scene_open(&scene, backend, (enum fp8pipe_mode)mode, NULL);
        through_tensors(&scene);
        through_weights(&scene);
        scene_close(&scene);
    }
}

int main(void)
{
    test_each_backend(kinds);
    test_each_backend(halves);
    test_each_backend(dependents);
    return done_testing();
}
