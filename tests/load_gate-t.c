/*
 * Guards when a kernel may be loaded: not beside the calls that a load holds up, one in a pause,
 * more in a long one, and not never; not while somebody times kernels, nor once the process exits.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "async.h"
#include "cuda/load_gate.h"
#include "util.h"

#define US INT64_C(1000)
#define MS MS_NS
#define NOW (INT64_C(1) << 50) /* clocks do not begin at 0 */

static void pauses(void)
{
    struct load_gate gate = {0, 0};

    ok(load_gate_is_open(&gate, NOW, NOW), "before the first call it is open");
    load_gate_call(&gate, NOW);
    ok(!load_gate_is_open(&gate, NOW, NOW), "not at a call");
    ok(!load_gate_is_open(&gate, NOW + LOAD_GATE_QUIET_NS - 1, NOW), "nor soon after");
    ok(load_gate_is_open(&gate, NOW + LOAD_GATE_QUIET_NS, NOW), "but when none follows");
    load_gate_call(&gate, NOW + LOAD_GATE_QUIET_NS);
    ok(!load_gate_is_open(&gate, NOW + LOAD_GATE_QUIET_NS, NOW), "the next call ends the pause");
}

static void loads(void)
{
    struct load_gate gate = {0, 0};
    const int64_t since = NOW + 20 * MS; /* far from too late */

    load_gate_call(&gate, NOW);
    load_gate_loaded(&gate, NOW + 300 * US, NOW + 400 * US);
    ok(load_gate_is_open(&gate, NOW + 400 * US, since), "what was loaded before takes no pause");
    load_gate_loaded(&gate, NOW + 400 * US, NOW + 6 * MS);
    ok(!load_gate_is_open(&gate, NOW + 6 * MS, since), "a load does");
    ok(!load_gate_is_open(&gate, NOW + 12 * MS - 1, since), "up to twice as long");
    ok(load_gate_is_open(&gate, NOW + 12 * MS, since), "a pause that goes on is used again");
    load_gate_loaded(&gate, NOW + 12 * MS, NOW + 18 * MS);
    ok(!load_gate_is_open(&gate, NOW + LOAD_GATE_LONG_NS - 1, since), "and again");
    ok(load_gate_is_open(&gate, NOW + LOAD_GATE_LONG_NS, since), "when it is a long one");
    load_gate_loaded(&gate, NOW + 20 * MS, NOW + 26 * MS);
    ok(load_gate_is_open(&gate, NOW + 26 * MS, since), "in which one load follows the other");
    load_gate_call(&gate, NOW + 37 * MS);
    ok(!load_gate_is_open(&gate, NOW + 37 * MS + LOAD_GATE_QUIET_NS - 1, since),
       "after the next call");
    ok(load_gate_is_open(&gate, NOW + 37 * MS + LOAD_GATE_QUIET_NS, since),
       "a pause begins as the first did");
}

/* A call every 10 us until it opens for what was wanted at NOW; 0: never. */
static int64_t opened_ns(struct load_gate *gate, int64_t from_ns)
{
    for (int64_t now = from_ns; now < from_ns + 2 * LOAD_GATE_LATEST_NS; now += 10 * US) {
        load_gate_call(gate, now);
        if (load_gate_is_open(gate, now, NOW))
            return now;
    }
    return 0;
}

/* A launcher that a load held up calls again when it ends. */
static void call_at_the_end(void)
{
    struct load_gate gate = {0, 0};
    const int64_t end = NOW + 6 * MS, since = NOW + 5 * MS;

    load_gate_call(&gate, end - 2 * US);
    load_gate_loaded(&gate, NOW, end);
    ok(!load_gate_is_open(&gate, end + 10 * US, since), "a call just before a load's end counts");
    ok(!load_gate_is_open(&gate, end - 2 * US + LOAD_GATE_QUIET_NS - 1, since), "as any other");
    ok(load_gate_is_open(&gate, end - 2 * US + LOAD_GATE_QUIET_NS, since), "and no more");
}

static void without_pause(void)
{
    struct load_gate gate = {0, 0};
    int64_t opened = opened_ns(&gate, NOW);

    is_int(opened - NOW, LOAD_GATE_LATEST_NS, "without a pause it opens when it has to");
    load_gate_loaded(&gate, opened, opened + 500 * US);
    ok(load_gate_is_open(&gate, opened + 500 * US, NOW), "and stays so until something is loaded");
    load_gate_loaded(&gate, opened, opened + 6 * MS);
    is_int(opened_ns(&gate, opened + 6 * MS) - (opened + 6 * MS), LOAD_GATE_LATEST_NS,
           "then the rest waits as long again");
}

/* ---- All planners of the process ---------------------------------------------------------- */

static void timing(void)
{
    ok(load_gate_enter(), "a planner may load");
    ok(load_gate_enter(), "and another one");
    load_gate_leave();
    load_gate_leave();
    load_gate_block();
    ok(!load_gate_enter(), "none while kernels are timed");
    load_gate_unblock();
    ok(load_gate_enter(), "after that they may again");
    load_gate_leave();
}

static atomic_bool entered, left;

static void *load_slowly(void *arg)
{
    (void)arg;
    if (!load_gate_enter())
        _exit(3);
    entered = true;
    sleep_ns(50 * MS);
    left = true;
    load_gate_leave();
    return NULL;
}

/* In the place of what a library has registered. */
static void library_ends(void)
{
    if (!left)
        _exit(4);
    _exit(load_gate_enter() ? 5 : 0);
}

static void exits(void)
{
    pid_t child = fork();
    pthread_t thread;
    int status = -1;

    if (child == 0) {
        alarm(20);
        atexit(library_ends);
        load_gate_watch_exit();
        if (pthread_create(&thread, NULL, load_slowly, NULL) != 0 || pthread_detach(thread) != 0)
            _exit(2);
        while (!entered)
            sleep_ns(MS);
        exit(1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        bail("no child");
    is_int(status, 0, "exit() waits for a load, and lets no other begin");
}

int main(void)
{
    pauses();
    loads();
    call_at_the_end();
    without_pause();
    timing();
    exits();
    return done_testing();
}
