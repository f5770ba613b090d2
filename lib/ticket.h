/*
 * Tickets, the marks that they reach, and what failed.
 *
 * A ticket is 12 bits of pipe, 6 of lane and 46 of ring position. A port is the part of a lane that
 * callers touch: its ring and its marks. Ports are never freed, so that a late caller with a stale
 * handle reads a closed ring, not freed memory.
 *
 *   issued   the ring's tail: written by the launcher once the op's event is recorded and its
 *            failure, if any, is kept; whoever sees it sees both.
 *   done     first position not known to be finished; written under the lane's reap lock.
 *   failures the lane's last TICKET_FAILURES failed or cancelled ranges of positions, under `lock`;
 *            `failed` (how many were ever kept) and `too_old` are read without it.
 *   broken   the pipe's failure (device error): its status, 0 while it works; written once, read by
 *            all. Once set, no op that was not done before is reported as anything but failed.
 *
 * The launcher of a lane writes; anyone reads.
 */
#ifndef LIB_TICKET_H
#define LIB_TICKET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "ring.h"
#include "status.h"

#define TICKET_FAILURES 1024
#define TICKET_LANE_BITS 6
#define TICKET_PIPE_BITS 12
#define TICKET_PIPES (1 << TICKET_PIPE_BITS)

struct ticket_failure {
    uint64_t from; /* positions from .. to - 1 */
    uint64_t to;
    enum fp8pipe_outcome outcome;
    enum fp8pipe_status status; /* the root's */
    fp8pipe_ticket root;        /* 0: close's CANCEL */
    bool too_old;               /* not a range: what became of the op is forgotten */
    char sentence[160];
};

struct port {
    struct ring ring;
    pthread_mutex_t inline_mutex;                    /* INLINE: held from claim to issue */
    struct ec finished __attribute__((aligned(64))); /* waiters for done sleep here */
    uint64_t done;
    /* Apart from the done mark, which moves all the time: submits read the next three. */
    uint64_t start __attribute__((aligned(64))); /* first position of this pipe */
    uint64_t too_old;                            /* positions below answer ETOOOLD */
    uint64_t failed;
    pthread_mutex_t lock;
    struct ticket_failure *failures; /* ring of TICKET_FAILURES, oldest evicted */
};

static inline fp8pipe_ticket ticket_make(uint32_t pipe, uint32_t lane, uint64_t position)
{
    return (fp8pipe_ticket)pipe << (TICKET_LANE_BITS + RING_POSITION_BITS) |
           (fp8pipe_ticket)lane << RING_POSITION_BITS | position;
}

static inline uint32_t ticket_pipe(fp8pipe_ticket ticket)
{
    return (uint32_t)(ticket >> (TICKET_LANE_BITS + RING_POSITION_BITS));
}

static inline uint32_t ticket_lane(fp8pipe_ticket ticket)
{
    return (uint32_t)(ticket >> RING_POSITION_BITS) & ((1u << TICKET_LANE_BITS) - 1);
}

static inline uint64_t ticket_position(fp8pipe_ticket ticket)
{
    return ticket & ((UINT64_C(1) << RING_POSITION_BITS) - 1);
}

enum fp8pipe_status port_init(struct port *port, uint32_t ring_slots, uint64_t start,
                              int64_t spin_ns);

/* Frees what only a running lane needs; the port itself stays. */
void port_retire(struct port *port);

/* The first position that is not known to be done (acquire). */
uint64_t port_done(const struct port *port);

/* Moves the done mark and wakes its waiters. Under the lane's reap lock. */
void port_done_set(struct port *port, uint64_t done);

/* Positions below it answer ETOOOLD. */
uint64_t port_too_old(const struct port *port);

/*
 * Keeps that the op at [position, position + slots) failed or was cancelled; joins it to the last
 * range where it continues it. Before the op's issued mark, by the lane's launcher.
 */
void port_failure_keep(struct port *port, uint64_t position, uint32_t slots,
                       const struct ticket_failure *failure);

/*
 * What is known of an issued position's failure.
 * Returns false: it did not fail. True: *failure is set (ETOOOLD when it is not known any more).
 */
bool port_failure_find(struct port *port, uint64_t position, struct ticket_failure *failure);

#endif
