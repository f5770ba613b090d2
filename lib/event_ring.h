/*
 * A lane's events, one for each op in flight, found by ring position; and the done mark.
 *
 * The event of position p stands at p modulo the ring's size. The launcher records it before the
 * op's issued mark and reuses its place only after the op that had it is done, which also bounds
 * how far a stream may run behind. Whoever reads it has seen the issued mark (acquire); one that is
 * recorded again meanwhile stands for more work, never for less.
 *
 * The reap lock orders all who move the done mark.
 */
#ifndef LIB_EVENT_RING_H
#define LIB_EVENT_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"
#include "ticket.h"

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

/* Makes the caller's cudaStream_t wait for an issued op. ECAPTURE, also if it is done already. */
enum fp8pipe_status event_ring_wait_native(struct event_ring *ring, uint64_t position,
                                           void *native_stream);

/* Moves the done mark over what has finished; a device error raises the fault. Inside `enter`. */
void event_ring_reap(struct event_ring *ring);

/* Whether the op at an issued position, the lane's latest, has finished; then *busy_ns is when the
 * stream was last seen busy, 0: never. By the launcher, with `timed`. */
bool event_ring_finished(struct event_ring *ring, uint64_t position, int64_t *busy_ns);

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
