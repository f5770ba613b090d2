#include "optimizer.h"

#define OPTIMIZER_ALIGN 256

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

int64_t optimizer_tiles(const struct kernel_parameter *parameter)
{
    if (parameter->square) {
        return divide_up(parameter->rows, KERNEL_TILE_SIDE) *
               divide_up(parameter->cols, KERNEL_TILE_SIDE);
    }
    return divide_up(parameter->rows * parameter->cols, KERNEL_TILE_ELEMENTS);
}

/* Reserves room for an array behind `*end`; its address, or NULL without a base. */
static void *place(unsigned char *base, size_t *end, size_t count, size_t size)
{
    size_t at = *end;

    *end += (count * size + OPTIMIZER_ALIGN - 1) / OPTIMIZER_ALIGN * OPTIMIZER_ALIGN;
    return base == NULL ? NULL : base + at;
}

void optimizer_layout(const struct fp8pipe_optimizer *optimizer, struct optimizer_state *state,
                      unsigned char *data)
{
    size_t end = 0;

    state->data = data;
    state->parameters = place(data, &end, optimizer->parameters, sizeof(*state->parameters));
    state->tiles = place(data, &end, (size_t)optimizer->tiles, sizeof(*state->tiles));
    state->groups = place(data, &end, optimizer->groups, sizeof(*state->groups));
    state->steps = place(data, &end, 1, sizeof(*state->steps));
    state->scratch = place(data, &end, 1, sizeof(*state->scratch));
    state->image_bytes = end;
    state->own_amax = place(data, &end, optimizer->parameters, sizeof(*state->own_amax));
    state->partials = place(data, &end, (size_t)optimizer->tiles, sizeof(*state->partials));
    state->bytes = end;
}

/* Where the FP8 copies of a linear's weight are. */
static void bind_linear(const struct optimizer_linear *entry, struct kernel_parameter *parameter)
{
    const struct fp8pipe_linear *linear = entry->linear;
    const struct filling *filling = linear->current->filling;
    const struct fp8pipe_scaling *scaling = linear->scaling;
    const struct scaling_state *state = &scaling->state;

    parameter->row = filling->row;
    parameter->transposed = filling->transposed_data;
    parameter->row_stride = filling->row_stride;
    parameter->transposed_stride = filling->transposed_stride;
    parameter->scale_inv = filling->scale_inv;
    parameter->scale = &state->scale[(size_t)linear->slot_w * KERNEL_SCALE_STRIDE];
    parameter->has_scale = &state->has_scale[linear->slot_w];
    parameter->amax = &state->amax[linear->slot_w];
    parameter->extremes =
        state->extremes == NULL ? NULL : &state->extremes[2 * (size_t)linear->slot_w];
    parameter->scale_numerator =
        scaling_numerator(scaling->formats[linear->slot_w], scaling->margin);
}

/*
 * Before the first step: every version gets its copies, as a forward would make them, for a step
 * that is skipped leaves them as they are. What a failure leaves is what a forward would.
 */
static enum fp8pipe_status bind(struct issue *issue, struct fp8pipe_optimizer *optimizer)
{
    struct backend *backend = issue->backend;
    enum fp8pipe_status status = FP8PIPE_OK;

    for (uint32_t i = 0; i < optimizer->linear_count && status == FP8PIPE_OK; i++) {
        const struct optimizer_linear *entry = &optimizer->linears[i];
        const struct fp8pipe_matrix *weight = &entry->linear->current->weight;

        if (weight->rows > 0 && weight->cols > 0) {
            status = version_ready(issue, entry->linear, entry->linear->current, true);
            bind_linear(entry, &optimizer->table[entry->parameter]);
        }
    }
    if (status == FP8PIPE_OK && optimizer->linear_count > 0) {
        status =
            backend->ops->copy(backend, issue->stream, optimizer->state.parameters,
                               optimizer->table, optimizer->parameters * sizeof(*optimizer->table));
    }
    optimizer->bound = status == FP8PIPE_OK;
    return status;
}

static bool all_seen(struct fp8pipe_optimizer *optimizer, struct issue *issue)
{
    bool seen = true;

    for (uint32_t i = 0; i < optimizer->linear_count && seen; i++) {
        seen = scaling_slot_seen(optimizer->scaling, optimizer->linears[i].linear->slot_w, issue);
    }
    return seen;
}

enum fp8pipe_status optimizer_adamw(struct issue *issue, const struct op_adamw *op)
{
    struct fp8pipe_optimizer *optimizer = op->optimizer;
    const struct optimizer_state *state = &optimizer->state;
    struct backend *backend = issue->backend;
    struct kernel_adamw_args args = {
        .parameters = state->parameters,
        .tiles = state->tiles,
        .tile_count = optimizer->tiles,
        .groups = state->groups,
        .lr = op->lr,
        .lr_device = op->lr_device,
        .gradient_scale = op->gradient_scale,
        .skip_if = op->skip_if,
        .steps = state->steps,
        .scratch = state->scratch,
    };
    enum fp8pipe_status status = optimizer->bound ? FP8PIPE_OK : bind(issue, optimizer);

    if (status != FP8PIPE_OK || all_seen(optimizer, issue)) {
        return status != FP8PIPE_OK ? status : backend->ops->adamw(backend, issue->stream, &args);
    }
    args.own_amax = state->own_amax;
    status = backend->ops->fill(backend, issue->stream, args.own_amax, 0,
                                optimizer->parameters * sizeof(*args.own_amax));
    if (status == FP8PIPE_OK) {
        status = backend->ops->adamw(backend, issue->stream, &args);
    }
    if (status == FP8PIPE_OK) {
        args.first = 1;
        status = backend->ops->adamw(backend, issue->stream, &args);
    }
    return status;
}

enum fp8pipe_status optimizer_gradient_norm(struct issue *issue, const struct op_gradient_norm *op)
{
    const struct fp8pipe_optimizer *optimizer = op->optimizer;
    const struct optimizer_state *state = &optimizer->state;
    struct kernel_gradient_norm_args args = {
        .parameters = state->parameters,
        .tiles = state->tiles,
        .tile_count = optimizer->tiles,
        .partials = state->partials,
        .scratch = state->scratch,
        .max_norm = op->max_norm,
        .gradient_scale = op->gradient_scale,
        .norm = op->norm,
        .clip = op->clip,
        .nonfinite = op->nonfinite,
    };

    return issue->backend->ops->gradient_norm(issue->backend, issue->stream, &args);
}

enum fp8pipe_status optimizer_steps_read(struct issue *issue, const struct op_steps *op)
{
    return issue->backend->ops->copy(issue->backend, issue->stream, op->image,
                                     op->optimizer->state.steps, sizeof(*op->image));
}

enum fp8pipe_status optimizer_steps_write(struct issue *issue, const struct op_steps *op)
{
    return issue->backend->ops->copy(issue->backend, issue->stream, op->optimizer->state.steps,
                                     op->image, sizeof(*op->image));
}
