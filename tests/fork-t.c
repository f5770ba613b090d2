/* Guards fork() after open, and exit() without close. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "async.h"

/* The exit status of a child, or -1 if it was killed or hangs. */
static int child_status(pid_t child)
{
    int64_t end_ns = test_now_ns() + 20 * A_SECOND_NS;
    int status = 0;

    while (waitpid(child, &status, WNOHANG) == 0) {
        if (test_now_ns() > end_ns) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -1;
        }
        sleep_ns(MS_NS);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- fork() ------------------------------------------------------------------------------- */

/* 0, or the number of the first call that was not as it should be. */
static int in_child(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling, fp8pipe_ticket ticket)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
    struct fp8pipe_slot_state slot = FP8PIPE_SLOT_STATE_INIT;
    struct fp8pipe_scaling *made;
    void *data;
    int at = 0;

    options.slots = 1;
#define FORKED(call)                                                                               \
    at++;                                                                                          \
    if ((call) != FP8PIPE_EFORKED || !strstr(fp8pipe_last_error(), "fork"))                        \
    return at
    FORKED(try_host_call(pipe, ON(0), work_nothing, NULL, NULL));
    FORKED(try_call(pipe, ON(1), call_nothing, NULL, NULL));
    FORKED(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, -1));
    FORKED(fp8pipe_drain(pipe, -1));
    FORKED(fp8pipe_defer(pipe, ticket, FP8PIPE_DONE, answer_take, NULL, 0));
    FORKED(fp8pipe_alloc(pipe, 16, &data));
    FORKED(fp8pipe_scaling_create(pipe, &options, &made));
    FORKED(fp8pipe_scaling_update(scaling, &update, NULL));
    FORKED(fp8pipe_scaling_slot_get(scaling, 0, &slot));
    at++;
    if (fp8pipe_close(pipe, 0, -1) != FP8PIPE_OK)
        return at;
    at++;
    if (fp8pipe_close(pipe, 0, -1) != FP8PIPE_ECLOSED)
        return at;
    at++;
    if (try_host_call(pipe, ON(0), work_nothing, NULL, NULL) != FP8PIPE_ECLOSED)
        return at;
    return 0;
}

static void forks(enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, mode, 2, 0, NULL);
    struct fp8pipe_scaling *scaling;
    struct gate gate = GATE_INIT;
    fp8pipe_ticket held;
    int counter = 0;

    watchdog("fork", 60);
    scaling = test_scaling(pipe, 1, 0);
    held = submit_host_call(pipe, ON(0), gate_work, &gate);
    gate_await(&gate, 1);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();

        if (child < 0)
            bail("no fork");
        if (child == 0) {
            alarm(20);
            _exit(in_child(pipe, scaling, held));
        }
        submit_host_call(pipe, ON(round % 2), work_count, &counter);
        is_int(child_status(child), 0, "%s: a child is told EFORKED and can close",
               mode_name(mode));
    }
    gate_open(&gate);
    test_drain(pipe);
    is_int(counter, 3, "%s: the parent goes on", mode_name(mode));
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
}

/* In a function of the caller's: the parent is inside of it, the child is not. */
struct forking {
    struct fp8pipe *pipe;
    pid_t child;
};

static void work_forks(void *arg)
{
    struct forking *forking = arg;

    forking->child = fork();
    if (forking->child == 0) {
        alarm(20);
        _exit(fp8pipe_close(forking->pipe, 0, -1) == FP8PIPE_OK ? 0 : 1);
    }
}

static enum fp8pipe_status call_forks(struct fp8pipe_stream *stream, void *arg)
{
    (void)stream;
    work_forks(arg);
    return FP8PIPE_OK;
}

static void defer_forks(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    (void)ticket, (void)status;
    work_forks(arg);
}

static void forks_inside(enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, mode, 2, 0, NULL);
    struct forking forking[3] = {{pipe, -1}, {pipe, -1}, {pipe, -1}};
    const char *const places[] = {"host_call", "call", "defer"};
    struct answer answer;

    watchdog("fork inside a function", 60);
    memset(&answer, 0, sizeof(answer));
    submit_host_call(pipe, ON(0), work_forks, &forking[0]);
    submit_call(pipe, ON(1), call_forks, &forking[1]);
    must(fp8pipe_defer(pipe, 0, FP8PIPE_DONE, defer_forks, &forking[2], 0));
    must(fp8pipe_defer(pipe, 0, FP8PIPE_DONE, answer_take, &answer, 0));
    test_drain(pipe);
    ok(answer_await(&answer), "%s: the parent goes on", mode_name(mode));
    for (int i = 0; i < 3; i++)
        is_int(forking[i].child > 0 ? child_status(forking[i].child) : -2, 0,
               "%s: the child of a fork inside a %s can close", mode_name(mode), places[i]);
    test_close(pipe);
}

/* ---- fork() while another thread opens ---------------------------------------------------- */

static struct {
    bool armed;
    pthread_t thread;
    int opened;
    bool overtook;
} opener;

static void *opens_and_closes(void *opened)
{
    test_close(async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 32, NULL));
    __atomic_store_n((int *)opened, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Registered before the library's handler, so run after it: what the child will find is fixed. */
static void open_meanwhile(void)
{
    if (!opener.armed)
        return;
    opener.armed = false;
    opener.thread = test_thread(opens_and_closes, &opener.opened);
    sleep_ns(A_SECOND_NS / 10);
    opener.overtook = __atomic_load_n(&opener.opened, __ATOMIC_ACQUIRE);
}

/* The child lacks the thread that is about to open: it gets the table of pipes whole, and free. */
static void forks_among_opens(void)
{
    pid_t child;

    watchdog("fork while another thread opens", 60);
    opener.armed = true;
    child = fork();
    if (child < 0)
        bail("no fork");
    if (child == 0) {
        alarm(20);
#ifndef __SANITIZE_THREAD__ /* which allows no threads in such a child */
        test_close(async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 32, NULL));
#endif
        _exit(0);
    }
    is_int(child_status(child), 0, "a child can open and close");
    test_join(opener.thread);
    ok(!opener.overtook, "no other thread takes a pipe's number while the process forks");
    ok(opener.opened, "and does once it has");
}

/* ---- exit() ------------------------------------------------------------------------------- */

static void work_sleeps(void *arg)
{
    (void)arg;
    sleep_ns(20 * MS_NS);
}

/* Products of many shapes, whose plans are refined when the program ends. */
static bool multiply(struct fp8pipe *pipe)
{
    enum { ROWS = 256, SIDE = 64 };
    const size_t bytes = (size_t)ROWS * SIDE * sizeof(uint16_t);
    void *a, *b, *d;

    if (fp8pipe_alloc(pipe, bytes, &a) != FP8PIPE_OK ||
        fp8pipe_alloc(pipe, bytes, &b) != FP8PIPE_OK ||
        fp8pipe_alloc(pipe, bytes, &d) != FP8PIPE_OK ||
        fp8pipe_fill(pipe, a, 0, bytes) != FP8PIPE_OK ||
        fp8pipe_fill(pipe, b, 0, bytes) != FP8PIPE_OK)
        return false;
    for (int64_t rows = ROWS; rows > 0; rows -= 7) {
        struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;
        fp8pipe_ticket ticket;

        op.submit.lane = 0;
        op.a = (struct fp8pipe_matrix){a, rows, SIDE, SIDE, FP8PIPE_BF16, 0};
        op.b = (struct fp8pipe_matrix){b, SIDE, SIDE, SIDE, FP8PIPE_BF16, 0};
        op.d = (struct fp8pipe_matrix){d, rows, SIDE, SIDE, FP8PIPE_BF16, 0};
        if (fp8pipe_gemm(pipe, &op, &ticket) != FP8PIPE_OK)
            return false;
    }
    return true;
}

/* What this program does when it is started again as `how`. */
static int leave(enum fp8pipe_backend backend, const char *how)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    static struct gate gate = GATE_INIT;
    struct fp8pipe *pipe;

    alarm(20);
    options.backend = backend;
    options.mode = strstr(how, "inline") ? FP8PIPE_INLINE : FP8PIPE_ASYNC;
    if (fp8pipe_open(&options, &pipe) != FP8PIPE_OK)
        return 3;
    if (strstr(how, "busy")) {
        for (int i = 0; i < 10; i++)
            submit_host_call(pipe, ON(0), work_sleeps, NULL);
        /* CUDA itself waits at exit for the functions that run in its streams: only on the host may
         * one never end. */
        if (backend == FP8PIPE_BACKEND_HOST) {
            submit_host_call(pipe, ON(1), gate_work, &gate);
            (void)fp8pipe_defer(pipe, submit_host_call(pipe, ON(1), work_nothing, NULL),
                                FP8PIPE_DONE, answer_take, NULL, 0);
        }
    } else {
        submit_host_call(pipe, ON(1), work_nothing, NULL);
        if (strstr(how, "shapes") && !multiply(pipe))
            return 5;
        if (fp8pipe_drain(pipe, -1) != FP8PIPE_OK)
            return 4;
    }
    return 0; /* from main, as exit() */
}

static void exits(enum fp8pipe_backend backend)
{
    const char *const ways[] = {"idle",         "busy",         "idle, inline",
                                "busy, inline", "idle, shapes", "idle, shapes, inline"};

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        char output[512];
        ssize_t length = 0, got;
        int ends[2];
        pid_t child;

        watchdog("exit", 60);
        if (pipe2(ends, O_CLOEXEC))
            bail("no pipe");
        child = fork();
        if (child == 0) {
            dup2(ends[1], STDOUT_FILENO);
            dup2(ends[1], STDERR_FILENO);
            execl("/proc/self/exe", "fork-t", test_backend_name(backend), ways[i], (char *)NULL);
            _exit(9);
        }
        close(ends[1]);
        while (length < (ssize_t)sizeof(output) - 1 &&
               (got = read(ends[0], output + length, sizeof(output) - 1 - (size_t)length)) > 0)
            length += got;
        close(ends[0]);
        output[length] = '\0';
        is_int(child_status(child), 0, "%s, %s: exit without close ends well",
               test_backend_name(backend), ways[i]);
        is_str(output, "", "and quietly");
    }
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return leave(strcmp(argv[1], "cuda") ? FP8PIPE_BACKEND_HOST : FP8PIPE_BACKEND_CUDA,
                     argv[2]);
    if (pthread_atfork(open_meanwhile, NULL, NULL))
        bail("no handler of forks");
    test_each_backend(exits);
    forks(FP8PIPE_ASYNC);
    forks(FP8PIPE_INLINE);
    forks_inside(FP8PIPE_ASYNC);
    forks_inside(FP8PIPE_INLINE);
    forks_among_opens();
    return done_testing();
}
