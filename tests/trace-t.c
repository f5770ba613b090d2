/*
 * Guards traces: that the file is JSON, that it holds each op's spans in their order and with its
 * outcome, that a trace is bounded and counts what it drops, that start and stop may come at any
 * time under load and leave nothing behind.
 */
#include <fp8pipe_trace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "async.h"
#include "chaos.h"
#include "trace_file.h"

static char folder[] = "/tmp/fp8pipe-trace-XXXXXX";

static const char *file_in(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void start(struct fp8pipe *pipe, uint32_t ops)
{
    struct fp8pipe_trace_options options = FP8PIPE_TRACE_OPTIONS_INIT;

    options.ops = ops;
    must(fp8pipe_trace_start(pipe, &options));
}

/* ---- Spans ---------------------------------------------------------------------------------- */

#define OPS 40

static void work_short(void *arg)
{
    (void)arg;
    sleep_ns(200000);
}

/* Clocks of a device are compared with the host's to within some microseconds. */
static double slack_us(enum fp8pipe_backend backend)
{
    return backend == FP8PIPE_BACKEND_CUDA ? 50 : 0.002;
}

static void spans(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(backend, mode, 2, 0, NULL);
    const char *name = mode_name(mode), *path = file_in("spans.json");
    fp8pipe_ticket tickets[OPS] = {0};
    double device_end[2] = {0, 0}, host_end[2] = {0, 0}, slack = slack_us(backend);
    int64_t before_ns, after_ns;
    struct trace_file trace;
    int disorder = 0, overlaps = 0, missing = 0, outside = 0, early = 0;

    before_ns = test_now_ns();
    start(pipe, 0);
    for (int i = 0; i < OPS; i++) {
        struct fp8pipe_submit submit = AFTER(i % 2, i > 0 && i % 5 == 0 ? tickets[i - 1] : 0);

        submit.name = i == 7 ? "seven" : NULL;
        tickets[i] = submit_host_call(pipe, submit, work_short, NULL);
    }
    is_int(fp8pipe_trace_stop(pipe, path), FP8PIPE_OK, "%s: stop without a wait before it", name);
    after_ns = test_now_ns();
    test_close(pipe);
    trace = trace_load(path);
    is_int(trace.ops, OPS, "%s: it has every op submitted before stop", name);
    is_int(trace.dropped, 0, "and dropped none");
    for (int i = 0; i < OPS; i++) {
        const struct trace_event *queue = trace_find(&trace, tickets[i], 'b', "queue"),
                                 *queued = trace_find(&trace, tickets[i], 'e', "queue"),
                                 *issue = trace_find(&trace, tickets[i], 'X', "issue"),
                                 *device = trace_find(&trace, tickets[i], 'X', "device"),
                                 *from = trace_find(&trace, tickets[i], 's', "flow"),
                                 *to = trace_find(&trace, tickets[i], 'f', "flow");
        int lane = i % 2;

        if (!queue || !queued || !issue || !device || !from || !to) {
            missing++;
            continue;
        }
        disorder += queue->at_us > queued->at_us || queued->at_us > issue->at_us ||
                    issue->took_us < 0 || device->took_us < 0;
        disorder += device->at_us + slack < issue->at_us || from->at_us > to->at_us + slack;
        /* the work sleeps 200 us; a span that does not hold it is of something else */
        early += device->took_us < 199.9;
        overlaps +=
            device->at_us + 0.002 < device_end[lane] || issue->at_us + 0.002 < host_end[lane];
        device_end[lane] = device->at_us + device->took_us;
        host_end[lane] = issue->at_us + issue->took_us;
        outside += queue->at_us < (double)before_ns / 1e3 - 0.002 ||
                   device_end[lane] - slack > (double)after_ns / 1e3;
        missing += issue->track != 2 * lane || device->track != 2 * lane + 1;
        missing += strcmp(device->name, i == 7 ? "seven" : "host_call") != 0;
        missing += strcmp(device->outcome, "ok") != 0 || strcmp(issue->outcome, "ok") != 0;
        if (i > 0 && i % 5 == 0) {
            const struct trace_event *first = trace_find(&trace, tickets[i - 1], 'X', "device");

            disorder += !first || device->at_us + slack < first->at_us + first->took_us;
        }
    }
    is_int(missing, 0, "%s: each op has its spans, on its lane's tracks, by its name", name);
    is_int(disorder, 0, "%s: enqueued, taken up, issued, started and ended in this order", name);
    is_int(overlaps, 0, "%s: the spans of one track do not overlap", name);
    is_int(outside, 0, "%s: times are of CLOCK_MONOTONIC, between start and stop", name);
    is_int(early, 0, "%s: a device span is as long as its work", name);
    ok(strstr(trace.text, "lane 1 device") && strstr(trace.text, "lane 0 host"),
       "%s: the tracks have names", name);
    trace_unload(&trace);
}

/* ---- Outcomes ------------------------------------------------------------------------------- */

static void outcomes(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(backend, mode, 1, 0, NULL);
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    const char *name = mode_name(mode), *path = file_in("outcomes.json");
    struct fp8pipe_submit submit = ON(0);
    fp8pipe_ticket before, failed, cancelled, fine;
    const struct trace_event *event;
    struct trace_file trace;

    before = submit_call(pipe, ON(0), call_nothing, NULL);
    start(pipe, 8);
    submit.name = "quo\"te\\\n\x01\xc3\xa9\xe2\x82"; /* ends within a character */
    failed = submit_call(pipe, submit, call_fails, &fails);
    cancelled = submit_call(pipe, ON(0), call_nothing, NULL);
    fine = submit_call(pipe, test_submit(0, FP8PIPE_RESUME, 0, 0), call_nothing, NULL);
    must(fp8pipe_trace_stop(pipe, path));
    test_close(pipe);
    trace = trace_load(path);
    is_int(trace.ops, mode == FP8PIPE_INLINE ? 3 : trace.ops,
           "%s: ops before the start are left out", name);
    event = trace_find(&trace, before, 'b', "queue");
    ok(event == NULL, "%s: or at least when they were enqueued", name);
    event = trace_find(&trace, failed, 'X', "issue");
    is_str(event ? event->outcome : NULL, "failed", "%s: a failed op", name);
    event = trace_find(&trace, cancelled, 'X', "issue");
    is_str(event ? event->outcome : NULL, "cancelled", "%s: a cancelled op", name);
    ok(!trace_find(&trace, cancelled, 'X', "device"), "has no span on the device");
    event = trace_find(&trace, fine, 'X', "device");
    is_str(event ? event->outcome : NULL, "ok", "%s: the op that resumes", name);
    ok(strstr(trace.text, "quo\\\"te\\\\\\u000a\\u0001\xc3\xa9\\ufffd"),
       "%s: a name is escaped, its characters kept, what is none replaced", name);
    ok(strstr(trace.text, "FP8PIPE_ECALL"), "%s: with its status", name);
    trace_unload(&trace);
}

/* ---- Bounds --------------------------------------------------------------------------------- */

static void bounds(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    const char *path = file_in("bounds.json");
    struct trace_file trace;

    start(pipe, 10);
    for (int i = 0; i < 35; i++)
        submit_call(pipe, ON(i % 2), call_nothing, NULL);
    must(fp8pipe_trace_stop(pipe, path));
    trace = trace_load(path);
    is_int(trace.ops, 10, "a trace holds as many ops as was asked for");
    is_int(trace.dropped, 25, "and counts the others");
    trace_unload(&trace);
    start(pipe, 1);
    must(fp8pipe_trace_stop(pipe, path));
    trace = trace_load(path);
    ok(trace.ops == 0 && trace.dropped == 0, "the next trace starts empty");
    trace_unload(&trace);
    test_close(pipe);
}

/* ---- Refusals ------------------------------------------------------------------------------- */

#define REFUSED(wanted, call, text)                                                                \
    is_int(call, wanted, "%s", #call);                                                             \
    if (!ok(strstr(fp8pipe_last_error(), text), "says %s", text))                                  \
    diag("%s", fp8pipe_last_error())

static enum fp8pipe_status start_inside(struct fp8pipe_stream *stream, void *pipe)
{
    (void)stream;
    return fp8pipe_trace_start(pipe, NULL) == FP8PIPE_EDEADLK &&
                   fp8pipe_trace_stop(pipe, NULL) == FP8PIPE_EDEADLK
               ? FP8PIPE_OK
               : FP8PIPE_ECALL;
}

static void refusals(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, NULL);
    struct fp8pipe_trace_options options = FP8PIPE_TRACE_OPTIONS_INIT;
    const char *nowhere = "/nonexistent/folder/trace.json";
    struct trace_file trace;

    REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_start(NULL, NULL), "pipe");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_stop(NULL, NULL), "pipe");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_stop(pipe, NULL), "no trace");
    options.ops = 16777217;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_start(pipe, &options), "16777217");
    options = (struct fp8pipe_trace_options)FP8PIPE_TRACE_OPTIONS_INIT;
    options.reserved = 3;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_start(pipe, &options), "reserved = 3");
    options = (struct fp8pipe_trace_options)FP8PIPE_TRACE_OPTIONS_INIT;
    options.size = 4;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_start(pipe, &options), "size = 4");
    is_int(fp8pipe_trace_start(pipe, NULL), FP8PIPE_OK, "start takes no options");
    REFUSED(FP8PIPE_EBUSY, fp8pipe_trace_start(pipe, NULL), "already");
    submit_call(pipe, ON(0), call_nothing, NULL);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_stop(pipe, nowhere), nowhere);
    is_int(fp8pipe_wait(pipe, submit_call(pipe, ON(0), start_inside, pipe), FP8PIPE_DONE, -1),
           FP8PIPE_OK, "inside a function of the caller's both are EDEADLK");
    must(fp8pipe_trace_stop(pipe, file_in("refusals.json")));
    trace = trace_load(file_in("refusals.json"));
    is_int(trace.ops, 2, "a refused stop left the trace running");
    trace_unload(&trace);
    if (access("/dev/full", W_OK) == 0) {
        start(pipe, 0);
        submit_call(pipe, ON(0), call_nothing, NULL);
        REFUSED(FP8PIPE_EINVAL, fp8pipe_trace_stop(pipe, "/dev/full"), "/dev/full");
    } else {
        skip(2, "no /dev/full");
    }
    start(pipe, 0);
    is_int(fp8pipe_trace_stop(pipe, NULL), FP8PIPE_OK, "a trace may be dropped");
    test_close(pipe);
    REFUSED(FP8PIPE_ECLOSED, fp8pipe_trace_start(pipe, NULL), "closed");
    REFUSED(FP8PIPE_ECLOSED, fp8pipe_trace_stop(pipe, NULL), "closed");
}

/* ---- Load ------------------------------------------------------------------------------------ */

#define CALLERS 3

struct load {
    struct fp8pipe *pipe;
    int lane;
    int stop; /* atomic */
    int submitted;
};

static void *submit_much(void *arg)
{
    struct load *load = arg;

    while (!__atomic_load_n(&load->stop, __ATOMIC_RELAXED)) {
        if (load->submitted++ % 3)
            submit_host_call(load->pipe, ON(load->lane), work_nothing, NULL);
        else
            submit_call(load->pipe, ON(load->lane), call_nothing, NULL);
    }
    return NULL;
}

/* Starts and stops at random; each call gives the one or the other answer. */
static void *toggle(void *arg)
{
    struct load *load = arg;

    while (!__atomic_load_n(&load->stop, __ATOMIC_RELAXED)) {
        enum fp8pipe_status status = load->submitted++ % 2 ? fp8pipe_trace_stop(load->pipe, NULL)
                                                           : fp8pipe_trace_start(load->pipe, NULL);

        if (status != FP8PIPE_OK && status != FP8PIPE_EBUSY && status != FP8PIPE_EINVAL)
            bail("a start or stop among others: %s", fp8pipe_last_error());
    }
    return NULL;
}

static void under_load(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 2, 32, NULL);
    struct fp8pipe *pipe = chaos_open_pipe(backend, &options, 0);
    struct load loads[CALLERS + 2];
    pthread_t threads[CALLERS + 2];
    const int rounds = TEST_SANITIZED ? 5 : 30;
    const char *path = file_in("load.json");
    int lost = 0;

    for (int i = 0; i < CALLERS; i++) {
        loads[i] = (struct load){pipe, i % 2, 0, 0};
        threads[i] = test_thread(submit_much, &loads[i]);
    }
    for (int round = 0; round < rounds; round++) {
        fp8pipe_ticket ticket;
        struct trace_file trace;

        start(pipe, 200000);
        sleep_ns(MS_NS);
        ticket = submit_host_call(pipe, ON(round % 2), work_nothing, NULL);
        must(fp8pipe_trace_stop(pipe, round % 4 ? NULL : path));
        lost += !state_of(pipe, ticket).done;
        if (round % 4)
            continue;
        trace = trace_load(path);
        lost += trace.dropped == 0 && !trace_find(&trace, ticket, 'X', "device");
        trace_unload(&trace);
    }
    is_int(lost, 0, "%s: under load, stop waits for and writes what came before it",
           mode_name(mode));
    for (int i = CALLERS; i < CALLERS + 2; i++) {
        loads[i] = (struct load){pipe, 0, 0, i};
        threads[i] = test_thread(toggle, &loads[i]);
    }
    sleep_ns(200 * MS_NS);
    for (int i = CALLERS + 1; i >= 0; i--) {
        __atomic_store_n(&loads[i].stop, 1, __ATOMIC_RELAXED);
        test_join(threads[i]);
    }
    is_int(stats_of(pipe, -1).rescues, 0, "%s: no sleep had to be rescued", mode_name(mode));
    test_close(pipe);
    chaos_check("a trace that may be running at close");
}

/* A trace stops and starts while an op that neither of them saw begin is being issued. */
static void late_ops(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, NULL);
    struct gate gate = GATE_INIT;

    start(pipe, 0);
    submit_call(pipe, ON(0), call_nothing, NULL);
    must(fp8pipe_trace_stop(pipe, NULL));
    submit_call(pipe, ON(0), gate_call, &gate);
    gate_await(&gate, 1);
    start(pipe, 0);
    gate_open(&gate);
    must(fp8pipe_trace_stop(pipe, file_in("late.json")));
    test_close(pipe);
    pass("a trace may start while an op is being issued");
}

/* ---- Failures ------------------------------------------------------------------------------- */

static void failures(enum fp8pipe_backend backend)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 1, 32, NULL);
    struct fp8pipe *pipe = chaos_open_pipe(backend, &options, 0);
    const char *path = file_in("failures.json");
    fp8pipe_ticket tickets[4];
    struct trace_file trace;
    int spans_seen = 0, wrong = 0;

    chaos_fail(CHAOS_TIMER_NOW, NULL, 1, FP8PIPE_EDEVICE);
    is_int(fp8pipe_trace_start(pipe, NULL), FP8PIPE_EDEVICE, "a start that the backend refuses");
    start(pipe, 0);
    chaos_fail(CHAOS_TIMER_CREATE, NULL, 2, FP8PIPE_ELAUNCH);
    chaos_fail(CHAOS_TIMER_RECORD, NULL, 2, FP8PIPE_ELAUNCH);
    for (int i = 0; i < 4; i++)
        tickets[i] = submit_host_call(pipe, ON(0), work_short, NULL);
    must(fp8pipe_trace_stop(pipe, path));
    trace = trace_load(path);
    for (int i = 0; i < 4; i++) {
        wrong += state_of(pipe, tickets[i]).outcome != FP8PIPE_OUTCOME_OK;
        wrong += !trace_find(&trace, tickets[i], 'X', "issue");
        spans_seen += trace_find(&trace, tickets[i], 'X', "device") != NULL;
    }
    is_int(wrong, 0, "a timer that cannot be had or recorded fails no op");
    is_int(spans_seen, 2, "but leaves out its span");
    trace_unload(&trace);
    chaos_disarm();

    start(pipe, 0);
    submit_host_call(pipe, ON(0), work_short, NULL);
    chaos_device_error();
    fp8pipe_drain(pipe, -1);
    is_int(fp8pipe_trace_stop(pipe, path), FP8PIPE_EDEVICE, "stop on a pipe that fails is EDEVICE");
    trace = trace_load(path);
    ok(trace.ops >= 1, "and still writes what the host saw");
    trace_unload(&trace);
    chaos_reset();
    fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS);
}

/* ---- Environment ----------------------------------------------------------------------------- */

/* In a process of its own, whose first pipe it is. */
static void environment_child(void)
{
    struct log_lines *lines = test_calloc(1, sizeof(*lines));
    struct fp8pipe *first, *second;

    pthread_mutex_init(&lines->mutex, NULL);
    setenv("FP8PIPE_TRACE", file_in("own.json"), 1);
    first = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, NULL);
    second = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_INLINE, 1, 0, NULL);
    submit_call(first, ON(0), call_nothing, NULL);
    submit_call(second, ON(0), call_nothing, NULL);
    submit_call(second, ON(0), call_nothing, NULL);
    if (fp8pipe_trace_start(first, NULL) != FP8PIPE_EBUSY)
        _exit(2);
    test_close(second);
    test_close(first);
    setenv("FP8PIPE_TRACE", "/nonexistent/trace.json", 1);
    first = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, lines);
    test_close(first);
    if (log_lines_count(lines) != 1 || !log_lines_hold(lines, "/nonexistent/trace.json"))
        _exit(3);
    setenv("FP8PIPE_TRACE", "", 1);
    first = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, lines);
    if (fp8pipe_trace_stop(first, NULL) != FP8PIPE_EINVAL)
        _exit(4);
    test_close(first);
    free(lines);
    _exit(0);
}

static void environment(const char *program)
{
    char command[256];
    struct trace_file trace;

    snprintf(command, sizeof(command), "'%.150s' %.60s", program, folder);
    if (!is_int(system(command), 0, "FP8PIPE_TRACE traces every pipe that opens"))
        return;
    trace = trace_load(file_in("own.json"));
    is_int(trace.ops, 1, "the first one into the file itself");
    trace_unload(&trace);
    trace = trace_load(file_in("own.json.2"));
    is_int(trace.ops, 2, "the second one beside it");
    trace_unload(&trace);
}

static void cases(enum fp8pipe_backend backend)
{
    diag("%s", test_backend_name(backend));
    watchdog("spans", 120);
    spans(backend, FP8PIPE_ASYNC);
    spans(backend, FP8PIPE_INLINE);
    outcomes(backend, FP8PIPE_ASYNC);
    outcomes(backend, FP8PIPE_INLINE);
    bounds(backend);
    watchdog("start and stop under load", 240);
    under_load(backend, FP8PIPE_ASYNC);
    under_load(backend, FP8PIPE_INLINE);
    watchdog("failures", 60);
    failures(backend);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        snprintf(folder, sizeof(folder), "%s", argv[1]);
        environment_child();
    }
    unsetenv("FP8PIPE_TRACE");
    if (!mkdtemp(folder))
        bail("no folder for traces");
    watchdog("refusals", 60);
    refusals();
    late_ops();
    environment(argv[0]);
    test_each_backend(cases);
    for (const char *const *name =
             (const char *const[]){"spans.json", "outcomes.json", "bounds.json", "refusals.json",
                                   "load.json", "late.json", "failures.json", "own.json",
                                   "own.json.2", NULL};
         *name; name++)
        unlink(file_in(*name));
    is_int(rmdir(folder), 0, "no other file was written");
    return done_testing();
}
