#include "crew.h"

#include <stdlib.h>
#include <string.h>

#include "thread.h"

/* As many as fp8pipe_tune looks at unless told. */
#define CREW_TUNE_CANDIDATES 16
/* A lane's two words, each on 16 bytes of its own, as cuBLASLt demands. */
#define LANE_WORDS_BYTES 32

void crew_streams_end(struct crew *crew)
{
    for (uint32_t i = 0; i < crew->count; i++) {
        if (crew->lanes[i].stream != NULL) {
            crew->backend->ops->stream_destroy(crew->backend, crew->lanes[i].stream);
            crew->lanes[i].stream = NULL;
        }
    }
}

void crew_free(struct fp8pipe *pipe)
{
    struct crew *crew = pipe->crew;
    struct backend *backend = crew->backend;
    struct backend_scope scope;

    backend->ops->enter(backend, &scope);
    crew_streams_end(crew);
    trace_clear(&crew->trace, backend);
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        struct lane *lane = &crew->lanes[i];

        if (lane->own_amax != NULL) {
            backend->ops->free(backend, NULL, lane->own_amax, LANE_WORDS_BYTES);
        }
        if (crew->rings[i].events != NULL) {
            event_ring_free(&crew->rings[i]);
        }
    }
    backend->ops->leave(backend, &scope);
    backend->ops->close(backend);
    free(crew->tune_file);
    free(crew->trace.file);
    free(crew->rings);
    free(crew->lanes);
    free(crew);
    pipe->crew = NULL;
}

static enum fp8pipe_status lane_open(struct fp8pipe *pipe, uint32_t index,
                                     const struct fp8pipe_options *options)
{
    struct crew *crew = pipe->crew;
    struct backend *backend = crew->backend;
    struct lane *lane = &crew->lanes[index];
    enum fp8pipe_status status;

    lane->crew = crew;
    lane->index = index;
    lane->port = &pipe->ports[index];
    lane->measure_idle = options->measure_idle != 0;
    crew->rings[index].timed = lane->measure_idle;
    if (options->streams != NULL && options->streams[index] == NULL) {
        return status_fail(FP8PIPE_EINVAL,
                           "streams[%u] = NULL: name the default stream as cudaStreamLegacy or "
                           "cudaStreamPerThread",
                           index);
    }
    status = event_ring_init(&crew->rings[index], backend, lane->port, &pipe->fault,
                             options->ring_slots);
    if (status == FP8PIPE_OK) {
        status = backend->ops->stream_create(
            backend, options->streams == NULL ? NULL : options->streams[index], &lane->stream);
    }
    if (status == FP8PIPE_OK) {
        status = backend->ops->alloc(backend, NULL, LANE_WORDS_BYTES, (void **)&lane->own_amax);
    }
    if (status == FP8PIPE_OK) {
        lane->gemm_amax = lane->own_amax + LANE_WORDS_BYTES / 2 / sizeof(uint32_t);
        status = backend->ops->memory_fill(backend, lane->own_amax, 0, LANE_WORDS_BYTES);
    }
    return status;
}

/* The options' tune file, or the environment's, or NULL. */
static const char *tune_file_of(const struct fp8pipe_options *options)
{
    const char *file =
        options->tune_file != NULL ? options->tune_file : getenv("FP8PIPE_TUNE_FILE");

    return file != NULL && file[0] != '\0' ? file : NULL;
}

/* Whether close is to tune what has run. */
static enum fp8pipe_status tune_prepare(struct fp8pipe *pipe, const char *file)
{
    const char *wanted = getenv("FP8PIPE_TUNE");
    struct crew *crew = pipe->crew;

    if (wanted == NULL || strcmp(wanted, "1") != 0 || crew->backend->ops->tune == NULL) {
        return FP8PIPE_OK;
    }
    if (file == NULL) {
        log_line(&pipe->log, FP8PIPE_LOG_WARN,
                 "FP8PIPE_TUNE = 1 in the environment, but no tune file is named: set "
                 "FP8PIPE_TUNE_FILE");
        return FP8PIPE_OK;
    }
    crew->tune_file = strdup(file);
    return crew->tune_file != NULL
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_ENOMEM, "tune_file: no host memory for it");
}

void crew_tune(struct fp8pipe *pipe, int64_t deadline_ns)
{
    struct backend *backend = pipe->crew->backend;
    struct backend_tune tune = {
        .file = pipe->crew->tune_file,
        .candidates = CREW_TUNE_CANDIDATES,
        .untuned = true,
        .deadline_ns = deadline_ns,
    };
    struct backend_scope scope;

    if (tune.file == NULL || fault_status(&pipe->fault) != FP8PIPE_OK) {
        return;
    }
    backend->ops->enter(backend, &scope);
    if (backend->ops->tune(backend, &tune) != FP8PIPE_OK) {
        log_line(&pipe->log, FP8PIPE_LOG_WARN, "FP8PIPE_TUNE = 1: %s", status_sentence());
    }
    backend->ops->leave(backend, &scope);
}

enum fp8pipe_status crew_make(struct fp8pipe *pipe, const struct backend_ops *ops,
                              const struct fp8pipe_options *options)
{
    struct crew *crew = calloc(1, sizeof(*crew));
    struct backend_options backend_options = {
        .device = options->device,
        .allocator = options->allocator,
        .workspace_bytes = options->workspace_bytes,
        .plans = options->plans,
        .replays = options->replays,
        .tune_file = tune_file_of(options),
        .log = &pipe->log,
        .notify = completion_notify,
    };
    struct backend_scope scope;
    enum fp8pipe_status status;

    if (crew == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "a pipe's lanes are not to be had");
    }
    crew->lanes = calloc(pipe->lanes, sizeof(*crew->lanes));
    crew->rings = calloc(pipe->lanes, sizeof(*crew->rings));
    if (crew->lanes == NULL || crew->rings == NULL) {
        status = status_fail(FP8PIPE_ENOMEM, "lanes = %u: they are not to be had", pipe->lanes);
        goto free_crew;
    }
    backend_options.notify_arg = &crew->completion;
    status = ops->open(&backend_options, &crew->backend);
    if (status != FP8PIPE_OK) {
        goto free_crew;
    }
    crew->pipe = pipe->number;
    crew->count = pipe->lanes;
    crew->ports = pipe->ports;
    crew->fault = &pipe->fault;
    crew->log = &pipe->log;
    pipe->crew = crew;
    status = tune_prepare(pipe, backend_options.tune_file);
    crew->backend->ops->enter(crew->backend, &scope);
    for (uint32_t i = 0; i < pipe->lanes && status == FP8PIPE_OK; i++) {
        status = lane_open(pipe, i, options);
    }
    if (status == FP8PIPE_OK) {
        status = completion_start(&crew->completion, crew->backend, crew->rings, pipe->lanes,
                                  &pipe->fault, options->defer_limit);
    }
    crew->backend->ops->leave(crew->backend, &scope);
    if (status != FP8PIPE_OK) {
        crew_free(pipe);
    }
    return status;
free_crew:
    free(crew->lanes);
    free(crew->rings);
    free(crew);
    return status;
}

bool crew_stop(struct fp8pipe *pipe, int64_t deadline_ns)
{
    for (uint32_t i = 0; i < pipe->lanes; i++) {
        struct lane *lane = &pipe->crew->lanes[i];

        ring_close(&pipe->ports[i].ring);
        if (lane->started) {
            if (!thread_join(lane->thread, deadline_ns)) {
                return false;
            }
            lane->started = false;
        }
    }
    return true;
}

enum fp8pipe_status crew_start(struct fp8pipe *pipe, const struct fp8pipe_options *options)
{
    for (uint32_t i = 0; i < pipe->lanes && options->mode == FP8PIPE_ASYNC; i++) {
        enum fp8pipe_status status = lane_start(
            &pipe->crew->lanes[i], options->affinity == NULL ? -1 : options->affinity[i]);

        if (status != FP8PIPE_OK) {
            crew_stop(pipe, EC_FOREVER);
            completion_stop(&pipe->crew->completion, EC_FOREVER);
            crew_free(pipe);
            return status;
        }
    }
    return FP8PIPE_OK;
}
