/*
 * Guards the ring's arithmetic: entries of all sizes at all positions, what is full, what is
 * closed, what is taken for published, what a held-up producer finds. ring_threads-t.c has the
 * threads.
 */
#include <ck_pr.h>
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

/* Publishes an entry whose bytes are all `value`. */
static void publish(struct ring *ring, uint64_t position, int value, uint32_t slots)
{
    unsigned char entry[RING_ENTRY_BYTES_MAX];

    memset(entry, value, sizeof(entry));
    ring_publish(ring, position, entry, entry_bytes(slots));
}

static uint64_t claim(struct ring *ring, uint32_t slots)
{
    uint64_t position = 0;

    if (ring_claim(ring, slots, &position) != RING_CLAIMED) {
        bail("a ring of %d slots has no room for %u", (int)ring->mask + 1, slots);
    }
    return position;
}

static uint64_t put(struct ring *ring, int value, uint32_t slots)
{
    uint64_t position = claim(ring, slots);

    publish(ring, position, value, slots);
    return position;
}

/* Whether the oldest entry is this one, and whole; it is taken then. */
static bool take(struct ring *ring, int value, uint32_t slots)
{
    unsigned char wanted[RING_ENTRY_BYTES_MAX];
    const unsigned char *entry = ring_peek(ring);
    bool right;

    memset(wanted, value, sizeof(wanted));
    right = entry != NULL && memcmp(entry, wanted, entry_bytes(slots)) == 0;
    if (right) {
        ring_advance(ring, slots);
    }
    return right;
}

static void sizes(void)
{
    int wrong = 0;

    is_int(ring_slots_for(1), 1, "an entry of a byte takes a slot");
    for (uint32_t slots = 1; slots <= RING_ENTRY_SLOTS_MAX; slots++) {
        wrong += ring_slots_for(entry_bytes(slots)) != slots;
        wrong += ring_slots_for(entry_bytes(slots) + 1) != slots + 1;
    }
    is_int(wrong, 0, "a slot more begins after its last byte");
    is_int(entry_bytes(RING_ENTRY_SLOTS_MAX), RING_ENTRY_BYTES_MAX, "the largest fills its slots");
}

/* Every size from every slot of the ring: some run on beyond its last slot. */
static void positions(uint64_t from)
{
    int wrong = 0;

    for (uint64_t start = from; start < from + SLOTS; start++) {
        for (uint32_t slots = 1; slots <= RING_ENTRY_SLOTS_MAX; slots++) {
            struct ring ring;

            ring_make(&ring, SLOTS, start);
            wrong += ring_peek(&ring) != NULL;
            wrong += put(&ring, (int)slots, slots) != start;
            wrong += put(&ring, 77, 1) != start + slots;
            wrong += ring_head(&ring) != start + slots + 1;
            wrong += !take(&ring, (int)slots, slots);
            wrong += ring_tail(&ring) != start + slots;
            wrong += !take(&ring, 77, 1);
            wrong += ring_peek(&ring) != NULL;
            ring_free_slots(&ring);
        }
    }
    is_int(wrong, 0, "entries of all sizes come back whole from all slots, from position %#jx",
           (uintmax_t)from);
}

static void full(void)
{
    struct ring ring;
    uint64_t position = 7;

    ring_make(&ring, SLOTS, 5);
    for (int i = 0; i < SLOTS; i++) {
        put(&ring, i, 1);
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
    for (int i = 2; i < SLOTS; i++) {
        ok(take(&ring, i, 1), "entry %d is still there", i);
    }
    ok(take(&ring, SLOTS, 2) && ring_peek(&ring) == NULL, "and the last, and nothing else");
    ring_free_slots(&ring);
}

static void past(void)
{
    struct ring ring;
    uint64_t position = 7;

    ring_make(&ring, SLOTS, 5);
    put(&ring, 0, 1);
    is_int(ring_claim_until(&ring, 1, 5, &position), RING_IS_PAST, "a position beyond the last");
    is_int(position, 7, "is not claimed");
    is_int(ring_claim_until(&ring, 2, 6, &position), RING_CLAIMED, "the last one is");
    is_int((int64_t)position, 6, "by its own number");
    publish(&ring, position, 1, 2);
    for (int i = 2; i < SLOTS - 1; i++) {
        put(&ring, i, 1);
    }
    is_int(ring_claim_until(&ring, 1, 6, &position), RING_IS_PAST, "and so in a full ring");
    is_int(ring.full, 0, "where that is not counted");
    ring_close(&ring);
    is_int(ring_claim_until(&ring, 1, 6, &position), RING_IS_CLOSED, "but not in a closed one");
    ring_free_slots(&ring);
}

/* The later slots of an entry hold, where a sequence number stands, the one of the next lap. */
static void imitated_sequence_numbers(void)
{
    int taken_for_published = 0;

    for (uint64_t start = 1; start <= SLOTS; start++) {
        uint64_t words[RING_ENTRY_SLOTS_MAX * RING_SLOT_BYTES / sizeof(uint64_t)] = {0};
        struct ring ring;

        ring_make(&ring, SLOTS, start);
        for (uint32_t i = 1; i < RING_ENTRY_SLOTS_MAX; i++) {
            words[i * RING_SLOT_BYTES / sizeof(uint64_t) - 1] = start + i + SLOTS + 1;
        }
        ring_publish(&ring, claim(&ring, RING_ENTRY_SLOTS_MAX), words, RING_ENTRY_BYTES_MAX);
        ring_advance(&ring, RING_ENTRY_SLOTS_MAX);
        while (ring_head(&ring) < start + SLOTS + RING_ENTRY_SLOTS_MAX) {
            taken_for_published += ring_peek(&ring) != NULL;
            put(&ring, 0, 1);
            ring_advance(&ring, 1);
        }
        ring_free_slots(&ring);
    }
    is_int(taken_for_published, 0,
           "bytes that look like a later lap's sequence number are not one");
}

static void held_up_before_publishing(void)
{
    struct ring ring;
    uint64_t position;

    ring_make(&ring, SLOTS, 1);
    put(&ring, 0, 1);
    position = claim(&ring, 2);
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
    uint64_t position;

    ring_make(&ring, SLOTS, 1);
    put(&ring, 0, 1);
    position = claim(&ring, 1);
    is_int(ring_close(&ring), 3, "close tells the final head");
    is_int(ring_head(&ring), 3, "and so does the head, without the closed bit");
    is_int(ring_close(&ring), 3, "also a second time");
    is_int(ring_claim(&ring, 1, &(uint64_t){0}), RING_IS_CLOSED, "a closed ring refuses claims");
    ring_wait_room(&ring, SLOTS + 1);
    pass("and nobody waits for room in it");
    ok(take(&ring, 0, 1) && !ring_drained(&ring),
       "what is only claimed keeps it from being drained");
    publish(&ring, position, 1, 1);
    ok(!ring_drained(&ring), "and so does what is published");
    ok(take(&ring, 1, 1) && ring_drained(&ring), "until all were taken");
    ring_wait_entry(&ring);
    pass("and nobody waits for entries in it");
    ring_free_slots(&ring);
}

/* The trap flag, which raises SIGTRAP after each instruction, here steps through one claim. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

#define TRAP_FLAG UINT64_C(0x100)

static struct {
    struct ring ring;
    void (*others)(void);
    int steps; /* instructions until the others come; negative: they came */
} held;

static void step(int signal)
{
    (void)signal;
    if (held.steps-- == 0) {
        held.others();
    }
}

/* Both ends of the ring are then laps further on. */
static void put_and_take(void)
{
    for (int i = 0; i < 2 * SLOTS; i++) {
        put(&held.ring, 0, 1);
        ring_advance(&held.ring, 1);
    }
}

/* What a producer does that was held up itself, with a tail in its hands. */
static void store_older_tail(void)
{
    ck_pr_store_64(&held.ring.tail_seen, ring_head(&held.ring) - SLOTS);
}

static void held_up_within_a_claim(void (*others)(void), const char *what)
{
    int refused = 0, instructions = 0;
    struct sigaction before, trap = {.sa_handler = step};

    sigaction(SIGTRAP, &trap, &before);
    ring_make(&held.ring, SLOTS, 1 + SLOTS);
    held.others = others;
    do {
        uint64_t flags = __builtin_ia32_readeflags_u64(), position;
        enum ring_claim result;

        store_older_tail();
        held.steps = instructions++;
        __builtin_ia32_writeeflags_u64(flags | TRAP_FLAG);
        result = ring_claim(&held.ring, 1, &position);
        __builtin_ia32_writeeflags_u64(flags);
        refused += result != RING_CLAIMED;
        if (result == RING_CLAIMED) {
            publish(&held.ring, position, 0, 1);
            ring_advance(&held.ring, 1);
        }
    } while (held.steps < 0);
    sigaction(SIGTRAP, &before, NULL);
    ok(instructions > 10, "a claim is held up after each of its %d instructions", instructions);
    is_int(refused, 0, "it finds room although others %s meanwhile", what);
    ring_free_slots(&held.ring);
}

static void held_up(void)
{
    held_up_within_a_claim(put_and_take, "went on for laps");
    held_up_within_a_claim(store_older_tail, "stored the tail as they had seen it");
}

#else

static void held_up(void)
{
    skip(4, "single steps need an x86-64, and a build without the thread sanitizer");
}

#endif

int main(void)
{
    alarm(HANG_S); /* whatever waits for ever ends the program */
    sizes();
    positions(1);
    positions(LAST_POSITION - 100);
    full();
    past();
    imitated_sequence_numbers();
    held_up_before_publishing();
    held_up();
    closed();
    return done_testing();
}
