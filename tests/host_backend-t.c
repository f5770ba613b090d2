/*
 * The host backend through its table: streams run in order and apart from who enqueues, events
 * stand for records, memory is given back in stream order.
 */
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "host/stream.h"
#include "kernels/fp8.h"
#include "numbers.h"
#include "status.h"
#include "tap.h"

static const struct backend_ops *const ops = &backend_host_ops;
static struct backend *backend;

/* A hang ends the program: each group of tests has this long, under sanitizers too. */
#define HANG_SECONDS 60

static void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

static void must_at(int line, enum fp8pipe_status status)
{
    if (status != FP8PIPE_OK) {
        bail("line %d: %s: %s", line, fp8pipe_status_name(status), status_sentence());
    }
}
#define must(call) must_at(__LINE__, call)

/* ---- Shared counters and gates ------------------------------------------------------------ */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void set(int *variable, int value)
{
    pthread_mutex_lock(&mutex);
    *variable = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static int get(const int *variable)
{
    int value;

    pthread_mutex_lock(&mutex);
    value = *variable;
    pthread_mutex_unlock(&mutex);
    return value;
}

/* Work that holds its stream until *arg is not 0. */
static void hold(void *arg)
{
    const int *open = arg;

    pthread_mutex_lock(&mutex);
    while (!*open) {
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static void increment(void *arg)
{
    int *count = arg;

    pthread_mutex_lock(&mutex);
    ++*count;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void await(const int *variable, int value)
{
    pthread_mutex_lock(&mutex);
    while (*variable < value) {
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

static int notified;

static void notify(void *arg)
{
    increment(arg);
}

/* ---- Short forms -------------------------------------------------------------------------- */

static struct fp8pipe_stream *stream_make(void)
{
    struct fp8pipe_stream *stream = NULL;

    must(ops->stream_create(backend, NULL, &stream));
    return stream;
}

static struct backend_event *event_make(void)
{
    struct backend_event *event = NULL;

    must(ops->event_create(backend, &event));
    return event;
}

static bool done(struct backend_event *event)
{
    bool is_done = false;

    must(ops->event_query(backend, event, &is_done));
    return is_done;
}

static void record(struct backend_event *event, struct fp8pipe_stream *stream)
{
    must(ops->event_record(backend, event, stream));
}

static void wait_for(struct fp8pipe_stream *stream, struct backend_event *event)
{
    must(ops->stream_wait(backend, stream, event));
}

static void call(struct fp8pipe_stream *stream, fp8pipe_work_fn *fn, void *arg)
{
    must(ops->host_call(backend, stream, fn, arg));
}

static void drain(struct fp8pipe_stream *stream)
{
    int finished = 0;

    call(stream, increment, &finished);
    await(&finished, 1);
}

static void backend_make(const struct fp8pipe_allocator *allocator)
{
    struct backend_options options = {.notify = notify, .notify_arg = &notified};

    if (allocator != NULL) {
        options.allocator = *allocator;
    }
    must(ops->open(&options, &backend));
}

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
    struct fp8pipe_stream *stream = stream_make();
    struct sequence sequence = {0, 0};

    for (int i = 0; i < COUNT; i++) {
        places[i] = (struct place){&sequence, i};
        call(stream, take_place, &places[i]);
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
        call(pusher->stream, increment, &pusher->ran);
        increment(&pusher->pushed);
    }
    record(pusher->event, pusher->stream);
    increment(&pusher->pushed);
    return NULL;
}

static void test_bounded(void)
{
    struct pusher pusher = {stream_make(), event_make(), 0, 0};
    int open = 0;
    pthread_t thread;

    call(pusher.stream, hold, &open);
    if (pthread_create(&thread, NULL, push_many, &pusher) != 0) {
        bail("no thread");
    }
    await(&pusher.pushed, HOST_STREAM_ITEMS - 1);
    sleep_ms(50);
    is_int(get(&pusher.pushed), HOST_STREAM_ITEMS - 1, "a full queue holds who enqueues");
    is_int(get(&pusher.ran), 0, "nothing behind the held work has run");
    ok(done(pusher.event), "a query does not wait for a record that waits for room");
    set(&open, 1);
    pthread_join(thread, NULL);
    drain(pusher.stream);
    ok(get(&pusher.ran) == HOST_STREAM_ITEMS - 1 && done(pusher.event), "then all of it runs");
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
    stream = stream_make();
    fesetround(FE_TONEAREST);
    call(stream, look_around, &seen);
    drain(stream);
    ok(sigismember(&seen.blocked, SIGINT) && sigismember(&seen.blocked, SIGUSR1),
       "signals are blocked in an executor");
    is_int(seen.rounding, FE_TONEAREST, "an executor rounds to nearest, whoever made the stream");
    ops->stream_destroy(backend, stream);
}

/* ---- Events ------------------------------------------------------------------------------- */

static void test_query(void)
{
    struct fp8pipe_stream *stream = stream_make();
    struct backend_event *event = event_make();
    int open = 0, before;

    ok(done(event), "an event that was never recorded is done");
    call(stream, hold, &open);
    before = get(&notified);
    record(event, stream);
    ok(!done(event), "an event behind held work is not done");
    set(&open, 1);
    await(&notified, before + 1);
    ok(done(event), "who is notified finds it done");
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
    pair->a = stream_make();
    pair->b = stream_make();
    pair->event = event_make();
}

static void pair_destroy(struct pair *pair)
{
    ops->event_destroy(backend, pair->event);
    ops->stream_destroy(backend, pair->a);
    ops->stream_destroy(backend, pair->b);
}

static void test_wait(void)
{
    struct pair pair;

    pair_make(&pair);
    wait_for(pair.b, pair.event);
    drain(pair.b);
    pass("waiting for an event that was never recorded is no wait");
    call(pair.a, hold, &pair.open[0]);
    record(pair.event, pair.a);
    wait_for(pair.b, pair.event);
    call(pair.b, increment, &pair.ran);
    sleep_ms(20);
    is_int(get(&pair.ran), 0, "a stream waits for the event");
    set(&pair.open[0], 1);
    drain(pair.b);
    is_int(get(&pair.ran), 1, "and goes on after it");
    wait_for(pair.a, pair.event);
    drain(pair.a);
    pass("a stream does not wait for a record of its own");
    pair_destroy(&pair);
}

static void test_record_again(void)
{
    struct pair pair;

    pair_make(&pair);
    call(pair.a, hold, &pair.open[0]);
    record(pair.event, pair.a);
    wait_for(pair.b, pair.event);
    call(pair.b, increment, &pair.ran);
    call(pair.a, hold, &pair.open[1]);
    record(pair.event, pair.a);
    sleep_ms(20);
    is_int(get(&pair.ran), 0, "a record that came later does not let a waiter go early");
    set(&pair.open[0], 1);
    drain(pair.b);
    is_int(get(&pair.ran), 1, "a wait takes the record of its call");
    ok(!done(pair.event), "a query answers for the latest record");
    wait_for(pair.b, pair.event);
    call(pair.b, increment, &pair.ran);
    sleep_ms(20);
    is_int(get(&pair.ran), 1, "a wait after recording again waits for more");
    set(&pair.open[1], 1);
    drain(pair.b);
    ok(done(pair.event), "done after the latest record");
    pair_destroy(&pair);
}

static void test_record_elsewhere(void)
{
    struct pair pair;

    pair_make(&pair);
    call(pair.a, hold, &pair.open[0]);
    record(pair.event, pair.a);
    record(pair.event, pair.b);
    drain(pair.b);
    ok(done(pair.event), "recorded on another stream, an event is done with that one's work");
    record(pair.event, pair.a);
    ok(!done(pair.event), "and back again with the first one's");
    set(&pair.open[0], 1);
    drain(pair.a);
    ok(done(pair.event), "when that has finished");
    pair_destroy(&pair);
}

static void test_destroy_event(void)
{
    struct pair pair;

    pair_make(&pair);
    call(pair.a, hold, &pair.open[0]);
    record(pair.event, pair.a);
    wait_for(pair.b, pair.event);
    call(pair.b, increment, &pair.ran);
    ops->event_destroy(backend, pair.event);
    sleep_ms(20);
    is_int(get(&pair.ran), 0, "a queued wait holds although its event is destroyed");
    set(&pair.open[0], 1);
    drain(pair.b);
    is_int(get(&pair.ran), 1, "and ends");
    pair.event = event_make();
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
    call(pair.a, hold, &pair.open[0]);
    record(pair.event, pair.a);
    wait_for(pair.b, pair.event);
    call(pair.b, increment, &pair.ran);
    if (pthread_create(&thread, NULL, destroy_a, &pair) != 0) {
        bail("no thread");
    }
    sleep_ms(20);
    ok(get(&pair.ran) == 0 && !done(pair.event), "a stream being destroyed is waited for");
    set(&pair.open[0], 1);
    pthread_join(thread, NULL);
    ok(done(pair.event), "an event of a destroyed stream is done");
    wait_for(pair.b, pair.event);
    record(pair.event, pair.b);
    drain(pair.b);
    ok(get(&pair.ran) == 1 && done(pair.event), "and may be waited for and recorded again");
    pair.a = stream_make();
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
        call(node->stream, node_step, node);
        record(node->event, node->stream);
        wait_for(node->stream, node->neighbour);
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
        nodes[i].stream = stream_make();
        nodes[i].event = event_make();
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
        wait_for(stream, pair.event);
        call(stream, take_place, &places[i]);
        record(pair.event, stream);
    }
    drain(pair.b);
    ok(sequence.next == 100 && sequence.wrong == 0, "events order two streams' work");
    pair_destroy(&pair);
}

/* ---- Memory ------------------------------------------------------------------------------- */

struct pool {
    int allocated;
    int freed;
    size_t freed_bytes;
    int empty;
    int misaligned;
};

static void *pool_alloc(void *arg, size_t bytes, void *stream)
{
    struct pool *pool = arg;
    void *data = NULL;

    if (pool->empty || stream != NULL || posix_memalign(&data, 256, bytes + 256) != 0) {
        return NULL;
    }
    increment(&pool->allocated);
    return (char *)data + (pool->misaligned ? 16 : 0);
}

static void pool_free(void *arg, void *data, size_t bytes, void *stream)
{
    struct pool *pool = arg;

    (void)stream;
    free((char *)data - (pool->misaligned ? 16 : 0));
    pool->freed_bytes = bytes;
    increment(&pool->freed);
}

static void test_own_memory(void)
{
    struct fp8pipe_stream *stream = stream_make();
    void *data = NULL, *untouched = &data;
    int open = 0;

    must(ops->alloc(backend, stream, 1000, &data));
    ok((uintptr_t)data % 256 == 0, "memory is aligned to 256 bytes");
    must(ops->fill(backend, stream, data, 1, 1000));
    call(stream, hold, &open);
    must(ops->fill(backend, stream, data, 2, 1000));
    ops->free(backend, stream, data, 1000);
    set(&open, 1);
    drain(stream);
    pass("memory freed on a stream may still be used by work before it");
    must(ops->alloc(backend, NULL, 0, &data));
    ok(data == NULL, "no bytes are NULL");
    ops->free(backend, stream, NULL, 0);
    is_int(ops->alloc(backend, NULL, SIZE_MAX, &untouched), FP8PIPE_ENOMEM, "too much is ENOMEM");
    ok(untouched == &data && strstr(status_sentence(), "18446744073709551615") != NULL,
       "says how much, and sets nothing");
    is_int(ops->memory_alloc(backend, SIZE_MAX, &untouched), FP8PIPE_ENOMEM,
           "too much plain memory is ENOMEM");
    must(ops->memory_alloc(backend, 0, &data));
    ok(data == NULL, "no bytes of plain memory are NULL");
    must(ops->memory_free(backend, data));
    must(ops->pinned_alloc(backend, 5, &data));
    must(ops->memory_fill(backend, data, 3, 5));
    must(ops->memory_copy(backend, NULL, NULL, 0));
    ops->pinned_free(backend, data);
    ops->stream_destroy(backend, stream);
}

static void test_pool(void)
{
    struct pool pool = {0};
    struct fp8pipe_allocator allocator = {pool_alloc, pool_free, &pool};
    struct fp8pipe_stream *stream;
    void *data = NULL;
    int open = 0;

    backend_make(&allocator);
    stream = stream_make();
    must(ops->alloc(backend, stream, 64, &data));
    call(stream, hold, &open);
    ops->free(backend, stream, data, 64);
    sleep_ms(20);
    is_int(get(&pool.freed), 0, "the caller's allocator is given memory back in stream order");
    set(&open, 1);
    await(&pool.freed, 1);
    ok(pool.freed_bytes == 64, "with its size");
    must(ops->alloc(backend, stream, 128, &data));
    ops->free(backend, NULL, data, 128);
    is_int(get(&pool.freed), 2, "without a stream, at once");
    pool.empty = 1;
    is_int(ops->alloc(backend, stream, 77, &data), FP8PIPE_ENOMEM, "its NULL is ENOMEM");
    ok(strstr(status_sentence(), "77") != NULL, "which says how much");
    pool.empty = 0;
    pool.misaligned = 1;
    is_int(ops->alloc(backend, stream, 77, &data), FP8PIPE_EINVAL, "misaligned memory is refused");
    is_int(get(&pool.allocated), get(&pool.freed), "and everything was given back");
    ops->stream_destroy(backend, stream);
    ops->close(backend);
}

static void test_copies(void)
{
    struct fp8pipe_stream *stream = stream_make();
    uint8_t from[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    uint8_t to[12], want[12] = {0, 1, 9, 9, 4, 5, 9, 9, 8, 9, 9, 9};
    uint8_t line[12];

    must(ops->fill(backend, stream, to, 9, sizeof(to)));
    must(ops->copy_2d(backend, stream, to, 4, from, 4, 2, 3));
    must(ops->copy(backend, stream, line, to, sizeof(to)));
    must(ops->fill(backend, stream, to, 0, sizeof(to)));
    must(ops->copy(backend, stream, NULL, NULL, 0));
    must(ops->copy_2d(backend, stream, NULL, 0, NULL, 0, 0, 3));
    must(ops->fill(backend, stream, NULL, 0, 0));
    drain(stream);
    is_mem(line, want, sizeof(want), "fill, copy_2d and copy, in order");
    ops->stream_destroy(backend, stream);
}

/* ---- Kernels and refusals ------------------------------------------------------------------ */

static void test_kernels(void)
{
    struct fp8pipe_stream *stream = stream_make();
    float x[3] = {1, -3, 2}, scale = 2, inv = 0, out[3] = {0};
    uint32_t amax = 0;
    int32_t has_scale = 1;
    uint8_t row[16];
    int open = 0;
    struct fp8pipe_matrix matrix = {x, 1, 3, 3, FP8PIPE_FP32, 0};
    struct kernel_quantize_args quantize = {.x = matrix,
                                            .format = FP8PIPE_E4M3,
                                            .scale = &scale,
                                            .has_scale = &has_scale,
                                            .scale_inv = &inv,
                                            .row = row,
                                            .row_stride = 16,
                                            .amax = &amax};
    struct kernel_store_args store = {.to = matrix, .from = matrix};

    call(stream, hold, &open);
    must(ops->quantize(backend, stream, &quantize));
    memset(&quantize, 0xff, sizeof(quantize));
    store.to.data = out;
    must(ops->store(backend, stream, &store));
    memset(&store, 0xff, sizeof(store));
    set(&open, 1);
    drain(stream);
    ok(inv == 0.5f && row[1] == fp8_e4m3_from_float(-6) && amax == test_float_bits(3) &&
           out[2] == 2,
       "a kernel's arguments are copied when it is enqueued");
    ops->stream_destroy(backend, stream);
}

static void test_refusals(void)
{
    struct fp8pipe_stream *stream = stream_make(), *none = NULL;
    struct backend_event *event = event_make();
    struct backend_plan_stats stats;

    is_int(ops->stream_create(backend, &none, &none), FP8PIPE_EINVAL,
           "a stream of the caller's is EINVAL");
    ok(none == NULL, "and sets nothing");
    is_int(ops->stream_wait_native(backend, stream, &none), FP8PIPE_ENOTSUP, "a CUDA event");
    is_int(ops->native_wait(backend, &none, event), FP8PIPE_ENOTSUP, "a CUDA stream");
    is_int(ops->stream_check(backend, stream), FP8PIPE_OK, "no stream is ever captured");
    ops->plan_stats(backend, &stats);
    ok(stats.cached == 0 && stats.evicted == 0, "no plans");
    ops->event_destroy(backend, event);
    ops->event_destroy(backend, NULL);
    ops->stream_destroy(backend, stream);
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
        backend_make(NULL);
        call(stream_make(), hold, &never);
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
        test_wait,           test_record_again, test_record_elsewhere, test_destroy_event,
        test_destroy_stream, test_ring,         test_visibility,       test_own_memory,
        test_copies,         test_kernels,      test_refusals,
    };

    /* First, while this process has one thread: fork() keeps only the caller's. */
    alarm(HANG_SECONDS);
    test_exit();
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        alarm(HANG_SECONDS);
        backend_make(NULL);
        tests[i]();
        ops->close(backend);
    }
    test_pool();
    return done_testing();
}
