/*
 * Guards what a stream keeps of memory: that a block is as large as what it is handed out for, that
 * none is handed out twice or lost, and the limits.
 */
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "cuda/blocks.h"
#include "util.h"

static struct blocks *blocks_make(void)
{
    return test_calloc(1, sizeof(struct blocks));
}

/* Stands for memory: its address alone matters. */
static void *address(uintptr_t number)
{
    return (void *)(number * 4096); /* NOLINT */
}

static void sizes(void)
{
    size_t before = 0;
    int small = 0, wasteful = 0, falling = 0, moving = 0;

    for (size_t bytes = 1; bytes <= BLOCKS_LARGEST; bytes += 1 + bytes / 97) {
        size_t size = blocks_size(bytes);

        small += size < bytes;
        wasteful += size - bytes >= BLOCKS_GRANULE && size - bytes > bytes / 16;
        falling += size < before;
        moving += blocks_size(size) != size;
        before = size;
    }
    is_int(small, 0, "a block is large enough");
    is_int(wasteful, 0, "and at most a sixteenth too large, or a granule");
    is_int(falling, 0, "more bytes get no smaller block");
    is_int(moving, 0, "a block's size is of its own class");
    is_int((intmax_t)blocks_size(BLOCKS_LARGEST), (intmax_t)BLOCKS_LARGEST, "the largest class");
    is_int((intmax_t)blocks_size(BLOCKS_LARGEST + 1), (intmax_t)BLOCKS_LARGEST + 1,
           "beyond it sizes are as asked for");
}

static void kept(void)
{
    struct blocks *blocks = blocks_make();

    ok(blocks_take(blocks, 5000) == NULL, "nothing is kept at first");
    ok(!blocks_put(blocks, address(1), 9000), "a size that was not handed out is not kept");
    ok(blocks_put(blocks, address(1), 5000), "one that was is");
    is_int((intmax_t)blocks->bytes, (intmax_t)blocks_size(5000), "and counted");
    ok(!blocks_put(blocks, address(2), 5000), "but no more than were handed out");
    ok(blocks_take(blocks, 9000) == NULL, "another class gets nothing of it");
    ok(blocks_take(blocks, 4990) == address(1), "the same class, of fewer bytes, gets the block");
    ok(blocks_take(blocks, 4990) == NULL && blocks->bytes == 0, "once");
    ok(blocks_put(blocks, address(1), 4990) && blocks_put(blocks, address(2), 5000) &&
           blocks_put(blocks, address(3), 9000),
       "three come back");
    ok(blocks_take(blocks, 5000) == address(2), "the latest first: it may still be in a cache");
    ok(blocks_take(blocks, BLOCKS_LARGEST + 1) == NULL &&
           !blocks_put(blocks, address(4), BLOCKS_LARGEST + 1),
       "large ones are never kept");
    ok(blocks_excess(blocks) == NULL, "there is no excess");
    ok(blocks_drain(blocks) == address(3) && blocks_drain(blocks) == address(1) &&
           blocks_drain(blocks) == NULL && blocks->bytes == 0,
       "a drain gives all, of the class asked for longest ago first");
    free(blocks);
}

static void limits(void)
{
    struct blocks *blocks = blocks_make();
    const size_t large = BLOCKS_LARGEST;
    size_t count = BLOCKS_BYTES_MAX / large, excess = 0;

    for (size_t i = 0; i < count + 4; i++)
        blocks_take(blocks, large);
    blocks_take(blocks, 100);
    for (size_t i = 0; i < count; i++)
        if (!blocks_put(blocks, address(i + 1), large) || blocks_excess(blocks) != NULL)
            excess++;
    is_int((intmax_t)excess, 0, "up to the limit of bytes all is kept");
    ok(blocks_put(blocks, address(1000), 100), "a byte more");
    ok(blocks_excess(blocks) == address(count), "costs a block of the class asked for longest ago");
    ok(blocks_excess(blocks) == NULL && blocks->bytes <= BLOCKS_BYTES_MAX, "and no other");
    ok(blocks_take(blocks, 100) == address(1000), "the others are still there");
    free(blocks);

    blocks = blocks_make();
    excess = 0;
    for (size_t i = 0; i < 2 * BLOCKS_MAX; i++)
        blocks_take(blocks, 256);
    for (size_t i = 0; i < 2 * BLOCKS_MAX; i++) {
        if (!blocks_put(blocks, address(i + 1), 256))
            bail("block %zu is not kept", i);
        while (blocks_excess(blocks) != NULL)
            excess++;
    }
    is_int((intmax_t)excess, BLOCKS_MAX, "nor are more blocks kept than the limit");
    free(blocks);
}

#define LIVE 200

/* Against a model: who has which block. */
static void at_random(void)
{
    struct live {
        void *data;
        size_t bytes, size;
    } live[LIVE];
    struct blocks *blocks = blocks_make();
    struct test_rng rng = {11};
    uint8_t *free_now; /* by the number of a block: it is kept or with the pool */
    size_t made = 0, small = 0, twice = 0, reused = 0;
    size_t *sizes_of;

    memset(live, 0, sizeof(live));
    free_now = test_calloc(100000, 1);
    sizes_of = test_calloc(100000, sizeof(*sizes_of));
    for (int i = 0; i < 90000; i++) {
        struct live *at = &live[test_random(&rng) % LIVE];
        size_t number;

        if (at->data != NULL) {
            number = (uintptr_t)at->data / 4096;
            free_now[number] = 1;
            if (blocks_put(blocks, at->data, at->bytes)) {
                while (blocks_excess(blocks) != NULL) {
                }
            }
            at->data = NULL;
            continue;
        }
        at->bytes = 1 + (size_t)(test_random(&rng) % ((uint64_t)1 << (test_random(&rng) % 24)));
        at->data = blocks_take(blocks, at->bytes);
        reused += at->data != NULL;
        if (at->data == NULL) {
            at->data = address(++made);
            sizes_of[made] = blocks_size(at->bytes);
        } else {
            number = (uintptr_t)at->data / 4096;
            twice += !free_now[number];
            free_now[number] = 0;
        }
        small += sizes_of[(uintptr_t)at->data / 4096] < at->bytes;
    }
    ok(reused > 1000, "at random: blocks are used again (%zu of %zu)", reused, reused + made);
    is_int((intmax_t)twice, 0, "none has two owners");
    is_int((intmax_t)small, 0, "each is large enough");
    free(free_now);
    free(sizes_of);
    free(blocks);
}

int main(void)
{
    watchdog("blocks", 60);
    sizes();
    kept();
    limits();
    at_random();
    return done_testing();
}
