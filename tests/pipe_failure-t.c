/* Guards what one op cannot get over: the device's failure, lost events, more failures than a lane
 * remembers. */
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "chaos.h"
#include "pipe.h"

/* ---- The device fails after issue --------------------------------------------------------- */

static void device_fails(enum fp8pipe_mode mode, int64_t poll_ns)
{
    struct fp8pipe_options options = async_options(mode, 2, 32, NULL);
    struct fp8pipe *pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, poll_ns);
    struct gate gate = GATE_INIT, launcher = GATE_INIT;
    struct waiter waiters[3];
    pthread_t threads[3];
    struct answer before, after, queued;
    struct fp8pipe_state state = FP8PIPE_STATE_INIT;
    fp8pipe_ticket held, behind, elsewhere, late = 7;
    enum fp8pipe_status status;
    int64_t start_ns;

    memset(&before, 0, sizeof(before));
    memset(&after, 0, sizeof(after));
    memset(&queued, 0, sizeof(queued));
    held = submit_host_call(pipe, ON(0), gate_work, &gate);
    behind = submit_host_call(pipe, ON(0), work_nothing, NULL);
    elsewhere = submit_host_call(pipe, AFTER(1, behind), work_nothing, NULL);
    if (mode == FP8PIPE_ASYNC) { /* something that is not even issued */
        submit_call(pipe, ON(1), gate_call, &launcher);
        elsewhere = submit_host_call(pipe, ON(1), work_nothing, NULL);
        must(fp8pipe_defer(pipe, elsewhere, FP8PIPE_ISSUED, answer_take, &queued, 0));
        gate_await(&launcher, 1);
    }
    waiters[0] = (struct waiter){pipe, held, FP8PIPE_DONE, FP8PIPE_OK};
    waiters[1] = (struct waiter){pipe, elsewhere, FP8PIPE_DONE, FP8PIPE_OK};
    waiters[2] = (struct waiter){pipe, 0, FP8PIPE_DONE, FP8PIPE_OK};
    for (int i = 0; i < 3; i++)
        threads[i] = test_thread(waiter_wait, &waiters[i]);
    must(fp8pipe_defer(pipe, elsewhere, FP8PIPE_DONE, answer_take, &before, 0));
    gate_await(&gate, 1);
    sleep_ns(5 * MS_NS);
    chaos_device_error();
    start_ns = test_now_ns();
    gate_open(&gate);
    for (int i = 0; i < 3; i++)
        test_join(threads[i]);
    ok(answer_await(&before) && (mode == FP8PIPE_INLINE || answer_await(&queued)),
       "%s: the defers are answered", mode_name(mode));
    ok(test_now_ns() - start_ns < A_SECOND_NS, "%s: every waiter is answered within a second",
       mode_name(mode));
    ok(waiters[0].status == FP8PIPE_EDEVICE && waiters[1].status == FP8PIPE_EDEVICE &&
           waiters[2].status == FP8PIPE_EDEVICE && before.status == FP8PIPE_EDEVICE &&
           (mode == FP8PIPE_INLINE || queued.status == FP8PIPE_EDEVICE),
       "with EDEVICE");
    is_int(try_host_call(pipe, ON(1), work_nothing, NULL, &late), FP8PIPE_EDEVICE,
           "a submit is refused with EDEVICE");
    is_int(late, 7, "and gives no ticket");
    is_int(fp8pipe_wait(pipe, behind, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_EDEVICE,
           "later waits answer EDEVICE at once");
    is_int(fp8pipe_drain(pipe, TEST_TIMEOUT_NS), FP8PIPE_EDEVICE, "drain too");
    is_int(fp8pipe_state_get(pipe, held, &state), FP8PIPE_OK, "the state can be asked for");
    is_int(state.status, FP8PIPE_EDEVICE, "and says so");
    status = fp8pipe_defer(pipe, held, FP8PIPE_DONE, answer_take, &after, 0);
    ok(status == FP8PIPE_EDEVICE ||
           (status == FP8PIPE_OK && answer_await(&after) && after.status == FP8PIPE_EDEVICE),
       "a later defer is refused or answered with EDEVICE");
    gate_open(&launcher);
    start_ns = test_now_ns();
    status = fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS);
    ok(status == FP8PIPE_OK || status == FP8PIPE_EDEVICE, "close returns (%s)",
       fp8pipe_status_name(status));
    ok(test_now_ns() - start_ns < A_SECOND_NS, "within a second");
    is_int(try_host_call(pipe, ON(1), work_nothing, NULL, NULL), FP8PIPE_ECLOSED, "then ECLOSED");
    chaos_check("device failure");
}

/* ---- Calls around the op fail ------------------------------------------------------------- */

static void set_flag(void *flag)
{
    sleep_ns(20 * MS_NS);
    *(int *)flag = 1;
}

struct dependent {
    int *flag;
    int ran;
    int early;
};

static void check_flag(void *arg)
{
    struct dependent *dependent = arg;

    dependent->ran = 1;
    dependent->early = !*dependent->flag;
}

/* A wait between lanes, or the recording of an event, that cannot be enqueued. */
static void edge_fails(enum chaos_call call, enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 2, 32, NULL);
    struct fp8pipe *pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0);
    int flag = 0;
    struct dependent dependent = {&flag, 0, 0};
    fp8pipe_ticket first, second;
    enum fp8pipe_status status;

    first = submit_host_call(pipe, ON(0), set_flag, &flag);
    (void)fp8pipe_wait(pipe, first, FP8PIPE_ISSUED, TEST_TIMEOUT_NS);
    chaos_fail(call, NULL, 1, FP8PIPE_ELAUNCH);
    second = submit_host_call(pipe, AFTER(1, first), check_flag, &dependent);
    status = fp8pipe_wait(pipe, second, FP8PIPE_DONE, TEST_TIMEOUT_NS);
    ok(status != FP8PIPE_ETIMEDOUT, "%s: an op is answered (%s) although its %s fails",
       mode_name(mode), fp8pipe_status_name(status),
       call == CHAOS_STREAM_WAIT ? "wait for another lane" : "event");
    (void)fp8pipe_drain(pipe, TEST_TIMEOUT_NS);
    if (call == CHAOS_STREAM_WAIT)
        ok(status == FP8PIPE_ELAUNCH ? !dependent.ran : chaos_failures() == 0 || !dependent.early,
           "%s: and does not run before what it comes after", mode_name(mode));
    else
        ok(!dependent.ran || !dependent.early, "%s: nor does that disturb the order",
           mode_name(mode));
    (void)fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS);
    chaos_check("a failed edge");
}

/* Failures of what open needs: a status, and nothing left. */
static void open_fails(void)
{
    const enum chaos_call calls[] = {CHAOS_OPEN, CHAOS_STREAM_CREATE, CHAOS_EVENT_CREATE};
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 3, 32, NULL);

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (unsigned nth = 1; nth <= 3; nth += 2) {
            struct fp8pipe *pipe = NULL;
            enum fp8pipe_status status;

            chaos_reset();
            chaos_fail(calls[i], NULL, nth, FP8PIPE_ENOMEM);
            status = pipe_open_on(&options, chaos_ops(&backend_host_ops, 0), &pipe);
            if (chaos_failures()) {
                ok(status == FP8PIPE_ENOMEM && !pipe, "open passes on a failure of its backend's");
                ok(strstr(fp8pipe_last_error(), "chaos"), "with the backend's sentence");
            } else {
                is_int(status, FP8PIPE_OK, "open did not need that call");
                test_close(pipe);
            }
            chaos_check("a failed open");
        }
    }
    chaos_reset();
}

/* ---- More failures than a lane remembers -------------------------------------------------- */

#define FAILURES 1100
#define REMEMBERED 1024

static void too_old(enum fp8pipe_mode mode)
{
    static struct log_lines log = LOG_LINES_INIT;
    static fp8pipe_ticket failed[FAILURES], resumed[FAILURES];
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, mode, 2, 0, &log);
    struct fp8pipe_state state = FP8PIPE_STATE_INIT;
    struct fp8pipe_stats before;
    struct answer answer;
    char sentence[100] = "unset";
    int kept = 0, forgiven = 0, refused = 0;
    fp8pipe_ticket named = 7;

    memset(&answer, 0, sizeof(answer));
    log_lines_clear(&log);
    for (int i = 0; i < FAILURES; i++) {
        failed[i] = submit_call(pipe, ON(0), call_fails, &fails);
        resumed[i] = submit_call(pipe, test_submit(0, FP8PIPE_RESUME, 0, 0), call_nothing, NULL);
    }
    test_drain(pipe);
    is_int(log_lines_count(&log), FAILURES, "%s: one line for each failure", mode_name(mode));
    for (int i = 0; i < FAILURES; i++) {
        enum fp8pipe_status of_failed = fp8pipe_state_get(pipe, failed[i], &state);
        enum fp8pipe_status of_resumed = fp8pipe_wait(pipe, resumed[i], FP8PIPE_DONE, 0);

        if (i >= FAILURES - REMEMBERED) {
            kept += of_failed == FP8PIPE_OK && state.outcome == FP8PIPE_OUTCOME_FAILED &&
                    state.root == failed[i] && of_resumed == FP8PIPE_OK &&
                    fp8pipe_wait(pipe, failed[i], FP8PIPE_DONE, 0) == FP8PIPE_ECALL;
        } else {
            /* a resumed one may still be known to be above the oldest failure */
            forgiven += of_failed == FP8PIPE_OK && state.outcome == FP8PIPE_OUTCOME_OK;
            refused += of_failed == FP8PIPE_ETOOOLD;
        }
    }
    is_int(kept, REMEMBERED, "%s: the last 1024 failures are remembered", mode_name(mode));
    is_int(forgiven, 0, "%s: an older failure is never taken for a success", mode_name(mode));
    is_int(refused, FAILURES - REMEMBERED, "%s: but for too old", mode_name(mode));
    is_int(fp8pipe_wait(pipe, failed[0], FP8PIPE_DONE, -1), FP8PIPE_ETOOOLD, "so say waits");
    is_int(fp8pipe_wait(pipe, resumed[0], FP8PIPE_ISSUED, -1), FP8PIPE_ETOOOLD,
           "also on an op below the oldest failure that was OK");
    is_int(fp8pipe_error_get(pipe, failed[0], sentence, sizeof(sentence)), FP8PIPE_ETOOOLD,
           "the sentence is gone as well");
    before = stats_of(pipe, -1);
    is_int(try_call(pipe, AFTER(1, failed[0]), call_nothing, NULL, &named), FP8PIPE_ETOOOLD,
           "an op that names it is refused");
    ok(named == 7 && stats_of(pipe, -1).submitted == before.submitted, "and not enqueued");
    is_int(try_call(pipe, AFTER(1, failed[FAILURES - 1]), call_nothing, NULL, &named), FP8PIPE_OK,
           "one that names a remembered failure is not refused");
    is_int(fp8pipe_wait(pipe, named, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ECALL,
           "but cancelled");
    {
        enum fp8pipe_status status =
            fp8pipe_defer(pipe, failed[0], FP8PIPE_DONE, answer_take, &answer, 0);

        ok(status == FP8PIPE_ETOOOLD ||
               (status == FP8PIPE_OK && answer_await(&answer) && answer.status == FP8PIPE_ETOOOLD),
           "%s: a defer on it is refused or answered with ETOOOLD", mode_name(mode));
    }
    test_close(pipe);
}

/* ---- Random failures against a model ------------------------------------------------------ */

#define OPS 600
#define LANES 3
#define DEPENDENCIES 3

struct model_op {
    fp8pipe_ticket ticket;
    enum fp8pipe_outcome outcome;
    uint64_t roots[(OPS + 63) / 64]; /* the failed ops it may be blamed on */
    enum fp8pipe_status fails;       /* what its function returns */
    int ran;
    int ran_early; /* before something it comes after had run */
    int after_count;
    struct model_op *after[DEPENDENCIES];
};

static void roots_add(struct model_op *to, const struct model_op *from)
{
    for (size_t i = 0; i < sizeof(to->roots) / sizeof(to->roots[0]); i++)
        to->roots[i] |= from->roots[i];
}

static void model_work(void *arg)
{
    struct model_op *op = arg;

    for (int i = 0; i < op->after_count; i++)
        op->ran_early += !op->after[i]->ran;
    op->ran = 1;
}

static enum fp8pipe_status model_call(struct fp8pipe_stream *stream, void *arg)
{
    struct model_op *op = arg;

    return op->fails != FP8PIPE_OK ? op->fails : fp8pipe_host_enqueue(stream, model_work, op);
}

/* Submits op i of a random graph, says how it has to end; broken: each lane's last numbered op. */
static void model_submit(struct fp8pipe *pipe, struct model_op *ops, int i,
                         struct model_op *broken[LANES], struct test_rng *rng)
{
    const enum fp8pipe_status statuses[] = {FP8PIPE_ECALL, FP8PIPE_ENOMEM, FP8PIPE_ELAUNCH};
    int32_t lane = (int32_t)test_random_range(rng, -1, LANES - 1);
    bool resume = lane >= 0 && test_random_range(rng, 0, 2) == 0;
    struct fp8pipe_submit submit = test_submit(lane, resume ? FP8PIPE_RESUME : 0, 0, 0);
    struct model_op *op = &ops[i];
    bool cancelled = false;

    for (int j = (int)test_random_range(rng, -2, DEPENDENCIES); j > 0; j--) {
        struct model_op *other =
            i ? &ops[test_random_range(rng, i > 30 ? i - 30 : 0, i - 1)] : NULL;

        if (!other)
            continue;
        submit.after[submit.after_count++] = other->ticket;
        op->after[op->after_count++] = other;
        cancelled |= other->outcome != FP8PIPE_OUTCOME_OK;
        roots_add(op, other);
    }
    if (!cancelled && lane >= 0 && !resume && broken[lane]->outcome != FP8PIPE_OUTCOME_OK) {
        cancelled = true;
        roots_add(op, broken[lane]);
    }
    if (test_random_range(rng, 0, 19) == 0)
        op->fails = statuses[test_random_range(rng, 0, 2)];
    if (cancelled) {
        op->outcome = FP8PIPE_OUTCOME_CANCELLED;
    } else if (op->fails != FP8PIPE_OK) {
        op->outcome = FP8PIPE_OUTCOME_FAILED;
        op->roots[i / 64] |= UINT64_C(1) << i % 64;
    }
    if (lane >= 0)
        broken[lane] = op;
    op->ticket = submit_call(pipe, submit, model_call, op);
}

static bool model_agrees(struct fp8pipe *pipe, struct model_op *ops, int i)
{
    struct fp8pipe_state state = state_of(pipe, ops[i].ticket);
    bool good = ops[i].outcome == FP8PIPE_OUTCOME_OK, blamed = good && state.root == 0;

    for (int j = 0; j < OPS; j++)
        if (state.root && state.root == ops[j].ticket)
            blamed = (ops[i].roots[j / 64] >> j % 64 & 1) && state.status == ops[j].fails &&
                     fp8pipe_wait(pipe, ops[i].ticket, FP8PIPE_DONE, 0) == ops[j].fails;
    return blamed && state.outcome == ops[i].outcome && ops[i].ran == good && !ops[i].ran_early;
}

static void random_failures(enum fp8pipe_mode mode, bool delayed)
{
    static struct log_lines log = LOG_LINES_INIT;
    struct fp8pipe_options options = async_options(mode, LANES, 64, &log);
    int wrong = 0, failed = 0, cancelled = 0;

    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct fp8pipe *pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0);
        struct model_op *ops = test_calloc(OPS, sizeof(*ops)), none;
        struct model_op *broken[LANES] = {&none, &none, &none};
        struct test_rng rng = {seed};
        int own = 0;

        memset(&none, 0, sizeof(none));
        log_lines_clear(&log);
        chaos_delays(seed, delayed ? MS_NS / 50 : 0);
        for (int i = 0; i < OPS; i++)
            model_submit(pipe, ops, i, broken, &rng);
        test_drain(pipe);
        for (int i = 0; i < OPS; i++) {
            wrong += !model_agrees(pipe, ops, i);
            own += ops[i].outcome == FP8PIPE_OUTCOME_FAILED;
            cancelled += ops[i].outcome == FP8PIPE_OUTCOME_CANCELLED;
        }
        wrong += log_lines_count(&log) != own;
        failed += own;
        test_close(pipe);
        chaos_check("random failures");
        free(ops);
    }
    is_int(wrong, 0, "%s%s: %d random failures cancel the %d ops that the model says",
           mode_name(mode), delayed ? " with delays" : "", failed, cancelled);
}

int main(void)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        watchdog("device failure", 60);
        device_fails((enum fp8pipe_mode)mode, 0);
        device_fails((enum fp8pipe_mode)mode, MS_NS / 10);
        watchdog("failed edges", 60);
        edge_fails(CHAOS_STREAM_WAIT, (enum fp8pipe_mode)mode);
        edge_fails(CHAOS_EVENT_RECORD, (enum fp8pipe_mode)mode);
        watchdog("too old", 60);
        too_old((enum fp8pipe_mode)mode);
        watchdog("random failures", 60);
        random_failures((enum fp8pipe_mode)mode, false);
        random_failures((enum fp8pipe_mode)mode, true);
    }
    watchdog("failed opens", 60);
    open_fails();
    return done_testing();
}
