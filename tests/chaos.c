#include "chaos.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "status.h"

#define RULES_MAX 16
#define STREAMS_MAX 256

struct chaos_backend {
    struct backend base;
    struct backend *inner;
    void (*notify)(void *arg);
    void *notify_arg;
};

/* What the library sees as a backend_event. */
struct chaos_event {
    struct backend_event *inner;
    atomic_int lies; /* answers 'not done' that are still to come, set by record */
};

struct rule {
    enum chaos_call call;
    const struct fp8pipe_stream *stream;
    unsigned countdown; /* 0: free */
    enum fp8pipe_status status;
};

static struct backend_ops table;
static const struct backend_ops *inner_ops;

/* The rules are read under the lock, which is taken only while rules_left is not 0. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES_MAX];
static atomic_uint rules_left;

static atomic_uint failures;
static atomic_bool device_error;
static _Atomic int64_t delay_max_ns;
static _Atomic uint64_t delay_seed;
static _Atomic uint64_t counts[CHAOS_CALLS];
static _Atomic uint64_t violations;

static _Atomic int64_t live_backends, live_streams, live_events, live_timers, live_allocs,
    live_alloc_bytes, live_pinned;

/* Streams that a thread is inside of; a slot is claimed for good by the first use of its stream. */
static struct {
    const struct fp8pipe_stream *_Atomic stream;
    atomic_int inside;
} in_use[STREAMS_MAX];

static _Thread_local int entered;
static _Thread_local uint64_t random_state;
static _Thread_local uint64_t random_seed;

#define RELAXED memory_order_relaxed
#define ADD(counter, value) atomic_fetch_add_explicit(&(counter), value, RELAXED)
#define LOAD(counter) atomic_load_explicit(&(counter), RELAXED)
#define STORE(counter, value) atomic_store_explicit(&(counter), value, RELAXED)

static const char *const call_names[CHAOS_CALLS] = {
#define CHAOS_NAME(upper, lower) [CHAOS_##upper] = #lower,
    CHAOS_TABLE(CHAOS_NAME)
#undef CHAOS_NAME
};

static bool is_work(enum chaos_call call)
{
    return call <= CHAOS_GRADIENT_NORM; /* the work stands first in the table */
}

/* splitmix64, one sequence for each thread. */
static uint64_t next_random(void)
{
    static _Atomic uint64_t threads;
    uint64_t seed = LOAD(delay_seed), z;

    if (random_seed != seed || random_state == 0) {
        random_seed = seed;
        random_state = seed + 0x9e3779b97f4a7c15u * (1 + ADD(threads, 1));
    }
    z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void sleep_for(int64_t ns)
{
    struct timespec ts = {ns / 1000000000, ns % 1000000000};

    nanosleep(&ts, NULL);
}

static void sleep_work(void *arg)
{
    sleep_for((int64_t)(intptr_t)arg);
}

static void delay(struct chaos_backend *chaos, struct fp8pipe_stream *stream)
{
    int64_t max_ns = LOAD(delay_max_ns);
    uint64_t r;

    if (max_ns <= 0)
        return;
    r = next_random();
    if (r % 8 == 0)
        sleep_for((int64_t)((r >> 8) % (uint64_t)max_ns));
    else if (r % 8 < 3)
        sched_yield();
    /* a sleep that cannot be enqueued delays nothing, which is harmless */
    if (stream && (r >> 4) % 8 == 0)
        (void)inner_ops->host_call(chaos->inner, stream, sleep_work,
                                   (void *)(intptr_t)((r >> 16) % (uint64_t)max_ns));
}

static enum fp8pipe_status apply_rules(enum chaos_call call, const struct fp8pipe_stream *stream)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    if (LOAD(rules_left) == 0)
        return FP8PIPE_OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RULES_MAX; i++) {
        struct rule *rule = &rules[i];

        if (rule->countdown == 0 || (rule->stream && rule->stream != stream))
            continue;
        if (rule->call != call && !(rule->call == CHAOS_WORK && is_work(call)))
            continue;
        if (--rule->countdown == 0) {
            ADD(rules_left, -1u);
            ADD(failures, 1);
            status = rule->status;
        }
    }
    pthread_mutex_unlock(&lock);
    if (status != FP8PIPE_OK)
        return status_fail(status, "chaos: %s fails", call_names[call]);
    return FP8PIPE_OK;
}

static atomic_int *stream_slot(const struct fp8pipe_stream *stream)
{
    for (int i = 0; i < STREAMS_MAX; i++) {
        const struct fp8pipe_stream *there = LOAD(in_use[i].stream);

        if (!there && atomic_compare_exchange_strong_explicit(&in_use[i].stream, &there, stream,
                                                              RELAXED, RELAXED))
            return &in_use[i].inside;
        if (there == stream)
            return &in_use[i].inside;
    }
    return NULL;
}

/* Before a call: OK, or what it has to fail with. */
static enum fp8pipe_status before(struct backend *backend, enum chaos_call call,
                                  struct fp8pipe_stream *stream)
{
    ADD(counts[call], 1);
    if (!entered)
        ADD(violations, 1);
    delay((struct chaos_backend *)backend, call == CHAOS_STREAM_CHECK ? NULL : stream);
    return apply_rules(call, stream);
}

static void stream_enter(const struct fp8pipe_stream *stream)
{
    atomic_int *inside = stream ? stream_slot(stream) : NULL;

    if (inside && ADD(*inside, 1) != 0)
        ADD(violations, 1);
}

static void stream_leave(const struct fp8pipe_stream *stream)
{
    atomic_int *inside = stream ? stream_slot(stream) : NULL;

    if (inside)
        ADD(*inside, -1);
}

static struct backend *inner(struct backend *backend)
{
    return ((struct chaos_backend *)backend)->inner;
}

/* Passes a call on, between `before` and the watch over its stream. */
#define PASS(call, stream, lower, ...)                                                             \
    enum fp8pipe_status status;                                                                    \
                                                                                                   \
    stream_enter(stream);                                                                          \
    status = before(backend, call, stream);                                                        \
    if (status == FP8PIPE_OK)                                                                      \
        status = inner_ops->lower(inner(backend), __VA_ARGS__);                                    \
    stream_leave(stream)

static void notify(void *arg)
{
    struct chaos_backend *chaos = arg;

    if (table.poll_ns == 0 && chaos->notify)
        chaos->notify(chaos->notify_arg);
}

static enum fp8pipe_status chaos_open(const struct backend_options *options,
                                      struct backend **backend)
{
    struct backend_options passed = *options;
    struct chaos_backend *chaos;
    enum fp8pipe_status status;

    ADD(counts[CHAOS_OPEN], 1);
    status = apply_rules(CHAOS_OPEN, NULL);
    if (status != FP8PIPE_OK)
        return status;
    chaos = calloc(1, sizeof(*chaos));
    if (!chaos)
        return status_fail(FP8PIPE_ENOMEM, "chaos: out of memory");
    chaos->base.ops = &table;
    chaos->notify = options->notify;
    chaos->notify_arg = options->notify_arg;
    passed.notify = notify;
    passed.notify_arg = chaos;
    status = inner_ops->open(&passed, &chaos->inner);
    if (status != FP8PIPE_OK) {
        free(chaos);
        return status;
    }
    ADD(live_backends, 1);
    *backend = &chaos->base;
    return FP8PIPE_OK;
}

static void chaos_close(struct backend *backend)
{
    inner_ops->close(inner(backend));
    free(backend);
    ADD(live_backends, -1);
}

static void chaos_enter(struct backend *backend, struct backend_scope *scope)
{
    inner_ops->enter(inner(backend), scope);
    entered++;
}

static void chaos_leave(struct backend *backend, struct backend_scope *scope)
{
    if (entered-- <= 0)
        ADD(violations, 1);
    inner_ops->leave(inner(backend), scope);
}

static enum fp8pipe_status chaos_stream_create(struct backend *backend, void *native,
                                               struct fp8pipe_stream **stream)
{
    PASS(CHAOS_STREAM_CREATE, NULL, stream_create, native, stream);
    if (status == FP8PIPE_OK)
        ADD(live_streams, 1);
    return status;
}

static void chaos_stream_destroy(struct backend *backend, struct fp8pipe_stream *stream)
{
    inner_ops->stream_destroy(inner(backend), stream);
    ADD(live_streams, -1);
}

static enum fp8pipe_status chaos_stream_check(struct backend *backend,
                                              struct fp8pipe_stream *stream)
{
    PASS(CHAOS_STREAM_CHECK, stream, stream_check, stream);
    return status;
}

static enum fp8pipe_status chaos_event_create(struct backend *backend, struct backend_event **event)
{
    struct chaos_event *mine = calloc(1, sizeof(*mine));

    if (!mine)
        return status_fail(FP8PIPE_ENOMEM, "chaos: out of memory");
    PASS(CHAOS_EVENT_CREATE, NULL, event_create, &mine->inner);
    if (status != FP8PIPE_OK) {
        free(mine);
        return status;
    }
    ADD(live_events, 1);
    *event = (struct backend_event *)mine;
    return FP8PIPE_OK;
}

static void chaos_event_destroy(struct backend *backend, struct backend_event *event)
{
    inner_ops->event_destroy(inner(backend), ((struct chaos_event *)event)->inner);
    free(event);
    ADD(live_events, -1);
}

static enum fp8pipe_status chaos_event_record(struct backend *backend, struct backend_event *event,
                                              struct fp8pipe_stream *stream)
{
    struct chaos_event *mine = (struct chaos_event *)event;

    if (table.poll_ns > 0 && LOAD(delay_max_ns) > 0)
        STORE(mine->lies, (int)(next_random() % 4));
    PASS(CHAOS_EVENT_RECORD, stream, event_record, mine->inner, stream);
    return status;
}

static enum fp8pipe_status chaos_event_query(struct backend *backend, struct backend_event *event,
                                             bool *done)
{
    struct chaos_event *mine = (struct chaos_event *)event;

    if (LOAD(device_error)) {
        ADD(failures, 1);
        return status_fail(FP8PIPE_EDEVICE, "chaos: the device is gone");
    }
    PASS(CHAOS_EVENT_QUERY, NULL, event_query, mine->inner, done);
    if (status == FP8PIPE_OK && *done && LOAD(mine->lies) > 0) {
        ADD(mine->lies, -1);
        *done = false;
    }
    return status;
}

static enum fp8pipe_status chaos_stream_wait(struct backend *backend, struct fp8pipe_stream *stream,
                                             struct backend_event *event)
{
    PASS(CHAOS_STREAM_WAIT, stream, stream_wait, stream, ((struct chaos_event *)event)->inner);
    return status;
}

static enum fp8pipe_status
chaos_stream_wait_native(struct backend *backend, struct fp8pipe_stream *stream, void *native_event)
{
    PASS(CHAOS_STREAM_WAIT_NATIVE, stream, stream_wait_native, stream, native_event);
    return status;
}

static enum fp8pipe_status chaos_native_wait(struct backend *backend, void *native_stream,
                                             struct backend_event *event)
{
    PASS(CHAOS_NATIVE_WAIT, NULL, native_wait, native_stream, ((struct chaos_event *)event)->inner);
    return status;
}

static enum fp8pipe_status chaos_timer_create(struct backend *backend, struct backend_timer **timer)
{
    PASS(CHAOS_TIMER_CREATE, NULL, timer_create, timer);
    if (status == FP8PIPE_OK)
        ADD(live_timers, 1);
    return status;
}

static void chaos_timer_destroy(struct backend *backend, struct backend_timer *timer)
{
    if (!entered)
        ADD(violations, 1);
    inner_ops->timer_destroy(inner(backend), timer);
    ADD(live_timers, -1);
}

static enum fp8pipe_status chaos_timer_record(struct backend *backend, struct backend_timer *timer,
                                              struct fp8pipe_stream *stream)
{
    PASS(CHAOS_TIMER_RECORD, stream, timer_record, timer, stream);
    return status;
}

static enum fp8pipe_status chaos_timer_now(struct backend *backend, struct backend_timer *timer,
                                           int64_t *now_ns)
{
    PASS(CHAOS_TIMER_NOW, NULL, timer_now, timer, now_ns);
    return status;
}

static enum fp8pipe_status chaos_timer_elapsed(struct backend *backend, struct backend_timer *from,
                                               struct backend_timer *to, int64_t *elapsed_ns)
{
    PASS(CHAOS_TIMER_ELAPSED, NULL, timer_elapsed, from, to, elapsed_ns);
    return status;
}

static void chaos_range_push(struct backend *backend, const char *name)
{
    inner_ops->range_push(inner(backend), name);
}

static void chaos_range_pop(struct backend *backend)
{
    inner_ops->range_pop(inner(backend));
}

static enum fp8pipe_status chaos_alloc(struct backend *backend, struct fp8pipe_stream *stream,
                                       size_t bytes, void **data)
{
    PASS(CHAOS_ALLOC, stream, alloc, stream, bytes, data);
    if (status == FP8PIPE_OK && *data) {
        ADD(live_allocs, 1);
        ADD(live_alloc_bytes, (int64_t)bytes);
    }
    return status;
}

static void chaos_free(struct backend *backend, struct fp8pipe_stream *stream, void *data,
                       size_t bytes)
{
    if (!entered)
        ADD(violations, 1);
    stream_enter(stream);
    inner_ops->free(inner(backend), stream, data, bytes);
    stream_leave(stream);
    if (data) {
        ADD(live_allocs, -1);
        ADD(live_alloc_bytes, -(int64_t)bytes);
    }
}

static enum fp8pipe_status chaos_pinned_alloc(struct backend *backend, size_t bytes, void **data)
{
    PASS(CHAOS_PINNED_ALLOC, NULL, pinned_alloc, bytes, data);
    if (status == FP8PIPE_OK)
        ADD(live_pinned, 1);
    return status;
}

static void chaos_pinned_free(struct backend *backend, void *data)
{
    inner_ops->pinned_free(inner(backend), data);
    if (data)
        ADD(live_pinned, -1);
}

static enum fp8pipe_status chaos_memory_alloc(struct backend *backend, size_t bytes, void **data)
{
    PASS(CHAOS_MEMORY_ALLOC, NULL, memory_alloc, bytes, data);
    return status;
}

static enum fp8pipe_status chaos_memory_free(struct backend *backend, void *data)
{
    PASS(CHAOS_MEMORY_FREE, NULL, memory_free, data);
    return status;
}

static enum fp8pipe_status chaos_memory_copy(struct backend *backend, void *to, const void *from,
                                             size_t bytes)
{
    PASS(CHAOS_MEMORY_COPY, NULL, memory_copy, to, from, bytes);
    return status;
}

static enum fp8pipe_status chaos_memory_fill(struct backend *backend, void *data, int value,
                                             size_t bytes)
{
    PASS(CHAOS_MEMORY_FILL, NULL, memory_fill, data, value, bytes);
    return status;
}

static enum fp8pipe_status chaos_copy(struct backend *backend, struct fp8pipe_stream *stream,
                                      void *to, const void *from, size_t bytes)
{
    PASS(CHAOS_COPY, stream, copy, stream, to, from, bytes);
    return status;
}

static enum fp8pipe_status chaos_copy_2d(struct backend *backend, struct fp8pipe_stream *stream,
                                         void *to, size_t to_pitch, const void *from,
                                         size_t from_pitch, size_t width, size_t rows)
{
    PASS(CHAOS_COPY_2D, stream, copy_2d, stream, to, to_pitch, from, from_pitch, width, rows);
    return status;
}

static enum fp8pipe_status chaos_fill(struct backend *backend, struct fp8pipe_stream *stream,
                                      void *data, int value, size_t bytes)
{
    PASS(CHAOS_FILL, stream, fill, stream, data, value, bytes);
    return status;
}

static enum fp8pipe_status chaos_host_call(struct backend *backend, struct fp8pipe_stream *stream,
                                           fp8pipe_work_fn *fn, void *arg)
{
    PASS(CHAOS_HOST_CALL, stream, host_call, stream, fn, arg);
    return status;
}

static enum fp8pipe_status chaos_gemm(struct backend *backend, struct fp8pipe_stream *stream,
                                      const struct gemm_args *args)
{
    PASS(CHAOS_GEMM, stream, gemm, stream, args);
    return status;
}

#define CHAOS_KERNEL(upper, lower)                                                                 \
    static enum fp8pipe_status chaos_##lower(struct backend *backend,                              \
                                             struct fp8pipe_stream *stream,                        \
                                             const struct kernel_##lower##_args *args)             \
    {                                                                                              \
        PASS(CHAOS_##upper, stream, lower, stream, args);                                          \
        return status;                                                                             \
    }
CHAOS_KERNELS(CHAOS_KERNEL)
#undef CHAOS_KERNEL

static void chaos_plan_stats(struct backend *backend, struct backend_plan_stats *stats)
{
    inner_ops->plan_stats(inner(backend), stats);
}

static void chaos_memory_stats(struct backend *backend, struct backend_memory_stats *stats)
{
    inner_ops->memory_stats(inner(backend), stats);
}

const struct backend_ops *chaos_ops(const struct backend_ops *inner_table, int64_t poll_ns)
{
    inner_ops = inner_table;
    table = (struct backend_ops){.kind = inner_table->kind,
                                 .name = inner_table->name,
                                 .poll_ns = poll_ns > 0 ? poll_ns : inner_table->poll_ns,
                                 .close = chaos_close,
                                 .enter = chaos_enter,
                                 .leave = chaos_leave,
                                 .stream_destroy = chaos_stream_destroy,
                                 .event_destroy = chaos_event_destroy,
                                 .timer_destroy = chaos_timer_destroy,
                                 .range_push = chaos_range_push,
                                 .range_pop = chaos_range_pop,
                                 .free = chaos_free,
                                 .pinned_free = chaos_pinned_free,
                                 .plan_stats = chaos_plan_stats,
                                 .memory_stats = chaos_memory_stats,
#define CHAOS_ENTRY(upper, lower) .lower = chaos_##lower,
                                 CHAOS_TABLE(CHAOS_ENTRY)
#undef CHAOS_ENTRY
    };
    return &table;
}

void chaos_disarm(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RULES_MAX; i++)
        rules[i].countdown = 0;
    STORE(rules_left, 0u);
    pthread_mutex_unlock(&lock);
}

void chaos_reset(void)
{
    chaos_disarm();
    STORE(failures, 0u);
    STORE(device_error, false);
    STORE(delay_max_ns, 0);
    STORE(violations, 0u);
    for (int i = 0; i < CHAOS_CALLS; i++)
        STORE(counts[i], 0u);
}

void chaos_fail(enum chaos_call call, const struct fp8pipe_stream *stream, unsigned nth,
                enum fp8pipe_status status)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RULES_MAX; i++) {
        if (rules[i].countdown == 0) {
            rules[i] = (struct rule){call, stream, nth, status};
            ADD(rules_left, 1);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

unsigned chaos_failures(void)
{
    return LOAD(failures);
}

void chaos_delays(uint64_t seed, int64_t max_ns)
{
    STORE(delay_seed, seed);
    STORE(delay_max_ns, max_ns);
}

void chaos_device_error(void)
{
    STORE(device_error, true);
}

uint64_t chaos_count(enum chaos_call call)
{
    uint64_t sum = 0;

    if (call != CHAOS_WORK)
        return LOAD(counts[call]);
    for (int i = 0; is_work((enum chaos_call)i); i++)
        sum += LOAD(counts[i]);
    return sum;
}

struct chaos_live chaos_live(void)
{
    return (struct chaos_live){
        .backends = LOAD(live_backends),
        .streams = LOAD(live_streams),
        .events = LOAD(live_events),
        .timers = LOAD(live_timers),
        .allocs = LOAD(live_allocs),
        .alloc_bytes = LOAD(live_alloc_bytes),
        .pinned = LOAD(live_pinned),
    };
}

uint64_t chaos_violations(void)
{
    return LOAD(violations);
}
