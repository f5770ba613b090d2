/*
 * libfp8pipe: seeing what a pipe does. The conventions of fp8pipe.h hold.
 */
#ifndef FP8PIPE_TRACE_H
#define FP8PIPE_TRACE_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Between start and stop the pipe records, for each op, when it was enqueued, taken up by its
 * launcher and issued, and when its kernels started and ended on the device. stop waits for the ops
 * submitted so far and writes them as Chrome trace JSON (chrome://tracing, ui.perfetto.dev): for each
 * lane a track of host spans ("queue", from enqueue to issue, and "issue") and one of device spans,
 * named as the ops. A trace holds at most `ops` ops; later ones are counted and left out (their
 * number is in the file, "dropped"). Between stop and start nothing is recorded, and nothing costs
 * more than the look at one flag.
 * FP8PIPE_TRACE=FILE in the environment: open starts a trace, close writes it to FILE, with the
 * number of the pipe in the name of all but the first one (FILE.2 ...).
 *
 * Under a profiler that injects NVTX (nsys), launchers push a range with the op's name while they
 * issue it, trace or not.
 */
struct fp8pipe_trace_options {
    size_t size;
    uint32_t ops; /* 1 to 16777216; 0: 65536. Each takes about 100 bytes of host memory, and on CUDA
                     two events */
    uint32_t reserved; /* 0 */
};
#define FP8PIPE_TRACE_OPTIONS_INIT { sizeof(struct fp8pipe_trace_options), 0, 0 }

/* EBUSY while a trace runs. */
FP8PIPE_API enum fp8pipe_status fp8pipe_trace_start(struct fp8pipe *pipe,
                                                    const struct fp8pipe_trace_options *options);
/* file NULL: drops the trace. EINVAL without a trace, or when the file cannot be written (checked
 * first: the trace then goes on). */
FP8PIPE_API enum fp8pipe_status fp8pipe_trace_stop(struct fp8pipe *pipe, const char *file);

#ifdef __cplusplus
}
#endif

#endif
