#include "pipe.h"

#include <ck_pr.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "options.h"
#include "table.h"
#include "thread.h"

enum fp8pipe_status pipe_check(const struct fp8pipe *pipe)
{
    if (pipe == NULL) {
        return status_fail(FP8PIPE_EINVAL, "pipe = NULL: it is needed");
    }
    if (ck_pr_load_32(&pipe->state) != PIPE_OPEN) {
        return status_fail(FP8PIPE_ECLOSED, "pipe %u is closed", pipe->number);
    }
    if (pipe->generation != table_fork_generation) {
        return status_fail(FP8PIPE_EFORKED,
                           "pipe %u was opened before fork(): its child can only "
                           "close it",
                           pipe->number);
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status pipe_enter(struct fp8pipe *pipe)
{
    enum fp8pipe_status status = pipe_check(pipe);

    if (status != FP8PIPE_OK) {
        return status;
    }
    ck_pr_inc_32(&pipe->users);
    ck_pr_fence_memory();
    status = pipe_check(pipe);
    if (status != FP8PIPE_OK) {
        pipe_leave(pipe);
    }
    return status;
}

void pipe_leave(struct fp8pipe *pipe)
{
    ck_pr_fence_release();
    ck_pr_dec_32(&pipe->users);
    ck_pr_fence_memory();
    if (ck_pr_load_32(&pipe->state) != PIPE_OPEN) {
        ec_wake(&pipe->idle);
    }
}

enum fp8pipe_status pipe_check_inside(bool defers)
{
    enum thread_inside inside = thread_inside();

    if (inside == THREAD_FUNCTION || (defers && inside == THREAD_DEFER)) {
        return status_fail(FP8PIPE_EDEADLK, "called from inside %s",
                           inside == THREAD_DEFER ? "a defer" : "a function that the library runs");
    }
    return FP8PIPE_OK;
}

/* ---- Open ---------------------------------------------------------------------------------- */

static enum fp8pipe_status pipe_open_checked(const struct fp8pipe_options *options,
                                             const struct backend_ops *ops, struct fp8pipe **out)
{
    size_t lanes = (size_t)options->lanes;
    size_t bytes = sizeof(struct fp8pipe) + lanes * sizeof(struct port);
    enum fp8pipe_status status = FP8PIPE_OK;
    struct fp8pipe *pipe;
    uint32_t ports = 0;
    uint64_t start = 1;

    pipe = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (pipe == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "a pipe's handle: %zu bytes are not to be had", bytes);
    }
    memset(pipe, 0, bytes);
    status = table_take(&pipe->number, &start);
    if (status != FP8PIPE_OK) {
        goto free_pipe;
    }
    pipe->generation = table_fork_generation;
    pipe->lanes = (uint32_t)lanes;
    pipe->mode = options->mode;
    pipe->backend = ops->kind;
    pipe->native_streams = options->streams != NULL;
    pthread_mutex_init(&pipe->objects_lock, NULL);
    ec_init(&pipe->idle);
    filling_pool_init(&pipe->pool, pipe->lanes);
    log_init(&pipe->log, options->log_level, options->log, options->log_arg);
    pipe->log.pipe = pipe->number;
    fault_init(&pipe->fault, &pipe->log, pipe->ports, pipe->lanes);
    for (; ports < pipe->lanes; ports++) {
        status = port_init(&pipe->ports[ports], options->ring_slots, start, options->spin_ns);
        if (status != FP8PIPE_OK) {
            goto retire_ports;
        }
    }
    status = crew_make(pipe, ops, options);
    if (status == FP8PIPE_OK) {
        status = crew_start(pipe, options);
    }
    if (status != FP8PIPE_OK) {
        goto retire_ports;
    }
    table_add(&pipe->entry);
    pipe_trace_environment(pipe);
    log_line(&pipe->log, FP8PIPE_LOG_INFO, "open on %s, %u lanes", ops->name, pipe->lanes);
    *out = pipe;
    return FP8PIPE_OK;
retire_ports:
    while (ports > 0) {
        port_retire(&pipe->ports[--ports]);
    }
    table_give_back(pipe->number, start);
free_pipe:
    free(pipe);
    return status;
}

enum fp8pipe_status pipe_open_on(const struct fp8pipe_options *options,
                                 const struct backend_ops *ops, struct fp8pipe **pipe)
{
    struct fp8pipe_options checked;
    enum fp8pipe_status status = pipe_check_inside(false);

    if (status == FP8PIPE_OK && pipe == NULL) {
        status = status_fail(FP8PIPE_EINVAL, "pipe = NULL: it takes the new handle");
    }
    if (status == FP8PIPE_OK) {
        status = options_check(options, &checked);
    }
    if (status == FP8PIPE_OK && checked.streams != NULL && ops->kind != FP8PIPE_BACKEND_CUDA) {
        status = status_fail(FP8PIPE_EINVAL,
                             "streams = %p: the host backend has no streams of the "
                             "caller's",
                             (const void *)checked.streams);
    }
    return status != FP8PIPE_OK ? status : pipe_open_checked(&checked, ops, pipe);
}

/* AUTO is what the environment names, if anything. */
static enum fp8pipe_status backend_wanted(enum fp8pipe_backend *backend)
{
    const char *name = getenv("FP8PIPE_BACKEND");

    if (*backend != FP8PIPE_BACKEND_AUTO || name == NULL || name[0] == '\0' ||
        strcmp(name, "auto") == 0) {
        return FP8PIPE_OK;
    }
    if (strcmp(name, "host") == 0) {
        *backend = FP8PIPE_BACKEND_HOST;
    } else if (strcmp(name, "cuda") == 0) {
        *backend = FP8PIPE_BACKEND_CUDA;
    } else {
        return status_fail(FP8PIPE_EINVAL,
                           "FP8PIPE_BACKEND = \"%s\" in the environment: it is "
                           "host, cuda or auto",
                           name);
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status fp8pipe_open(const struct fp8pipe_options *options, struct fp8pipe **pipe)
{
    struct fp8pipe_options checked;
    enum fp8pipe_status status = pipe_check_inside(false);

    if (status == FP8PIPE_OK) {
        status = options_check(options, &checked);
    }
    if (status == FP8PIPE_OK) {
        status = backend_wanted(&checked.backend);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (checked.backend == FP8PIPE_BACKEND_HOST) {
        return pipe_open_on(&checked, &backend_host_ops, pipe);
    }
    status = pipe_open_on(&checked, &backend_cuda_ops, pipe);
    if (status == FP8PIPE_ENODEV && checked.backend == FP8PIPE_BACKEND_AUTO &&
        checked.streams == NULL) {
        struct log log;

        log_init(&log, checked.log_level, checked.log, checked.log_arg);
        log_line(&log, FP8PIPE_LOG_INFO, "backend auto is host, for cuda did not open: %s",
                 status_sentence());
        status = pipe_open_on(&checked, &backend_host_ops, pipe);
    }
    return status;
}

/* ---- Close --------------------------------------------------------------------------------- */

static bool no_users(void *arg)
{
    struct fp8pipe *pipe = arg;

    return ck_pr_load_32(&pipe->users) == 0;
}

/* All that was enqueued has finished, nobody is inside, every thread has ended. */
static bool wind_down(struct fp8pipe *pipe, int64_t deadline_ns)
{
    uint64_t rescues = 0;
    struct look look;
    struct timespec deadline = {.tv_sec = deadline_ns / 1000000000,
                                .tv_nsec = deadline_ns % 1000000000};

    for (uint32_t i = 0; i < pipe->lanes; i++) {
        uint64_t head = ring_close(&pipe->ports[i].ring);

        /* An INLINE submit that was quicker is issued under this lock. */
        if (pthread_mutex_clocklock(&pipe->ports[i].inline_mutex, CLOCK_MONOTONIC, &deadline) !=
            0) {
            return false;
        }
        pthread_mutex_unlock(&pipe->ports[i].inline_mutex);
        if (head > pipe->ports[i].start && !pipe_reach(pipe, ticket_make(pipe->number, i, head - 1),
                                                       FP8PIPE_DONE, deadline_ns, &look)) {
            return false;
        }
    }
    return ec_await(&pipe->idle, no_users, pipe, 0, deadline_ns, &rescues) &&
           crew_stop(pipe, deadline_ns) && completion_stop(&pipe->crew->completion, deadline_ns);
}

enum fp8pipe_status fp8pipe_close(struct fp8pipe *pipe, unsigned flags, int64_t timeout_ns)
{
    int64_t deadline_ns = ec_deadline_ns(timeout_ns);
    enum fp8pipe_status status = pipe_check_inside(true);
    uint64_t next = 0;

    if (status != FP8PIPE_OK) {
        return status;
    }
    if (pipe == NULL) {
        return status_fail(FP8PIPE_EINVAL, "pipe = NULL: it is needed");
    }
    if ((flags & ~FP8PIPE_CLOSE_CANCEL) != 0) {
        return status_fail(FP8PIPE_EINVAL, "flags = %#x: only FP8PIPE_CLOSE_CANCEL is known",
                           flags);
    }
    if (!ck_pr_cas_32(&pipe->state, PIPE_OPEN, PIPE_CLOSING)) {
        return status_fail(FP8PIPE_ECLOSED, "pipe %u is closed", pipe->number);
    }
    ck_pr_fence_memory();
    if (pipe->generation != table_fork_generation) {
        ck_pr_store_32(&pipe->state, PIPE_CLOSED);
        return FP8PIPE_OK;
    }
    if ((flags & FP8PIPE_CLOSE_CANCEL) != 0) {
        ck_pr_store_32(&pipe->crew->cancel, 1);
    }
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        ring_close(&pipe->ports[i].ring);
    }
    if (!wind_down(pipe, deadline_ns)) {
        fault_raise(&pipe->fault, "close timed out and left the pipe's threads behind");
        ck_pr_store_32(&pipe->state, PIPE_ABANDONED);
        return status_fail(FP8PIPE_ETIMEDOUT,
                           "timeout_ns = %lld: ops, functions or defers of pipe "
                           "%u have not finished",
                           (long long)timeout_ns, pipe->number);
    }
    pipe_trace_close(pipe);
    crew_tune(pipe, deadline_ns);
    pipe_objects_retire(pipe);
    crew_free(pipe);
    filling_pool_free(&pipe->pool);
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        uint64_t head = ring_head(&pipe->ports[i].ring);

        next = head > next ? head : next;
        port_retire(&pipe->ports[i]);
    }
    ck_pr_store_32(&pipe->state, PIPE_CLOSED);
    table_give_back(pipe->number, next);
    return FP8PIPE_OK;
}
