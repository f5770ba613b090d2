#include <assert.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "ec.h"
#include "host/gemm.h"
#include "host/stream.h"
#include "status.h"

#define HOST_ALIGN 256

struct host_backend {
    struct backend base;
    struct backend_options options;
    struct host_gemm_tables tables;
};

static struct host_backend *host_backend(struct backend *backend)
{
    return (struct host_backend *)backend; /* `base` is its first member */
}

/* ---- Opening ------------------------------------------------------------------------------ */

static enum fp8pipe_status host_open(const struct backend_options *options,
                                     struct backend **backend)
{
    enum fp8pipe_status status;
    struct host_backend *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "host backend: no memory for %zu bytes", sizeof(*made));
    }
    assert((options->allocator.alloc == NULL) == (options->allocator.free == NULL));
    made->base.ops = &backend_host_ops;
    made->options = *options;
    status = host_gemm_open(&made->tables);
    if (status != FP8PIPE_OK) {
        free(made);
        return status;
    }
    *backend = &made->base;
    return FP8PIPE_OK;
}

static void host_close(struct backend *backend)
{
    free(host_backend(backend));
}

static void host_enter(struct backend *backend, struct backend_scope *scope)
{
    (void)backend;
    *scope = (struct backend_scope){.entered = true};
}

static void host_leave(struct backend *backend, struct backend_scope *scope)
{
    (void)backend;
    scope->entered = false;
}

/* ---- Streams and events ------------------------------------------------------------------- */

static enum fp8pipe_status stream_create(struct backend *backend, void *native,
                                         struct fp8pipe_stream **stream)
{
    const struct backend_options *options = &host_backend(backend)->options;
    struct host_notify notify = {options->notify, options->notify_arg};

    if (native != NULL) {
        return status_fail(FP8PIPE_EINVAL,
                           "streams: the host backend cannot issue on a stream of the caller's");
    }
    return host_stream_create(backend, notify, stream);
}

static void stream_destroy(struct backend *backend, struct fp8pipe_stream *stream)
{
    (void)backend;
    host_stream_destroy(stream);
}

static enum fp8pipe_status stream_check(struct backend *backend, struct fp8pipe_stream *stream)
{
    (void)backend;
    (void)stream;
    return FP8PIPE_OK;
}

static enum fp8pipe_status event_create(struct backend *backend, struct backend_event **event)
{
    (void)backend;
    return host_event_create(event);
}

static void event_destroy(struct backend *backend, struct backend_event *event)
{
    (void)backend;
    host_event_destroy(event);
}

static enum fp8pipe_status event_record(struct backend *backend, struct backend_event *event,
                                        struct fp8pipe_stream *stream)
{
    (void)backend;
    host_event_record(event, stream);
    return FP8PIPE_OK;
}

static enum fp8pipe_status event_query(struct backend *backend, struct backend_event *event,
                                       bool *done)
{
    (void)backend;
    *done = host_event_done(event);
    return FP8PIPE_OK;
}

static enum fp8pipe_status stream_wait(struct backend *backend, struct fp8pipe_stream *stream,
                                       struct backend_event *event)
{
    (void)backend;
    host_event_wait(stream, event);
    return FP8PIPE_OK;
}

static enum fp8pipe_status stream_wait_native(struct backend *backend,
                                              struct fp8pipe_stream *stream, void *native_event)
{
    (void)backend;
    (void)stream;
    (void)native_event;
    return status_fail(FP8PIPE_ENOTSUP, "event: the host backend cannot wait for a CUDA event");
}

static enum fp8pipe_status native_wait(struct backend *backend, void *native_stream,
                                       struct backend_event *event)
{
    (void)backend;
    (void)native_stream;
    (void)event;
    return status_fail(FP8PIPE_ENOTSUP, "stream: on the host backend no CUDA stream can wait");
}

/* ---- Timers and ranges -------------------------------------------------------------------- */

struct backend_timer {
    int64_t at_ns; /* CLOCK_MONOTONIC; written by an executor, read once its work is done */
};

static enum fp8pipe_status host_timer_create(struct backend *backend, struct backend_timer **timer)
{
    struct backend_timer *made = calloc(1, sizeof(*made));

    (void)backend;
    if (made == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "host timer: no memory for %zu bytes", sizeof(*made));
    }
    *timer = made;
    return FP8PIPE_OK;
}

static void host_timer_destroy(struct backend *backend, struct backend_timer *timer)
{
    (void)backend;
    free(timer);
}

static void run_timer(void *args)
{
    struct backend_timer *timer;

    memcpy(&timer, args, sizeof(timer));
    timer->at_ns = ec_now_ns();
}

static enum fp8pipe_status host_timer_record(struct backend *backend, struct backend_timer *timer,
                                             struct fp8pipe_stream *stream)
{
    (void)backend;
    host_stream_push(stream, run_timer, &timer, sizeof(timer));
    return FP8PIPE_OK;
}

static enum fp8pipe_status host_timer_now(struct backend *backend, struct backend_timer *timer,
                                          int64_t *now_ns)
{
    (void)backend;
    timer->at_ns = ec_now_ns();
    *now_ns = timer->at_ns;
    return FP8PIPE_OK;
}

static enum fp8pipe_status host_timer_elapsed(struct backend *backend, struct backend_timer *from,
                                              struct backend_timer *to, int64_t *elapsed_ns)
{
    (void)backend;
    *elapsed_ns = to->at_ns - from->at_ns;
    return FP8PIPE_OK;
}

static void range_push(struct backend *backend, const char *name)
{
    (void)backend;
    (void)name;
}

static void range_pop(struct backend *backend)
{
    (void)backend;
}

/* ---- Memory ------------------------------------------------------------------------------- */

/* Plain memory of exactly `bytes` bytes, so that a sanitizer sees a step beyond. */
static enum fp8pipe_status plain_alloc(size_t bytes, void **data)
{
    void *made = NULL;

    if (bytes > PTRDIFF_MAX || (bytes > 0 && posix_memalign(&made, HOST_ALIGN, bytes) != 0)) {
        return status_fail(FP8PIPE_ENOMEM, "no host memory for %zu bytes", bytes);
    }
    *data = made;
    return FP8PIPE_OK;
}

static enum fp8pipe_status pool_alloc(struct backend *backend, struct fp8pipe_stream *stream,
                                      size_t bytes, void **data)
{
    const struct fp8pipe_allocator *allocator = &host_backend(backend)->options.allocator;
    void *made;

    (void)stream;
    if (allocator->alloc == NULL || bytes == 0) {
        enum fp8pipe_status status = plain_alloc(bytes, data);

        if (status == FP8PIPE_OK) {
            backend_memory_got(backend, bytes);
        }
        return status;
    }
    made = allocator->alloc(allocator->arg, bytes, NULL);
    if (made == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "the caller's allocator has no %zu bytes", bytes);
    }
    if ((uintptr_t)made % HOST_ALIGN != 0) {
        allocator->free(allocator->arg, made, bytes, NULL);
        return status_fail(FP8PIPE_EINVAL,
                           "the caller's allocator returned %p, not %d-byte aligned", made,
                           HOST_ALIGN);
    }
    backend_memory_got(backend, bytes);
    *data = made;
    return FP8PIPE_OK;
}

struct free_args {
    const struct fp8pipe_allocator *allocator;
    void *data;
    size_t bytes;
};

static void run_free(void *args)
{
    const struct free_args *block = args;
    const struct fp8pipe_allocator *allocator = block->allocator;

    if (allocator->free != NULL) {
        allocator->free(allocator->arg, block->data, block->bytes, NULL);
    } else {
        free(block->data);
    }
}

static void pool_free(struct backend *backend, struct fp8pipe_stream *stream, void *data,
                      size_t bytes)
{
    struct free_args block = {&host_backend(backend)->options.allocator, data, bytes};

    if (data == NULL) {
        return;
    }
    backend_memory_gave(backend, bytes);
    if (stream == NULL) {
        run_free(&block);
    } else {
        host_stream_push(stream, run_free, &block, sizeof(block));
    }
}

/* Counted by what the allocator says it is, for the free is not told the size. */
static enum fp8pipe_status memory_alloc(struct backend *backend, size_t bytes, void **data)
{
    enum fp8pipe_status status = plain_alloc(bytes, data);

    if (status == FP8PIPE_OK) {
        backend_memory_got(backend, malloc_usable_size(*data));
    }
    return status;
}

static enum fp8pipe_status memory_free(struct backend *backend, void *data)
{
    backend_memory_gave(backend, malloc_usable_size(data));
    free(data);
    return FP8PIPE_OK;
}

static enum fp8pipe_status pinned_alloc(struct backend *backend, size_t bytes, void **data)
{
    (void)backend;
    return plain_alloc(bytes, data);
}

static void pinned_free(struct backend *backend, void *data)
{
    (void)backend;
    free(data);
}

static enum fp8pipe_status memory_copy(struct backend *backend, void *to, const void *from,
                                       size_t bytes)
{
    (void)backend;
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status memory_fill(struct backend *backend, void *data, int value, size_t bytes)
{
    (void)backend;
    if (bytes > 0) {
        memset(data, value, bytes);
    }
    return FP8PIPE_OK;
}

/* ---- Copies and functions in stream order ------------------------------------------------- */

struct copy_args {
    void *to;
    const void *from;
    size_t to_pitch;
    size_t from_pitch;
    size_t width;
    size_t rows;
};

static void run_copy(void *args)
{
    const struct copy_args *copy = args;

    for (size_t row = 0; row < copy->rows; row++) {
        memcpy((char *)copy->to + row * copy->to_pitch,
               (const char *)copy->from + row * copy->from_pitch, copy->width);
    }
}

static enum fp8pipe_status copy_2d(struct backend *backend, struct fp8pipe_stream *stream, void *to,
                                   size_t to_pitch, const void *from, size_t from_pitch,
                                   size_t width, size_t rows)
{
    struct copy_args copy = {to, from, to_pitch, from_pitch, width, rows};

    (void)backend;
    if (width > 0 && rows > 0) {
        host_stream_push(stream, run_copy, &copy, sizeof(copy));
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status copy(struct backend *backend, struct fp8pipe_stream *stream, void *to,
                                const void *from, size_t bytes)
{
    return copy_2d(backend, stream, to, bytes, from, bytes, bytes, 1);
}

struct fill_args {
    void *data;
    int value;
    size_t bytes;
};

static void run_fill(void *args)
{
    const struct fill_args *fill = args;

    memset(fill->data, fill->value, fill->bytes);
}

static enum fp8pipe_status fill(struct backend *backend, struct fp8pipe_stream *stream, void *data,
                                int value, size_t bytes)
{
    struct fill_args args = {data, value, bytes};

    (void)backend;
    if (bytes > 0) {
        host_stream_push(stream, run_fill, &args, sizeof(args));
    }
    return FP8PIPE_OK;
}

struct call_args {
    fp8pipe_work_fn *fn;
    void *arg;
};

static void run_call(void *args)
{
    const struct call_args *call = args;

    call->fn(call->arg);
}

static enum fp8pipe_status host_call(struct backend *backend, struct fp8pipe_stream *stream,
                                     fp8pipe_work_fn *fn, void *arg)
{
    struct call_args call = {fn, arg};

    (void)backend;
    host_stream_push(stream, run_call, &call, sizeof(call));
    return FP8PIPE_OK;
}

/* ---- Kernels and GEMM --------------------------------------------------------------------- */

_Static_assert(sizeof(struct host_gemm_work) <= HOST_STREAM_ARGS, "an item carries a GEMM");

static void run_gemm(void *args)
{
    host_gemm_run(args);
}

static enum fp8pipe_status gemm(struct backend *backend, struct fp8pipe_stream *stream,
                                const struct gemm_args *args)
{
    struct host_gemm_work work;
    enum fp8pipe_status status = host_gemm_prepare(args, &host_backend(backend)->tables, &work);

    if (status == FP8PIPE_OK) {
        host_stream_push(stream, run_gemm, &work, sizeof(work));
    }
    return status;
}

#define KERNELS(X)                                                                                 \
    X(amax)                                                                                        \
    X(quantize)                                                                                    \
    X(capture)                                                                                     \
    X(transpose)                                                                                   \
    X(partials)                                                                                    \
    X(column_sums)                                                                                 \
    X(store)                                                                                       \
    X(activation)                                                                                  \
    X(scale_update)                                                                                \
    X(adamw)                                                                                       \
    X(gradient_norm)                                                                               \
    X(modulate)                                                                                    \
    X(modulate_backward)                                                                           \
    X(group_sums)

#define KERNEL_ENQUEUE(name)                                                                       \
    _Static_assert(sizeof(struct kernel_##name##_args) <= HOST_STREAM_ARGS, "an item carries it"); \
                                                                                                   \
    static void run_##name(void *args)                                                             \
    {                                                                                              \
        kernel_##name##_host(args);                                                                \
    }                                                                                              \
                                                                                                   \
    static enum fp8pipe_status name(struct backend *backend, struct fp8pipe_stream *stream,        \
                                    const struct kernel_##name##_args *args)                       \
    {                                                                                              \
        (void)backend;                                                                             \
        host_stream_push(stream, run_##name, args, sizeof(*args));                                 \
        return FP8PIPE_OK;                                                                         \
    }

KERNELS(KERNEL_ENQUEUE)

static void plan_stats(struct backend *backend, struct backend_plan_stats *stats)
{
    (void)backend;
    *stats = (struct backend_plan_stats){0};
}

static void replay_stats(struct backend *backend, struct fp8pipe_stream *stream,
                         struct backend_replay_stats *stats)
{
    (void)backend;
    (void)stream;
    *stats = (struct backend_replay_stats){0};
}

const struct backend_ops backend_host_ops = {
    .kind = FP8PIPE_BACKEND_HOST,
    .name = "host",
    .poll_ns = 0,
    .open = host_open,
    .close = host_close,
    .enter = host_enter,
    .leave = host_leave,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_check = stream_check,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .stream_wait = stream_wait,
    .stream_wait_native = stream_wait_native,
    .native_wait = native_wait,
    .timer_create = host_timer_create,
    .timer_destroy = host_timer_destroy,
    .timer_record = host_timer_record,
    .timer_now = host_timer_now,
    .timer_elapsed = host_timer_elapsed,
    .range_push = range_push,
    .range_pop = range_pop,
    .alloc = pool_alloc,
    .free = pool_free,
    .pinned_alloc = pinned_alloc,
    .pinned_free = pinned_free,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_copy = memory_copy,
    .memory_fill = memory_fill,
    .copy = copy,
    .copy_2d = copy_2d,
    .fill = fill,
    .host_call = host_call,
    .gemm = gemm,
#define KERNEL_ENTRY(name) .name = name,
    KERNELS(KERNEL_ENTRY)
#undef KERNEL_ENTRY
        .plan_stats = plan_stats,
    .replay_stats = replay_stats,
    .memory_stats = backend_memory_stats,
};
