#include "host/stream.h"

#include <assert.h>
#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "thread.h"

struct item {
    host_work_fn *run; /* NULL: only a record */
    bool recorded;     /* an event stands for it */
    _Alignas(max_align_t) unsigned char args[HOST_STREAM_ARGS];
};

struct host_stream {
    struct fp8pipe_stream base;
    struct host_notify notify;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t filled;   /* tail or stopping changed; the executor waits */
    pthread_cond_t finished; /* head changed; who enqueues and other executors wait */
    uint64_t head;           /* items finished; also the place of the next to run */
    uint64_t tail;           /* items enqueued */
    unsigned waiting;        /* threads in `finished` */
    unsigned references;
    bool stopping;
    struct item *items; /* NULL once destroyed */
};

struct backend_event {
    pthread_mutex_t mutex;
    struct host_stream *stream; /* of the latest record; NULL: never recorded */
    uint64_t position;          /* done when the stream's head is past it */
};

/* What a queued wait holds: a reference to the stream. */
struct wait_args {
    struct host_stream *stream;
    uint64_t position;
};

static struct host_stream *host_stream(struct fp8pipe_stream *stream)
{
    return (struct host_stream *)stream; /* `base` is its first member */
}

static void stream_free(struct host_stream *stream)
{
    pthread_cond_destroy(&stream->finished);
    pthread_cond_destroy(&stream->filled);
    pthread_mutex_destroy(&stream->mutex);
    free(stream);
}

static void stream_release(struct host_stream *stream)
{
    bool last;

    pthread_mutex_lock(&stream->mutex);
    last = --stream->references == 0;
    pthread_mutex_unlock(&stream->mutex);
    if (last) {
        stream_free(stream);
    }
}

/* Waits, with the stream's mutex held, until items up to `head` are finished. */
static void await_head(struct host_stream *stream, uint64_t head)
{
    stream->waiting++;
    while (stream->head < head) {
        pthread_cond_wait(&stream->finished, &stream->mutex);
    }
    stream->waiting--;
}

/* Waits, with the stream's mutex held, until the queue has room. */
static void await_room(struct host_stream *stream)
{
    if (stream->tail - stream->head == HOST_STREAM_ITEMS) {
        await_head(stream, stream->tail - HOST_STREAM_ITEMS + 1);
    }
}

static struct item *item_at(struct host_stream *stream, uint64_t position)
{
    return &stream->items[position % HOST_STREAM_ITEMS];
}

static void *executor(void *arg)
{
    struct host_stream *stream = arg;

    /* A new thread inherits its creator's rounding mode and flushing of subnormals: the results
     * would depend on who opened the pipe. */
    fesetenv(FE_DFL_ENV);
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        struct item *item;
        bool recorded;

        while (stream->head == stream->tail && !stream->stopping) {
            pthread_cond_wait(&stream->filled, &stream->mutex);
        }
        if (stream->head == stream->tail) {
            break;
        }
        item = item_at(stream, stream->head);
        pthread_mutex_unlock(&stream->mutex);
        recorded = item->recorded;
        if (item->run != NULL) {
            item->run(item->args);
        }
        pthread_mutex_lock(&stream->mutex);
        stream->head++;
        if (stream->waiting > 0) {
            pthread_cond_broadcast(&stream->finished);
        }
        if (recorded && stream->notify.fn != NULL) {
            pthread_mutex_unlock(&stream->mutex);
            stream->notify.fn(stream->notify.arg);
            pthread_mutex_lock(&stream->mutex);
        }
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

enum fp8pipe_status host_stream_create(struct backend *backend, struct host_notify notify,
                                       struct fp8pipe_stream **stream)
{
    enum fp8pipe_status status;
    struct host_stream *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "host stream: no memory for %zu bytes", sizeof(*made));
    }
    made->base.backend = backend;
    made->notify = notify;
    made->references = 1;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->filled, NULL);
    pthread_cond_init(&made->finished, NULL);
    made->items = calloc(HOST_STREAM_ITEMS, sizeof(*made->items));
    if (made->items == NULL) {
        status = status_fail(FP8PIPE_ENOMEM, "host stream: no memory for %zu bytes of queue",
                             HOST_STREAM_ITEMS * sizeof(*made->items));
        goto free_stream;
    }
    status = thread_start(&made->thread, "fp8pipe-exec", -1, executor, made);
    if (status != FP8PIPE_OK) {
        goto free_items;
    }
    *stream = &made->base;
    return FP8PIPE_OK;

free_items:
    free(made->items);
free_stream:
    stream_free(made);
    return status;
}

void host_stream_destroy(struct fp8pipe_stream *stream)
{
    struct host_stream *self = host_stream(stream);

    pthread_mutex_lock(&self->mutex);
    self->stopping = true;
    pthread_cond_signal(&self->filled);
    pthread_mutex_unlock(&self->mutex);
    pthread_join(self->thread, NULL);
    free(self->items);
    self->items = NULL;
    stream_release(self);
}

/* With the stream's mutex held and room in the queue. */
static void enqueue(struct host_stream *stream, host_work_fn *run, const void *args, size_t bytes,
                    bool recorded)
{
    struct item *item = item_at(stream, stream->tail);

    assert(bytes <= HOST_STREAM_ARGS && stream->tail - stream->head < HOST_STREAM_ITEMS);
    item->run = run;
    item->recorded = recorded;
    if (bytes > 0) {
        memcpy(item->args, args, bytes);
    }
    stream->tail++;
    pthread_cond_signal(&stream->filled);
}

void host_stream_push(struct fp8pipe_stream *stream, host_work_fn *run, const void *args,
                      size_t bytes)
{
    struct host_stream *self = host_stream(stream);

    pthread_mutex_lock(&self->mutex);
    await_room(self);
    enqueue(self, run, args, bytes, false);
    pthread_mutex_unlock(&self->mutex);
}

enum fp8pipe_status host_event_create(struct backend_event **event)
{
    struct backend_event *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "host event: no memory for %zu bytes", sizeof(*made));
    }
    pthread_mutex_init(&made->mutex, NULL);
    *event = made;
    return FP8PIPE_OK;
}

void host_event_destroy(struct backend_event *event)
{
    if (event == NULL) {
        return;
    }
    if (event->stream != NULL) {
        stream_release(event->stream);
    }
    pthread_mutex_destroy(&event->mutex);
    free(event);
}

void host_event_record(struct backend_event *event, struct fp8pipe_stream *stream)
{
    struct host_stream *self = host_stream(stream);
    struct host_stream *before;

    /* Room is awaited before the event is locked, so that a query never waits for a full queue; it
     * stays, because one thread at a time enqueues. */
    pthread_mutex_lock(&self->mutex);
    await_room(self);
    pthread_mutex_unlock(&self->mutex);

    /* The event names the item before the item can run, so that whoever is notified sees it. */
    pthread_mutex_lock(&event->mutex);
    before = event->stream;
    pthread_mutex_lock(&self->mutex);
    event->stream = self;
    event->position = self->tail;
    self->references += before != self;
    enqueue(self, NULL, NULL, 0, true);
    pthread_mutex_unlock(&self->mutex);
    pthread_mutex_unlock(&event->mutex);
    if (before != NULL && before != self) {
        stream_release(before);
    }
}

/*
 * The event's record, and whether it is still to happen: then with a reference to its stream. A
 * stream needs no wait for a record of its own.
 */
static bool pending(struct backend_event *event, const struct host_stream *waiter,
                    struct wait_args *record)
{
    bool is_pending = false;

    pthread_mutex_lock(&event->mutex);
    record->stream = event->stream;
    record->position = event->position;
    if (record->stream != NULL && record->stream != waiter) {
        pthread_mutex_lock(&record->stream->mutex);
        is_pending = record->stream->head <= record->position;
        record->stream->references += is_pending;
        pthread_mutex_unlock(&record->stream->mutex);
    }
    pthread_mutex_unlock(&event->mutex);
    return is_pending;
}

bool host_event_done(struct backend_event *event)
{
    struct wait_args record;

    if (!pending(event, NULL, &record)) {
        return true;
    }
    stream_release(record.stream);
    return false;
}

static void run_wait(void *args)
{
    struct wait_args *record = args;

    pthread_mutex_lock(&record->stream->mutex);
    await_head(record->stream, record->position + 1);
    pthread_mutex_unlock(&record->stream->mutex);
    stream_release(record->stream);
}

void host_event_wait(struct fp8pipe_stream *stream, struct backend_event *event)
{
    struct wait_args record;

    if (pending(event, host_stream(stream), &record)) {
        host_stream_push(stream, run_wait, &record, sizeof(record));
    }
}
