/*
 * Makes and ends what a running pipe needs: backend, lanes with their streams and events,
 * launchers, completion thread. Called by open and close.
 */
#ifndef LIB_CREW_H
#define LIB_CREW_H

#include "handle.h"

/* Opens the backend, makes the lanes and starts the completion thread: pipe->crew. Leaves nothing
 * behind when it fails. */
enum fp8pipe_status crew_make(struct fp8pipe *pipe, const struct backend_ops *ops,
                              const struct fp8pipe_options *options);

/* Starts the launchers, in ASYNC. Ends and frees the crew when it fails. */
enum fp8pipe_status crew_start(struct fp8pipe *pipe, const struct fp8pipe_options *options);

/* Closes the rings, so that launchers end, and joins those that were started; false at the
 * deadline. */
bool crew_stop(struct fp8pipe *pipe, int64_t deadline_ns);

/* At close, when all ops are done: where the environment asks for it, times the plans of what ran
 * and saves them; a failure is a warning. No shape is begun after the deadline. */
void crew_tune(struct fp8pipe *pipe, int64_t deadline_ns);

/* Ends the lanes' streams, waiting for what is in them. Inside `enter`. */
void crew_streams_end(struct crew *crew);

/* Frees the crew; its threads have ended. */
void crew_free(struct fp8pipe *pipe);

#endif
