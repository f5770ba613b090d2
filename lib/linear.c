#include "linear.h"

#include <stdlib.h>
#include <string.h>

#include "epilogue.h"
#include "quantize.h"

/* Ends a version whose filling has no reference and no memory any more. */
static void version_end(struct filling *filling, struct backend *backend)
{
    struct version *version = filling->owner;

    if (version->row_event != NULL) {
        backend->ops->event_destroy(backend, version->row_event);
    }
    if (version->transposed_event != NULL) {
        backend->ops->event_destroy(backend, version->transposed_event);
    }
    pthread_mutex_destroy(&version->lock);
    filling_put(filling);
    free(version);
}

struct version *version_new(struct filling_pool *pool, const struct fp8pipe_matrix *weight,
                            fp8pipe_ticket written)
{
    struct version *version = aligned_alloc(64, sizeof(*version));

    if (version == NULL) {
        return NULL;
    }
    memset(version, 0, sizeof(*version));
    version->filling = filling_get(pool, false);
    if (version->filling == NULL) {
        free(version);
        return NULL;
    }
    version->filling->owner = version;
    version->filling->ended = version_end;
    if (weight != NULL) {
        version->weight = *weight;
    }
    version->written = written;
    pthread_mutex_init(&version->lock, NULL);
    return version;
}

static enum fp8pipe_status mark(struct issue *issue, struct backend_event **event)
{
    struct backend *backend = issue->backend;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (*event == NULL) {
        status = backend->ops->event_create(backend, event);
    }
    return status != FP8PIPE_OK ? status
                                : backend->ops->event_record(backend, *event, issue->stream);
}

/* Quantizes the version's weight. Under its lock. Leaves nothing behind when it fails. */
static enum fp8pipe_status version_make(struct issue *issue, const struct fp8pipe_linear *linear,
                                        struct version *version, bool transposed)
{
    struct filling *filling = version->filling;
    struct quantize_request request = {
        .scaling = linear->scaling,
        .slot = linear->slot_w,
        .fold = true,
        .x = version->weight,
        .kept = filling,
        .row = true,
        .transposed = transposed,
    };
    enum fp8pipe_status status;

    filling_shape(filling, version->weight.rows, version->weight.cols,
                  linear->scaling->formats[linear->slot_w], true, transposed);
    status = quantize_run(issue, &request, NULL);
    if (status == FP8PIPE_OK) {
        status = mark(issue, &version->row_event);
    }
    if (status != FP8PIPE_OK) {
        if (filling->block[0].data != NULL) {
            issue->backend->ops->free(issue->backend, issue->stream, filling->block[0].data,
                                      filling->block[0].bytes);
            filling->block[0].data = NULL;
        }
        return status;
    }
    version->row_made = true;
    version->row_lane = issue->lane;
    return FP8PIPE_OK;
}

enum fp8pipe_status version_ready(struct issue *issue, const struct fp8pipe_linear *linear,
                                  struct version *version, bool transposed)
{
    struct backend *backend = issue->backend;
    enum fp8pipe_status status = FP8PIPE_OK;

    pthread_mutex_lock(&version->lock);
    if (!version->row_made) {
        status = version_make(issue, linear, version, transposed);
    } else if (version->row_lane != issue->lane) {
        status = backend->ops->stream_wait(backend, issue->stream, version->row_event);
    }
    if (status != FP8PIPE_OK || !transposed) {
        goto unlock;
    }
    if (version->filling->transposed_data == NULL) {
        status = filling_add_transposed(version->filling, issue);
    } else if (version->transposed_made && version->transposed_lane != issue->lane) {
        status = backend->ops->stream_wait(backend, issue->stream, version->transposed_event);
        goto unlock;
    } else {
        goto unlock;
    }
    if (status == FP8PIPE_OK) {
        status = mark(issue, &version->transposed_event);
    }
    if (status == FP8PIPE_OK) {
        version->transposed_made = true;
        version->transposed_lane = issue->lane;
    } else if (version->filling->block[1].data != NULL) {
        backend->ops->free(backend, issue->stream, version->filling->block[1].data,
                           version->filling->block[1].bytes);
        version->filling->block[1].data = NULL;
        version->filling->transposed_data = NULL;
        version->filling->transposed = false;
    }
unlock:
    pthread_mutex_unlock(&version->lock);
    return status;
}

enum fp8pipe_status linear_prepare(struct issue *issue, const struct op *op)
{
    const struct op_prepare *prepare = &op->u.prepare;
    const struct fp8pipe_matrix *weight = &prepare->version->weight;

    /* An empty weight's bytes are never asked for. */
    return weight->rows == 0 || weight->cols == 0
               ? FP8PIPE_OK
               : version_ready(issue, prepare->linear, prepare->version, prepare->transposed);
}

static enum fp8pipe_status forward_gemm(struct issue *issue, const struct gemm_request *request,
                                        const struct op *op)
{
    return (op->flags & OP_EPILOGUE) != 0
               ? epilogue_run(issue, request, &op->u.forward.epilogue, op->flags)
               : gemm_run(issue, request);
}

enum fp8pipe_status linear_forward(struct issue *issue, const struct op *op)
{
    const struct op_forward *forward = &op->u.forward;
    const struct fp8pipe_linear *linear = forward->linear;
    struct gemm_request request = {
        .k = linear->in_features,
        .d = forward->y,
        .bias = linear->bias,
        .fast = (op->flags & OP_FAST) != 0,
    };
    struct quantize_request quantize = {
        .scaling = linear->scaling,
        .slot = linear->slot_x,
        .fold = (op->flags & OP_FOLD) != 0,
        .x = forward->x,
        .kept = forward->kept,
        .row = true,
        .transposed = forward->kept != NULL,
    };
    bool empty = request.d.rows == 0 || request.d.cols == 0 || request.k == 0;
    enum fp8pipe_status status;
    struct quantized x;

    if (linear->scaling == NULL) {
        request.a = gemm_operand_of(&forward->x, false);
        request.b = gemm_operand_of(&forward->version->weight, false);
        return forward_gemm(issue, &request, op);
    }
    if (!empty) {
        status = version_ready(issue, linear, forward->version, (op->flags & OP_KEEPS) != 0);
        if (status != FP8PIPE_OK) {
            return status;
        }
        request.b = quantize_row_of(forward->version->filling);
    }
    if (forward->x_filling != NULL) {
        request.a = quantize_row_of(forward->x_filling);
    } else if (!empty || forward->kept != NULL) {
        status = quantize_run(issue, &quantize, &x);
        if (status != FP8PIPE_OK) {
            return status;
        }
        request.a = x.row;
    }
    return forward_gemm(issue, &request, op);
}

enum fp8pipe_status linear_dgrad(struct issue *issue, const struct op *op)
{
    const struct op_dgrad *dgrad = &op->u.dgrad;
    const struct fp8pipe_linear *linear = dgrad->linear;
    struct gemm_request request = {
        .k = linear->out_features,
        .d = dgrad->dx,
        .fast = (op->flags & OP_FAST) != 0,
    };
    bool sums_accumulate = (op->flags & OP_SUMS_ACCUMULATE) != 0;
    struct quantize_request quantize = {
        .scaling = linear->scaling,
        .slot = linear->slot_dy,
        .fold = (op->flags & OP_FOLD) != 0,
        .x = dgrad->dy,
        .kept = dgrad->kept,
        .row = true,
        .transposed = dgrad->kept != NULL,
        .sums = dgrad->sums,
        .sums_accumulate = sums_accumulate,
    };
    bool empty = request.d.rows == 0 || request.d.cols == 0 || request.k == 0;
    enum fp8pipe_status status;
    struct quantized dy;

    if ((op->flags & OP_EPILOGUE) != 0) {
        request.residual = dgrad->residual;
    }
    if (linear->scaling == NULL) {
        request.a = gemm_operand_of(&dgrad->dy, false);
        request.b = gemm_operand_of(&dgrad->version->weight, true);
        status = gemm_run(issue, &request);
        if (status == FP8PIPE_OK && dgrad->sums != NULL) {
            status = quantize_sums(issue, &dgrad->dy, dgrad->sums, sums_accumulate);
        }
        return status;
    }
    if (!empty) {
        status = version_ready(issue, linear, dgrad->version, true);
        if (status != FP8PIPE_OK) {
            return status;
        }
        request.b = quantize_transposed_of(dgrad->version->filling);
    }
    if (dgrad->dy_filling != NULL) {
        request.a = quantize_row_of(dgrad->dy_filling);
    } else if (!empty || dgrad->kept != NULL || dgrad->sums != NULL) {
        status = quantize_run(issue, &quantize, &dy);
        if (status != FP8PIPE_OK) {
            return status;
        }
        request.a = dy.row;
    }
    return gemm_run(issue, &request);
}

enum fp8pipe_status linear_wgrad(struct issue *issue, const struct op *op)
{
    const struct op_wgrad *wgrad = &op->u.wgrad;
    const struct fp8pipe_linear *linear = wgrad->linear;
    bool quantized = linear->scaling != NULL;
    struct gemm_request request = {
        .k = quantized ? wgrad->x_filling->rows : wgrad->dy.rows,
        .d = wgrad->dw,
        .accumulate = (op->flags & OP_ACCUMULATE) != 0,
        .fast = (op->flags & OP_FAST) != 0,
    };
    bool sums_accumulate = (op->flags & OP_SUMS_ACCUMULATE) != 0;
    struct quantize_request quantize = {
        .scaling = linear->scaling,
        .slot = linear->slot_dy,
        .fold = (op->flags & OP_FOLD) != 0,
        .x = wgrad->dy,
        .transposed = true,
        .sums = wgrad->sums,
        .sums_accumulate = sums_accumulate,
    };
    enum fp8pipe_status status;
    struct quantized dy;

    if (!quantized) {
        request.a = gemm_operand_of(&wgrad->dy, true);
        request.b = gemm_operand_of(&wgrad->x, true);
        status = gemm_run(issue, &request);
        if (status == FP8PIPE_OK && wgrad->sums != NULL) {
            status = quantize_sums(issue, &wgrad->dy, wgrad->sums, sums_accumulate);
        }
        return status;
    }
    request.b = quantize_transposed_of(wgrad->x_filling);
    if (wgrad->dy_filling != NULL) {
        request.a = quantize_transposed_of(wgrad->dy_filling);
        if (wgrad->sums != NULL) {
            status = quantize_sums(issue, &wgrad->dy, wgrad->sums, sums_accumulate);
            if (status != FP8PIPE_OK) {
                return status;
            }
        }
    } else {
        status = quantize_run(issue, &quantize, &dy);
        if (status != FP8PIPE_OK) {
            return status;
        }
        request.a = dy.transposed;
    }
    return gemm_run(issue, &request);
}
