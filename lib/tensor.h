/*
 * Quantized tensors and their stream-ordered memory.
 *
 * A filling is what one op writes into a tensor: FP8 bytes row-wise and/or transposed, with the
 * inverse scale captured when they were written. Tensors (and a linear, of its weight) hold
 * fillings; ops use them. Once nothing holds a filling its memory is given back after the last op
 * of each lane that uses it: by the op that let go of it, or by the completion thread.
 *
 * The row-wise bytes of a filling with both copies, if a tensor is to hold it, are the memory of a
 * second one, its part, with holders and uses of its own: what a forward keeps for wgrad holds the
 * filling alone, and so the transposed bytes. Who reads the row-wise bytes holds, and uses, both.
 *
 *   holders         any thread, atomically. Submits only: launchers never write what submits read.
 *   last            for each lane, position + 1 of the last op that uses it: raised by submits that
 *                   know of a holder, read by whoever gives the memory back, after the last hold.
 *   rows .. format  written by the submitter that starts the filling, before it publishes.
 *   strides, device pointers
 *                   written by the launcher of the op that fills it, before the op's issued mark;
 *                   read by launchers that have seen that mark.
 *   ready           written likewise: the op succeeded, so that later readers need not ask its
 *                   lane's failure records. Read at submit.
 *
 * Each of these groups has cache lines of its own, so that a submit does not wait for what a
 * launcher wrote.
 *
 * Fillings are recycled through a pool in the pipe, so that submits do not allocate. Who puts one
 * back, mostly a launcher, has cleared what is the launchers'; who takes one clears the rest. What
 * comes back goes to a list that is taken over whole, once a submit finds its own one empty.
 */
#ifndef LIB_TENSOR_H
#define LIB_TENSOR_H

#include <ck_pr.h>
#include <ck_spinlock.h>
#include <stdbool.h>
#include <stdint.h>

#include "issue.h"
#include "object.h"

struct version;

struct filling {
    struct filling_pool *pool;
    struct filling *part; /* or NULL: all is its own. Followed only by who holds or fills that */
    /* Instead of the return to the pool, for a filling that is part of something larger. */
    void (*ended)(struct filling *filling, struct backend *backend);
    void *owner;
    union {
        fp8pipe_ticket filled_by;
        struct filling *next; /* in the pool, or in a list of the dead */
    };
    int64_t rows;
    int64_t cols;
    uint8_t format; /* enum fp8pipe_format */
    bool rowwise;
    bool transposed;
    uint32_t ready __attribute__((aligned(64)));
    int64_t row_stride;
    int64_t transposed_stride;
    uint8_t *row;
    uint8_t *transposed_data;
    float *scale_inv;
    struct {
        void *data;
        size_t bytes;
    } block[2]; /* the memory; the second for a transposed copy made later */
    uint32_t holders __attribute__((aligned(64)));
    uint64_t last[];
};

struct filling_pool {
    ck_spinlock_fas_t word; /* who takes */
    uint32_t lanes;
    struct filling *free;                                  /* under the word */
    struct filling *returned __attribute__((aligned(64))); /* atomic: put back since */
};

struct fp8pipe_tensor {
    struct object object;
    struct filling *filling;        /* or NULL: empty, or it keeps a version only */
    struct filling *part;           /* the filling's, if the tensor holds that */
    struct version *version;        /* kept by a forward, or NULL */
    struct filling *weight;         /* the version's */
    struct fp8pipe_linear *kept_by; /* whose forward filled it */
    uint32_t *kept_count;           /* of that linear: how many tensors keep a version of it */
    fp8pipe_ticket kept_ticket;     /* the forward */
    uint64_t kept_rewrites;         /* linear_rewrites() at the forward */
};

/* The pool. get returns a filling with one holder and no memory, or NULL; if `parted` it has a
 * part, with one holder likewise. put takes back the filling alone. */
void filling_pool_init(struct filling_pool *pool, uint32_t lanes);
void filling_pool_free(struct filling_pool *pool);
struct filling *filling_get(struct filling_pool *pool, bool parted);
void filling_put(struct filling *filling);
/* Undoes a get that came to nothing. */
void filling_undo(struct filling *filling);

static inline int64_t fp8_round_up(int64_t n)
{
    return (n + KERNEL_FP8_PAD - 1) / KERNEL_FP8_PAD * KERNEL_FP8_PAD;
}

/* Sets shape and format. The padded strides follow in filling_alloc, or: */
static inline void filling_shape(struct filling *filling, int64_t rows, int64_t cols,
                                 enum fp8pipe_format format, bool rowwise, bool transposed)
{
    filling->rows = rows;
    filling->cols = cols;
    filling->format = (uint8_t)format;
    filling->rowwise = rowwise;
    filling->transposed = transposed;
}

static inline void filling_strides(struct filling *filling)
{
    filling->row_stride = fp8_round_up(filling->cols);
    filling->transposed_stride = fp8_round_up(filling->rows);
}

static inline void filling_hold(struct filling *filling)
{
    ck_pr_inc_32(&filling->holders);
}

/* Lets go of a hold; true if it was the last: the caller must then see to filling_release. */
static inline bool filling_drop(struct filling *filling)
{
    bool last;

    ck_pr_fence_release();
    ck_pr_dec_32_zero(&filling->holders, &last);
    if (last) {
        ck_pr_fence_acquire();
    }
    return last;
}

/* The op at a lane's position uses the filling. By its submitter. */
static inline void filling_use(struct filling *filling, uint32_t lane, uint64_t position)
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

/* How far the uses of a filling without holders are, apart from those that stand before the end of
 * the issue's op in its own lane. */
enum filling_uses { FILLING_QUEUED, FILLING_ISSUED, FILLING_DONE };
enum filling_uses filling_uses(const struct filling *filling, const struct issue *issue);

/*
 * Gives the memory of a filling without holders back, in the order of the issue's stream and after
 * the uses on other lanes, which must be issued; returns the filling to its pool, or calls its
 * `ended`.
 */
void filling_release(struct filling *filling, struct issue *issue);

/* Whether the tensor's filling, which it has, has row-wise bytes that the tensor holds. Under its
 * word. */
static inline bool tensor_rowwise(const struct fp8pipe_tensor *tensor)
{
    return tensor->filling->rowwise && (tensor->filling->part == NULL || tensor->part != NULL);
}

/* What a tensor holds: filling, part, a version's filling. Never all three: a forward fills with
 * the first and the last. */
#define TENSOR_HOLDS 3

/* The tensor holds nothing any more; what it held goes to the caller, with its holds. Under its
 * word. NULL: it did not hold one. */
static inline void tensor_empty(struct fp8pipe_tensor *tensor, struct filling *held[TENSOR_HOLDS])
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

/* Allocates memory for what rowwise and transposed say, inverse scale included. What was allocated
 * before a failure is given back with the filling. */
enum fp8pipe_status filling_alloc(struct filling *filling, struct issue *issue);

/* Adds a transposed copy to a filling with row-wise bytes. */
enum fp8pipe_status filling_add_transposed(struct filling *filling, struct issue *issue);

#endif
