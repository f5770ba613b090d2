/*
 * Between tests/chaos_control.c, which owns the controls and counters of the chaos backend, and
 * tests/chaos.c, the table that asks them. From any thread.
 */
#ifndef TESTS_CHAOS_CONTROL_H
#define TESTS_CHAOS_CONTROL_H

#include "chaos.h"

/* Counts a call. */
void chaos_called(enum chaos_call call);
void chaos_violated(void);
/* Adds to what exists now. */
void chaos_live_add(struct chaos_live change);

/* OK, or the failure that was ordered for this call. */
enum fp8pipe_status chaos_rules_apply(enum chaos_call call, const struct fp8pipe_stream *stream);
/* OK, or EDEVICE once a device error was ordered. */
enum fp8pipe_status chaos_device_check(void);

/* May sleep. Returns how long a work of the stream should then sleep in its order, or 0. */
int64_t chaos_delay(void);
void chaos_sleep(int64_t ns);
/* How often an event that is recorded now answers 'not done' more than it has to. */
int chaos_lies(void);

/* Around a call on a stream, or NULL: two threads inside of one are a violation. */
void chaos_stream_enter(const struct fp8pipe_stream *stream);
void chaos_stream_leave(const struct fp8pipe_stream *stream);

#endif
