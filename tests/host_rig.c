#include "host_rig.h"

#include <pthread.h>

#include "async.h"

#define HANG_SECONDS 60

const struct backend_ops *const ops = &backend_host_ops;
struct backend *backend;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void rig_set(int *variable, int value)
{
    pthread_mutex_lock(&mutex);
    *variable = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

int rig_get(const int *variable)
{
    int value;

    pthread_mutex_lock(&mutex);
    value = *variable;
    pthread_mutex_unlock(&mutex);
    return value;
}

void rig_hold(void *arg)
{
    const int *open = arg;

    pthread_mutex_lock(&mutex);
    while (!*open) {
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

void rig_increment(void *arg)
{
    int *count = arg;

    pthread_mutex_lock(&mutex);
    ++*count;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void rig_await(const int *variable, int value)
{
    pthread_mutex_lock(&mutex);
    while (*variable < value) {
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
}

int rig_notified;

static void notify(void *arg)
{
    rig_increment(arg);
}

struct fp8pipe_stream *rig_stream(void)
{
    struct fp8pipe_stream *stream = NULL;

    must(ops->stream_create(backend, NULL, &stream));
    return stream;
}

struct backend_event *rig_event(void)
{
    struct backend_event *event = NULL;

    must(ops->event_create(backend, &event));
    return event;
}

bool rig_done(struct backend_event *event)
{
    bool is_done = false;

    must(ops->event_query(backend, event, &is_done));
    return is_done;
}

void rig_record(struct backend_event *event, struct fp8pipe_stream *stream)
{
    must(ops->event_record(backend, event, stream));
}

void rig_wait_for(struct fp8pipe_stream *stream, struct backend_event *event)
{
    must(ops->stream_wait(backend, stream, event));
}

void rig_call(struct fp8pipe_stream *stream, fp8pipe_work_fn *fn, void *arg)
{
    must(ops->host_call(backend, stream, fn, arg));
}

void rig_drain(struct fp8pipe_stream *stream)
{
    int finished = 0;

    rig_call(stream, rig_increment, &finished);
    rig_await(&finished, 1);
}

void rig_open(const struct fp8pipe_allocator *allocator)
{
    struct backend_options options = {.notify = notify, .notify_arg = &rig_notified};

    if (allocator != NULL) {
        options.allocator = *allocator;
    }
    must(ops->open(&options, &backend));
}

void rig_run(void (*const *tests)(void), size_t count)
{
    for (size_t i = 0; i < count; i++) {
        watchdog("the host backend", HANG_SECONDS);
        rig_open(NULL);
        tests[i]();
        ops->close(backend);
    }
}
