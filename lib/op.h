/*
 * The checked internal copy of a descriptor, as it lies in the ring: a header, the payload of its
 * kind, then three lists:
 *
 *   named  tickets that must be done before the op, and whose failure cancels it
 *   order  tickets that must be done before the op, whatever became of them
 *   ended  fillings that nothing holds any more: their memory goes back once the op is issued
 *
 * Written by the submitter before it publishes, read by the lane's launcher.
 */
#ifndef LIB_OP_H
#define LIB_OP_H

#include <stddef.h>
#include <stdint.h>

#include "fp8pipe_fused.h"
#include "kernels/kernels.h"

struct filling;
struct version;

enum op_kind {
    OP_COPY,
    OP_CALL,
    OP_HOST_CALL,
    OP_UPDATE,
    OP_SKIP,
    OP_STATE_READ,
    OP_STATE_WRITE,
    OP_SLOT_READ,
    OP_QUANTIZE,
    OP_READ,
    OP_GEMM,
    OP_FORWARD,
    OP_DGRAD,
    OP_WGRAD,
    OP_TENSOR_CALL,
    OP_MODULATE,
    OP_MODULATE_BACKWARD,
    OP_ACTIVATION,
    OP_PREPARE,
    OP_ADAMW,
    OP_GRADIENT_NORM,
    OP_STEPS_READ,
    OP_STEPS_WRITE
};

/* bits of op.flags */
#define OP_NUMBERED 1u /* the caller chose the lane: lane order cancels */
#define OP_RESUME 2u
#define OP_FOLD 4u       /* fold the amax of what is quantized */
#define OP_ACCUMULATE 8u /* add to dW or D */
#define OP_SUMS_ACCUMULATE 16u
#define OP_FAST 32u
#define OP_KEEPS 64u /* a forward that a dgrad will follow */
/* The payload of a GEMM, forward or dgrad has its last member, an epilogue or a residual; without
 * this it ends before that. */
#define OP_EPILOGUE 128u

struct op_copy {
    void *to;
    const void *from;
    size_t bytes;
};

/* Behind the payloads of the next two lie the bytes copied of `arg`, which is then not read. */
struct op_call {
    fp8pipe_call_fn *fn;
    void *arg;
    size_t arg_bytes;
};

/* A quantized result, with OP_FOLD and OP_SUMS_ACCUMULATE. */
struct op_out {
    struct fp8pipe_scaling *scaling;
    struct filling *filling; /* new, of the values' shape; NULL: no result, the rest is not read */
    float *sums;
    uint32_t slot;
};

struct op_tensor_call {
    fp8pipe_quantize_fn *fn;
    void *arg;
    size_t arg_bytes;
    int64_t rows;
    int64_t cols;
    struct op_out out;
};

struct op_host_call {
    fp8pipe_work_fn *fn;
    void *arg;
};

struct op_scaling {
    struct fp8pipe_scaling *scaling;
    void *image; /* OP_STATE_READ, OP_STATE_WRITE: pinned copy of the device state; OP_SLOT_READ:
                    a pinned struct scaling_slot */
    const int32_t *skip_if; /* OP_UPDATE: NULL, or a device word */
};

struct op_quantize {
    struct fp8pipe_matrix x;
    struct op_out out; /* with a filling */
};

struct op_read {
    struct filling *filling;
    void *rowwise;
    void *transposed;
    float *scale_inv;
};

struct op_epilogue {
    struct fp8pipe_matrix pre;      /* data NULL: none */
    struct fp8pipe_matrix residual; /* data NULL: none */
    struct op_out out;              /* with a filling: D */
    uint8_t activation;
    uint8_t scaled; /* the slot's scale is taken, not the tensor's own amax */
};

struct op_gemm {
    struct fp8pipe_matrix a;
    struct fp8pipe_matrix b;
    struct fp8pipe_matrix d;
    struct fp8pipe_vector bias;
    struct filling *a_filling;
    struct filling *b_filling;
    uint8_t a_transposed;
    uint8_t b_transposed;
    struct op_epilogue epilogue;
};

struct op_forward {
    struct fp8pipe_linear *linear;
    struct version *version;
    struct fp8pipe_matrix x;
    struct filling *x_filling; /* instead of x */
    struct fp8pipe_matrix y;
    struct filling *kept; /* new: the transposed X; NULL: not kept */
    struct op_epilogue epilogue;
};

struct op_dgrad {
    struct fp8pipe_linear *linear;
    struct version *version;
    struct fp8pipe_matrix dy;
    struct filling *dy_filling; /* instead of dy */
    struct fp8pipe_matrix dx;
    struct filling *kept; /* new: the transposed dY; NULL: not kept */
    float *sums;
    struct fp8pipe_matrix residual;
};

struct op_wgrad {
    struct fp8pipe_linear *linear;
    struct fp8pipe_matrix dy;
    struct filling *dy_filling; /* instead of dy */
    struct fp8pipe_matrix x;    /* unquantized */
    struct filling *x_filling;  /* quantized */
    struct fp8pipe_matrix dw;
    float *sums;
};

/* Shapes are the values': [rows, cols], for SWIGLU's forward x has twice the columns, for its
 * backward dy half of them. */
struct op_activation {
    struct fp8pipe_matrix x;
    struct fp8pipe_matrix dy;     /* backward only; else NONE */
    struct fp8pipe_matrix result; /* y or dx, or NONE */
    struct fp8pipe_vector bias;
    int64_t rows;
    int64_t cols;
    struct op_out out;
    uint8_t activation;
    uint8_t backward;
};

struct op_prepare {
    struct fp8pipe_linear *linear;
    struct version *version;
    uint8_t transposed;
};

struct op_adamw {
    struct fp8pipe_optimizer *optimizer;
    const float *lr_device;
    const float *gradient_scale;
    const int32_t *skip_if;
    float lr;
};

struct op_gradient_norm {
    struct fp8pipe_optimizer *optimizer;
    const float *gradient_scale;
    float *norm;
    float *clip;
    int32_t *nonfinite;
    float max_norm;
};

struct op_steps {
    struct fp8pipe_optimizer *optimizer;
    int64_t *image; /* pinned */
};

struct op_modulate {
    struct kernel_modulate_args args; /* all but the target; mean, rstd NULL: not kept */
    struct op_out out;
};

/* Without the parts of struct kernel_modulate_backward_args that are made at issue: the longest
 * lists must fit behind it. */
struct op_modulate_backward {
    int64_t rows;
    int64_t cols;
    struct kernel_view dz;
    struct kernel_view dx_out;
    struct kernel_view x_out;
    struct kernel_view y;
    struct kernel_view gate;
    struct kernel_view scale;
    const int32_t *rows_of;
    const float *weight;
    const float *bias;
    const float *mean;
    const float *rstd;
    struct kernel_view dx;
    struct kernel_view dy;
    /* Of `groups` rows, 0: of one for each token. */
    struct op_summed {
        struct kernel_view to;
        int64_t groups;
    } dgate, dscale, dshift;
    float *dweight;
    float *dbias;
    enum fp8pipe_norm norm;
    struct op_out out;
};

struct op {
    uint8_t kind;
    uint8_t flags;
    uint16_t lists_at; /* bytes from the op's start to its lists */
    uint8_t slots;
    uint8_t named;
    uint8_t order;
    uint8_t ended;
    void *event;
    int64_t enqueued_ns; /* CLOCK_MONOTONIC, 0 without a trace */
    char name[FP8PIPE_NAME_MAX + 1];
    union {
        struct op_copy copy;
        struct op_call call;
        struct op_host_call host_call;
        struct op_scaling scaling;
        struct op_quantize quantize;
        struct op_read read;
        struct op_gemm gemm;
        struct op_forward forward;
        struct op_dgrad dgrad;
        struct op_wgrad wgrad;
        struct op_tensor_call tensor_call;
        struct op_modulate modulate;
        struct op_modulate_backward modulate_backward;
        struct op_activation activation;
        struct op_prepare prepare;
        struct op_adamw adamw;
        struct op_gradient_norm gradient_norm;
        struct op_steps steps;
    } u;
};

static inline const fp8pipe_ticket *op_named(const struct op *op)
{
    return (const fp8pipe_ticket *)(const void *)((const char *)op + op->lists_at);
}

static inline const fp8pipe_ticket *op_order(const struct op *op)
{
    return op_named(op) + op->named;
}

static inline struct filling *const *op_ended(const struct op *op)
{
    return (struct filling *const *)(const void *)(op_order(op) + op->order);
}

/* What a call's function gets: `arg`, or the copy behind a payload of payload_bytes. */
static inline void *op_arg(const struct op *op, size_t payload_bytes, void *arg, size_t arg_bytes)
{
    size_t behind = (offsetof(struct op, u) + payload_bytes + 7) / 8 * 8;

    return arg_bytes == 0 ? arg : (char *)(uintptr_t)op + behind;
}

/* What logs call it: its name, or its kind. */
const char *op_label(const struct op *op);

#endif
