/*
 * Functions of the caller's: those that run at issue, on the launcher, and may only enqueue; and
 * those that run in stream order, on a thread of the backend's. Called by launchers, and from
 * inside such functions.
 */
#ifndef LIB_FUNCTION_H
#define LIB_FUNCTION_H

#include "issue.h"
#include "op.h"

enum fp8pipe_status function_call(struct issue *issue, const struct op *op);

/* The target is that of the op's values, which are not empty. On the host the function must have
 * enqueued them, or the op fails with ECALL. */
enum fp8pipe_status function_tensor_call(struct issue *issue, const struct op *op,
                                         const struct fp8pipe_quantize_target *target);

enum fp8pipe_status function_host_call(struct issue *issue, const struct op_host_call *call);

/* From inside a `call` or `tensor_call`: fn(arg) in stream order on a thread of the backend's, as a
 * function of the caller's; skipped once the pipe has failed. */
enum fp8pipe_status function_host_enqueue(struct fp8pipe_stream *stream, fp8pipe_work_fn *fn,
                                          void *arg);

/* fp8pipe_quantize_host() on a host stream, arguments checked but for the target. */
enum fp8pipe_status function_quantize_host(struct fp8pipe_stream *stream,
                                           const struct fp8pipe_quantize_target *target,
                                           fp8pipe_values_fn *values, void *arg, size_t arg_bytes);

#endif
