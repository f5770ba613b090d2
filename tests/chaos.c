#include "chaos.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "chaos_control.h"
#include "status.h"

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

static struct backend_ops table;
static const struct backend_ops *inner_ops;

/* Between enter and leave of this thread. */
static _Thread_local int entered;

static void sleep_work(void *arg)
{
    chaos_sleep((int64_t)(intptr_t)arg);
}

static void delay(struct chaos_backend *chaos, struct fp8pipe_stream *stream)
{
    int64_t ns = chaos_delay();

    /* a sleep that cannot be enqueued delays nothing, which is harmless */
    if (stream && ns > 0)
        (void)inner_ops->host_call(chaos->inner, stream, sleep_work, (void *)(intptr_t)ns);
}

/* Before a call: OK, or what it has to fail with. */
static enum fp8pipe_status before(struct backend *backend, enum chaos_call call,
                                  struct fp8pipe_stream *stream)
{
    chaos_called(call);
    if (!entered)
        chaos_violated();
    delay((struct chaos_backend *)backend, call == CHAOS_STREAM_CHECK ? NULL : stream);
    return chaos_rules_apply(call, stream);
}

static struct backend *inner(struct backend *backend)
{
    return ((struct chaos_backend *)backend)->inner;
}

/* Passes a call on, between `before` and the watch over its stream. */
#define PASS(call, stream, lower, ...)                                                             \
    enum fp8pipe_status status;                                                                    \
                                                                                                   \
    chaos_stream_enter(stream);                                                                    \
    status = before(backend, call, stream);                                                        \
    if (status == FP8PIPE_OK)                                                                      \
        status = inner_ops->lower(inner(backend), __VA_ARGS__);                                    \
    chaos_stream_leave(stream)

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

    chaos_called(CHAOS_OPEN);
    status = chaos_rules_apply(CHAOS_OPEN, NULL);
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
    chaos_live_add((struct chaos_live){.backends = 1});
    *backend = &chaos->base;
    return FP8PIPE_OK;
}

static void chaos_close(struct backend *backend)
{
    inner_ops->close(inner(backend));
    free(backend);
    chaos_live_add((struct chaos_live){.backends = -1});
}

static void chaos_enter(struct backend *backend, struct backend_scope *scope)
{
    inner_ops->enter(inner(backend), scope);
    entered++;
}

static void chaos_leave(struct backend *backend, struct backend_scope *scope)
{
    if (entered-- <= 0)
        chaos_violated();
    inner_ops->leave(inner(backend), scope);
}

static enum fp8pipe_status chaos_stream_create(struct backend *backend, void *native,
                                               struct fp8pipe_stream **stream)
{
    PASS(CHAOS_STREAM_CREATE, NULL, stream_create, native, stream);
    if (status == FP8PIPE_OK)
        chaos_live_add((struct chaos_live){.streams = 1});
    return status;
}

static void chaos_stream_destroy(struct backend *backend, struct fp8pipe_stream *stream)
{
    inner_ops->stream_destroy(inner(backend), stream);
    chaos_live_add((struct chaos_live){.streams = -1});
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
    chaos_live_add((struct chaos_live){.events = 1});
    *event = (struct backend_event *)mine;
    return FP8PIPE_OK;
}

static void chaos_event_destroy(struct backend *backend, struct backend_event *event)
{
    inner_ops->event_destroy(inner(backend), ((struct chaos_event *)event)->inner);
    free(event);
    chaos_live_add((struct chaos_live){.events = -1});
}

static enum fp8pipe_status chaos_event_record(struct backend *backend, struct backend_event *event,
                                              struct fp8pipe_stream *stream)
{
    struct chaos_event *mine = (struct chaos_event *)event;

    if (table.poll_ns > 0)
        atomic_store_explicit(&mine->lies, chaos_lies(), memory_order_relaxed);
    PASS(CHAOS_EVENT_RECORD, stream, event_record, mine->inner, stream);
    return status;
}

static enum fp8pipe_status chaos_event_query(struct backend *backend, struct backend_event *event,
                                             bool *done)
{
    struct chaos_event *mine = (struct chaos_event *)event;

    if (chaos_device_check() != FP8PIPE_OK)
        return FP8PIPE_EDEVICE;
    PASS(CHAOS_EVENT_QUERY, NULL, event_query, mine->inner, done);
    if (status == FP8PIPE_OK && *done &&
        atomic_load_explicit(&mine->lies, memory_order_relaxed) > 0) {
        atomic_fetch_add_explicit(&mine->lies, -1, memory_order_relaxed);
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
        chaos_live_add((struct chaos_live){.timers = 1});
    return status;
}

static void chaos_timer_destroy(struct backend *backend, struct backend_timer *timer)
{
    if (!entered)
        chaos_violated();
    inner_ops->timer_destroy(inner(backend), timer);
    chaos_live_add((struct chaos_live){.timers = -1});
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
        chaos_live_add((struct chaos_live){.allocs = 1, .alloc_bytes = (int64_t)bytes});
    }
    return status;
}

static void chaos_free(struct backend *backend, struct fp8pipe_stream *stream, void *data,
                       size_t bytes)
{
    if (!entered)
        chaos_violated();
    chaos_stream_enter(stream);
    inner_ops->free(inner(backend), stream, data, bytes);
    chaos_stream_leave(stream);
    if (data) {
        chaos_live_add((struct chaos_live){.allocs = -1, .alloc_bytes = -(int64_t)bytes});
    }
}

static enum fp8pipe_status chaos_pinned_alloc(struct backend *backend, size_t bytes, void **data)
{
    PASS(CHAOS_PINNED_ALLOC, NULL, pinned_alloc, bytes, data);
    if (status == FP8PIPE_OK)
        chaos_live_add((struct chaos_live){.pinned = 1});
    return status;
}

static void chaos_pinned_free(struct backend *backend, void *data)
{
    inner_ops->pinned_free(inner(backend), data);
    if (data)
        chaos_live_add((struct chaos_live){.pinned = -1});
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

static void chaos_replay_stats(struct backend *backend, struct fp8pipe_stream *stream,
                               struct backend_replay_stats *stats)
{
    inner_ops->replay_stats(inner(backend), stream, stats);
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
                                 .replay_stats = chaos_replay_stats,
                                 .memory_stats = chaos_memory_stats,
#define CHAOS_ENTRY(upper, lower) .lower = chaos_##lower,
                                 CHAOS_TABLE(CHAOS_ENTRY)
#undef CHAOS_ENTRY
    };
    return &table;
}
