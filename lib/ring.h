/*
 * A lane's ring: bounded, many producers, one consumer, of 256-byte slots. An entry takes one or
 * more consecutive slots, claimed at once, and lies in contiguous memory.
 *
 * Positions count slots and only grow. `head` is the next position to claim, `tail` the first that
 * is not consumed; an entry at position p is in place when the first word of its first slot is
 * p + 1. One preempted producer delays only the entries behind its own, never another producer.
 *
 *   head       written by producers (CAS) and ring_close (the CLOSED bit); orders claims.
 *   slot.seq   written by the claimer (release, full barrier) once its bytes are in place, read by
 *              the consumer (acquire), which zeroes the words that later entries would misread
 *              before it gives the slots back.
 *   tail       written by the consumer (release), read by producers (acquire) before they reuse
 *              slots, and by whoever asks whether an entry was consumed.
 *   parked     written by the consumer around its sleep; the producer's full barrier in the publish
 *              and the consumer's between `parked` and its last look make one of them see the
 *              other.
 *   closed     written by ring_close after the CLOSED bit and before its wake-ups: a consumer that
 *              finds no entry looks at it, not at `head`, whose cache line is the producers'.
 *
 * The struct and its event counts outlive the slots: after ring_close no claim succeeds, so that
 * late producers touch nothing else. Producers may call claim, publish and wait; the consumer peek,
 * wait and advance; anyone the readers.
 */
#ifndef LIB_RING_H
#define LIB_RING_H

#include <ck_pr.h>
#include <stdbool.h>
#include <stdint.h>

#include "ec.h"
#include "fp8pipe.h"

#define RING_SLOT_BYTES 256
#define RING_ENTRY_SLOTS_MAX 5
#define RING_ENTRY_BYTES_MAX (RING_ENTRY_SLOTS_MAX * RING_SLOT_BYTES - sizeof(uint64_t))
#define RING_POSITION_BITS 46
#define RING_CLOSED (UINT64_C(1) << 63)

struct ring_slot {
    uint64_t seq;
    unsigned char bytes[RING_SLOT_BYTES - sizeof(uint64_t)];
};

struct ring {
    /* producers */
    uint64_t head __attribute__((aligned(64)));
    uint64_t tail_seen; /* a tail that some producer has read; only ever too low */
    uint64_t entries;   /* claimed so far */
    uint64_t full;      /* claims refused for want of room */
    /* read-only after init, but for what changes once */
    struct ring_slot *slots __attribute__((aligned(64)));
    uint64_t mask;
    int64_t spin_ns;
    uint32_t closed;
    /* the consumer's sleep: every publish reads `parked`, no advance writes beside it */
    uint32_t parked __attribute__((aligned(64)));
    uint64_t parks;
    struct ec filled; /* the consumer sleeps here */
    /* consumer */
    uint64_t tail __attribute__((aligned(64)));
    struct ec consumed __attribute__((aligned(64))); /* producers and askers sleep here */
    uint64_t rescues;
};

enum ring_claim { RING_CLAIMED, RING_FULL, RING_IS_CLOSED, RING_IS_PAST };

/* slots: a power of two; start: the first position, >= 1. ENOMEM. */
enum fp8pipe_status ring_init(struct ring *ring, uint32_t slots, uint64_t start, int64_t spin_ns);

/* Frees the slots; the consumer must be gone and the ring closed and empty. */
void ring_free_slots(struct ring *ring);

/* Slots that an entry of so many bytes takes. */
static inline uint32_t ring_slots_for(size_t bytes)
{
    return (uint32_t)((bytes + sizeof(uint64_t) + RING_SLOT_BYTES - 1) / RING_SLOT_BYTES);
}

/* ring_claim_until where that is not the first look's answer. */
enum ring_claim ring_claim_slowly(struct ring *ring, uint32_t slots, uint64_t last,
                                  uint64_t *position);

/* Claims consecutive slots for the caller, who must publish them soon, whatever happens; not beyond
 * the position `last`: RING_IS_PAST. */
static inline enum ring_claim ring_claim_until(struct ring *ring, uint32_t slots, uint64_t last,
                                               uint64_t *position)
{
    uint64_t head = ck_pr_load_64(&ring->head);

    /* A closed ring's head is far beyond any room. */
    if (head > last || head + slots - ck_pr_load_64(&ring->tail_seen) > ring->mask + 1) {
        return ring_claim_slowly(ring, slots, last, position);
    }
    ck_pr_fence_acquire();
    if (!ck_pr_cas_64(&ring->head, head, head + slots)) {
        return ring_claim_slowly(ring, slots, last, position);
    }
    ck_pr_inc_64(&ring->entries);
    *position = head;
    return RING_CLAIMED;
}

/* The same at any position. */
static inline enum ring_claim ring_claim(struct ring *ring, uint32_t slots, uint64_t *position)
{
    return ring_claim_until(ring, slots, UINT64_MAX, position);
}

/* Copies the entry into its claimed slots and hands it to the consumer, waking it if it sleeps. */
void ring_publish(struct ring *ring, uint64_t position, const void *entry, size_t bytes);

/* Parks until there may be room for `slots` or the ring is closed. */
void ring_wait_room(struct ring *ring, uint32_t slots);

/* The oldest entry, in place, or NULL. It stays until ring_advance. */
void *ring_peek(struct ring *ring);

/* The position after the last entry when the ring is closed and drained: nothing will come. */
bool ring_drained(struct ring *ring);

/* Spins, then parks, until there is an entry or the ring is drained. */
void ring_wait_entry(struct ring *ring);

/* Gives back the oldest entry's slots; the position after it becomes the tail. Wakes askers. */
void ring_advance(struct ring *ring, uint32_t slots);

/* Refuses claims from now on and wakes everybody. Returns the final head. */
uint64_t ring_close(struct ring *ring);

/* First position not consumed, with all that was published before it (acquire). */
uint64_t ring_tail(const struct ring *ring);

/* Next position to be claimed. */
static inline uint64_t ring_head(const struct ring *ring)
{
    return ck_pr_load_64(&ring->head) & ~RING_CLOSED;
}

/* Spins, then parks, until the tail has passed `position`; false at the deadline. */
bool ring_wait_consumed(struct ring *ring, uint64_t position, int64_t deadline_ns);

#endif
