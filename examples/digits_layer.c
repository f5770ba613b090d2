#include "digits_layer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "outcome.h"

enum fp8pipe_status digits_chain_init(struct digits_chain *chain, struct fp8pipe *pipe,
                                      size_t ops_per_slot)
{
    *chain = (struct digits_chain){.pipe = pipe, .ops_per_slot = ops_per_slot};
    for (int i = 0; i < DIGITS_SLOTS; i++) {
        chain->slots[i].ops = calloc(ops_per_slot, sizeof(struct dit_op));
        if (!chain->slots[i].ops) {
            digits_chain_clear(chain);
            return FP8PIPE_ENOMEM;
        }
    }
    return FP8PIPE_OK;
}

void digits_chain_clear(struct digits_chain *chain)
{
    if (chain->pipe) {
        fp8pipe_drain(chain->pipe, -1);
    }
    for (int i = 0; i < DIGITS_SLOTS; i++) {
        free(chain->slots[i].ops);
        chain->slots[i].ops = NULL;
    }
}

/* Counts a submit, or keeps the sentence of the first one that was refused. */
static void submitted(struct digits_chain *chain, enum fp8pipe_status status, const char *name)
{
    if (status == FP8PIPE_OK) {
        chain->enqueued++;
    } else if (chain->status == FP8PIPE_OK) {
        chain->status = status;
        snprintf(chain->sentence, sizeof(chain->sentence), "%s: %s", name, fp8pipe_last_error());
    }
}

static void wait_done(struct digits_chain *chain, fp8pipe_ticket ticket)
{
    if (chain->status == FP8PIPE_OK) {
        chain->status = outcome_wait(chain->pipe, ticket, chain->sentence, sizeof(chain->sentence));
    }
}

static struct digits_slot *current(struct digits_chain *chain)
{
    return &chain->slots[(chain->steps - 1) % DIGITS_SLOTS];
}

int digits_chain_begin(struct digits_chain *chain)
{
    struct digits_slot *slot;

    chain->steps++;
    slot = current(chain);
    wait_done(chain, slot->done[0]);
    wait_done(chain, slot->done[1]);
    slot->used = 0;
    return (int)(slot - chain->slots);
}

void digits_chain_end(struct digits_chain *chain, fp8pipe_ticket done, fp8pipe_ticket done_too)
{
    struct digits_slot *slot = current(chain);

    slot->done[0] = done;
    slot->done[1] = done_too;
}

void digits_chain_finish(struct digits_chain *chain)
{
    for (int i = 0; i < DIGITS_SLOTS; i++) {
        wait_done(chain, chain->slots[i].done[0]);
        wait_done(chain, chain->slots[i].done[1]);
    }
}

void digits_chain_join(struct digits_chain *chain, fp8pipe_ticket ticket)
{
    assert(chain->joined_count < DIGITS_JOINS);
    chain->joined[chain->joined_count++] = ticket;
}

static struct fp8pipe_submit submit_on(enum digits_lane lane, const char *name,
                                       fp8pipe_ticket after)
{
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;

    submit.lane = lane;
    submit.name = name;
    submit.after_count = after != 0;
    submit.after[0] = after;
    return submit;
}

static struct fp8pipe_submit submit_on_chain(struct digits_chain *chain, const char *name)
{
    struct fp8pipe_submit submit = submit_on(DIGITS_LANE_CHAIN, name, 0);

    for (; submit.after_count < chain->joined_count; submit.after_count++) {
        submit.after[submit.after_count] = chain->joined[submit.after_count];
    }
    chain->joined_count = 0;
    return submit;
}

static fp8pipe_ticket enqueue_call(struct digits_chain *chain, struct fp8pipe_submit submit,
                                   const struct dit_op *op)
{
    struct digits_slot *slot = current(chain);
    struct fp8pipe_call_op call = FP8PIPE_CALL_OP_INIT;
    fp8pipe_ticket ticket = 0;

    if (chain->status != FP8PIPE_OK) {
        return 0;
    }
    assert(slot->used < chain->ops_per_slot);
    slot->ops[slot->used] = *op;
    call.submit = submit;
    call.fn = dit_call;
    call.arg = &slot->ops[slot->used++];
    submitted(chain, fp8pipe_call(chain->pipe, &call, &ticket), submit.name);
    return ticket;
}

void digits_chain_op(struct digits_chain *chain, const char *name, struct dit_op op)
{
    chain->last = enqueue_call(chain, submit_on_chain(chain, name), &op);
}

fp8pipe_ticket digits_chain_op_on(struct digits_chain *chain, enum digits_lane lane,
                                  fp8pipe_ticket after, const char *name, struct dit_op op)
{
    return enqueue_call(chain, submit_on(lane, name, after), &op);
}

fp8pipe_ticket digits_chain_copy(struct digits_chain *chain, fp8pipe_ticket after, const char *name,
                                 void *to, const void *from, size_t bytes)
{
    struct fp8pipe_copy_op copy = FP8PIPE_COPY_OP_INIT;
    fp8pipe_ticket ticket = 0;

    if (chain->status == FP8PIPE_OK) {
        copy.submit = submit_on(DIGITS_LANE_DATA, name, after);
        copy.to = to;
        copy.from = from;
        copy.bytes = bytes;
        submitted(chain, fp8pipe_copy(chain->pipe, &copy, &ticket), name);
    }
    return ticket;
}

void digits_chain_scaling_update(struct digits_chain *chain, struct fp8pipe_scaling *scaling)
{
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;

    if (chain->status == FP8PIPE_OK) {
        update.submit = submit_on(DIGITS_LANE_WGRAD, "scaling", 0);
        submitted(chain, fp8pipe_scaling_update(scaling, &update, NULL), "scaling");
    }
}

enum fp8pipe_status digits_layer_init(struct digits_layer *layer, struct fp8pipe *pipe,
                                      const char *name, struct fp8pipe_matrix weight,
                                      struct fp8pipe_vector bias, struct fp8pipe_scaling *scaling,
                                      uint32_t first_slot)
{
    struct fp8pipe_linear_options options = FP8PIPE_LINEAR_OPTIONS_INIT;
    enum fp8pipe_status status;

    options.in_features = weight.cols;
    options.out_features = weight.rows;
    options.weight = weight;
    options.bias = bias;
    options.scaling = scaling;
    options.slot_x = first_slot;
    options.slot_w = first_slot + 1;
    options.slot_dy = first_slot + 2;
    layer->name = name;
    layer->quantized = scaling != NULL;
    status = fp8pipe_linear_create(pipe, &options, &layer->linear);
    if (status == FP8PIPE_OK) {
        status = fp8pipe_tensor_create(pipe, &layer->saved);
    }
    if (status == FP8PIPE_OK) {
        status = fp8pipe_tensor_create(pipe, &layer->dy_saved);
    }
    return status;
}

void digits_layer_clear(struct digits_layer *layer)
{
    fp8pipe_tensor_destroy(layer->dy_saved);
    fp8pipe_tensor_destroy(layer->saved);
    fp8pipe_linear_destroy(layer->linear);
}

void digits_layer_forward(struct digits_chain *chain, struct digits_layer *layer,
                          struct fp8pipe_matrix x, struct fp8pipe_matrix y, bool training)
{
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    forward.submit = submit_on_chain(chain, layer->name);
    forward.x = x;
    forward.y = y;
    if (training) {
        forward.saved = layer->saved;
        forward.keep = FP8PIPE_KEEP_ALL;
    } else {
        forward.submit.flags = FP8PIPE_NO_AMAX;
    }
    submitted(chain, fp8pipe_linear_forward(layer->linear, &forward, &chain->last), layer->name);
}

void digits_layer_backward(struct digits_chain *chain, struct digits_layer *layer,
                           struct fp8pipe_matrix x, struct fp8pipe_matrix dy,
                           struct fp8pipe_matrix dx)
{
    struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
    struct fp8pipe_wgrad_op wgrad = FP8PIPE_WGRAD_OP_INIT;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    if (dx.data) {
        dgrad.submit = submit_on_chain(chain, layer->name);
        dgrad.dy = dy;
        dgrad.dx = dx;
        dgrad.saved = layer->saved;
        dgrad.dy_saved = layer->quantized ? layer->dy_saved : NULL;
        dgrad.bias_grad = layer->bias_grad;
        submitted(chain, fp8pipe_linear_dgrad(layer->linear, &dgrad, &chain->last), layer->name);
    }

    wgrad.submit = submit_on(DIGITS_LANE_WGRAD, layer->name, chain->last);
    wgrad.dw = layer->weight_grad;
    if (layer->quantized) {
        /* X, and dY after a dgrad, are in FP8 already; this is their last use. */
        wgrad.submit.flags = FP8PIPE_LAST_USE;
        wgrad.saved = layer->saved;
        wgrad.dy_tensor = dx.data ? layer->dy_saved : NULL;
    } else {
        wgrad.x = x;
    }
    if (!wgrad.dy_tensor) {
        wgrad.dy = dy;
    }
    if (!dx.data) {
        wgrad.bias_grad = layer->bias_grad;
    }
    if (chain->status == FP8PIPE_OK) {
        submitted(chain, fp8pipe_linear_wgrad(layer->linear, &wgrad, &chain->last_wgrad),
                  layer->name);
    }
}

void digits_layer_changed(struct digits_chain *chain, struct digits_layer *layer,
                          fp8pipe_ticket written)
{
    enum fp8pipe_status status;

    if (chain->status == FP8PIPE_OK) {
        status = fp8pipe_linear_weight_changed(layer->linear, NULL, written);
        if (status != FP8PIPE_OK) {
            submitted(chain, status, layer->name);
        }
    }
}
