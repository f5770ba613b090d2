#include "tensor.h"

#include <assert.h>
#include <ck_pr.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

/* Device blocks start with the inverse scale, alone in its 256 bytes. */
#define FILLING_HEAD_BYTES 256

void filling_pool_init(struct filling_pool *pool, uint32_t lanes)
{
    ck_spinlock_fas_init(&pool->word);
    pool->free = NULL;
    pool->returned = NULL;
    pool->lanes = lanes;
}

/* The next of the pool, or NULL. Under the word. */
static struct filling *pool_pop(struct filling_pool *pool)
{
    struct filling *filling = pool->free;

    if (filling == NULL) {
        filling = ck_pr_fas_ptr(&pool->returned, NULL);
        ck_pr_fence_acquire();
    }
    pool->free = filling != NULL ? filling->next : NULL;
    return filling;
}

void filling_pool_free(struct filling_pool *pool)
{
    struct filling *filling;

    ck_spinlock_fas_lock(&pool->word);
    while ((filling = pool_pop(pool)) != NULL) {
        free(filling);
    }
    ck_spinlock_fas_unlock(&pool->word);
}

/* What is the launchers'. */
static void clear_issued(struct filling *filling)
{
    size_t at = offsetof(struct filling, ready);

    memset((char *)filling + at, 0, offsetof(struct filling, holders) - at);
}

/* Lanes whose last uses lie in the holders' cache line. */
#define FILLING_NEAR_LANES                                                                         \
    ((sizeof(struct filling) - offsetof(struct filling, last)) / sizeof(uint64_t))

/* A new one, of which all that `start` does not set is cleared; NULL: there is no memory. */
static CACHE_RARE struct filling *allocate(const struct filling_pool *pool)
{
    size_t bytes = sizeof(struct filling) + pool->lanes * sizeof(uint64_t);
    struct filling *filling = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (filling != NULL) {
        clear_issued(filling);
    }
    return filling;
}

/* Cleared for its user; of NULL a new one, or NULL if there is none. */
static inline struct filling *start(struct filling_pool *pool, struct filling *filling)
{
    size_t near = offsetof(struct filling, holders);

    if (filling == NULL) {
        filling = allocate(pool);
        if (filling == NULL) {
            return NULL;
        }
    }
    filling->pool = pool;
    filling->part = NULL;
    filling->ended = NULL;
    filling->filled_by = 0;
    memset((char *)filling + near, 0, sizeof(*filling) - near);
    for (size_t lane = FILLING_NEAR_LANES; lane < pool->lanes; lane++) {
        filling->last[lane] = 0;
    }
    filling->holders = 1;
    return filling;
}

/* start of both, the part in the filling; NULL if one is not to be had. */
static struct filling *start_parted(struct filling_pool *pool, struct filling *filling,
                                    struct filling *part)
{
    filling = start(pool, filling);
    part = start(pool, part);
    if (filling == NULL || part == NULL) {
        if (filling != NULL) {
            filling_put(filling);
        }
        if (part != NULL) {
            filling_put(part);
        }
        return NULL;
    }
    filling->part = part;
    return filling;
}

struct filling *filling_get(struct filling_pool *pool, bool parted)
{
    struct filling *filling, *part = NULL;

    ck_spinlock_fas_lock(&pool->word);
    filling = pool_pop(pool);
    if (parted) {
        part = pool_pop(pool);
    }
    if (pool->free != NULL) {
        /* The next one's lines, which a launcher had last. */
        cache_fetch(pool->free);
        cache_fetch(&pool->free->holders);
    }
    ck_spinlock_fas_unlock(&pool->word);
    return parted ? start_parted(pool, filling, part) : start(pool, filling);
}

void filling_put(struct filling *filling)
{
    struct filling_pool *pool = filling->pool;
    struct filling *first;

    clear_issued(filling);
    first = ck_pr_load_ptr(&pool->returned);
    do {
        filling->next = first;
        ck_pr_fence_release();
    } while (!ck_pr_cas_ptr_value(&pool->returned, first, filling, &first));
}

void filling_undo(struct filling *filling)
{
    if (filling->part != NULL) {
        filling_put(filling->part);
    }
    filling_put(filling);
}

enum filling_uses filling_uses(const struct filling *filling, const struct issue *issue)
{
    enum filling_uses uses = FILLING_DONE;

    for (uint32_t lane = 0; lane < issue->lanes; lane++) {
        uint64_t last = ck_pr_load_64(&filling->last[lane]);
        struct port *port = issue->rings[lane].port;

        if (last == 0 || (lane == issue->lane && last <= issue->position + 1)) {
            continue;
        }
        /* Of the own lane too: who drops the last hold need not be who claimed last. */
        if (ring_tail(&port->ring) < last) {
            return FILLING_QUEUED;
        }
        if (port_done(port) < last) {
            uses = FILLING_ISSUED;
        }
    }
    return uses;
}

void filling_release(struct filling *filling, struct issue *issue)
{
    struct backend *backend = issue->backend;

    if (filling->block[0].data != NULL) {
        for (uint32_t lane = 0; lane < issue->lanes; lane++) {
            if (lane == issue->lane || filling->last[lane] == 0) {
                continue;
            }
            /* A wait that cannot be enqueued is a failing device: there is no later use of the
             * memory that the order could protect. */
            event_ring_wait(&issue->rings[lane], filling->last[lane] - 1, issue->stream);
        }
        for (int i = 0; i < 2; i++) {
            if (filling->block[i].data != NULL) {
                backend->ops->free(backend, issue->stream, filling->block[i].data,
                                   filling->block[i].bytes);
                filling->block[i].data = NULL;
            }
        }
    }
    if (filling->ended != NULL) {
        filling->ended(filling, backend);
    } else {
        filling_put(filling);
    }
}

static size_t copy_bytes(int64_t rows, int64_t stride)
{
    /* A GEMM reads whole groups of KERNEL_FP8_PAD rows. */
    return (size_t)fp8_round_up(rows) * (size_t)stride;
}

/* Allocates the filling's first block. */
static enum fp8pipe_status block_alloc(struct filling *filling, struct issue *issue, size_t bytes,
                                       unsigned char **data)
{
    void *block;
    enum fp8pipe_status status =
        issue->backend->ops->alloc(issue->backend, issue->stream, bytes, &block);

    if (status != FP8PIPE_OK) {
        return status;
    }
    filling->block[0].data = block;
    filling->block[0].bytes = bytes;
    *data = block;
    return FP8PIPE_OK;
}

enum fp8pipe_status filling_alloc(struct filling *filling, struct issue *issue)
{
    size_t row_bytes, transposed_bytes, own_row_bytes;
    unsigned char *data, *row;
    enum fp8pipe_status status;

    filling_strides(filling);
    row_bytes = filling->rowwise ? copy_bytes(filling->rows, filling->row_stride) : 0;
    transposed_bytes =
        filling->transposed ? copy_bytes(filling->cols, filling->transposed_stride) : 0;
    own_row_bytes = filling->part == NULL ? row_bytes : 0;
    status =
        block_alloc(filling, issue, FILLING_HEAD_BYTES + own_row_bytes + transposed_bytes, &data);
    if (status != FP8PIPE_OK) {
        return status;
    }
    row = data + FILLING_HEAD_BYTES;
    if (row_bytes > own_row_bytes) {
        status = block_alloc(filling->part, issue, row_bytes, &row);
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    filling->scale_inv = (float *)(void *)data;
    filling->row = filling->rowwise ? row : NULL;
    filling->transposed_data =
        filling->transposed ? data + FILLING_HEAD_BYTES + own_row_bytes : NULL;
    return FP8PIPE_OK;
}

enum fp8pipe_status filling_add_transposed(struct filling *filling, struct issue *issue)
{
    size_t bytes = copy_bytes(filling->cols, filling->transposed_stride);
    struct backend *backend = issue->backend;
    struct kernel_transpose_args args = {
        .in = filling->row,
        .rows = filling->rows,
        .cols = filling->cols,
        .in_stride = filling->row_stride,
        .out_stride = filling->transposed_stride,
    };
    enum fp8pipe_status status;
    void *data;

    assert(filling->row != NULL && filling->block[1].data == NULL);
    status = backend->ops->alloc(backend, issue->stream, bytes, &data);
    if (status != FP8PIPE_OK) {
        return status;
    }
    args.out = data;
    status = backend->ops->transpose(backend, issue->stream, &args);
    if (status != FP8PIPE_OK) {
        backend->ops->free(backend, issue->stream, data, bytes);
        return status;
    }
    filling->block[1].data = data;
    filling->block[1].bytes = bytes;
    filling->transposed_data = data;
    filling->transposed = true;
    return FP8PIPE_OK;
}
