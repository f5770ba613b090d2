/*
 * A lane's events, one for each op in flight, found by ring position; and the done mark.
 *
 * The event of position p stands at p modulo the ring's size. The launcher records it before the
 * op's issued mark and reuses its place only after the op that had it is done, which also bounds
 * how far a stream may run behind. Whoever reads it has seen the issued mark (acquire); one that is
 * recorded again meanwhile stands for more work, never for less.
 *
 * The reap lock orders all who move the done mark.
 *
 * `wanted` is lowered by who waits, before his look, and taken back by who wakes him, after an
 * event or an issued mark; with a full barrier on both sides, so that one sees the other.
 */
#ifndef LIB_EVENT_RING_H
#define LIB_EVENT_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"
#include "ticket.h"

#define EVENT_RING_NOBODY UINT64_MAX

struct event_ring {
    struct backend *backend;
    struct port *port;
    struct fault *fault;
    struct backend_event **events;
    struct backend_event *spare; /* shared by the places whose own could not be made */
    uint8_t *slots;              /* of the op at a position */
    uint64_t mask;
    uint64_t done_ops; /* written under the reap lock, read by stats */
    bool timed;        /* busy_ns is kept */
    uint64_t busy_ns;  /* when a reap last saw the stream busy; as done_ops, read by the launcher */
    uint64_t wanted;   /* the lowest position that somebody sleeps for, or EVENT_RING_NOBODY */
    pthread_mutex_t reap;
};

enum fp8pipe_status event_ring_init(struct event_ring *ring, struct backend *backend,
                                    struct port *port, struct fault *fault, uint32_t slots);
/* Destroys the events; nothing may wait for them any more. */
void event_ring_free(struct event_ring *ring);

/* Makes sure that the position's place is free and has an event; by the launcher, before it issues
 * anything for the op. Waits for the op that had the place. Where no event is to be had the ring's
 * spare one serves. EDEVICE: the pipe has failed. */
enum fp8pipe_status event_ring_prepare(struct event_ring *ring, uint64_t position, uint32_t slots);

/* Records the op's event on the lane's stream. By the launcher. */
enum fp8pipe_status event_ring_record(struct event_ring *ring, uint64_t position,
                                      struct fp8pipe_stream *stream);

/* Makes the stream wait for an issued op, unless it is known to be done. */
enum fp8pipe_status event_ring_wait(struct event_ring *ring, uint64_t position,
                                    struct fp8pipe_stream *stream);

/* Waits here, on the calling thread, until an issued op is done. EDEVICE: the pipe has failed. */
enum fp8pipe_status event_ring_wait_here(struct event_ring *ring, uint64_t position);

/* Makes the caller's cudaStream_t wait for an issued op. ECAPTURE, also if it is done already. */
enum fp8pipe_status event_ring_wait_native(struct event_ring *ring, uint64_t position,
                                           void *native_stream);

/* Moves the done mark over what has finished; a device error raises the fault. Inside `enter`. */
void event_ring_reap(struct event_ring *ring);

/* Whether the op at an issued position, the lane's latest, has finished; then *busy_ns is when the
 * stream was last seen busy, 0: never. By the launcher, with `timed`. */
bool event_ring_finished(struct event_ring *ring, uint64_t position, int64_t *busy_ns);

/* Before the look of who then sleeps, until woken for it, for an op to be done. */
void event_ring_want(struct event_ring *ring, uint64_t position);

/* Whether who sleeps is to be woken: then nobody is wanted any more, and those who were woken too
 * early want again. Behind a full barrier. Inside `enter`. */
bool event_ring_reached(struct event_ring *ring);

/* Where an op of the lane is. */
struct look {
    bool issued;
    bool done;
    bool failed; /* or cancelled; `failure` is set */
    struct ticket_failure failure;
};

/* Looks without reaping. A position that is too old is issued, done and failed with ETOOOLD. */
void event_ring_look(struct event_ring *ring, uint64_t position, struct look *look);

#endif
