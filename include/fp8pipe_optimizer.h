/*
 * libfp8pipe: AdamW over many parameters in one launch, with the FP8 weights of the next step
 * written in the same pass, and the gradients' norm. The conventions of fp8pipe.h hold.
 */
#ifndef FP8PIPE_OPTIMIZER_H
#define FP8PIPE_OPTIMIZER_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fp8pipe_optimizer; /* parameters, their groups, the count of steps */

/*
 * One parameter: matrices [rows, cols] of the backend's memory, dense (stride = cols), 16-byte
 * aligned; vectors are one row; rows and cols >= 0. What a step writes overlaps nothing else that
 * the optimizer has. The caller sets the moments to 0 before the first step, and average to master;
 * or all to what a checkpoint holds.
 * Ownership  all stay the caller's, at the same address, until the optimizer is destroyed.
 */
struct fp8pipe_parameter {
    struct fp8pipe_matrix master;   /* FP32; changed in place */
    struct fp8pipe_matrix gradient; /* any dtype; read */
    struct fp8pipe_matrix first;    /* FP32: first moment */
    struct fp8pipe_matrix second;   /* FP32: second moment */
    struct fp8pipe_matrix average;  /* FP32: exponential moving average of master; or NONE */
    struct fp8pipe_matrix copy;     /* BF16 or FP16: master, rounded, after each step; or NONE */
    struct fp8pipe_linear *linear;  /* NULL, or the quantized linear whose weight `master` is */
    uint32_t group;
    uint32_t reserved; /* 0 */
};
#define FP8PIPE_PARAMETER_INIT                                                                     \
    {                                                                                              \
        FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE,        \
            FP8PIPE_MATRIX_NONE, FP8PIPE_MATRIX_NONE, NULL, 0, 0                                   \
    }

struct fp8pipe_parameter_group {
    float lr_factor;     /* the step's learning rate is multiplied by it, >= 0 */
    float beta1;         /* 0 <= beta1 < 1 */
    float beta2;         /* 0 <= beta2 < 1 */
    float epsilon;       /* > 0 */
    float weight_decay;  /* decoupled, >= 0 */
    float average_decay; /* 0 to 1: average = decay * average + (1 - decay) * master */
};
#define FP8PIPE_PARAMETER_GROUP_INIT { 1.0f, 0.9f, 0.999f, 1e-8f, 0.0f, 0.9999f }

struct fp8pipe_optimizer_options {
    size_t size;
    const struct fp8pipe_parameter *parameters; /* copied */
    uint32_t parameter_count;                   /* 1 to 1048576 */
    uint32_t group_count;                       /* 1 to 256 */
    const struct fp8pipe_parameter_group *groups; /* copied */
};
#define FP8PIPE_OPTIMIZER_OPTIONS_INIT                                                             \
    { sizeof(struct fp8pipe_optimizer_options), NULL, 0, 0, NULL }

/*
 * The linears named belong to the optimizer until it is destroyed: all are of one scaling, none is
 * named twice or in another optimizer (EBUSY), their weight is `master`, an op that writes it is
 * done (EBUSY), none may be destroyed (EBUSY), and fp8pipe_linear_weight_changed refuses them
 * (EBUSY). Their FP8 weights, row-wise and transposed, are rewritten in place by each step: what a
 * forward kept before a step was submitted is no longer good for a dgrad submitted after it
 * (EINVAL), but is for wgrad.
 * Blocks while device memory is allocated and set. Destroy takes NULL; EBUSY while ops in flight
 * use it; the linears keep the weights that they have. Once the pipe is closed, optimizers and
 * linears may be destroyed in any order.
 */
FP8PIPE_API enum fp8pipe_status
fp8pipe_optimizer_create(struct fp8pipe *pipe, const struct fp8pipe_optimizer_options *options,
                         struct fp8pipe_optimizer **optimizer);
FP8PIPE_API enum fp8pipe_status fp8pipe_optimizer_destroy(struct fp8pipe_optimizer *optimizer);

/*
 * One AdamW step, one launch for all parameters. With t the count of steps taken, this one
 * included, g = gradient * *gradient_scale and l = lr * *lr_device * lr_factor, in float32, in this
 * order (Loshchilov and Hutter, as torch.optim.AdamW computes it); 1 - beta^t and the root of the
 * second in float64, then rounded:
 *   master *= 1 - l * weight_decay
 *   first   = first + (g - first) * (1 - beta1)
 *   second  = second * beta2 + (1 - beta2) * g * g
 *   master -= l / (1 - beta1^t) * first / (sqrt(second) / sqrt(1 - beta2^t) + epsilon)
 * then average, copy, and for a linear the FP8 weight: master * the scale of its slot_w, cast, both
 * copies, with max|master| folded into the slot as a quantize does (and by its own amax while the
 * slot has no scale: a second launch, until the host has seen that all have one). A weight that no
 * forward has quantized before the first step is quantized by it, as a forward would, then stepped.
 * skip_if: device, or NULL; not 0 in stream order: the step writes nothing, and t does not move.
 *
 * Orders itself, on all lanes, without tickets: after every op of this optimizer submitted before;
 * and as a writer of the linears' scaling: after every use of it submitted before (so after every
 * forward and dgrad of those linears), and every later use after it. What writes the gradients, or
 * reads masters and copies otherwise, is the caller's to order. A usual step submits forward and
 * backward, gradient_norm, fp8pipe_scaling_update, then this, the latter two with gradient_norm's
 * nonfinite flag as skip_if.
 */
struct fp8pipe_adamw_op {
    size_t size;
    struct fp8pipe_submit submit;
    float lr;                    /* finite, >= 0 */
    int32_t reserved;            /* 0 */
    const float *lr_device;      /* device, or NULL: 1 */
    const float *gradient_scale; /* device, or NULL: 1 */
    const int32_t *skip_if;      /* device, or NULL */
};
#define FP8PIPE_ADAMW_OP_INIT                                                                      \
    { sizeof(struct fp8pipe_adamw_op), FP8PIPE_SUBMIT_INIT, 0.0f, 0, NULL, NULL, NULL }
FP8PIPE_API enum fp8pipe_status fp8pipe_optimizer_adamw(struct fp8pipe_optimizer *optimizer,
                                                        const struct fp8pipe_adamw_op *op,
                                                        fp8pipe_ticket *ticket);

/*
 * The 2-norm of all gradients, times |*gradient_scale| (NULL: 1): squares and their sum in float64,
 * in a fixed order, rounded once. Device outputs, each may be NULL:
 *   norm       the norm
 *   clip       *gradient_scale * min(1, max_norm / (norm + 1e-6)), in float32: what adamw takes as
 *              its gradient_scale (max_norm 0: *gradient_scale)
 *   nonfinite  1 if the norm is inf or NaN, else 0
 * Orders itself among the optimizer's ops, as adamw does. The caller orders what writes the
 * gradients before it.
 */
struct fp8pipe_gradient_norm_op {
    size_t size;
    struct fp8pipe_submit submit;
    float max_norm; /* finite, >= 0; 0: no limit */
    int32_t reserved; /* 0 */
    const float *gradient_scale;
    float *norm;
    float *clip;
    int32_t *nonfinite;
};
#define FP8PIPE_GRADIENT_NORM_OP_INIT                                                              \
    {                                                                                              \
        sizeof(struct fp8pipe_gradient_norm_op), FP8PIPE_SUBMIT_INIT, 0.0f, 0, NULL, NULL, NULL,   \
            NULL                                                                                   \
    }
FP8PIPE_API enum fp8pipe_status
fp8pipe_optimizer_gradient_norm(struct fp8pipe_optimizer *optimizer,
                                const struct fp8pipe_gradient_norm_op *op, fp8pipe_ticket *ticket);

/*
 * Steps taken, skipped ones not counted, for checkpoints. Ordered among the optimizer's ops: get
 * counts what was submitted before, set (0 to 2^53) holds for what is submitted later. Block until
 * done; EDEADLK inside a function or a defer.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_optimizer_steps_get(struct fp8pipe_optimizer *optimizer,
                                                            int64_t *steps);
FP8PIPE_API enum fp8pipe_status fp8pipe_optimizer_steps_set(struct fp8pipe_optimizer *optimizer,
                                                            int64_t steps);

#ifdef __cplusplus
}
#endif

#endif
