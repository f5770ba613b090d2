/*
 * One iteration of dit_bench's model, enqueued: forward, loss, backward, optimizer step. The caller
 * waits for nothing; what the passes write is bench_model.h's.
 */
#ifndef BENCH_PASS_H
#define BENCH_PASS_H

#include "bench_model.h"

struct bench_pass {
    int64_t rows; /* tokens, at most the model's */
    bool train;   /* keep what the backward needs; loss, backward and step */
    bool check;   /* fold the blocks' outputs into max_bits, and the gradients' norm */
};

void bench_pass_forward(struct bench_chain *chain, struct bench_model *model,
                        const struct bench_pass *pass);
/* The loss into the next of the model's losses, and its gradient over the output. */
void bench_pass_loss(struct bench_chain *chain, struct bench_model *model,
                     const struct bench_pass *pass);
void bench_pass_backward(struct bench_chain *chain, struct bench_model *model,
                         const struct bench_pass *pass);
/* The scaling's update, and, training, AdamW's step; both skipped by the device if a checked pass
 * found a gradient that is not finite. */
void bench_pass_update(struct bench_chain *chain, struct bench_model *model,
                       const struct bench_pass *pass);

/* All of it. */
void bench_pass_run(struct bench_chain *chain, struct bench_model *model,
                    const struct bench_pass *pass);

#endif
