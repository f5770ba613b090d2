#include "tensor.h"

#include <assert.h>
#include <ck_pr.h>
#include <stdlib.h>
#include <string.h>

/* Device blocks start with the inverse scale, alone in its 256 bytes. */
#define FILLING_HEAD_BYTES 256

void filling_pool_init(struct filling_pool *pool, uint32_t lanes)
{
    ck_spinlock_fas_init(&pool->word);
    pool->free = NULL;
    pool->lanes = lanes;
}

void filling_pool_free(struct filling_pool *pool)
{
    struct filling *filling;

    ck_spinlock_fas_lock(&pool->word);
    while ((filling = pool->free) != NULL) {
        pool->free = filling->next;
        free(filling);
    }
    ck_spinlock_fas_unlock(&pool->word);
}

static struct filling *get_one(struct filling_pool *pool)
{
    size_t bytes = (sizeof(struct filling) + pool->lanes * sizeof(uint64_t) + 63) / 64 * 64;
    struct filling *filling;

    ck_spinlock_fas_lock(&pool->word);
    filling = pool->free;
    if (filling != NULL) {
        pool->free = filling->next;
    }
    ck_spinlock_fas_unlock(&pool->word);
    if (filling == NULL) {
        filling = aligned_alloc(64, bytes);
        if (filling == NULL) {
            return NULL;
        }
    }
    memset(filling, 0, bytes);
    filling->holders = 1;
    filling->pool = pool;
    return filling;
}

struct filling *filling_get(struct filling_pool *pool, bool parted)
{
    struct filling *filling = get_one(pool);

    if (filling != NULL && parted) {
        filling->part = get_one(pool);
        if (filling->part == NULL) {
            filling_put(filling);
            return NULL;
        }
    }
    return filling;
}

void filling_put(struct filling *filling)
{
    struct filling_pool *pool = filling->pool;

    ck_spinlock_fas_lock(&pool->word);
    filling->next = pool->free;
    pool->free = filling;
    ck_spinlock_fas_unlock(&pool->word);
}

void filling_undo(struct filling *filling)
{
    if (filling->part != NULL) {
        filling_put(filling->part);
    }
    filling_put(filling);
}

void filling_shape(struct filling *filling, int64_t rows, int64_t cols, enum fp8pipe_format format,
                   bool rowwise, bool transposed)
{
    filling->rows = rows;
    filling->cols = cols;
    filling->format = format;
    filling->rowwise = rowwise;
    filling->transposed = transposed;
    filling->row_stride = fp8_round_up(cols);
    filling->transposed_stride = fp8_round_up(rows);
}

void filling_hold(struct filling *filling)
{
    ck_pr_inc_32(&filling->holders);
}

bool filling_drop(struct filling *filling)
{
    bool last;

    ck_pr_fence_release();
    ck_pr_dec_32_zero(&filling->holders, &last);
    if (last) {
        ck_pr_fence_acquire();
    }
    return last;
}

void filling_use(struct filling *filling, uint32_t lane, uint64_t position)
{
    uint64_t last;

    /* What the submitter's object alone holds nobody else can use, nor share; but who let go of it
     * may have used it at a later position. */
    if (ck_pr_load_32(&filling->holders) == 1) {
        ck_pr_fence_acquire();
        if (ck_pr_load_64(&filling->last[lane]) < position + 1) {
            ck_pr_store_64(&filling->last[lane], position + 1);
        }
        return;
    }
    last = ck_pr_load_64(&filling->last[lane]);
    /* Submits through several objects may come here in the other order. */
    while (last < position + 1 &&
           !ck_pr_cas_64_value(&filling->last[lane], last, position + 1, &last)) {
    }
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

void tensor_empty(struct fp8pipe_tensor *tensor, struct filling *held[TENSOR_HOLDS])
{
    held[0] = tensor->filling;
    held[1] = tensor->part;
    held[2] = tensor->weight;
    tensor->filling = NULL;
    tensor->part = NULL;
    if (tensor->version != NULL) {
        tensor->version = NULL;
        tensor->weight = NULL;
        tensor->kept_by = NULL;
        ck_pr_dec_32(tensor->kept_count);
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
    size_t row_bytes = filling->rowwise ? copy_bytes(filling->rows, filling->row_stride) : 0;
    size_t transposed_bytes =
        filling->transposed ? copy_bytes(filling->cols, filling->transposed_stride) : 0;
    size_t own_row_bytes = filling->part == NULL ? row_bytes : 0;
    unsigned char *data, *row;
    enum fp8pipe_status status;

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
