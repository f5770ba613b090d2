#include "blocks.h"

/* Of a size up to BLOCKS_LARGEST. The class's blocks have *size bytes. */
static size_t class_of(size_t bytes, size_t *size)
{
    size_t granules = (bytes + BLOCKS_GRANULE - 1) / BLOCKS_GRANULE, first = 0, step = 1;

    while (granules > BLOCKS_STEPS * 2 * step) {
        step *= 2;
        first += BLOCKS_STEPS;
    }
    granules = (granules + step - 1) / step;
    *size = granules * step * BLOCKS_GRANULE;
    return first + granules - 1;
}

size_t blocks_size(size_t bytes)
{
    size_t size;

    if (bytes > BLOCKS_LARGEST) {
        return bytes;
    }
    class_of(bytes, &size);
    return size;
}

/* The class has a block. */
static void *take_first(struct blocks *blocks, struct blocks_class *class, size_t size)
{
    uint16_t at = class->first;

    class->first = blocks->kept[at].next;
    blocks->kept[at].next = blocks->free;
    blocks->free = at;
    blocks->bytes -= size;
    return blocks->kept[at].data;
}

void *blocks_take(struct blocks *blocks, size_t bytes)
{
    struct blocks_class *class;
    size_t size;

    if (bytes > BLOCKS_LARGEST) {
        return NULL;
    }
    class = &blocks->classes[class_of(bytes, &size)];
    class->taken_at = ++blocks->takes;
    class->out++;
    return class->first == 0 ? NULL : take_first(blocks, class, size);
}

bool blocks_put(struct blocks *blocks, void *data, size_t bytes)
{
    struct blocks_class *class;
    uint16_t at = blocks->free;
    size_t size;

    if (bytes > BLOCKS_LARGEST) {
        return false;
    }
    class = &blocks->classes[class_of(bytes, &size)];
    if (class->out == 0) {
        return false;
    }
    class->out--;
    if (at != 0) {
        blocks->free = blocks->kept[at].next;
    } else {
        at = ++blocks->used;
    }
    blocks->kept[at].data = data;
    blocks->kept[at].next = class->first;
    class->first = at;
    blocks->bytes += size;
    return true;
}

/* The bytes of a class's blocks. */
static size_t size_of(size_t class)
{
    size_t step = class < 2 * BLOCKS_STEPS ? 1 : (size_t)1 << (class / BLOCKS_STEPS - 1);
    size_t first = class < 2 * BLOCKS_STEPS ? 0 : (class / BLOCKS_STEPS - 1) * BLOCKS_STEPS;

    return (class - first + 1) * step * BLOCKS_GRANULE;
}

void *blocks_drain(struct blocks *blocks)
{
    size_t oldest = BLOCKS_CLASSES;

    for (size_t i = 0; i < BLOCKS_CLASSES; i++) {
        if (blocks->classes[i].first != 0 &&
            (oldest == BLOCKS_CLASSES ||
             blocks->classes[i].taken_at < blocks->classes[oldest].taken_at)) {
            oldest = i;
        }
    }
    return oldest == BLOCKS_CLASSES ? NULL
                                    : take_first(blocks, &blocks->classes[oldest], size_of(oldest));
}

void *blocks_excess(struct blocks *blocks)
{
    return blocks->bytes > BLOCKS_BYTES_MAX || (blocks->free == 0 && blocks->used > BLOCKS_MAX)
               ? blocks_drain(blocks)
               : NULL;
}
