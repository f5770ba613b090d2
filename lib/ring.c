#include "ring.h"

#include <ck_pr.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "status.h"

/* How many slots before their use a producer fetches lines of the ring: one or two entries. */
#define RING_AHEAD 3

enum fp8pipe_status ring_init(struct ring *ring, uint32_t slots, uint64_t start, int64_t spin_ns)
{
    /* An entry that starts in the last slots runs on into slots beyond the end, which no position
     * names, so that entries never wrap. */
    size_t bytes = ((size_t)slots + RING_ENTRY_SLOTS_MAX - 1) * sizeof(struct ring_slot);

    memset(ring, 0, sizeof(*ring));
    ring->slots = aligned_alloc(64, bytes);
    if (ring->slots == NULL) {
        return status_fail(FP8PIPE_ENOMEM,
                           "ring_slots = %u: %zu bytes of host memory are not to be had", slots,
                           bytes);
    }
    memset(ring->slots, 0, bytes);
    ring->mask = slots - 1;
    ring->spin_ns = spin_ns;
    ring->head = start;
    ring->tail = start;
    ring->tail_seen = start;
    ec_init(&ring->filled);
    ec_init(&ring->consumed);
    return FP8PIPE_OK;
}

void ring_free_slots(struct ring *ring)
{
    free(ring->slots);
    ring->slots = NULL;
}

uint64_t ring_tail(const struct ring *ring)
{
    uint64_t tail = ck_pr_load_64(&ring->tail);

    ck_pr_fence_acquire();
    return tail;
}

static bool has_room(struct ring *ring, uint64_t head, uint32_t slots)
{
    uint64_t capacity = ring->mask + 1, tail;

    if (head + slots - ck_pr_load_64(&ring->tail_seen) <= capacity) {
        ck_pr_fence_acquire();
        return true;
    }
    /* Producers may store an older tail over a newer one; that only makes the next look again. */
    tail = ring_tail(ring);
    ck_pr_store_64(&ring->tail_seen, tail);
    return head + slots - tail <= capacity;
}

enum ring_claim ring_claim_slowly(struct ring *ring, uint32_t slots, uint64_t last,
                                  uint64_t *position)
{
    uint64_t head = ck_pr_load_64(&ring->head), now;

    for (;;) {
        if (head & RING_CLOSED) {
            return RING_IS_CLOSED;
        }
        if (head > last) {
            return RING_IS_PAST;
        }
        if (has_room(ring, head, slots)) {
            if (ck_pr_cas_64_value(&ring->head, head, head + slots, &head)) {
                break;
            }
            continue;
        }
        /* Against a head that is out of date the tail may be too far on, and look like too far
         * back. */
        now = ck_pr_load_64(&ring->head);
        if (now == head) {
            ck_pr_inc_64(&ring->full);
            return RING_FULL;
        }
        head = now;
    }
    ck_pr_inc_64(&ring->entries);
    *position = head;
    return RING_CLAIMED;
}

void ring_publish(struct ring *ring, uint64_t position, const void *entry, size_t bytes)
{
    struct ring_slot *slot = &ring->slots[position & ring->mask];
    const struct ring_slot *ahead = &ring->slots[(position + RING_AHEAD) & ring->mask];
    const struct ring_slot *ahead_end = ahead + ring_slots_for(bytes);

    /* As many slots further on, which the consumer had last. */
    do {
        for (size_t line = 0; line < RING_SLOT_BYTES; line += CACHE_LINE) {
            cache_fetch((const char *)ahead + line);
        }
    } while (++ahead < ahead_end);
    memcpy(slot->bytes, entry, bytes);
    ck_pr_fence_release();
    ck_pr_fas_64(&slot->seq, position + 1);
    ck_pr_fence_atomic_load();
    if (ck_pr_load_32(&ring->parked) != 0) {
        ec_wake(&ring->filled);
    }
}

struct room_wait {
    struct ring *ring;
    uint32_t slots;
};

static bool room_ready(void *arg)
{
    struct room_wait *wait = arg;
    uint64_t head = ck_pr_load_64(&wait->ring->head);

    return (head & RING_CLOSED) != 0 ||
           head + wait->slots - ring_tail(wait->ring) <= wait->ring->mask + 1;
}

void ring_wait_room(struct ring *ring, uint32_t slots)
{
    struct room_wait wait = {ring, slots};

    ec_await(&ring->consumed, room_ready, &wait, ring->spin_ns, EC_FOREVER, &ring->rescues);
}

void *ring_peek(struct ring *ring)
{
    struct ring_slot *slot = &ring->slots[ring->tail & ring->mask];

    if (ck_pr_load_64(&slot->seq) != ring->tail + 1) {
        return NULL;
    }
    ck_pr_fence_acquire();
    return slot->bytes;
}

bool ring_drained(struct ring *ring)
{
    if (ck_pr_load_32(&ring->closed) == 0) {
        return false;
    }
    ck_pr_fence_acquire();
    return ck_pr_load_64(&ring->head) == (ring->tail | RING_CLOSED);
}

static bool entry_ready(void *arg)
{
    struct ring *ring = arg;

    return ring_peek(ring) != NULL || ring_drained(ring);
}

void ring_wait_entry(struct ring *ring)
{
    int64_t spin_end;

    if (entry_ready(ring)) {
        return;
    }
    if (ring->spin_ns > 0) {
        spin_end = ec_deadline_ns(ring->spin_ns);
        do {
            for (int i = 0; i < 64; i++) {
                ck_pr_stall();
                if (entry_ready(ring)) {
                    return;
                }
            }
        } while (ec_now_ns() < spin_end);
    }
    ck_pr_store_64(&ring->parks, ring->parks + 1);
    ck_pr_fas_32(&ring->parked, 1);
    ck_pr_fence_atomic_load();
    ec_await(&ring->filled, entry_ready, ring, 0, EC_FOREVER, &ring->rescues);
    ck_pr_store_32(&ring->parked, 0);
}

void ring_advance(struct ring *ring, uint32_t slots)
{
    uint64_t tail = ring->tail;

    /* Later slots of an entry hold bytes where the next lap looks for a sequence number. */
    for (uint32_t i = 1; i < slots; i++) {
        ring->slots[(tail + i) & ring->mask].seq = 0;
    }
    ck_pr_fence_release();
    ck_pr_store_64(&ring->tail, tail + slots);
    ec_wake(&ring->consumed);
}

uint64_t ring_close(struct ring *ring)
{
    uint64_t head = ck_pr_load_64(&ring->head);

    while (!ck_pr_cas_64_value(&ring->head, head, head | RING_CLOSED, &head)) {
    }
    ck_pr_fence_release();
    ck_pr_store_32(&ring->closed, 1);
    ec_wake(&ring->filled);
    ec_wake(&ring->consumed);
    return head & ~RING_CLOSED;
}

struct consumed_wait {
    const struct ring *ring;
    uint64_t position;
};

static bool consumed_ready(void *arg)
{
    struct consumed_wait *wait = arg;

    return ring_tail(wait->ring) > wait->position;
}

bool ring_wait_consumed(struct ring *ring, uint64_t position, int64_t deadline_ns)
{
    struct consumed_wait wait = {ring, position};

    return ec_await(&ring->consumed, consumed_ready, &wait, ring->spin_ns, deadline_ns,
                    &ring->rescues);
}
