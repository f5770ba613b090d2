#include "chaos_control.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "status.h"

#define RULES_MAX 16
#define STREAMS_MAX 256

struct rule {
    enum chaos_call call;
    const struct fp8pipe_stream *stream;
    unsigned countdown; /* 0: free */
    enum fp8pipe_status status;
};

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

/* ---- What the table asks --------------------------------------------------------------------- */

void chaos_called(enum chaos_call call)
{
    ADD(counts[call], 1);
}

void chaos_violated(void)
{
    ADD(violations, 1);
}

void chaos_live_add(struct chaos_live change)
{
    ADD(live_backends, change.backends);
    ADD(live_streams, change.streams);
    ADD(live_events, change.events);
    ADD(live_timers, change.timers);
    ADD(live_allocs, change.allocs);
    ADD(live_alloc_bytes, change.alloc_bytes);
    ADD(live_pinned, change.pinned);
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

void chaos_sleep(int64_t ns)
{
    struct timespec ts = {ns / 1000000000, ns % 1000000000};

    nanosleep(&ts, NULL);
}

int64_t chaos_delay(void)
{
    int64_t max_ns = LOAD(delay_max_ns);
    uint64_t r;

    if (max_ns <= 0)
        return 0;
    r = next_random();
    if (r % 8 == 0)
        chaos_sleep((int64_t)((r >> 8) % (uint64_t)max_ns));
    else if (r % 8 < 3)
        sched_yield();
    return (r >> 4) % 8 == 0 ? (int64_t)((r >> 16) % (uint64_t)max_ns) : 0;
}

int chaos_lies(void)
{
    return LOAD(delay_max_ns) > 0 ? (int)(next_random() % 4) : 0;
}

enum fp8pipe_status chaos_rules_apply(enum chaos_call call, const struct fp8pipe_stream *stream)
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

enum fp8pipe_status chaos_device_check(void)
{
    if (!LOAD(device_error))
        return FP8PIPE_OK;
    ADD(failures, 1);
    return status_fail(FP8PIPE_EDEVICE, "chaos: the device is gone");
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

void chaos_stream_enter(const struct fp8pipe_stream *stream)
{
    atomic_int *inside = stream ? stream_slot(stream) : NULL;

    if (inside && ADD(*inside, 1) != 0)
        chaos_violated();
}

void chaos_stream_leave(const struct fp8pipe_stream *stream)
{
    atomic_int *inside = stream ? stream_slot(stream) : NULL;

    if (inside)
        ADD(*inside, -1);
}

/* ---- What tests order and ask ---------------------------------------------------------------- */

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
