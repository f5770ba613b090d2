/*
 * A pipe's handle, and who is inside of it.
 *
 * The handle (shell) with its ports is never freed nor handed out twice. `crew`, with everything
 * that a running pipe needs, lives from open to close. It may be touched
 *   - between pipe_enter and pipe_leave (`users`: close waits until it is 0), or
 *   - after a successful claim in a ring, until the op is published (close waits for the ring to
 *     drain), or, in INLINE, holding a port's inline_mutex while its ring is not closed.
 * Submits use only the latter, and so touch no shared counter.
 *
 *   state   OPEN -> CLOSING -> CLOSED or ABANDONED, written by open and close; a full barrier
 *           separates its change from close's look at `users`, as one does in pipe_enter.
 */
#ifndef LIB_HANDLE_H
#define LIB_HANDLE_H

#include <pthread.h>
#include <stdbool.h>

#include "backend.h"
#include "fault.h"
#include "lane.h"
#include "log.h"
#include "object.h"
#include "table.h"
#include "tensor.h"

/* ABANDONED: close timed out; what the threads left behind use is never freed. */
enum pipe_state { PIPE_OPEN, PIPE_CLOSING, PIPE_CLOSED, PIPE_ABANDONED };

struct fp8pipe {
    struct table_entry entry;
    uint32_t state;
    uint32_t number;
    uint32_t lanes;
    uint32_t generation; /* of fork() */
    enum fp8pipe_mode mode;
    enum fp8pipe_backend backend;
    bool native_streams;
    uint32_t tracing; /* submits take the time; written by trace start and stop, orders nothing */
    struct crew *crew;
    struct fault fault;
    struct log log;
    struct filling_pool pool __attribute__((aligned(64)));
    pthread_mutex_t objects_lock __attribute__((aligned(64)));
    struct object *objects;
    uint32_t users __attribute__((aligned(64)));
    struct ec idle; /* close waits here for users to leave */
    uint32_t next_lane __attribute__((aligned(64)));
    struct port ports[] __attribute__((aligned(64)));
};

#endif
