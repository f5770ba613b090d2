/*
 * Enqueuing a network's step: a chain of ops over three lanes, and linear layers in it.
 *
 * The chain lane runs a step's ops in order. Weight gradients go to a lane of their own, each
 * behind the ticket of the op that made its dY, so that they run beside the rest of the backward. A
 * third lane moves data, so that a copy of pageable memory holds up nobody else's launcher.
 *
 * A few steps may be under way at once, each in a slot, which keeps the arguments of the step's
 * `call` ops alive until the step is done. The first refusal or failure is kept in `status` with
 * its sentence; after it nothing is enqueued any more, so that callers check once a step.
 * One thread at a time.
 */
#ifndef DIGITS_LAYER_H
#define DIGITS_LAYER_H

#include <stdbool.h>

#include "dit_kernels.h"

enum digits_lane { DIGITS_LANE_CHAIN, DIGITS_LANE_WGRAD, DIGITS_LANE_DATA, DIGITS_LANES };

#define DIGITS_SLOTS 4
#define DIGITS_JOINS 2
#define DIGITS_SENTENCE_BYTES 256

struct digits_slot {
    struct dit_op *ops;
    size_t used;
    fp8pipe_ticket done[2]; /* the step is done when both are */
};

struct digits_chain {
    struct fp8pipe *pipe;
    enum fp8pipe_status status;
    char sentence[DIGITS_SENTENCE_BYTES];
    struct digits_slot slots[DIGITS_SLOTS];
    size_t ops_per_slot;
    int64_t steps;             /* begun so far; the newest is in slot (steps - 1) % DIGITS_SLOTS */
    fp8pipe_ticket last;       /* the newest op on the chain lane */
    fp8pipe_ticket last_wgrad; /* the newest weight gradient */
    fp8pipe_ticket joined[DIGITS_JOINS]; /* what the next op on the chain lane waits for */
    uint32_t joined_count;
    uint64_t enqueued;
};

enum fp8pipe_status digits_chain_init(struct digits_chain *chain, struct fp8pipe *pipe,
                                      size_t ops_per_slot);
/* Waits for the steps under way. */
void digits_chain_clear(struct digits_chain *chain);

/* Waits until the next slot is free, and returns its number. */
int digits_chain_begin(struct digits_chain *chain);
/* done, done_too: tickets behind which nothing of the step is left. */
void digits_chain_end(struct digits_chain *chain, fp8pipe_ticket done, fp8pipe_ticket done_too);
/* Waits for all steps under way. */
void digits_chain_finish(struct digits_chain *chain);
/* The next op on the chain lane waits for `ticket`, of another lane. */
void digits_chain_join(struct digits_chain *chain, fp8pipe_ticket ticket);

/* One of the example's own ops, on the chain lane or on another, behind `after`. */
void digits_chain_op(struct digits_chain *chain, const char *name, struct dit_op op);
fp8pipe_ticket digits_chain_op_on(struct digits_chain *chain, enum digits_lane lane,
                                  fp8pipe_ticket after, const char *name, struct dit_op op);
/* A copy on the data lane. */
fp8pipe_ticket digits_chain_copy(struct digits_chain *chain, fp8pipe_ticket after, const char *name,
                                 void *to, const void *from, size_t bytes);
/* A scaling's update on the weight gradients' lane. */
void digits_chain_scaling_update(struct digits_chain *chain, struct fp8pipe_scaling *scaling);

struct digits_layer {
    const char *name;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *saved;    /* what a forward keeps for its backward */
    struct fp8pipe_tensor *dy_saved; /* the quantized dY, from dgrad to wgrad */
    bool quantized;
    struct fp8pipe_matrix weight_grad;
    struct fp8pipe_vector bias_grad;
};

/*
 * weight, bias and their gradients stay the caller's. scaling NULL: unquantized, otherwise the
 * layer takes the slots first_slot (X), first_slot + 1 (W) and first_slot + 2 (dY).
 */
enum fp8pipe_status digits_layer_init(struct digits_layer *layer, struct fp8pipe *pipe,
                                      const char *name, struct fp8pipe_matrix weight,
                                      struct fp8pipe_vector bias, struct fp8pipe_scaling *scaling,
                                      uint32_t first_slot);
/* Nothing of the layer may be under way. */
void digits_layer_clear(struct digits_layer *layer);

/* y = layer(x). training: what the backward needs is kept; otherwise the amax history is left. */
void digits_layer_forward(struct digits_chain *chain, struct digits_layer *layer,
                          struct fp8pipe_matrix x, struct fp8pipe_matrix y, bool training);
/* dx = gradient of x (dx.data NULL: not wanted), and the gradients of weight and bias. */
void digits_layer_backward(struct digits_chain *chain, struct digits_layer *layer,
                           struct fp8pipe_matrix x, struct fp8pipe_matrix dy,
                           struct fp8pipe_matrix dx);
/* The op `written` overwrote the weight in place. */
void digits_layer_changed(struct digits_chain *chain, struct digits_layer *layer,
                          fp8pipe_ticket written);

#endif
