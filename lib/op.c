#include "op.h"

const char *op_label(const struct op *op)
{
    static const char *const kinds[] = {
        [OP_COPY] = "copy",
        [OP_CALL] = "call",
        [OP_HOST_CALL] = "host_call",
        [OP_UPDATE] = "scaling_update",
        [OP_SKIP] = "scaling_skip",
        [OP_STATE_READ] = "scaling_save",
        [OP_STATE_WRITE] = "scaling_load",
        [OP_SLOT_READ] = "scaling_slot_get",
        [OP_QUANTIZE] = "tensor_quantize",
        [OP_READ] = "tensor_read",
        [OP_GEMM] = "gemm",
        [OP_FORWARD] = "linear_forward",
        [OP_DGRAD] = "linear_dgrad",
        [OP_WGRAD] = "linear_wgrad",
        [OP_TENSOR_CALL] = "tensor_call",
        [OP_ACTIVATION] = "activation",
        [OP_PREPARE] = "linear_prepare",
        [OP_ADAMW] = "optimizer_adamw",
        [OP_GRADIENT_NORM] = "optimizer_gradient_norm",
        [OP_STEPS_READ] = "optimizer_steps_get",
        [OP_STEPS_WRITE] = "optimizer_steps_set",
    };

    return op->name[0] != '\0' ? op->name : kinds[op->kind];
}
