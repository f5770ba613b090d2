/*
 * Guards the ring under threads: from any number of producers nothing is lost, doubled, changed or
 * reordered; a claim is refused only when the ring is full or closed; every sleep ends by a
 * wake-up.
 */
#include <ck_pr.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <unistd.h>

#include "numbers.h"
#include "ring.h"
#include "tap.h"

#define SLOTS 8
#define PRODUCERS_MAX 4
#define LAST_POSITION ((UINT64_C(1) << RING_POSITION_BITS) - 1)
#define ENTRIES 8000 /* of a case's producers together */
#define CLOSINGS 50
#define HANG_S 120

#define ENTRY_LEAST offsetof(struct entry, fill)

/* What the tests put into a ring; the bytes of `fill` follow from the two numbers. */
struct entry {
    uint32_t producer;
    uint32_t number;
    uint32_t bytes; /* of all of it */
    unsigned char fill[RING_ENTRY_BYTES_MAX - 3 * sizeof(uint32_t)];
};

static size_t entry_size(uint32_t slots)
{
    return slots * RING_SLOT_BYTES - sizeof(uint64_t);
}

static unsigned char fill_byte(uint32_t producer, uint32_t number, size_t at)
{
    return (unsigned char)(producer * 57 + number * 31 + at * 7);
}

static void entry_make(struct entry *entry, uint32_t producer, uint32_t number, size_t bytes)
{
    entry->producer = producer;
    entry->number = number;
    entry->bytes = (uint32_t)bytes;
    for (size_t i = 0; i < bytes - ENTRY_LEAST; i++) {
        entry->fill[i] = fill_byte(producer, number, i);
    }
}

static bool entry_whole(const struct entry *entry)
{
    bool whole = entry->bytes >= ENTRY_LEAST && entry->bytes <= RING_ENTRY_BYTES_MAX;

    for (size_t i = 0; whole && i < entry->bytes - ENTRY_LEAST; i++) {
        whole = entry->fill[i] == fill_byte(entry->producer, entry->number, i);
    }
    return whole;
}

static void ring_make(struct ring *ring, uint32_t slots, uint64_t start, int64_t spin_ns)
{
    if (ring_init(ring, slots, start, spin_ns) != FP8PIPE_OK) {
        bail("ring_init");
    }
}

struct producer {
    struct ring *ring;
    uint32_t number;
    uint32_t entries;     /* to publish, unless the ring is closed before */
    uint32_t slots_most;  /* of an entry */
    uint32_t outstanding; /* of its entries that may be in the ring at once */
    uint32_t claimed;
    uint32_t refused;
    uint32_t taken; /* by the consumer */
    uint32_t wrong; /* entries that were not the next one, or not whole */
    pthread_t thread;
};

static void *produce(void *arg)
{
    struct producer *producer = arg;
    struct test_rng rng = {producer->number};
    enum ring_claim claim = RING_CLAIMED;
    struct entry entry;

    while (producer->claimed < producer->entries && claim != RING_IS_CLOSED) {
        size_t bytes =
            (size_t)test_random_range(&rng, ENTRY_LEAST, (int64_t)entry_size(producer->slots_most));
        uint32_t slots = ring_slots_for(bytes);
        uint64_t position;

        if (producer->claimed - ck_pr_load_32(&producer->taken) >= producer->outstanding) {
            sched_yield();
            continue;
        }
        entry_make(&entry, producer->number, producer->claimed, bytes);
        while ((claim = ring_claim(producer->ring, slots, &position)) == RING_FULL) {
            producer->refused++;
            ring_wait_room(producer->ring, slots);
        }
        if (claim == RING_CLAIMED) {
            ring_publish(producer->ring, position, &entry, bytes);
            producer->claimed++;
        }
    }
    return NULL;
}

struct producers {
    uint32_t count;
    struct producer each[PRODUCERS_MAX];
};

static void start(struct producers *producers, uint32_t count, struct producer pattern)
{
    producers->count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct producer *producer = &producers->each[i];

        *producer = pattern;
        producer->number = i;
        if (pthread_create(&producer->thread, NULL, produce, producer) != 0) {
            bail("pthread_create");
        }
    }
}

/* Takes one entry, if there is one. */
static void consume(struct ring *ring, struct producers *producers)
{
    const struct entry *entry = ring_peek(ring);
    struct producer *producer;

    if (entry == NULL) {
        return;
    }
    if (entry->producer >= producers->count || !entry_whole(entry)) {
        bail("an entry at %ju is not one that was put in", (uintmax_t)ring->tail);
    }
    producer = &producers->each[entry->producer];
    producer->wrong += entry->number != producer->taken;
    ring_advance(ring, ring_slots_for(entry->bytes));
    ck_pr_store_32(&producer->taken, producer->taken + 1);
}

/* Joins the producers; how many entries they have published, and how many of them were not
 * right. */
static uint32_t finish(struct producers *producers, uint32_t *wrong)
{
    uint32_t claimed = 0;

    for (uint32_t i = 0; i < producers->count; i++) {
        struct producer *producer = &producers->each[i];

        pthread_join(producer->thread, NULL);
        claimed += producer->claimed;
        *wrong += producer->wrong + (producer->taken != producer->claimed);
    }
    return claimed;
}

static void many(uint32_t count, uint32_t slots, uint64_t from, int64_t spin_ns)
{
    uint32_t total = ENTRIES / count * count, wrong = 0;
    struct producers producers;
    struct ring ring;

    ring_make(&ring, slots, from, spin_ns);
    start(&producers, count,
          (struct producer){.ring = &ring,
                            .entries = ENTRIES / count,
                            .slots_most = RING_ENTRY_SLOTS_MAX,
                            .outstanding = UINT32_MAX});
    while (ck_pr_load_64(&ring.entries) < total || ring_tail(&ring) != ring_head(&ring)) {
        ring_wait_entry(&ring);
        consume(&ring, &producers);
    }
    is_int(finish(&producers, &wrong), total, "%u producers, %u slots, from %#jx", count, slots,
           (uintmax_t)from);
    is_int(wrong, 0, "all their entries come once, whole and in each one's order");
    is_int(ring.rescues, 0, "and every sleep is ended by a wake-up");
    ring_free_slots(&ring);
}

static void closed_under_claims(void)
{
    uint32_t wrong = 0, lost = 0;

    for (uint32_t round = 0; round < CLOSINGS; round++) {
        struct producers producers;
        uint64_t head = 0;
        struct ring ring;

        ring_make(&ring, SLOTS, 1, round % 2 * 1000);
        start(
            &producers, 2,
            (struct producer){
                .ring = &ring, .entries = UINT32_MAX, .slots_most = 3, .outstanding = UINT32_MAX});
        while (!ring_drained(&ring)) {
            ring_wait_entry(&ring);
            consume(&ring, &producers);
            if (head == 0 && producers.each[0].taken + producers.each[1].taken > round) {
                head = ring_close(&ring);
            }
        }
        lost += finish(&producers, &wrong) != ring.entries || ring_tail(&ring) != head;
        wrong += ring.rescues != 0;
        ring_free_slots(&ring);
    }
    is_int(lost, 0, "%d rings closed under claims: what was claimed is published and taken",
           CLOSINGS);
    is_int(wrong, 0, "in order, the producers that slept were woken");
}

static void *take_two(void *arg)
{
    struct ring *ring = arg;

    usleep(1000);
    ring_advance(ring, 1);
    usleep(1000);
    ring_advance(ring, 1);
    return NULL;
}

static void waiting(void)
{
    struct ring ring;
    struct entry entry;
    pthread_t thread;
    uint64_t position;

    ring_make(&ring, SLOTS, 1, 0);
    entry_make(&entry, 0, 0, ENTRY_LEAST);
    while (ring_claim(&ring, 1, &position) == RING_CLAIMED) {
        ring_publish(&ring, position, &entry, ENTRY_LEAST);
    }
    ok(!ring_wait_consumed(&ring, 1, ec_deadline_ns(1000000)), "a wait for an entry times out");
    if (pthread_create(&thread, NULL, take_two, &ring) != 0) {
        bail("pthread_create");
    }
    ring_wait_room(&ring, 2);
    is_int(ring_claim(&ring, 2, &position), RING_CLAIMED,
           "a wait for room ends when there is enough");
    ok(ring_wait_consumed(&ring, 2, EC_FOREVER), "a wait for an entry ends when it was taken");
    is_int(ring_tail(&ring), 3, "which is when the tail has passed it");
    pthread_join(thread, NULL);
    is_int(ring.rescues, 0, "no sleep needed a rescue");
    ring_free_slots(&ring);
}

int main(void)
{
    alarm(HANG_S); /* whatever waits for ever ends the program */
    waiting();
    many(1, SLOTS, 1, 0);
    many(2, SLOTS, LAST_POSITION - 12345, 0);
    many(2, 1024, 3, 20000);
    many(PRODUCERS_MAX, SLOTS, LAST_POSITION / 3, 20000);
    many(PRODUCERS_MAX, 64, 6, 0);
    closed_under_claims();
    return done_testing();
}
