#include "async.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "chaos.h"
#include "pipe.h"

static char watchdog_line[128];

static void watchdog_bite(int signal)
{
    ssize_t written = write(STDOUT_FILENO, watchdog_line, strlen(watchdog_line));

    (void)signal;
    (void)written;
    _exit(255);
}

void watchdog(const char *what, unsigned seconds)
{
    alarm(0);
    snprintf(watchdog_line, sizeof(watchdog_line), "Bail out!  hangs: %.90s\n", what);
    signal(SIGALRM, watchdog_bite);
    alarm(seconds * (TEST_SANITIZED ? 5 : 1));
}

void sleep_ns(int64_t ns)
{
    struct timespec ts = {ns / 1000000000, ns % 1000000000};

    while (nanosleep(&ts, &ts) && errno == EINTR)
        ;
}

pthread_t test_thread(void *(*fn)(void *), void *arg)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, fn, arg))
        bail("no thread");
    return thread;
}

void test_join(pthread_t thread)
{
    if (pthread_join(thread, NULL))
        bail("no join");
}

void gate_open(struct gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->open = true;
    pthread_cond_broadcast(&gate->cond);
    pthread_mutex_unlock(&gate->mutex);
}

void gate_await(struct gate *gate, int count)
{
    struct timespec deadline;

    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += TEST_TIMEOUT_NS / 1000000000;
    pthread_mutex_lock(&gate->mutex);
    while (gate->arrived < count)
        if (pthread_cond_timedwait(&gate->cond, &gate->mutex, &deadline) == ETIMEDOUT)
            bail("%d of %d came to the gate", gate->arrived, count);
    pthread_mutex_unlock(&gate->mutex);
}

void gate_work(void *arg)
{
    struct gate *gate = arg;

    pthread_mutex_lock(&gate->mutex);
    gate->arrived++;
    pthread_cond_broadcast(&gate->cond);
    while (!gate->open)
        pthread_cond_wait(&gate->cond, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}

enum fp8pipe_status gate_call(struct fp8pipe_stream *stream, void *gate)
{
    (void)stream;
    gate_work(gate);
    return FP8PIPE_OK;
}

void log_lines_add(void *arg, enum fp8pipe_log_level level, const char *line)
{
    struct log_lines *lines = arg;

    pthread_mutex_lock(&lines->mutex);
    if (lines->count < LOG_LINES_MAX) {
        lines->level[lines->count] = level;
        snprintf(lines->line[lines->count], LOG_LINE_BYTES, "%s", line);
    }
    lines->count++;
    pthread_mutex_unlock(&lines->mutex);
}

int log_lines_count(struct log_lines *lines)
{
    int count;

    pthread_mutex_lock(&lines->mutex);
    count = lines->count;
    pthread_mutex_unlock(&lines->mutex);
    return count;
}

bool log_lines_hold(struct log_lines *lines, const char *text)
{
    bool found = false;

    pthread_mutex_lock(&lines->mutex);
    for (int i = 0; i < lines->count && i < LOG_LINES_MAX; i++)
        found |= strstr(lines->line[i], text) != NULL;
    pthread_mutex_unlock(&lines->mutex);
    return found;
}

void log_lines_clear(struct log_lines *lines)
{
    pthread_mutex_lock(&lines->mutex);
    lines->count = 0;
    pthread_mutex_unlock(&lines->mutex);
}

struct fp8pipe_options async_options(enum fp8pipe_mode mode, int32_t lanes, uint32_t ring_slots,
                                     struct log_lines *log)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;

    options.mode = mode;
    options.lanes = lanes;
    options.ring_slots = ring_slots;
    options.log_level = log ? FP8PIPE_LOG_WARN : FP8PIPE_LOG_NONE;
    options.log = log ? log_lines_add : NULL;
    options.log_arg = log;
    return options;
}

struct fp8pipe *async_open(enum fp8pipe_backend backend, enum fp8pipe_mode mode, int32_t lanes,
                           uint32_t ring_slots, struct log_lines *log)
{
    struct fp8pipe_options options = async_options(mode, lanes, ring_slots, log);

    return test_open(backend, &options);
}

struct fp8pipe *chaos_open_pipe(enum fp8pipe_backend backend, const struct fp8pipe_options *options,
                                int64_t poll_ns)
{
    const struct backend_ops *inner =
        backend == FP8PIPE_BACKEND_CUDA ? &backend_cuda_ops : &backend_host_ops;
    struct fp8pipe *pipe = NULL;

    chaos_reset();
    must(pipe_open_on(options, chaos_ops(inner, poll_ns), &pipe));
    return pipe;
}

void chaos_check(const char *what)
{
    struct chaos_live live = chaos_live();

    is_int(chaos_violations(), 0, "%s: the backend was used as its header promises", what);
    if (!ok(live.backends == 0 && live.streams == 0 && live.events == 0 && live.timers == 0 &&
                live.allocs == 0 && live.alloc_bytes == 0 && live.pinned == 0,
            "%s: close leaves nothing of the backend behind", what))
        diag(
            "backends %jd, streams %jd, events %jd, timers %jd, allocs %jd (%jd bytes), pinned %jd",
            (intmax_t)live.backends, (intmax_t)live.streams, (intmax_t)live.events,
            (intmax_t)live.timers, (intmax_t)live.allocs, (intmax_t)live.alloc_bytes,
            (intmax_t)live.pinned);
}

const char *mode_name(enum fp8pipe_mode mode)
{
    return mode == FP8PIPE_INLINE ? "inline" : "async";
}

enum fp8pipe_status try_call(struct fp8pipe *pipe, struct fp8pipe_submit submit,
                             fp8pipe_call_fn *fn, void *arg, fp8pipe_ticket *ticket)
{
    struct fp8pipe_call_op op = FP8PIPE_CALL_OP_INIT;

    op.submit = submit;
    op.fn = fn;
    op.arg = arg;
    return fp8pipe_call(pipe, &op, ticket);
}

enum fp8pipe_status try_host_call(struct fp8pipe *pipe, struct fp8pipe_submit submit,
                                  fp8pipe_work_fn *fn, void *arg, fp8pipe_ticket *ticket)
{
    struct fp8pipe_host_call_op op = FP8PIPE_HOST_CALL_OP_INIT;

    op.submit = submit;
    op.fn = fn;
    op.arg = arg;
    return fp8pipe_host_call(pipe, &op, ticket);
}

enum fp8pipe_status try_copy(struct fp8pipe *pipe, struct fp8pipe_submit submit, void *to,
                             const void *from, size_t bytes, fp8pipe_ticket *ticket)
{
    struct fp8pipe_copy_op op = FP8PIPE_COPY_OP_INIT;

    op.submit = submit;
    op.to = to;
    op.from = from;
    op.bytes = bytes;
    return fp8pipe_copy(pipe, &op, ticket);
}

fp8pipe_ticket submit_call(struct fp8pipe *pipe, struct fp8pipe_submit submit, fp8pipe_call_fn *fn,
                           void *arg)
{
    fp8pipe_ticket ticket = 0;

    must(try_call(pipe, submit, fn, arg, &ticket));
    return ticket;
}

fp8pipe_ticket submit_host_call(struct fp8pipe *pipe, struct fp8pipe_submit submit,
                                fp8pipe_work_fn *fn, void *arg)
{
    fp8pipe_ticket ticket = 0;

    must(try_host_call(pipe, submit, fn, arg, &ticket));
    return ticket;
}

enum fp8pipe_status call_nothing(struct fp8pipe_stream *stream, void *arg)
{
    (void)stream;
    (void)arg;
    return FP8PIPE_OK;
}

enum fp8pipe_status call_fails(struct fp8pipe_stream *stream, void *status)
{
    (void)stream;
    return *(const enum fp8pipe_status *)status;
}

void work_count(void *counter)
{
    __atomic_fetch_add((int *)counter, 1, __ATOMIC_RELAXED);
}

void work_nothing(void *arg)
{
    (void)arg;
}

struct fp8pipe_state state_of(struct fp8pipe *pipe, fp8pipe_ticket ticket)
{
    struct fp8pipe_state state = FP8PIPE_STATE_INIT;

    must(fp8pipe_state_get(pipe, ticket, &state));
    return state;
}

struct fp8pipe_stats stats_of(struct fp8pipe *pipe, int32_t lane)
{
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;

    must(fp8pipe_stats_get(pipe, lane, &stats));
    return stats;
}

void *waiter_wait(void *arg)
{
    struct waiter *waiter = arg;

    waiter->status = waiter->ticket ? fp8pipe_wait(waiter->pipe, waiter->ticket, waiter->mark, -1)
                                    : fp8pipe_drain(waiter->pipe, -1);
    return NULL;
}

void answer_take(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    struct answer *answer = arg;

    answer->ticket = ticket;
    answer->status = status;
    answer->thread = pthread_self();
    __atomic_fetch_add(&answer->calls, 1, __ATOMIC_RELEASE);
}

bool answer_await(struct answer *answer)
{
    int64_t end_ns = test_now_ns() + TEST_TIMEOUT_NS;

    while (!__atomic_load_n(&answer->calls, __ATOMIC_ACQUIRE)) {
        if (test_now_ns() > end_ns)
            return false;
        sleep_ns(MS_NS / 10);
    }
    return true;
}
