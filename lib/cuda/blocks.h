/*
 * Blocks of device memory that were freed in one stream's order and wait for the stream's next
 * allocations. A driver's pool takes 1 to 2 us for an allocation and as much for a free, which is
 * half a launch; an op makes several. What is freed on a stream may be handed out on it again at
 * once: all that used it comes before all that will.
 *
 * Blocks are kept by classes of size, 16 to a doubling, so that numbers of tokens that are close
 * share them. Large ones are not: their ops take longer than the pool, and rounding them up would
 * cost memory. A stream keeps no more blocks of a class than it had handed out at once: one that
 * only gives back what others got, as the completion thread's, keeps none.
 *
 * Used by one thread at a time, as the stream is. Knows nothing of CUDA.
 */
#ifndef LIB_CUDA_BLOCKS_H
#define LIB_CUDA_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCKS_LARGEST ((size_t)8 << 20)
/* What a stream keeps at most, after blocks_excess. */
#define BLOCKS_BYTES_MAX ((size_t)256 << 20)
#define BLOCKS_MAX 1023

/* Up to 32 granules classes are one apart; then come 16 to each doubling. */
#define BLOCKS_GRANULE ((size_t)256)
#define BLOCKS_STEPS 16
#define BLOCKS_CLASSES (BLOCKS_STEPS + 11 * BLOCKS_STEPS)

/* All zero: empty. */
struct blocks {
    size_t bytes;
    uint64_t takes; /* so far: the time by which classes are old */
    struct blocks_class {
        uint64_t taken_at;
        uint64_t out;   /* handed out on the stream, and not given back on it */
        uint16_t first; /* block kept, 0: none */
    } classes[BLOCKS_CLASSES];
    struct {
        void *data;
        uint16_t next;
    } kept[BLOCKS_MAX + 2]; /* 0: no block; one place is free whenever a block comes */
    uint16_t used;          /* places that were ever used */
    uint16_t free;          /* one of these that has no block, 0: none */
};

/* What an allocation of so many bytes (> 0) is to have, whoever makes it. */
size_t blocks_size(size_t bytes);

/* A block for so many bytes, or NULL: the caller allocates one of blocks_size(bytes). */
void *blocks_take(struct blocks *blocks, size_t bytes);

/* A block of so many bytes is free in the stream's order; false: it is not kept, the caller frees
 * it. */
bool blocks_put(struct blocks *blocks, void *data, size_t bytes);

/* After a put, until NULL: a block that the caller frees to keep within the limits, of the class
 * that was not asked for longest. */
void *blocks_excess(struct blocks *blocks);

/* Any block, for the caller to free; NULL: none is left. */
void *blocks_drain(struct blocks *blocks);

#endif
