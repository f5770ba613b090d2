/*
 * Guards what a pipe tells of its cost: the launchers' CPU time, the time in which a stream had
 * nothing to do, the device memory that the pipe holds.
 */
#include <stdlib.h>

#include "async.h"

/* ---- CPU time ------------------------------------------------------------------------------- */

/* Uses this much CPU time. */
static enum fp8pipe_status call_burns(struct fp8pipe_stream *stream, void *ns)
{
    struct timespec used;
    int64_t end = -1, now;

    (void)stream;
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        now = (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
        end = end < 0 ? now + *(int64_t *)ns : end;
    } while (now < end);
    return FP8PIPE_OK;
}

static void cpu_time(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 2, 0, NULL);
    static int64_t burn_ns = 30 * MS_NS;
    struct fp8pipe_stats one, other;

    one = stats_of(pipe, 1);
    submit_call(pipe, ON(1), call_burns, &burn_ns);
    test_drain(pipe);
    other = stats_of(pipe, 0);
    ok(stats_of(pipe, 1).launcher_cpu_ns - one.launcher_cpu_ns >= (uint64_t)burn_ns,
       "a launcher's CPU time holds what its functions used");
    ok(other.launcher_cpu_ns < (uint64_t)burn_ns, "another's does not");
    ok(stats_of(pipe, -1).launcher_cpu_ns >= (uint64_t)burn_ns, "the sum has it");
    test_close(pipe);
    pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_INLINE, 1, 0, NULL);
    submit_call(pipe, ON(0), call_burns, &burn_ns);
    is_int(stats_of(pipe, -1).launcher_cpu_ns, 0, "INLINE has no launchers");
    test_close(pipe);
}

/* ---- Idle time ------------------------------------------------------------------------------ */

#define IDLE_NS (40 * MS_NS)

static void work_sleeps(void *arg)
{
    (void)arg;
    sleep_ns(IDLE_NS);
}

static struct fp8pipe *open_measuring(enum fp8pipe_backend backend, enum fp8pipe_mode mode,
                                      int32_t measure)
{
    struct fp8pipe_options options = async_options(mode, 2, 0, NULL);

    options.measure_idle = measure;
    return test_open(backend, &options);
}

static void idle_time(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = open_measuring(backend, mode, 1);
    struct gate gate = GATE_INIT;
    uint64_t before, idle;

    sleep_ns(IDLE_NS);
    submit_host_call(pipe, ON(0), work_nothing, NULL);
    is_int(stats_of(pipe, -1).idle_ns, 0, "%s: a lane without an op before is not idle",
           mode_name(mode));
    test_drain(pipe);
    sleep_ns(IDLE_NS);
    test_wait(pipe, submit_host_call(pipe, ON(0), work_nothing, NULL));
    idle = stats_of(pipe, 0).idle_ns;
    ok(idle >= (uint64_t)IDLE_NS, "%s: a pause between ops is idle time", mode_name(mode));
    is_int(stats_of(pipe, 1).idle_ns, 0, "of its lane");
    is_int(stats_of(pipe, -1).idle_ns, idle, "and of the sum");

    /* the stream is held while the next ops are issued */
    submit_host_call(pipe, ON(1), gate_work, &gate);
    gate_await(&gate, 1);
    sleep_ns(IDLE_NS);
    before = stats_of(pipe, 1).idle_ns;
    for (int i = 0; i < 20; i++)
        submit_host_call(pipe, ON(1), work_nothing, NULL);
    must(fp8pipe_wait(pipe, submit_host_call(pipe, ON(1), work_nothing, NULL), FP8PIPE_ISSUED, -1));
    is_int(stats_of(pipe, 1).idle_ns, before, "%s: a stream that has work is not idle",
           mode_name(mode));
    gate_open(&gate);
    test_close(pipe);

    pipe = open_measuring(backend, mode, 0);
    for (int i = 0; i < 2; i++)
        test_wait(pipe, submit_host_call(pipe, ON(0), work_nothing, NULL));
    is_int(stats_of(pipe, -1).idle_ns, 0, "%s: nothing is measured unasked", mode_name(mode));
    test_close(pipe);
}

/* The bound is no worse than the last look of whoever waits. */
static void idle_bound(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = open_measuring(backend, FP8PIPE_ASYNC, 1);
    fp8pipe_ticket ticket = submit_host_call(pipe, ON(0), work_sleeps, NULL);
    uint64_t idle;

    while (fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, 0) != FP8PIPE_OK)
        sleep_ns(MS_NS);
    test_wait(pipe, submit_host_call(pipe, ON(0), work_nothing, NULL));
    idle = stats_of(pipe, 0).idle_ns;
    if (!ok(idle < (uint64_t)IDLE_NS, "work that somebody saw running is not idle time"))
        diag("%ju ns", (uintmax_t)idle);
    test_close(pipe);
}

/* ---- Memory --------------------------------------------------------------------------------- */

#define BLOCK ((size_t)3 << 20)

static uint64_t memory_of(struct fp8pipe *pipe)
{
    return stats_of(pipe, -1).memory_bytes;
}

static void memory(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    struct fp8pipe_scaling_options scaling_options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensor;
    double *zeros = test_calloc(256 * 256, sizeof(*zeros));
    struct test_matrix x;
    uint64_t at_open, with_block, with_scaling, with_x;
    void *block;

    at_open = memory_of(pipe);
    ok(at_open >= 2 * sizeof(uint32_t), "a pipe holds some memory of its own");
    block = test_alloc(pipe, BLOCK, 0);
    with_block = memory_of(pipe);
    ok(with_block >= at_open + BLOCK && with_block < at_open + 2 * BLOCK,
       "fp8pipe_alloc's memory counts");
    is_int(stats_of(pipe, 1).memory_bytes, with_block, "each lane tells the same");
    must(fp8pipe_free(pipe, block));
    is_int(memory_of(pipe), at_open, "and no longer once it is freed");
    ok(stats_of(pipe, -1).memory_peak_bytes >= with_block, "but the peak remembers it");

    scaling_options.slots = 4;
    scaling_options.history = 1024;
    must(fp8pipe_scaling_create(pipe, &scaling_options, &scaling));
    with_scaling = memory_of(pipe);
    ok(with_scaling >= at_open + 4 * 1023 * 4, "a scaling's state counts");
    x = test_matrix_make(pipe, FP8PIPE_FP32, 256, 256, 0, 0);
    test_matrix_set(&x, zeros);
    free(zeros);
    with_x = memory_of(pipe);
    must(fp8pipe_tensor_create(pipe, &tensor));
    test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(0));
    test_drain(pipe);
    ok(memory_of(pipe) >= with_x + 256 * 256 && memory_of(pipe) < with_x + 2 * 256 * 256,
       "a quantized tensor's memory counts, and temporaries are given back");
    must(fp8pipe_tensor_destroy(tensor));
    test_drain(pipe);
    for (int i = 0; i < 5000 && memory_of(pipe) != with_x; i++)
        sleep_ns(MS_NS);
    is_int(memory_of(pipe), with_x, "and goes with it");
    test_matrix_free(&x);
    must(fp8pipe_scaling_destroy(scaling));
    is_int(memory_of(pipe), at_open, "as does everything else");
    test_close(pipe);
}

static void cases(enum fp8pipe_backend backend)
{
    diag("%s", test_backend_name(backend));
    watchdog("idle time", 60);
    idle_time(backend, FP8PIPE_ASYNC);
    idle_time(backend, FP8PIPE_INLINE);
    idle_bound(backend);
    memory(backend);
}

int main(void)
{
    watchdog("CPU time", 60);
    cpu_time();
    test_each_backend(cases);
    return done_testing();
}
