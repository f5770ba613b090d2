/* Guards what the caller's functions may do: enqueue from their own call, defer from a defer. */
#include <string.h>

#include "async.h"

/* ---- fp8pipe_host_enqueue ----------------------------------------------------------------- */

struct caller {
    struct fp8pipe_stream *stream; /* of the first call */
    enum fp8pipe_status own;       /* what enqueuing on its own stream gave */
    enum fp8pipe_status others;    /* on the first call's, from the second */
    enum fp8pipe_status in_work;   /* from inside enqueued work */
    int counter;
};

static void enqueues_in_work(void *arg)
{
    struct caller *caller = arg;

    caller->in_work = fp8pipe_host_enqueue(caller->stream, work_count, &caller->counter);
}

static enum fp8pipe_status first_call(struct fp8pipe_stream *stream, void *arg)
{
    struct caller *caller = arg;

    caller->stream = stream;
    caller->own = fp8pipe_host_enqueue(stream, work_count, &caller->counter);
    return fp8pipe_host_enqueue(stream, enqueues_in_work, caller);
}

static enum fp8pipe_status second_call(struct fp8pipe_stream *stream, void *arg)
{
    struct caller *caller = arg;

    caller->others = fp8pipe_host_enqueue(caller->stream, work_count, &caller->counter);
    return fp8pipe_host_enqueue(stream, work_count, &caller->counter);
}

static void enqueues(enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, mode, 2, 0, NULL);
    const char *name = mode_name(mode);
    struct caller caller = {NULL, FP8PIPE_EDEVICE, FP8PIPE_EDEVICE, FP8PIPE_EDEVICE, 0};
    fp8pipe_ticket first, second;

    watchdog("host_enqueue", 60);
    first = submit_call(pipe, ON(0), first_call, &caller);
    test_wait(pipe, first);
    second = submit_call(pipe, AFTER(1, first), second_call, &caller);
    test_wait(pipe, second);
    is_int(caller.own, FP8PIPE_OK, "%s: a call enqueues on its own stream", name);
    is_int(caller.others, FP8PIPE_EINVAL, "%s: not on another call's", name);
    is_int(caller.in_work, FP8PIPE_EINVAL, "%s: nor does what it has enqueued", name);
    is_int(fp8pipe_host_enqueue(caller.stream, work_count, &caller.counter), FP8PIPE_EINVAL,
           "%s: nor a thread that is in no call", name);
    ok(strstr(fp8pipe_last_error(), "stream"), "which names the field");
    test_drain(pipe);
    is_int(caller.counter, 2, "%s: what was refused does not run", name);
    test_close(pipe);
}

/* ---- Defers that defer again -------------------------------------------------------------- */

#define AGAIN 50

struct again {
    struct fp8pipe *pipe;
    int runs;
    enum fp8pipe_status status; /* of the first defer that was refused */
    struct answer last;
};

static void defers_again(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    struct again *again = arg;

    again->runs++;
    if (again->runs < AGAIN)
        status = fp8pipe_defer(again->pipe, ticket, FP8PIPE_DONE, defers_again, again, 0);
    if (status != FP8PIPE_OK || again->runs == AGAIN) {
        again->status = status;
        answer_take(&again->last, ticket, status);
    }
}

/* The one that runs has made room for the one that it asks for. */
static void defer_chain(enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 1, 0, NULL);
    struct again again;
    struct fp8pipe *pipe;

    watchdog("a chain of defers", 60);
    options.defer_limit = 1;
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    memset(&again, 0, sizeof(again));
    again.pipe = pipe;
    must(fp8pipe_defer(pipe, submit_host_call(pipe, ON(0), work_nothing, NULL), FP8PIPE_DONE,
                       defers_again, &again, 0));
    ok(answer_await(&again.last), "%s: a chain of defers ends", mode_name(mode));
    is_int(again.status, FP8PIPE_OK, "%s: with room for one, a defer defers again",
           mode_name(mode));
    is_int(again.runs, AGAIN, "%s: as often as it likes", mode_name(mode));
    test_close(pipe);
}

int main(void)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        enqueues((enum fp8pipe_mode)mode);
        defer_chain((enum fp8pipe_mode)mode);
    }
    return done_testing();
}
