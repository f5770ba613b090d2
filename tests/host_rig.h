/*
 * For tests of the host backend through its table: one backend at a time, counters and gates that
 * its streams' work and the tests share, and short forms that bail out.
 */
#ifndef TESTS_HOST_RIG_H
#define TESTS_HOST_RIG_H

#include "backend.h"

extern const struct backend_ops *const ops;
extern struct backend *backend;

/* allocator: NULL, or the caller's. */
void rig_open(const struct fp8pipe_allocator *allocator);
extern int rig_notified; /* by all backends so far, see rig_get() */

/* Each on a backend of its own. A hang ends the program. */
void rig_run(void (*const *tests)(void), size_t count);

/* ---- Shared counters and gates ------------------------------------------------------------ */

void rig_set(int *variable, int value);
int rig_get(const int *variable);
void rig_await(const int *variable, int value);

/* Works: one that holds its stream until *arg is not 0, and one that adds 1 to the int at arg. */
void rig_hold(void *arg);
void rig_increment(void *arg);

/* ---- Short forms -------------------------------------------------------------------------- */

struct fp8pipe_stream *rig_stream(void);
struct backend_event *rig_event(void);
bool rig_done(struct backend_event *event);
void rig_record(struct backend_event *event, struct fp8pipe_stream *stream);
void rig_wait_for(struct fp8pipe_stream *stream, struct backend_event *event);
void rig_call(struct fp8pipe_stream *stream, fp8pipe_work_fn *fn, void *arg);
void rig_drain(struct fp8pipe_stream *stream);

#endif
