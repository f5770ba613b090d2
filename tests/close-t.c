/* Guards close: what it finishes, cancels and answers, its time-out, and its race with submits. */
#include <stdlib.h>
#include <string.h>

#include "async.h"

#ifdef __SANITIZE_THREAD__
/* The threads that a timed-out close leaves behind are meant to be. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}
#endif

/* ---- What close finishes and cancels ------------------------------------------------------ */

#define QUEUED 20

struct closing {
    struct fp8pipe *pipe;
    unsigned flags;
    int64_t timeout_ns;
    enum fp8pipe_status status;
    int64_t took_ns;
};

static void *closes(void *arg)
{
    struct closing *closing = arg;
    int64_t start_ns = test_now_ns();

    closing->status = fp8pipe_close(closing->pipe, closing->flags, closing->timeout_ns);
    closing->took_ns = test_now_ns() - start_ns;
    return NULL;
}

/* Until submits are refused: close has begun. */
static void await_closing(struct fp8pipe *pipe)
{
    int64_t end_ns = test_now_ns() + TEST_TIMEOUT_NS;
    enum fp8pipe_status status = FP8PIPE_OK;

    while (status != FP8PIPE_ECLOSED && test_now_ns() < end_ns) {
        status = try_host_call(pipe, ON(1), work_nothing, NULL, NULL);
        sleep_ns(MS_NS);
    }
}

static void queued(enum fp8pipe_backend backend, unsigned flags)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 64, NULL);
    enum fp8pipe_status want = flags ? FP8PIPE_ECANCELED : FP8PIPE_OK;
    struct closing closing = {pipe, flags, -1, FP8PIPE_EINVAL, 0};
    struct gate launcher = GATE_INIT, stream = GATE_INIT;
    struct answer answers[QUEUED + 1];
    struct waiter waiter;
    pthread_t closer, waiting;
    fp8pipe_ticket running, held, last = 0;
    int counter = 0, wrong = 0, run_wrongly;
    const char *name = flags ? "close with CANCEL" : "close";

    watchdog(name, 60);
    memset(answers, 0, sizeof(answers));
    running = submit_host_call(pipe, ON(0), gate_work, &stream);
    held = submit_call(pipe, ON(0), gate_call, &launcher);
    for (int i = 0; i < QUEUED; i++) {
        last = submit_host_call(pipe, AFTER(i % 2, held), work_count, &counter);
        must(fp8pipe_defer(pipe, last, i % 3 ? FP8PIPE_DONE : FP8PIPE_ISSUED, answer_take,
                           &answers[i], 0));
    }
    must(fp8pipe_defer(pipe, running, FP8PIPE_DONE, answer_take, &answers[QUEUED], 0));
    waiter = (struct waiter){pipe, last, FP8PIPE_DONE, FP8PIPE_EINVAL};
    waiting = test_thread(waiter_wait, &waiter);
    gate_await(&launcher, 1);
    gate_await(&stream, 1);
    sleep_ns(50 * MS_NS); /* the waiter waits by now: one that comes later is told ECLOSED */
    closer = test_thread(closes, &closing);
    await_closing(pipe);
    gate_open(&launcher);
    sleep_ns(20 * MS_NS);
    run_wrongly = __atomic_load_n(&answers[QUEUED].calls, __ATOMIC_ACQUIRE);
    gate_open(&stream);
    test_join(closer);
    test_join(waiting);
    is_int(closing.status, FP8PIPE_OK, "%s: returns OK", name);
    ok(closing.took_ns >= 20 * MS_NS && !run_wrongly, "%s: only after the function that ran", name);
    for (int i = 0; i < QUEUED; i++)
        wrong += answers[i].calls != 1 || answers[i].status != want;
    is_int(wrong, 0, "%s: every defer has been run, with %s", name, fp8pipe_status_name(want));
    ok(answers[QUEUED].calls == 1 && answers[QUEUED].status == FP8PIPE_OK,
       "%s: what ran when it began is OK", name);
    is_int(waiter.status, want, "%s: the waiter is answered alike", name);
    is_int(counter, flags ? 0 : QUEUED, "%s: %s", name,
           flags ? "nothing cancelled has run" : "all that was queued has run");
}

/* The pipe is left behind, so what it uses is static. */
static void time_out(void)
{
    static struct gate gate = GATE_INIT;
    static struct answer answer;
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 2, 64, NULL);
    struct closing closing = {pipe, 0, 50 * MS_NS, FP8PIPE_EINVAL, 0};
    static struct waiter waiter;
    enum fp8pipe_status status;
    pthread_t waiting;

    watchdog("time-out", 60);
    waiter = (struct waiter){pipe, submit_host_call(pipe, ON(0), gate_work, &gate), FP8PIPE_DONE,
                             FP8PIPE_OK};
    must(fp8pipe_defer(pipe, waiter.ticket, FP8PIPE_DONE, answer_take, &answer, 0));
    waiting = test_thread(waiter_wait, &waiter);
    gate_await(&gate, 1);
    closes(&closing);
    is_int(closing.status, FP8PIPE_ETIMEDOUT, "a close whose time-out passes says so");
    ok(closing.took_ns >= 50 * MS_NS && closing.took_ns < 50 * MS_NS + A_SECOND_NS, "in time");
    test_join(waiting);
    ok(waiter.status == FP8PIPE_EDEVICE || waiter.status == FP8PIPE_ECLOSED,
       "the pipe has failed: a waiter is answered (%s)", fp8pipe_status_name(waiter.status));
    status = try_host_call(pipe, ON(0), work_nothing, NULL, NULL);
    ok(status == FP8PIPE_EDEVICE || status == FP8PIPE_ECLOSED, "submits are refused (%s)",
       fp8pipe_status_name(status));
    status = fp8pipe_wait(pipe, waiter.ticket, FP8PIPE_DONE, -1);
    ok(status == FP8PIPE_EDEVICE || status == FP8PIPE_ECLOSED, "waits end (%s)",
       fp8pipe_status_name(status));
    closing.timeout_ns = 0;
    closes(&closing);
    ok(closing.status != FP8PIPE_OK && closing.took_ns < A_SECOND_NS,
       "a second close returns at once, and not with OK (%s)", fp8pipe_status_name(closing.status));
    gate_open(&gate);
    sleep_ns(20 * MS_NS); /* what was left behind runs on: must not crash */
}

/* ---- A closed pipe ------------------------------------------------------------------------ */

static void closed(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe_scaling_options scaling_options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear_options linear_options = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    struct fp8pipe_slot_state slot = FP8PIPE_SLOT_STATE_INIT;
    struct fp8pipe_state state = FP8PIPE_STATE_INIT;
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;
    struct fp8pipe_quantize_op quantize = FP8PIPE_QUANTIZE_OP_INIT;
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
    struct fp8pipe_gemm_op gemm = FP8PIPE_GEMM_OP_INIT;
    struct fp8pipe *pipe = async_open(backend, mode, 2, 0, NULL);
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 16, 16, 0, 0);
    enum fp8pipe_backend kind;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *tensor;
    fp8pipe_ticket ticket;
    char buffer[4096];
    void *data;
    const int32_t *flag;
    int32_t lanes;
    size_t bytes;
    int open = 0;

    scaling_options.slots = 3;
    must(fp8pipe_scaling_create(pipe, &scaling_options, &scaling));
    linear_options.in_features = linear_options.out_features = 16;
    linear_options.weight = x.view;
    linear_options.scaling = scaling;
    must(fp8pipe_linear_create(pipe, &linear_options, &linear));
    must(fp8pipe_tensor_create(pipe, &tensor));
    must(fp8pipe_scaling_state_bytes(scaling, &bytes));
    ticket = test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(0));
    test_drain(pipe);
    test_matrix_free(&x);
    is_int(fp8pipe_close(pipe, 4, -1), FP8PIPE_EINVAL, "%s: close refuses unknown flags",
           mode_name(mode));
    test_wait(pipe, submit_host_call(pipe, ON(0), work_nothing, NULL));
    test_close(pipe);

    quantize.x = forward.x = gemm.a = gemm.b = x.view;
    forward.y = gemm.d = x.view;
    quantize.scaling = scaling;
#define CLOSED(call)                                                                               \
    do {                                                                                           \
        enum fp8pipe_status got = call;                                                            \
        if (got != FP8PIPE_ECLOSED) {                                                              \
            open++;                                                                                \
            diag("%s returns %s", #call, fp8pipe_status_name(got));                                \
        }                                                                                          \
    } while (0)
    CLOSED(fp8pipe_close(pipe, 0, -1));
    CLOSED(fp8pipe_close(pipe, FP8PIPE_CLOSE_CANCEL, 0));
    CLOSED(fp8pipe_backend_get(pipe, &kind));
    CLOSED(fp8pipe_lanes_get(pipe, &lanes));
    CLOSED(fp8pipe_stats_get(pipe, -1, &stats));
    CLOSED(fp8pipe_alloc(pipe, 16, &data));
    CLOSED(fp8pipe_fill(pipe, buffer, 0, 16));
    CLOSED(fp8pipe_upload(pipe, buffer, buffer + 64, 16));
    CLOSED(fp8pipe_download(pipe, buffer, buffer + 64, 16));
    CLOSED(fp8pipe_state_get(pipe, ticket, &state));
    CLOSED(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, -1));
    CLOSED(fp8pipe_drain(pipe, -1));
    CLOSED(fp8pipe_error_get(pipe, ticket, buffer, sizeof(buffer)));
    CLOSED(fp8pipe_defer(pipe, ticket, FP8PIPE_DONE, answer_take, buffer, 0));
    CLOSED(try_call(pipe, ON(0), call_nothing, NULL, NULL));
    CLOSED(try_host_call(pipe, ON(0), work_nothing, NULL, NULL));
    CLOSED(try_copy(pipe, ON(0), buffer, buffer + 64, 16, NULL));
    CLOSED(fp8pipe_gemm(pipe, &gemm, NULL));
    CLOSED(fp8pipe_scaling_create(pipe, &scaling_options, &scaling));
    CLOSED(fp8pipe_linear_create(pipe, &linear_options, &linear));
    CLOSED(fp8pipe_tensor_create(pipe, &tensor));
    CLOSED(fp8pipe_scaling_update(scaling, &update, NULL));
    CLOSED(fp8pipe_scaling_skip(scaling, &update, NULL));
    CLOSED(fp8pipe_scaling_slot_get(scaling, 0, &slot));
    CLOSED(fp8pipe_scaling_nonfinite_get(scaling, &flag));
    CLOSED(fp8pipe_scaling_save(scaling, buffer, bytes));
    CLOSED(fp8pipe_scaling_load(scaling, buffer, bytes));
    CLOSED(fp8pipe_tensor_clear(tensor));
    CLOSED(fp8pipe_tensor_info_get(tensor, &info));
    CLOSED(fp8pipe_tensor_quantize(tensor, &quantize, NULL));
    CLOSED(fp8pipe_linear_weight_changed(linear, NULL, 0));
    CLOSED(fp8pipe_linear_forward(linear, &forward, NULL));
    is_int(open, 0, "%s, %s: every call on a closed pipe and its objects is ECLOSED",
           test_backend_name(backend), mode_name(mode));
    is_int(fp8pipe_linear_destroy(linear), FP8PIPE_OK, "what is left of a linear can be destroyed");
    is_int(fp8pipe_scaling_destroy(scaling), FP8PIPE_OK, "and of a scaling");
    is_int(fp8pipe_tensor_destroy(tensor), FP8PIPE_OK, "and of a tensor");
}

/* ---- Close and submit at once ------------------------------------------------------------- */

#define RACERS 4

struct racer {
    struct fp8pipe *pipe;
    int lane;
    int accepted;
    int deferred;
    int strange;
    int *ran;
    int *answered;
    unsigned flags;
    bool never_waits;
};

static void answers_defer(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    struct racer *racer = arg;

    (void)ticket;
    if (status == FP8PIPE_OK || (racer->flags && status == FP8PIPE_ECANCELED))
        work_count(racer->answered);
}

static void *races(void *arg)
{
    struct racer *racer = arg;
    enum fp8pipe_status status = FP8PIPE_OK;

    while (status == FP8PIPE_OK) {
        fp8pipe_ticket ticket;
        enum fp8pipe_status deferred;

        status = try_host_call(racer->pipe, ON(racer->lane), work_count, racer->ran, &ticket);
        racer->accepted += status == FP8PIPE_OK;
        if (status != FP8PIPE_OK)
            break;
        deferred = fp8pipe_defer(racer->pipe, ticket, FP8PIPE_DONE, answers_defer, racer, 0);
        racer->deferred += deferred == FP8PIPE_OK;
        racer->strange += deferred != FP8PIPE_OK && deferred != FP8PIPE_ECLOSED;
        if (!racer->never_waits && racer->accepted % 16 == 0) {
            deferred = fp8pipe_wait(racer->pipe, ticket, FP8PIPE_DONE, -1);
            racer->strange += deferred != FP8PIPE_OK && deferred != FP8PIPE_ECLOSED &&
                              !(racer->flags && deferred == FP8PIPE_ECANCELED);
        }
    }
    racer->strange += status != FP8PIPE_ECLOSED;
    return NULL;
}

static void close_races_submit(enum fp8pipe_backend backend, enum fp8pipe_mode mode, unsigned flags)
{
    struct test_rng rng = {flags + 2 * mode};
    int wrong = 0, accepted_ever = 0;

    watchdog("close racing submit", 60);
    for (int round = 0; round < 20; round++) {
        struct fp8pipe *pipe = async_open(backend, mode, 2, 32, NULL);
        int ran = 0, answered = 0, accepted = 0, deferred = 0;
        struct racer racers[RACERS];
        pthread_t threads[RACERS];
        struct closing closing = {pipe, flags, -1, FP8PIPE_EINVAL, 0};

        for (int i = 0; i < RACERS; i++) {
            racers[i] = (struct racer){pipe, i % 3 - 1, 0, 0, 0, &ran, &answered, flags, false};
            threads[i] = test_thread(races, &racers[i]);
        }
        sleep_ns(test_random_range(&rng, 0, 3 * MS_NS));
        closes(&closing);
        wrong += closing.status != FP8PIPE_OK || closing.took_ns > A_SECOND_NS;
        for (int i = 0; i < RACERS; i++) {
            test_join(threads[i]);
            accepted += racers[i].accepted;
            deferred += racers[i].deferred;
            wrong += racers[i].strange;
        }
        if (answered != deferred || (flags ? ran > accepted : ran != accepted)) {
            diag("%d accepted, %d ran, %d defers, %d answered", accepted, ran, deferred, answered);
            wrong++;
        }
        accepted_ever += accepted;
    }
    is_int(wrong, 0, "%s, %s, flags %u: each submit is ECLOSED or its ticket is answered (%d)",
           test_backend_name(backend), mode_name(mode), flags, accepted_ever);
}

/* Submitters that are parked on a full ring when close comes; how long it took to tell them. */
static int64_t wakes_submitters(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 32, NULL);
    struct closing closing = {pipe, 0, -1, FP8PIPE_EINVAL, 0};
    int ran = 0, answered = 0, accepted = 0, strange = 0;
    struct racer racers[RACERS];
    pthread_t threads[RACERS], closer;
    struct gate gate = GATE_INIT;
    int64_t start_ns;

    submit_call(pipe, ON(0), gate_call, &gate);
    for (int i = 0; i < RACERS; i++) {
        racers[i] = (struct racer){pipe, 0, 0, 0, 0, &ran, &answered, 0, true};
        threads[i] = test_thread(races, &racers[i]);
    }
    while (stats_of(pipe, 0).full < RACERS)
        sleep_ns(MS_NS);
    sleep_ns(5 * MS_NS);
    start_ns = test_now_ns();
    closer = test_thread(closes, &closing);
    for (int i = 0; i < RACERS; i++) {
        test_join(threads[i]);
        accepted += racers[i].accepted;
        strange += racers[i].strange;
    }
    start_ns = test_now_ns() - start_ns;
    is_int(strange, 0, "close wakes submitters that wait for room, with ECLOSED");
    gate_open(&gate);
    test_join(closer);
    ok(closing.status == FP8PIPE_OK && ran == accepted, "and finishes what was accepted");
    return start_ns;
}

/* The best of three: a busy machine may be slow, but not a sleep that only a re-check ends. */
static void close_wakes_submitters(void)
{
    int64_t best_ns = INT64_MAX;

    watchdog("close with parked submitters", 60);
    for (int i = 0; i < 3; i++) {
        int64_t took_ns = wakes_submitters();

        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    ok(best_ns < 200 * MS_NS, "at once (%jd us)", (intmax_t)(best_ns / 1000));
}

static void cases(enum fp8pipe_backend backend)
{
    queued(backend, 0);
    queued(backend, FP8PIPE_CLOSE_CANCEL);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        closed(backend, (enum fp8pipe_mode)mode);
        close_races_submit(backend, (enum fp8pipe_mode)mode, 0);
        close_races_submit(backend, (enum fp8pipe_mode)mode, FP8PIPE_CLOSE_CANCEL);
    }
}

int main(void)
{
    test_each_backend(cases);
    close_wakes_submitters();
    time_out();
    return done_testing();
}
