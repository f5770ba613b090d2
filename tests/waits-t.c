/* Guards waits that others hold up, what a failed pipe answers while its launchers go on, and a
 * submit that close overtakes. */
#include <sys/resource.h>

#include "async.h"
#include "chaos.h"
#include "submit.h"

/* A thread's wait that ends by itself where it would hang. */
struct timed_wait {
    struct fp8pipe *pipe;
    fp8pipe_ticket ticket; /* 0: drain */
    enum fp8pipe_mark mark;
    enum fp8pipe_status status;
};

static void *waits(void *arg)
{
    struct timed_wait *wait = arg;

    wait->status = wait->ticket
                       ? fp8pipe_wait(wait->pipe, wait->ticket, wait->mark, 5 * A_SECOND_NS)
                       : fp8pipe_drain(wait->pipe, 5 * A_SECOND_NS);
    return NULL;
}

/* ---- Before the op is issued --------------------------------------------------------------- */

/* A launcher is in the driver while it issues: who waits for what is behind that asks nothing. */
static void asks_for_what_is_issued(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 1, 0, NULL);
    struct gate launcher = GATE_INIT, stream = GATE_INIT;
    fp8pipe_ticket held, behind;
    struct fp8pipe *pipe;
    uint64_t asked;

    watchdog("a wait for what is not issued", 60);
    options.spin_ns = MS_NS;
    pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 10000);
    held = submit_host_call(pipe, ON(0), gate_work, &stream);
    submit_call(pipe, ON(0), gate_call, &launcher);
    behind = submit_host_call(pipe, ON(0), gate_work, &launcher);
    gate_await(&launcher, 1);
    asked = chaos_count(CHAOS_EVENT_QUERY);
    is_int(fp8pipe_wait(pipe, behind, FP8PIPE_DONE, 5 * MS_NS), FP8PIPE_ETIMEDOUT,
           "an op that is not issued is not done");
    is_int((int64_t)(chaos_count(CHAOS_EVENT_QUERY) - asked), 0,
           "and the backend is not asked while somebody waits for it");
    is_int(fp8pipe_wait(pipe, held, FP8PIPE_DONE, 5 * MS_NS), FP8PIPE_ETIMEDOUT,
           "one that is issued and held is not done");
    ok(chaos_count(CHAOS_EVENT_QUERY) > asked, "for which it is asked");
    gate_open(&launcher);
    gate_open(&stream);
    is_int(fp8pipe_wait(pipe, behind, FP8PIPE_DONE, 5 * A_SECOND_NS), FP8PIPE_OK,
           "once issued it is waited for");
    must(fp8pipe_close(pipe, 0, -1));
}

/* ---- While a defer runs ------------------------------------------------------------------- */

static void gate_defer(void *gate, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    (void)ticket, (void)status;
    gate_work(gate);
}

/* The completion thread is inside the defer: waiters must see for themselves. */
static void while_a_defer_runs(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(backend, mode, 2, 0, NULL);
    struct gate defer = GATE_INIT, stream = GATE_INIT;
    struct timed_wait wait[2];
    pthread_t threads[2];

    watchdog("a wait while a defer runs", 60);
    must(fp8pipe_defer(pipe, 0, FP8PIPE_DONE, gate_defer, &defer, 0));
    gate_await(&defer, 1);
    wait[0] = (struct timed_wait){pipe, submit_host_call(pipe, ON(0), gate_work, &stream),
                                  FP8PIPE_DONE, FP8PIPE_EINVAL};
    wait[1] = (struct timed_wait){pipe, 0, FP8PIPE_DONE, FP8PIPE_EINVAL};
    for (int i = 0; i < 2; i++)
        threads[i] = test_thread(waits, &wait[i]);
    gate_await(&stream, 1);
    sleep_ns(20 * MS_NS); /* they are asleep by now */
    gate_open(&stream);
    for (int i = 0; i < 2; i++)
        test_join(threads[i]);
    is_int(wait[0].status, FP8PIPE_OK, "%s, %s: a wait ends while a defer runs",
           test_backend_name(backend), mode_name(mode));
    is_int(wait[1].status, FP8PIPE_OK, "%s, %s: so does a drain", test_backend_name(backend),
           mode_name(mode));
    is_int(stats_of(pipe, -1).rescues, 0, "without a rescue");
    gate_open(&defer);
    test_close(pipe);
}

/* ---- After a fault ------------------------------------------------------------------------ */

/* Fails the pipe while nothing finishes: by a look at an op that is held in lane 1. */
static void fail_pipe(struct fp8pipe *pipe, fp8pipe_ticket held)
{
    chaos_device_error();
    is_int(fp8pipe_wait(pipe, held, FP8PIPE_DONE, 5 * A_SECOND_NS), FP8PIPE_EDEVICE,
           "the device fails");
}

static void close_failed(struct fp8pipe *pipe)
{
    enum fp8pipe_status status = fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS);

    ok(status == FP8PIPE_OK || status == FP8PIPE_EDEVICE, "the failed pipe closes (%s)",
       fp8pipe_status_name(status));
}

static void waits_after_a_fault(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 2, 0, NULL);
    struct fp8pipe *pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0);
    struct gate launcher = GATE_INIT, stream = GATE_INIT;
    struct timed_wait wait[2];
    pthread_t threads[2];
    fp8pipe_ticket held, behind;

    watchdog("waits after a fault", 60);
    held = submit_host_call(pipe, ON(1), gate_work, &stream);
    submit_call(pipe, ON(0), gate_call, &launcher);
    behind = submit_host_call(pipe, ON(0), work_nothing, NULL);
    gate_await(&launcher, 1);
    gate_await(&stream, 1);
    for (int i = 0; i < 2; i++) {
        wait[i] =
            (struct timed_wait){pipe, behind, i ? FP8PIPE_DONE : FP8PIPE_ISSUED, FP8PIPE_EINVAL};
        threads[i] = test_thread(waits, &wait[i]);
    }
    sleep_ns(20 * MS_NS);
    fail_pipe(pipe, held);
    for (int i = 0; i < 2; i++)
        test_join(threads[i]);
    is_int(wait[0].status, FP8PIPE_EDEVICE,
           "who waits for the issued mark hears of it, although the launcher is held");
    is_int(wait[1].status, FP8PIPE_EDEVICE, "and who waits for the done mark");
    is_int(stats_of(pipe, -1).rescues, 0, "without a rescue");
    gate_open(&launcher);
    gate_open(&stream);
    close_failed(pipe);
    chaos_check("waits after a fault");
}

static void destroys_after_a_fault(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 2, 0, NULL);
    struct fp8pipe *pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0);
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 16, 16, 0, 0);
    struct test_matrix y = test_matrix_make(pipe, FP8PIPE_FP32, 16, 16, 0, 0);
    const double zeros[16 * 16] = {0};
    struct gate launcher = GATE_INIT, stream = GATE_INIT;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *tensor;
    enum fp8pipe_status status;
    fp8pipe_ticket held;
    int64_t end_ns;

    watchdog("destroys after a fault", 60);
    test_matrix_set(&x, zeros);
    scaling = test_scaling(pipe, 3, 0);
    linear = test_linear(pipe, x.view, scaling);
    must(fp8pipe_tensor_create(pipe, &tensor));
    held = submit_host_call(pipe, ON(1), gate_work, &stream);
    submit_call(pipe, ON(0), gate_call, &launcher);
    test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(0));
    forward.submit = ON(0);
    forward.x = x.view;
    forward.y = y.view;
    must(fp8pipe_linear_forward(linear, &forward, NULL));
    gate_await(&launcher, 1);
    gate_await(&stream, 1);
    fail_pipe(pipe, held);
    is_int(fp8pipe_linear_destroy(linear), FP8PIPE_EBUSY,
           "a linear whose forward the launcher has yet to take off its ring is busy");
    is_int(fp8pipe_tensor_destroy(tensor), FP8PIPE_EBUSY, "so is a tensor");
    is_int(fp8pipe_scaling_destroy(scaling), FP8PIPE_EBUSY, "and a scaling");
    gate_open(&launcher);
    gate_open(&stream);
    end_ns = test_now_ns() + 5 * A_SECOND_NS;
    while ((status = fp8pipe_linear_destroy(linear)) == FP8PIPE_EBUSY && test_now_ns() < end_ns)
        sleep_ns(MS_NS);
    is_int(status, FP8PIPE_OK, "until it has: then the linear can be destroyed");
    is_int(fp8pipe_tensor_destroy(tensor), FP8PIPE_OK, "and the tensor");
    is_int(fp8pipe_scaling_destroy(scaling), FP8PIPE_OK, "and the scaling");
    test_matrix_free(&x);
    test_matrix_free(&y);
    close_failed(pipe);
    chaos_check("destroys after a fault");
}

/* ---- A submit that close overtakes -------------------------------------------------------- */

/* Step by step: it has seen the pipe open, and looks at a failed predecessor once it is closed. */
static void overtaken(enum fp8pipe_mode mode)
{
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, mode, 1, 0, NULL);
    struct fp8pipe_submit submit = ON(0);
    fp8pipe_ticket failed, ticket = 7;
    struct draft draft;

    watchdog("a submit that close overtakes", 60);
    failed = submit_call(pipe, ON(0), call_fails, &fails);
    is_int(fp8pipe_wait(pipe, failed, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_ECALL, "an op fails");
    for (int i = 0; i < DRAFT_RECENT; i++) /* of a recent one nobody asks */
        submit_call(pipe, ON(0), call_nothing, NULL);
    test_drain(pipe);
    is_int(draft_begin(&draft, pipe, &submit, OP_CALL, sizeof(struct op_call), 0), FP8PIPE_OK,
           "%s: a submit begins on an open pipe", mode_name(mode));
    draft.entry.op.u.call = (struct op_call){call_nothing, NULL, 0};
    test_close(pipe);
    is_int(draft_after(&draft, "failed", failed), FP8PIPE_OK,
           "%s: closed meanwhile, it may still be asked for what its predecessor did",
           mode_name(mode));
    is_int(draft_submit(&draft, NULL, NULL, &ticket), FP8PIPE_ECLOSED, "%s: and is then refused",
           mode_name(mode));
    is_int(ticket, 7, "without a ticket");
}

/* ---- What a wait costs -------------------------------------------------------------------- */

#define CHAIN 200

struct sleeper {
    struct waiter waiter;
    long slept; /* times that it went to sleep */
};

static void *sleeper_wait(void *arg)
{
    struct sleeper *sleeper = arg;
    struct rusage before, after;

    getrusage(RUSAGE_THREAD, &before);
    waiter_wait(&sleeper->waiter);
    getrusage(RUSAGE_THREAD, &after);
    sleeper->slept = after.ru_nvcsw - before.ru_nvcsw;
    return NULL;
}

static void work_pauses(void *arg)
{
    (void)arg;
    sleep_ns(100000);
}

/* Three wait, for two ops of one lane and for one of another; none is woken at each op before. */
static void sleeps_through(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 2, 0, NULL);
    struct gate gate = GATE_INIT;
    struct sleeper sleepers[3];
    pthread_t threads[3];
    struct fp8pipe *pipe;
    long slept = 0;

    watchdog("a wait for a long chain", 60);
    options.spin_ns = 0;
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    for (int lane = 0; lane < 2; lane++)
        submit_host_call(pipe, ON(lane), gate_work, &gate);
    for (int i = 0; i < CHAIN; i++) {
        fp8pipe_ticket ticket = submit_host_call(pipe, ON(0), work_pauses, NULL);

        if (i == CHAIN / 2 || i == CHAIN - 1)
            sleepers[i == CHAIN - 1].waiter = (struct waiter){pipe, ticket, FP8PIPE_DONE, 0};
        ticket = submit_host_call(pipe, ON(1), work_pauses, NULL);
        sleepers[2].waiter = (struct waiter){pipe, ticket, FP8PIPE_DONE, 0};
    }
    for (int i = 0; i < 3; i++)
        threads[i] = test_thread(sleeper_wait, &sleepers[i]);
    gate_await(&gate, 2);
    gate_open(&gate);
    for (int i = 0; i < 3; i++) {
        test_join(threads[i]);
        is_int(sleepers[i].waiter.status, FP8PIPE_OK, "a wait for a long chain ends");
        slept += sleepers[i].slept;
    }
    if (!ok(slept < CHAIN / 2, "and is woken a few times, not at each of %d ops", CHAIN))
        diag("%ld times", slept);
    is_int(stats_of(pipe, -1).rescues, 0, "without a rescue");
    test_close(pipe);
}

static void cases(enum fp8pipe_backend backend)
{
    while_a_defer_runs(backend, FP8PIPE_ASYNC);
    while_a_defer_runs(backend, FP8PIPE_INLINE);
}

int main(void)
{
    asks_for_what_is_issued();
    test_each_backend(cases);
    waits_after_a_fault();
    destroys_after_a_fault();
    sleeps_through();
    overtaken(FP8PIPE_ASYNC);
    overtaken(FP8PIPE_INLINE);
    return done_testing();
}
