/* Public entry points of traces. */
#include <fp8pipe_trace.h>

#include "options.h"
#include "pipe.h"

#define TRACE_OPS_MAX 16777216u

enum fp8pipe_status fp8pipe_trace_start(struct fp8pipe *pipe,
                                        const struct fp8pipe_trace_options *options)
{
    static const struct fp8pipe_trace_options defaults = FP8PIPE_TRACE_OPTIONS_INIT;
    struct fp8pipe_trace_options room;
    enum fp8pipe_status status = pipe_check_inside(false);
    const void *given = &defaults;

    if (status == FP8PIPE_OK && options != NULL) {
        status = options_read("options", options, &defaults, sizeof(room),
                              offsetof(struct fp8pipe_trace_options, reserved), &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    options = given;
    if (options->ops > TRACE_OPS_MAX) {
        return status_fail(FP8PIPE_EINVAL, "ops = %u: a trace holds 1 to %u, 0 for the default",
                           options->ops, TRACE_OPS_MAX);
    }
    if (options->reserved != 0) {
        return status_fail(FP8PIPE_EINVAL, "reserved = %u: it is 0", options->reserved);
    }
    status = pipe_enter(pipe);
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = pipe_trace_start(pipe, options->ops == 0 ? TRACE_OPS_DEFAULT : options->ops);
    pipe_leave(pipe);
    return status;
}

enum fp8pipe_status fp8pipe_trace_stop(struct fp8pipe *pipe, const char *file)
{
    enum fp8pipe_status status = pipe_check_inside(true);

    if (status == FP8PIPE_OK) {
        status = pipe_enter(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = pipe_trace_stop(pipe, file);
    pipe_leave(pipe);
    return status;
}
