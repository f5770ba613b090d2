/*
 * Guards the ring's arithmetic: entries of all sizes at all positions, what is full, what is closed,
 * what is taken for published. ring_threads-t.c has the threads.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ring.h"
#include "tap.h"

#define SLOTS 8
#define LAST_POSITION ((UINT64_C(1) << RING_POSITION_BITS) - 1)
#define HANG_S 60

static void ring_make(struct ring *ring, uint32_t slots, uint64_t start)
{
    if (ring_init(ring, slots, start, 0) != FP8PIPE_OK) {
        bail("ring_init");
    }
}

static size_t entry_bytes(uint32_t slots)
{
    return slots * RING_SLOT_BYTES - sizeof(uint64_t);
}

/* Publishes an entry whose bytes are all `number`. */
static void publish(struct ring *ring, uint64_t position, uint8_t number, uint32_t slots)
{
    unsigned char entry[RING_ENTRY_BYTES_MAX];

    memset(entry, number, sizeof(entry));
    ring_publish(ring, position, entry, entry_bytes(slots));
}

/* Claims, which must succeed, and publishes; the position. */
static uint64_t put(struct ring *ring, uint8_t number, uint32_t slots)
{
    uint64_t position = 0;

    if (ring_claim(ring, slots, &position) != RING_CLAIMED) {
        bail("a ring of %d slots has no room for %u", (int)ring->mask + 1, slots);
    }
    publish(ring, position, number, slots);
    return position;
}

/* Whether the oldest entry is this one and whole; it is taken then. */
static bool take(struct ring *ring, uint8_t number, uint32_t slots)
{
    unsigned char wanted[RING_ENTRY_BYTES_MAX];
    const unsigned char *entry = ring_peek(ring);
    bool right;

    memset(wanted, number, sizeof(wanted));
    right = entry != NULL && memcmp(entry, wanted, entry_bytes(slots)) == 0;
    if (right) {
        ring_advance(ring, slots);
    }
    return right;
}

static void sizes(void)
{
    struct ring ring;
    uint32_t wrong = 0;

    is_int(ring_slots_for(1), 1, "an entry of a byte takes a slot");
    for (uint32_t slots = 1; slots <= RING_ENTRY_SLOTS_MAX; slots++) {
        wrong += ring_slots_for(entry_bytes(slots)) != slots;
        wrong += ring_slots_for(entry_bytes(slots) + 1) != slots + 1;
    }
    is_int(wrong, 0, "a slot more begins after its last byte");
    wrong = 0;
    /* Every size from every slot of the ring: some run on beyond its last slot. */
    for (uint64_t start = 1; start <= SLOTS; start++) {
        for (uint32_t slots = 1; slots <= RING_ENTRY_SLOTS_MAX; slots++) {
            ring_make(&ring, SLOTS, start);
            wrong += ring_peek(&ring) != NULL;
            wrong += put(&ring, (uint8_t)slots, slots) != start;
            put(&ring, 77, 1);
            wrong += ring_head(&ring) != start + slots + 1;
            wrong += !take(&ring, (uint8_t)slots, slots);
            wrong += ring_tail(&ring) != start + slots;
            wrong += !take(&ring, 77, 1);
            wrong += ring_peek(&ring) != NULL;
            ring_free_slots(&ring);
        }
    }
    is_int(wrong, 0, "entries of all sizes come back whole from all slots");
}

static void full(void)
{
    struct ring ring;
    uint64_t position = 7;

    ring_make(&ring, SLOTS, 5);
    for (uint32_t i = 0; i < SLOTS; i++) {
        put(&ring, (uint8_t)i, 1);
    }
    is_int(ring.full, 0, "every slot can be claimed");
    is_int(ring_claim(&ring, 1, &position), RING_FULL, "one more is refused");
    is_int(position, 7, "without a position");
    is_int(ring.full, 1, "and counted");
    is_int(ring.entries, SLOTS, "but not as an entry");
    ok(take(&ring, 0, 1) && take(&ring, 1, 1), "two slots are given back");
    is_int(ring_claim(&ring, 3, &position), RING_FULL, "which is no room for three");
    put(&ring, SLOTS, 2);
    is_int(ring_claim(&ring, 1, &position), RING_FULL, "but for two");
    for (uint32_t i = 2; i <= SLOTS; i++) {
        ok(take(&ring, (uint8_t)i, i == SLOTS ? 2 : 1), "entry %u is still there", i);
    }
    ok(ring_peek(&ring) == NULL, "and nothing else");
    ring_free_slots(&ring);
}

/* The later slots of an entry hold, where a sequence number stands, the one of the next lap. */
static void imitated_sequence_numbers(void)
{
    struct ring ring;
    uint32_t taken_for_published = 0;

    for (uint64_t start = 1; start <= SLOTS; start++) {
        uint64_t words[RING_ENTRY_SLOTS_MAX * RING_SLOT_BYTES / sizeof(uint64_t)] = {0};
        uint64_t position;

        ring_make(&ring, SLOTS, start);
        for (uint32_t i = 1; i < RING_ENTRY_SLOTS_MAX; i++) {
            words[i * RING_SLOT_BYTES / sizeof(uint64_t) - 1] = start + i + SLOTS + 1;
        }
        ring_claim(&ring, RING_ENTRY_SLOTS_MAX, &position);
        ring_publish(&ring, position, words, RING_ENTRY_BYTES_MAX);
        ring_advance(&ring, RING_ENTRY_SLOTS_MAX);
        while (ring_head(&ring) < start + SLOTS + RING_ENTRY_SLOTS_MAX) {
            taken_for_published += ring_peek(&ring) != NULL;
            put(&ring, 1, 1);
            ring_advance(&ring, 1);
        }
        ring_free_slots(&ring);
    }
    is_int(taken_for_published, 0,
           "bytes that look like a later lap's sequence number are not one");
}

static void held_up_producer(void)
{
    struct ring ring;
    uint64_t position;

    ring_make(&ring, SLOTS, 1);
    put(&ring, 0, 1);
    ring_claim(&ring, 2, &position);
    put(&ring, 2, 1);
    put(&ring, 3, 3);
    pass("others claim and publish behind an entry that is only claimed");
    ok(take(&ring, 0, 1), "what is before it can be taken");
    ok(ring_peek(&ring) == NULL, "what is behind it waits");
    put(&ring, 4, 1);
    publish(&ring, position, 1, 2);
    ok(take(&ring, 1, 2) && take(&ring, 2, 1) && take(&ring, 3, 3) && take(&ring, 4, 1),
       "once it is published all come, in the order of their claims");
    ring_free_slots(&ring);
}

static void closed(void)
{
    struct ring ring;
    uint64_t position = 7;

    ring_make(&ring, SLOTS, 1);
    put(&ring, 0, 1);
    ring_claim(&ring, 1, &position);
    is_int(ring_close(&ring), 3, "close tells the final head");
    is_int(ring_head(&ring), 3, "and so does the head, without the closed bit");
    is_int(ring_close(&ring), 3, "also a second time");
    is_int(ring_claim(&ring, 1, &(uint64_t){0}), RING_IS_CLOSED, "a closed ring refuses claims");
    ring_wait_room(&ring, SLOTS + 1);
    pass("and nobody waits for room in it");
    ok(take(&ring, 0, 1) && !ring_drained(&ring),
       "it is not drained while an entry is only claimed");
    publish(&ring, position, 1, 1);
    ok(!ring_drained(&ring), "nor while one is published");
    ok(take(&ring, 1, 1) && ring_drained(&ring), "but when all were taken");
    ring_wait_entry(&ring);
    pass("and nobody waits for entries in it");
    ring_free_slots(&ring);
}

/* ---- Other producers between any two instructions of a claim -------------------------------- */

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

static struct {
    struct ring ring;
    int steps; /* instructions until the others come; fewer than 0: they came */
} held;

/* The others put in and take out so many entries that both ends of the ring are far on. */
static void others(int signal)
{
    (void)signal;
    if (held.steps-- == 0) {
        for (uint32_t i = 0; i < 2 * SLOTS; i++) {
            put(&held.ring, 9, 1);
            ring_advance(&held.ring, 1);
        }
    }
}

/* The trap flag raises SIGTRAP after each instruction. */
static void trap_flag_set(bool on)
{
    if (on) {
        __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
    } else {
        __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
    }
}

static void held_up_between_instructions(void)
{
    int refused = 0, instructions = 0;
    bool came = true;

    signal(SIGTRAP, others);
    ring_make(&held.ring, SLOTS, 1);
    while (came) {
        enum ring_claim claim;
        uint64_t position;

        held.steps = instructions++;
        trap_flag_set(true);
        claim = ring_claim(&held.ring, 1, &position);
        trap_flag_set(false);
        came = held.steps < 0;
        refused += claim != RING_CLAIMED;
        if (claim == RING_CLAIMED) {
            publish(&held.ring, position, 9, 1);
            ring_advance(&held.ring, 1);
        }
    }
    ok(instructions > 10, "a claim is held up after each of its %d instructions", instructions);
    is_int(refused, 0, "it finds room, wherever others have gone on meanwhile");
    ring_free_slots(&held.ring);
}

#else

static void held_up_between_instructions(void)
{
    skip(2, "single steps need an x86-64, and a build without the thread sanitizer");
}

#endif

int main(void)
{
    alarm(HANG_S); /* whatever waits for ever ends the program */
    sizes();
    full();
    imitated_sequence_numbers();
    held_up_producer();
    closed();
    held_up_between_instructions();
    return done_testing();
}
