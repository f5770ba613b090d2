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
 * submitted so far and writes them as Chrome trace JSON (chrome://tracing, ui.perfetto.dev), named
 * as the ops, each with its ticket and outcome:
 *   - for each lane a track of host spans (category "issue": from when the launcher takes the op up
 *     until it is issued, with the part of it that it waited for predecessors, "wait_us") and one
 *     of device spans ("device", for ops that issued something), with an arrow between the two;
 *   - async spans ("queue") from enqueue to when the launcher takes the op up, for these overlap.
 * Times are of CLOCK_MONOTONIC, so that traces of several pipes fit together; on CUDA those of the
 * device are moved to it, to within some 10 us. Ops enqueued before start but issued after it have
 * no "queue" span. A trace holds at most `ops` ops; later ones are counted and left out (their
 * number is in the file, "dropped"). Between stop and start nothing is recorded, and nothing costs
 * more than the look at one flag; a trace costs the launcher of each op a few microseconds.
 * FP8PIPE_TRACE=FILE in the environment: open starts a trace, close writes it to FILE, for the
 * second pipe of the process to FILE.2, and so on. A file that cannot be written is one warning, at
 * open, and no trace.
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

/* options may be NULL. EBUSY while a trace runs or is being stopped; ENOMEM. Blocks for less than a
 * millisecond. */
FP8PIPE_API enum fp8pipe_status fp8pipe_trace_start(struct fp8pipe *pipe,
                                                    const struct fp8pipe_trace_options *options);
/*
 * file NULL: drops the trace. EINVAL without a trace, or when the file cannot be written (checked
 * first: the trace then goes on; but when it proves too long for its disk, the trace is gone).
 * EDEVICE when the pipe has failed: the file then has the host spans alone. EDEADLK in a defer too.
 * A trace that runs when the pipe closes is dropped, unless it is the environment's.
 * Blocks  until the ops submitted so far are done.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_trace_stop(struct fp8pipe *pipe, const char *file);

#ifdef __cplusplus
}
#endif

#endif
