/* Guards the order that the library keeps by itself where an op on the way is cancelled, has no
 * event of its own, cannot make its stream wait, or names what its lane has forgotten. */
#include "async.h"
#include "chaos.h"
#include "submit.h"

struct world {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensors[2];
    struct test_matrix x; /* its only element is 4 */
};

static void world_open(struct world *w, struct fp8pipe *pipe)
{
    const double four = 4;

    w->pipe = pipe;
    w->scaling = test_scaling(pipe, 1, 0);
    for (int i = 0; i < 2; i++)
        must(fp8pipe_tensor_create(pipe, &w->tensors[i]));
    w->x = test_matrix_make(pipe, FP8PIPE_FP32, 1, 1, 0, 0);
    test_matrix_set(&w->x, &four);
}

static void world_close(struct world *w)
{
    for (int i = 0; i < 2; i++)
        must(fp8pipe_tensor_destroy(w->tensors[i]));
    must(fp8pipe_scaling_destroy(w->scaling));
    test_matrix_free(&w->x);
    test_close(w->pipe);
}

static fp8pipe_ticket quantize_on(struct world *w, int tensor, int32_t lane)
{
    return test_quantize(w->tensors[tensor], w->x.view, w->scaling, 0, FP8PIPE_ROWWISE, ON(lane));
}

static fp8pipe_ticket update_on(struct world *w, int32_t lane)
{
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
    fp8pipe_ticket ticket = 0;

    update.submit = ON(lane);
    must(fp8pipe_scaling_update(w->scaling, &update, &ticket));
    return ticket;
}

/* What one update makes of a step that has seen 4 and nothing else. */
static bool updated_once(struct world *w)
{
    struct fp8pipe_slot_state slot = test_slot(w->scaling, 0);

    if (slot.has_scale && slot.scale == 112.0f && slot.amax == 0.0f)
        return true;
    diag("has_scale %d, scale %g, amax %g", slot.has_scale, (double)slot.scale, (double)slot.amax);
    return false;
}

/* The scaling remembers its last writer alone: that one stands for the uses before it. */
static void cancelled_writer(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    const char *name = mode_name(mode), *on = test_backend_name(backend);
    struct gate gate = GATE_INIT;
    fp8pipe_ticket cancelled, second;
    struct world w;

    watchdog("a cancelled writer", 60);
    world_open(&w, async_open(backend, mode, 3, 0, NULL));
    submit_host_call(w.pipe, ON(1), gate_work, &gate);
    quantize_on(&w, 0, 1);
    submit_call(w.pipe, ON(0), call_fails, &fails);
    cancelled = update_on(&w, 0);
    second = update_on(&w, 2);
    is_int(fp8pipe_wait(w.pipe, cancelled, FP8PIPE_ISSUED, TEST_TIMEOUT_NS), FP8PIPE_ECALL,
           "%s, %s: an update is cancelled", on, name);
    is_int(fp8pipe_wait(w.pipe, second, FP8PIPE_DONE, 20 * MS_NS), FP8PIPE_ETIMEDOUT,
           "%s, %s: the next one still comes after the quantize before it", on, name);
    gate_open(&gate);
    test_drain(w.pipe);
    ok(updated_once(&w), "%s, %s: whose amax it has taken", on, name);
    world_close(&w);
}

/* An op whose event cannot be made shares one, and is waited for like any other. */
static void no_event(enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 3, 32, NULL);
    const char *name = mode_name(mode);
    struct gate gate = GATE_INIT;
    fp8pipe_ticket held, without, last;
    struct world w;
    int counter = 0;

    watchdog("an event that cannot be made", 60);
    world_open(&w, chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0));
    submit_host_call(w.pipe, ON(1), gate_work, &gate);
    held = quantize_on(&w, 0, 1);
    is_int(fp8pipe_wait(w.pipe, held, FP8PIPE_ISSUED, TEST_TIMEOUT_NS), FP8PIPE_OK,
           "%s: a quantize is held", name);
    chaos_fail(CHAOS_EVENT_CREATE, NULL, 1, FP8PIPE_ENOMEM);
    without = quantize_on(&w, 1, 1);
    is_int(fp8pipe_wait(w.pipe, without, FP8PIPE_ISSUED, TEST_TIMEOUT_NS), FP8PIPE_OK,
           "%s: the one behind it is issued without an event of its own", name);
    is_int(chaos_failures(), 1, "%s: which could not be made", name);
    last = update_on(&w, 2);
    is_int(fp8pipe_wait(w.pipe, last, FP8PIPE_DONE, 20 * MS_NS), FP8PIPE_ETIMEDOUT,
           "%s: an update comes after both", name);
    is_int(fp8pipe_wait(w.pipe, without, FP8PIPE_DONE, 0), FP8PIPE_ETIMEDOUT,
           "%s: the op without an event is not done before it has run", name);
    gate_open(&gate);
    test_drain(w.pipe);
    ok(updated_once(&w), "%s: it has taken their amax", name);
    for (int i = 0; i < 100; i++)
        submit_host_call(w.pipe, ON(1), work_count, &counter);
    test_drain(w.pipe);
    is_int(counter, 100, "%s: the lane goes on", name);
    world_close(&w);
    chaos_check("an event that cannot be made");
}

static void *open_later(void *gate)
{
    sleep_ns(30 * MS_NS);
    gate_open(gate);
    return NULL;
}

/*
 * An update whose stream cannot be made to wait for one of two held quantizes stands for both all
 * the same, also when it is cancelled: the next update, which knows of it alone, takes their amax.
 */
static void failed_wait(enum fp8pipe_mode mode, bool cancelled)
{
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    struct fp8pipe_options options = async_options(mode, 4, 32, NULL);
    const char *name = mode_name(mode), *what = cancelled ? "a cancelled" : "an";
    struct gate gate = GATE_INIT;
    fp8pipe_ticket first;
    pthread_t opener;
    struct world w;

    watchdog("a wait that fails", 60);
    world_open(&w, chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0));
    for (int lane = 1; lane <= 2; lane++) {
        submit_host_call(w.pipe, ON(lane), gate_work, &gate);
        must(
            fp8pipe_wait(w.pipe, quantize_on(&w, lane - 1, lane), FP8PIPE_ISSUED, TEST_TIMEOUT_NS));
    }
    if (cancelled)
        submit_call(w.pipe, ON(0), call_fails, &fails);
    chaos_fail(CHAOS_STREAM_WAIT, NULL, 1, FP8PIPE_ELAUNCH);
    opener = test_thread(open_later, &gate);
    first = update_on(&w, 0);
    update_on(&w, 3);
    test_drain(w.pipe);
    test_join(opener);
    is_int(chaos_failures(), 1, "%s: a wait of %s update fails", name, what);
    is_int(fp8pipe_wait(w.pipe, first, FP8PIPE_DONE, 0), cancelled ? FP8PIPE_ECALL : FP8PIPE_OK,
           "%s: which waits itself instead", name);
    ok(updated_once(&w), "%s: the next update comes after what %s update came after", name, what);
    world_close(&w);
    chaos_check("a wait that fails");
}

/* ---- Uses on every lane, of as many as a pipe can have -------------------------------------- */

/* A use on `lane`, which is held, comes before an update; and the memory that it fills is given
 * back after reads on all lanes. */
static void far_lane(enum fp8pipe_mode mode, int32_t lane)
{
    struct gate gate = GATE_INIT;
    struct world w;
    pthread_t opener;
    float inverse[FP8PIPE_LANES_MAX] = {0};
    int wrong = 0;

    watchdog("a use on a far lane", 60);
    world_open(&w, async_open(FP8PIPE_BACKEND_HOST, mode, FP8PIPE_LANES_MAX, 32, NULL));
    submit_host_call(w.pipe, ON(lane), gate_work, &gate);
    quantize_on(&w, 0, lane);
    update_on(&w, 0);
    for (int32_t i = 0; i < FP8PIPE_LANES_MAX; i++) {
        struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
        fp8pipe_ticket ticket;

        read.submit = ON(i);
        read.scale_inv = &inverse[i];
        must(fp8pipe_tensor_read(w.tensors[0], &read, &ticket));
    }
    test_quantize(w.tensors[0], w.x.view, w.scaling, 0, FP8PIPE_ROWWISE,
                  test_submit(1, FP8PIPE_NO_AMAX, 0, 0));
    opener = test_thread(open_later, &gate);
    test_drain(w.pipe);
    test_join(opener);
    for (int i = 0; i < FP8PIPE_LANES_MAX; i++)
        wrong += inverse[i] != 1 / 112.0f;
    is_int(wrong, 0, "%s: every lane reads what lane %d filled", mode_name(mode), lane);
    ok(updated_once(&w), "%s: and the update came after that", mode_name(mode));
    world_close(&w);
}

/* ---- A predecessor that is forgotten while its successor waits ---------------------------- */

#define FAILURES 1030 /* more than a lane remembers */

static void forgotten(void)
{
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 2, 0, NULL);
    const struct fp8pipe_submit resume = test_submit(0, FP8PIPE_RESUME, 0, 0);
    struct fp8pipe_state state = FP8PIPE_STATE_INIT;
    struct gate gate = GATE_INIT;
    fp8pipe_ticket old, successor, last = 0;
    int counter = 0;

    watchdog("a forgotten predecessor", 60);
    old = submit_call(pipe, ON(0), call_fails, &fails);
    submit_call(pipe, ON(1), gate_call, &gate);
    successor = submit_host_call(pipe, AFTER(1, old), work_count, &counter);
    for (int i = 0; i < FAILURES; i++) {
        submit_call(pipe, resume, call_fails, &fails);
        last = submit_call(pipe, resume, call_nothing, NULL);
    }
    test_wait(pipe, last);
    is_int(fp8pipe_state_get(pipe, old, &state), FP8PIPE_ETOOOLD, "an op is too old");
    gate_open(&gate);
    is_int(fp8pipe_wait(pipe, successor, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ETOOOLD,
           "one that waited for it is cancelled");
    is_int(fp8pipe_state_get(pipe, successor, &state), FP8PIPE_OK, "and not too old itself");
    ok(state.done && state.outcome == FP8PIPE_OUTCOME_CANCELLED && state.status == FP8PIPE_ETOOOLD,
       "its state says cancelled, and for what");
    is_int(counter, 0, "it has not run");
    test_close(pipe);
}

/* ---- A submit that is overtaken by more failures than a lane remembers --------------------- */

struct overtaken {
    struct fp8pipe *pipe;
    fp8pipe_ticket before;
    bool binds; /* names `before` when it is bound */
    int bound;
    struct gate launcher; /* holds what overtakes; open: it is over before the claim */
};

static enum fp8pipe_status overtaken_bind(struct draft *draft, void *arg)
{
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    const struct fp8pipe_submit resume = test_submit(0, FP8PIPE_RESUME, 0, 0);
    struct overtaken *o = arg;
    enum fp8pipe_status status = o->binds ? draft_after(draft, "before", o->before) : FP8PIPE_OK;

    if (o->bound++ > 0)
        return status;
    submit_call(o->pipe, resume, gate_call, &o->launcher);
    for (int i = 0; i < FAILURES; i++)
        submit_call(o->pipe, resume, call_fails, &fails);
    if (o->launcher.open)
        test_wait(o->pipe, submit_call(o->pipe, resume, call_nothing, NULL));
    return status;
}

static void overtaken_commit(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    (void)draft;
    (void)arg;
    (void)ticket;
}

/* Submits an op between whose naming of a predecessor, which is done, and whose claim others come.
 */
static enum fp8pipe_status overtaken_submit(struct overtaken *o, int *counter,
                                            fp8pipe_ticket *ticket)
{
    static const struct draft_calls calls = {overtaken_bind, overtaken_commit};
    const struct fp8pipe_submit submit =
        test_submit(0, FP8PIPE_RESUME, o->binds ? 0 : o->before, 0);
    struct draft draft;

    must(draft_begin(&draft, o->pipe, &submit, OP_HOST_CALL, sizeof(struct op_host_call), 0));
    draft.entry.op.u.host_call = (struct op_host_call){work_count, counter};
    return draft_submit(&draft, &calls, o, ticket);
}

static void overtaken(bool binds, bool over)
{
    const char *name = binds ? "named in binding" : "named by the caller";
    struct overtaken o = {.binds = binds, .launcher = GATE_INIT};
    enum fp8pipe_status status;
    fp8pipe_ticket ticket = 0;
    int counter = 0;

    watchdog("an overtaken submit", 60);
    o.pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 4096, NULL);
    o.before = submit_call(o.pipe, ON(0), call_nothing, NULL);
    test_wait(o.pipe, o.before);
    if (over)
        gate_open(&o.launcher);
    status = overtaken_submit(&o, &counter, &ticket);
    if (over) {
        is_int(status, FP8PIPE_ETOOOLD, "%s: what is forgotten by the claim is refused", name);
        ok(strstr(fp8pipe_last_error(), binds ? "before: " : "submit.after[0]: ") != NULL,
           "%s: by what brought it (%s)", name, fp8pipe_last_error());
    } else {
        gate_open(&o.launcher);
        is_int(status, FP8PIPE_OK, "%s: a predecessor that is done", name);
        is_int(fp8pipe_wait(o.pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_OK,
               "%s: which is forgotten later cancels nothing", name);
    }
    is_int(counter, over ? 0 : 1, "%s: the op %s", name, over ? "is not run" : "runs");
    test_drain(o.pipe);
    test_close(o.pipe);
}

static void cases(enum fp8pipe_backend backend)
{
    cancelled_writer(backend, FP8PIPE_ASYNC);
    cancelled_writer(backend, FP8PIPE_INLINE);
}

int main(void)
{
    test_each_backend(cases);
    no_event(FP8PIPE_ASYNC);
    no_event(FP8PIPE_INLINE);
    for (int i = 0; i < 4; i++)
        failed_wait(i % 2 ? FP8PIPE_INLINE : FP8PIPE_ASYNC, i / 2);
    for (int i = 0; i < 10; i++)
        far_lane(i % 2 ? FP8PIPE_INLINE : FP8PIPE_ASYNC,
                 (const int32_t[]){1, 2, 6, 7, FP8PIPE_LANES_MAX - 1}[i / 2]);
    forgotten();
    for (int i = 0; i < 4; i++)
        overtaken(i % 2, i / 2);
    return done_testing();
}
