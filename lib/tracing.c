/* Starting and stopping a pipe's trace; lib/trace.h says what orders it against launchers. */
#include <ck_pr.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pipe.h"

/* How often a launcher is looked for on a pipe that has failed, and for how long. */
#define TRACING_LOOK_NS INT64_C(100000000)
#define TRACING_LOOKS 10

enum fp8pipe_status pipe_trace_start(struct fp8pipe *pipe, uint32_t ops)
{
    struct crew *crew = pipe->crew;
    struct backend_scope scope;
    enum fp8pipe_status status;

    if (!ck_pr_cas_32(&crew->trace.state, TRACE_IDLE, TRACE_CHANGING)) {
        return status_fail(FP8PIPE_EBUSY, "pipe %u has a trace already", pipe->number);
    }
    crew->backend->ops->enter(crew->backend, &scope);
    status = trace_make(&crew->trace, crew->backend, ops);
    crew->backend->ops->leave(crew->backend, &scope);
    if (status == FP8PIPE_OK) {
        ck_pr_fence_release();
        for (uint32_t i = 0; i < pipe->lanes; i++) {
            ck_pr_store_64(&crew->lanes[i].trace_until, UINT64_MAX);
        }
        ck_pr_store_32(&pipe->tracing, 1);
    }
    ck_pr_fence_release();
    ck_pr_store_32(&crew->trace.state, status == FP8PIPE_OK ? TRACE_RUNNING : TRACE_IDLE);
    return status;
}

/* Opens where a trace goes; a failure changes nothing. */
static enum fp8pipe_status open_file(const char *name, FILE **file)
{
    *file = fopen(name, "we");
    return *file != NULL ? FP8PIPE_OK
                         : status_fail(FP8PIPE_EINVAL, "file = \"%s\": it cannot be written: %s",
                                       name, strerror(errno));
}

/* Waits until the lane's launcher has let go of the ops below `head`. False: it is stuck, on a pipe
 * that has failed. */
static bool await_launcher(struct fp8pipe *pipe, uint32_t lane, uint64_t head)
{
    struct ring *ring = &pipe->ports[lane].ring;

    for (int looks = 0; !ring_wait_consumed(ring, head - 1, ec_deadline_ns(TRACING_LOOK_NS));) {
        looks += fault_status(&pipe->fault) != FP8PIPE_OK;
        if (looks > TRACING_LOOKS) {
            return false;
        }
    }
    return true;
}

/* Ends the recording and waits for what was recorded. EDEVICE: the pipe has failed; *held: some
 * launcher may write still. */
static enum fp8pipe_status end_recording(struct fp8pipe *pipe, bool *held)
{
    uint64_t heads[FP8PIPE_LANES_MAX];
    struct look look;

    *held = false;
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        ck_pr_store_64(&pipe->crew->lanes[i].trace_until, ring_head(&pipe->ports[i].ring));
    }
    ck_pr_store_32(&pipe->tracing, 0);
    ck_pr_fence_memory();
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        heads[i] = ring_head(&pipe->ports[i].ring);
    }
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        if (heads[i] > pipe->ports[i].start) {
            *held = !await_launcher(pipe, i, heads[i]) || *held;
            pipe_reach(pipe, ticket_make(pipe->number, i, heads[i] - 1), FP8PIPE_DONE, EC_FOREVER,
                       &look);
        }
    }
    return fault_status(&pipe->fault) == FP8PIPE_OK ? FP8PIPE_OK : fault_refuse(&pipe->fault);
}

/* The trace is this thread's, and `file`, which it closes, may be NULL. */
static enum fp8pipe_status finish(struct fp8pipe *pipe, const char *name, FILE *file)
{
    struct crew *crew = pipe->crew;
    struct backend_scope scope;
    enum fp8pipe_status status;
    bool held, written = true;

    status = end_recording(pipe, &held);
    crew->backend->ops->enter(crew->backend, &scope);
    if (status == FP8PIPE_OK && file != NULL) {
        trace_resolve(&crew->trace, crew->backend, pipe->lanes);
    }
    if (file != NULL) {
        written = held || trace_write(&crew->trace, file, pipe->number, pipe->lanes,
                                      crew->backend->ops->name);
        errno = 0;
        written = fclose(file) == 0 && written;
    }
    /* On a failed pipe the streams may still hold timers: close frees them. */
    if (status == FP8PIPE_OK) {
        trace_clear(&crew->trace, crew->backend);
    }
    crew->backend->ops->leave(crew->backend, &scope);
    if (status != FP8PIPE_OK) {
        return status;
    }
    ck_pr_fence_release();
    ck_pr_store_32(&crew->trace.state, TRACE_IDLE);
    if (!written) {
        status =
            status_fail(FP8PIPE_EINVAL, "file = \"%s\": not all of the trace was written", name);
    }
    return status;
}

enum fp8pipe_status pipe_trace_stop(struct fp8pipe *pipe, const char *name)
{
    struct trace *trace = &pipe->crew->trace;
    enum fp8pipe_status status;
    FILE *file = NULL;

    if (!ck_pr_cas_32(&trace->state, TRACE_RUNNING, TRACE_CHANGING)) {
        return status_fail(FP8PIPE_EINVAL, "pipe %u has no trace that runs", pipe->number);
    }
    if (name != NULL) {
        status = open_file(name, &file);
        if (status != FP8PIPE_OK) {
            ck_pr_store_32(&trace->state, TRACE_RUNNING);
            return status;
        }
    }
    free(trace->file);
    trace->file = NULL;
    return finish(pipe, name, file);
}

/* ---- The environment's ----------------------------------------------------------------------- */

/* The first pipe of the process has the name itself. */
static char *file_of_environment(const char *name, uint32_t ordinal)
{
    size_t bytes = strlen(name) + 12;
    char *file = malloc(bytes);

    if (file != NULL && ordinal == 1) {
        snprintf(file, bytes, "%s", name);
    } else if (file != NULL) {
        snprintf(file, bytes, "%s.%u", name, ordinal);
    }
    return file;
}

void pipe_trace_environment(struct fp8pipe *pipe)
{
    const char *name = getenv("FP8PIPE_TRACE");
    enum fp8pipe_status status;
    FILE *file;
    char *own;

    if (name == NULL || name[0] == '\0') {
        return;
    }
    own = file_of_environment(name, pipe->entry.ordinal);
    status = own == NULL ? status_fail(FP8PIPE_ENOMEM, "no memory for the file's name")
                         : open_file(own, &file);
    if (status == FP8PIPE_OK) {
        fclose(file);
        status = pipe_trace_start(pipe, TRACE_OPS_DEFAULT);
    }
    if (status == FP8PIPE_OK) {
        pipe->crew->trace.file = own;
        return;
    }
    free(own);
    log_line(&pipe->log, FP8PIPE_LOG_WARN,
             "FP8PIPE_TRACE = \"%s\" in the environment: no trace: %s", name, status_sentence());
}

void pipe_trace_close(struct fp8pipe *pipe)
{
    struct trace *trace = &pipe->crew->trace;
    enum fp8pipe_status status;
    FILE *file;

    if (trace->file == NULL) {
        return;
    }
    status = open_file(trace->file, &file);
    if (status == FP8PIPE_OK) {
        status = finish(pipe, trace->file, file);
    }
    if (status != FP8PIPE_OK) {
        log_line(&pipe->log, FP8PIPE_LOG_WARN, "the environment's FP8PIPE_TRACE: %s",
                 status_sentence());
    }
}
