/*
 * Linear layers: forward, dgrad and wgrad in terms of quantize and gemm, and the weight's versions.
 *
 * A version is the weight as one weight_changed left it. It lives as long as its filling, which has
 * the FP8 bytes once an op has quantized it: the first op issued for a version does, under the
 * version's lock; later ones on other lanes wait for its event.
 *
 *   current         the linear's version: under the linear's word; submits fetch its cache line
 *                   before they have that.
 *   retired         the filling of the version before, which nothing holds: the next op on the
 *                   linear sees to its memory. Under the word.
 *   rewrites        how often the optimizer that has the linear rewrote the current version's bytes
 *                   in place, in submits; NULL: none has it. Under the linear's word; what it
 *                   points to, in the optimizer, under the scaling's. While an optimizer has the
 *                   linear, the version stays the current one. rewrites_before: by those before.
 *   kept            tensors that keep a version of this linear: atomic, changed under the word of
 *                   the tensor.
 *   row_made ..     under the version's lock, by launchers.
 */
#ifndef LIB_LINEAR_H
#define LIB_LINEAR_H

#include <pthread.h>

#include "object.h"
#include "op.h"
#include "scaling.h"
#include "tensor.h"

/* A cache line that submits read and, once or twice, write; then the launchers'. */
struct version {
    struct filling *filling;
    struct fp8pipe_matrix weight;
    fp8pipe_ticket written;  /* under the linear's word; 0: known to be written */
    fp8pipe_ticket prepared; /* likewise: the op that prepares it; 0: none */
    pthread_mutex_t lock __attribute__((aligned(64)));
    bool row_made;
    bool transposed_made;
    uint32_t row_lane;
    uint32_t transposed_lane;
    struct backend_event *row_event;
    struct backend_event *transposed_event;
};

struct fp8pipe_linear {
    struct object object;
    /* Read-only: a cache line that submits and launchers share. */
    int64_t in_features;
    int64_t out_features;
    struct fp8pipe_scaling *scaling; /* NULL: unquantized */
    struct fp8pipe_vector bias;
    enum fp8pipe_dtype weight_dtype;
    uint32_t slot_x;
    uint32_t slot_w;
    uint32_t slot_dy;
    /* The submits' alone. */
    struct version *current __attribute__((aligned(64)));
    struct filling *retired;
    const uint64_t *rewrites;
    uint64_t rewrites_before;
    uint32_t kept;
};

/* A version whose filling has one holder, or NULL. weight: NULL, or its matrix. */
struct version *version_new(struct filling_pool *pool, const struct fp8pipe_matrix *weight,
                            fp8pipe_ticket written);

enum fp8pipe_status linear_prepare(struct issue *issue, const struct op *op);
/* Makes the issue's stream see the version's row-wise bytes and, if asked, the transposed ones. */
enum fp8pipe_status version_ready(struct issue *issue, const struct fp8pipe_linear *linear,
                                  struct version *version, bool transposed);

/* What a forward that keeps the weight and its dgrad must agree on. Under the linear's word and its
 * scaling's. */
static inline uint64_t linear_rewrites(const struct fp8pipe_linear *linear)
{
    return linear->rewrites_before + (linear->rewrites != NULL ? *linear->rewrites : 0);
}

enum fp8pipe_status linear_forward(struct issue *issue, const struct op *op);
enum fp8pipe_status linear_dgrad(struct issue *issue, const struct op *op);
enum fp8pipe_status linear_wgrad(struct issue *issue, const struct op *op);

#endif
