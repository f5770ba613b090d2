/*
 * Streams and events of the host backend.
 *
 * A stream is a bounded queue of work items and one executor thread that runs them in order, so
 * that enqueueing and finishing are as far apart as on a device. An event names a place in a
 * stream: its latest record's position there, and is done once the stream has finished that item.
 *
 * Who writes, who reads, what orders them:
 *   - `tail` and the items are written by the one thread that uses the stream at a time; `head` is
 *     written by the executor; both under the stream's mutex, which is all that orders the threads.
 *     Between `head` and `tail` the items belong to the executor, which reads them unlocked.
 *   - an event's record is written and read under the event's mutex. An event's mutex is taken
 *     before a stream's; two streams' are never held at once; nothing runs under either.
 *
 * No deadlock: an item waits only for items enqueued before it, on its own stream by the order of
 * the queue, on others because a wait takes a record that is enqueued already. So the oldest item
 * that is not finished can always run, and a full queue always drains.
 *
 * Lifetime: a stream is counted by its owner, by every event whose latest record it holds, and by
 * every queued wait for it. Destroy drains it, joins its thread and frees its queue; what is left
 * answers stale events until the last of them lets go. So events and streams may be destroyed in
 * any order, while waits that took their record are still queued.
 */
#ifndef LIB_HOST_STREAM_H
#define LIB_HOST_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "backend.h"

/* Items in a queue; whoever enqueues into a full one waits for the executor. */
#define HOST_STREAM_ITEMS 256

/* Bytes of arguments that an item carries. */
#define HOST_STREAM_ARGS 512

/* Runs one item. `args` is the item's copy, which it may not keep. */
typedef void host_work_fn(void *args);

/* Called by executors, with no lock held, after an item that an event stands for. NULL: nothing. */
struct host_notify {
    void (*fn)(void *arg);
    void *arg;
};

enum fp8pipe_status host_stream_create(struct backend *backend, struct host_notify notify,
                                       struct fp8pipe_stream **stream);
/* Waits until all items are finished. */
void host_stream_destroy(struct fp8pipe_stream *stream);

/* Enqueues run(args) with `bytes` bytes of args copied. Waits while the queue is full. */
void host_stream_push(struct fp8pipe_stream *stream, host_work_fn *run, const void *args,
                      size_t bytes);

enum fp8pipe_status host_event_create(struct backend_event **event);
/* Takes NULL. */
void host_event_destroy(struct backend_event *event);
void host_event_record(struct backend_event *event, struct fp8pipe_stream *stream);
bool host_event_done(struct backend_event *event);
/* The stream waits for the event's record of now. */
void host_event_wait(struct fp8pipe_stream *stream, struct backend_event *event);

#endif
