/*
 * Optimizers: the parameters of a training run as tables on the device, and what their ops launch.
 *
 * The ops of one optimizer run in the order of their submits, on whatever lanes: each comes after
 * `writer`. So the device state (the count of steps, scratch) needs no other order, nor does what
 * launchers change here. An adamw writes the FP8 copies of its linears' weights in place; it is a
 * writer of their scaling, whose users are all other ops on these copies.
 *
 *   writer    the last op, at submit: under the optimizer's word.
 *   rewrites  adamws submitted, which linears point to (lib/linear.h): under the scaling's word.
 *   table     the device's parameters as the host knows them, page-locked. By launchers, before
 *             `bound` is set: the FP8 copies' addresses, once the linears' versions have them.
 */
#ifndef LIB_OPTIMIZER_H
#define LIB_OPTIMIZER_H

#include "issue.h"
#include "linear.h"
#include "object.h"
#include "op.h"

/* A linear whose weight is a parameter's master. */
struct optimizer_linear {
    struct fp8pipe_linear *linear;
    uint32_t parameter;
};

/* Device arrays, all in one block at `data`. */
struct optimizer_state {
    unsigned char *data;
    size_t bytes;
    struct kernel_parameter *parameters;
    struct kernel_tile *tiles;
    struct fp8pipe_parameter_group *groups;
    int64_t *steps;
    uint32_t *scratch;
    size_t image_bytes; /* what create writes: up to here */
    uint32_t *own_amax; /* [parameters] */
    double *partials;   /* [tiles] */
};

struct fp8pipe_optimizer {
    struct object object;
    uint32_t parameters;
    uint32_t groups;
    int64_t tiles;
    struct optimizer_state state;
    struct kernel_parameter *table;
    bool bound;
    struct fp8pipe_scaling *scaling; /* of the linears; NULL: there are none */
    struct optimizer_linear *linears;
    uint32_t linear_count;
    fp8pipe_ticket writer;
    uint64_t rewrites;
};

/* The tiles of a parameter. */
int64_t optimizer_tiles(const struct kernel_parameter *parameter);

/* Lays the arrays out in memory at `data` (NULL: only sizes). */
void optimizer_layout(const struct fp8pipe_optimizer *optimizer, struct optimizer_state *state,
                      unsigned char *data);

enum fp8pipe_status optimizer_adamw(struct issue *issue, const struct op_adamw *op);
enum fp8pipe_status optimizer_gradient_norm(struct issue *issue, const struct op_gradient_norm *op);
enum fp8pipe_status optimizer_steps_read(struct issue *issue, const struct op_steps *op);
enum fp8pipe_status optimizer_steps_write(struct issue *issue, const struct op_steps *op);

#endif
