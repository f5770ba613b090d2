/*
 * The host backend through its table: streams run in order and apart from who enqueues, events
 * stand for records, exit() does not wait for work.
 */
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "async.h"
#include "host/stream.h"
#include "host_rig.h"

/* ---- Streams ------------------------------------------------------------------------------ */

struct sequence {
    int next;
    int wrong;
};

struct place {
    struct sequence *sequence;
    int number;
};

static void take_place(void *arg)
{
    struct place *place = arg;

    place->sequence->wrong += place->sequence->next++ != place->number;
}

static void test_order(void)
{
    enum { COUNT = 4 * HOST_STREAM_ITEMS };
    static struct place places[COUNT];
    struct fp8pipe_stream *stream = rig_stream();
    struct sequence sequence = {0, 0};

    for (int i = 0; i < COUNT; i++) {
        places[i] = (struct place){&sequence, i};
        rig_call(stream, take_place, &places[i]);
    }
    ops->stream_destroy(backend, stream);
    ok(sequence.next == COUNT && sequence.wrong == 0,
       "work runs in order, and destroying the stream waits for it");
}

struct pusher {
    struct fp8pipe_stream *stream;
    struct backend_event *event;
    int pushed;
    int ran;
};

/* Fills what a held queue has left, then records into the full one. */
static void *push_many(void *arg)
{
    struct pusher *pusher = arg;

    for (int i = 0; i < HOST_STREAM_ITEMS - 1; i++) {
        rig_call(pusher->stream, rig_increment, &pusher->ran);
        rig_increment(&pusher->pushed);
    }
    rig_record(pusher->event, pusher->stream);
    rig_increment(&pusher->pushed);
    return NULL;
}

static void test_bounded(void)
{
    struct pusher pusher = {rig_stream(), rig_event(), 0, 0};
    int open = 0;
    pthread_t thread;

    rig_call(pusher.stream, rig_hold, &open);
    if (pthread_create(&thread, NULL, push_many, &pusher) != 0) {
        bail("no thread");
    }
    rig_await(&pusher.pushed, HOST_STREAM_ITEMS - 1);
    sleep_ns(50 * MS_NS);
    is_int(rig_get(&pusher.pushed), HOST_STREAM_ITEMS - 1, "a full queue holds who enqueues");
    is_int(rig_get(&pusher.ran), 0, "nothing behind the held work has run");
    ok(rig_done(pusher.event), "a query does not wait for a record that waits for room");
    rig_set(&open, 1);
    pthread_join(thread, NULL);
    rig_drain(pusher.stream);
    ok(rig_get(&pusher.ran) == HOST_STREAM_ITEMS - 1 && rig_done(pusher.event),
       "then all of it runs");
    ops->event_destroy(backend, pusher.event);
    ops->stream_destroy(backend, pusher.stream);
}

struct surroundings {
    sigset_t blocked;
    int rounding;
};

static void look_around(void *arg)
{
    struct surroundings *seen = arg;

    pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);
    seen->rounding = fegetround();
}

static void test_surroundings(void)
{
    struct surroundings seen;
    struct fp8pipe_stream *stream;

    fesetround(FE_UPWARD);
    stream = rig_stream();
    fesetround(FE_TONEAREST);
    rig_call(stream, look_around, &seen);
    rig_drain(stream);
    ok(sigismember(&seen.blocked, SIGINT) && sigismember(&seen.blocked, SIGUSR1),
       "signals are blocked in an executor");
    is_int(seen.rounding, FE_TONEAREST, "an executor rounds to nearest, whoever made the stream");
    ops->stream_destroy(backend, stream);
}

/* ---- Events ------------------------------------------------------------------------------- */

static void test_query(void)
{
    struct fp8pipe_stream *stream = rig_stream();
    struct backend_event *event = rig_event();
    int open = 0, before;

    ok(rig_done(event), "an event that was never recorded is done");
    rig_call(stream, rig_hold, &open);
    before = rig_get(&rig_notified);
    rig_record(event, stream);
    ok(!rig_done(event), "an event behind held work is not done");
    rig_set(&open, 1);
    rig_await(&rig_notified, before + 1);
    ok(rig_done(event), "who is notified finds it done");
    ops->event_destroy(backend, event);
    ops->stream_destroy(backend, stream);
}

/* Two streams; b's work counts in `ran`. */
struct pair {
    struct fp8pipe_stream *a;
    struct fp8pipe_stream *b;
    struct backend_event *event;
    int open[2];
    int ran;
};

static void pair_make(struct pair *pair)
{
    memset(pair, 0, sizeof(*pair));
    pair->a = rig_stream();
    pair->b = rig_stream();
    pair->event = rig_event();
}

static void pair_destroy(struct pair *pair)
{
    ops->event_destroy(backend, pair->event);
    ops->stream_destroy(backend, pair->a);
    ops->stream_destroy(backend, pair->b);
}

static void test_stream_wait(void)
{
    struct pair pair;

    pair_make(&pair);
    rig_wait_for(pair.b, pair.event);
    rig_drain(pair.b);
    pass("waiting for an event that was never recorded is no wait");
    rig_call(pair.a, rig_hold, &pair.open[0]);
    rig_record(pair.event, pair.a);
    rig_wait_for(pair.b, pair.event);
    rig_call(pair.b, rig_increment, &pair.ran);
    sleep_ns(20 * MS_NS);
    is_int(rig_get(&pair.ran), 0, "a stream waits for the event");
    rig_set(&pair.open[0], 1);
    rig_drain(pair.b);
    is_int(rig_get(&pair.ran), 1, "and goes on after it");
    rig_wait_for(pair.a, pair.event);
    rig_drain(pair.a);
    pass("a stream does not wait for a record of its own");
    pair_destroy(&pair);
}

static void test_record_again(void)
{
    struct pair pair;

    pair_make(&pair);
    rig_call(pair.a, rig_hold, &pair.open[0]);
    rig_record(pair.event, pair.a);
    rig_wait_for(pair.b, pair.event);
    rig_call(pair.b, rig_increment, &pair.ran);
    rig_call(pair.a, rig_hold, &pair.open[1]);
    rig_record(pair.event, pair.a);
    sleep_ns(20 * MS_NS);
    is_int(rig_get(&pair.ran), 0, "a record that came later does not let a waiter go early");
    rig_set(&pair.open[0], 1);
    rig_drain(pair.b);
    is_int(rig_get(&pair.ran), 1, "a wait takes the record of its call");
    ok(!rig_done(pair.event), "a query answers for the latest record");
    rig_wait_for(pair.b, pair.event);
    rig_call(pair.b, rig_increment, &pair.ran);
    sleep_ns(20 * MS_NS);
    is_int(rig_get(&pair.ran), 1, "a wait after recording again waits for more");
    rig_set(&pair.open[1], 1);
    rig_drain(pair.b);
    ok(rig_done(pair.event), "done after the latest record");
    pair_destroy(&pair);
}

static void test_record_elsewhere(void)
{
    struct pair pair;

    pair_make(&pair);
    rig_call(pair.a, rig_hold, &pair.open[0]);
    rig_record(pair.event, pair.a);
    rig_record(pair.event, pair.b);
    rig_drain(pair.b);
    ok(rig_done(pair.event), "recorded on another stream, an event is done with that one's work");
    rig_record(pair.event, pair.a);
    ok(!rig_done(pair.event), "and back again with the first one's");
    rig_set(&pair.open[0], 1);
    rig_drain(pair.a);
    ok(rig_done(pair.event), "when that has finished");
    pair_destroy(&pair);
}

static void test_destroy_event(void)
{
    struct pair pair;

    pair_make(&pair);
    rig_call(pair.a, rig_hold, &pair.open[0]);
    rig_record(pair.event, pair.a);
    rig_wait_for(pair.b, pair.event);
    rig_call(pair.b, rig_increment, &pair.ran);
    ops->event_destroy(backend, pair.event);
    sleep_ns(20 * MS_NS);
    is_int(rig_get(&pair.ran), 0, "a queued wait holds although its event is destroyed");
    rig_set(&pair.open[0], 1);
    rig_drain(pair.b);
    is_int(rig_get(&pair.ran), 1, "and ends");
    pair.event = rig_event();
    pair_destroy(&pair);
}

static void *destroy_a(void *arg)
{
    struct pair *pair = arg;

    ops->stream_destroy(backend, pair->a);
    return NULL;
}

static void test_destroy_stream(void)
{
    struct pair pair;
    pthread_t thread;

    pair_make(&pair);
    rig_call(pair.a, rig_hold, &pair.open[0]);
    rig_record(pair.event, pair.a);
    rig_wait_for(pair.b, pair.event);
    rig_call(pair.b, rig_increment, &pair.ran);
    if (pthread_create(&thread, NULL, destroy_a, &pair) != 0) {
        bail("no thread");
    }
    sleep_ns(20 * MS_NS);
    ok(rig_get(&pair.ran) == 0 && !rig_done(pair.event), "a stream being destroyed is waited for");
    rig_set(&pair.open[0], 1);
    pthread_join(thread, NULL);
    ok(rig_done(pair.event), "an event of a destroyed stream is done");
    rig_wait_for(pair.b, pair.event);
    rig_record(pair.event, pair.b);
    rig_drain(pair.b);
    ok(rig_get(&pair.ran) == 1 && rig_done(pair.event), "and may be waited for and recorded again");
    pair.a = rig_stream();
    pair_destroy(&pair);
}

/* ---- Streams that wait for each other, with full queues ------------------------------------ */

enum { RING = 3, ROUNDS = 1000 };

struct node {
    struct fp8pipe_stream *stream;
    struct backend_event *event;
    struct backend_event *neighbour;
    int64_t steps;
};

static void node_step(void *arg)
{
    struct node *node = arg;

    node->steps++;
}

static void *node_issue(void *arg)
{
    struct node *node = arg;

    for (int i = 0; i < ROUNDS; i++) {
        rig_call(node->stream, node_step, node);
        rig_record(node->event, node->stream);
        rig_wait_for(node->stream, node->neighbour);
    }
    return NULL;
}

static void test_ring(void)
{
    struct node nodes[RING];
    pthread_t threads[RING];
    int64_t steps = 0;

    memset(nodes, 0, sizeof(nodes));
    for (int i = 0; i < RING; i++) {
        nodes[i].stream = rig_stream();
        nodes[i].event = rig_event();
    }
    for (int i = 0; i < RING; i++) {
        nodes[i].neighbour = nodes[(i + 1) % RING].event;
        if (pthread_create(&threads[i], NULL, node_issue, &nodes[i]) != 0) {
            bail("no thread");
        }
    }
    for (int i = 0; i < RING; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < RING; i++) {
        ops->stream_destroy(backend, nodes[i].stream);
        ops->event_destroy(backend, nodes[i].event);
        steps += nodes[i].steps;
    }
    is_int(steps, RING * ROUNDS, "streams that wait for each other in a ring all finish");
}

/* One stream writes plain memory that another reads after the event: a race unless it orders. */
static void test_visibility(void)
{
    struct pair pair;
    struct sequence sequence = {0, 0};
    struct place places[100];

    pair_make(&pair);
    for (int i = 0; i < 100; i++) {
        struct fp8pipe_stream *stream = i % 2 ? pair.b : pair.a;

        places[i] = (struct place){&sequence, i};
        rig_wait_for(stream, pair.event);
        rig_call(stream, take_place, &places[i]);
        rig_record(pair.event, stream);
    }
    rig_drain(pair.b);
    ok(sequence.next == 100 && sequence.wrong == 0, "events order two streams' work");
    pair_destroy(&pair);
}

/* ---- exit() without close ------------------------------------------------------------------ */

static int never;

static void test_exit(void)
{
    int status = -1;
    int ends[2];
    char byte;
    pid_t child;

    if (pipe(ends) != 0 || (child = fork()) < 0) {
        bail("no child");
    }
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        rig_open(NULL);
        rig_call(rig_stream(), rig_hold, &never);
        exit(0);
    }
    close(ends[1]);
    is_int(read(ends[0], &byte, 1), 0, "exit with work in a stream says nothing");
    close(ends[0]);
    waitpid(child, &status, 0);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "and is clean");
}

int main(void)
{
    static void (*const tests[])(void) = {
        test_order,          test_bounded,      test_surroundings,     test_query,
        test_stream_wait,    test_record_again, test_record_elsewhere, test_destroy_event,
        test_destroy_stream, test_ring,         test_visibility,
    };

    /* First, while this process has one thread: fork() keeps only the caller's. */
    watchdog("exit", 60);
    test_exit();
    rig_run(tests, sizeof(tests) / sizeof(tests[0]));
    return done_testing();
}
