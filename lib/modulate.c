#include "modulate.h"

#include "target.h"

enum fp8pipe_status modulate_run(struct issue *issue, const struct op *op)
{
    const struct op_modulate *modulate = &op->u.modulate;
    struct kernel_modulate_args args = modulate->args;
    bool empty = args.rows == 0 || args.cols == 0;
    float *stats = NULL;
    enum fp8pipe_status status =
        target_begin(issue, &modulate->out, op->flags, args.rows, args.cols, &args.target);

    /* A place for the statistics that the caller does not keep. */
    if (status == FP8PIPE_OK && !empty && args.norm != FP8PIPE_NORM_NONE &&
        (args.mean == NULL || args.rstd == NULL)) {
        status = issue_alloc(issue, (size_t)args.rows * 2 * sizeof(float), (void **)&stats);
        args.mean = args.mean != NULL ? args.mean : stats;
        args.rstd = args.rstd != NULL ? args.rstd : stats + args.rows;
    }
    if (status == FP8PIPE_OK && !empty) {
        status = issue->backend->ops->modulate(issue->backend, issue->stream, &args);
    }
    return status != FP8PIPE_OK ? status
                                : target_end(issue, &modulate->out, op->flags, &args.target);
}

/* ---- Backward ------------------------------------------------------------------------------ */

static int64_t chunks_of(int64_t rows)
{
    return (rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
}

/* Rows of the partial sums of an output; 0: it is written for each token, or is absent. */
static int64_t partial_rows(const struct op_summed *summed, int64_t rows)
{
    return summed->to.data != NULL && summed->groups > 0 ? chunks_of(rows) + summed->groups : 0;
}

/* The next `rows` rows of temporary memory; NULL for none. */
static float *take(float **room, int64_t rows, int64_t cols)
{
    float *taken = rows > 0 ? *room : NULL;

    *room += rows * cols;
    return taken;
}

/* Where the kernel puts what is summed over tokens afterwards. All in one block. */
static enum fp8pipe_status alloc_partials(struct issue *issue,
                                          const struct op_modulate_backward *backward,
                                          struct kernel_modulate_backward_args *args)
{
    int64_t gate = partial_rows(&backward->dgate, args->rows);
    int64_t scale = partial_rows(&backward->dscale, args->rows);
    int64_t shift = partial_rows(&backward->dshift, args->rows);
    int64_t weight = backward->dweight != NULL ? chunks_of(args->rows) : 0;
    int64_t bias = backward->dbias != NULL ? chunks_of(args->rows) : 0;
    int64_t means = args->norm != FP8PIPE_NORM_NONE ? 2 * args->rows : 0;
    int64_t floats = means + (gate + scale + shift + weight + bias) * args->cols;
    float *room = NULL;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (floats > 0) {
        status = issue_alloc(issue, (size_t)floats * sizeof(float), (void **)&room);
    }
    if (status != FP8PIPE_OK || floats == 0) {
        return status;
    }
    args->row_means = take(&room, means, 1);
    args->gate_partials = take(&room, gate, args->cols);
    args->scale_partials = take(&room, scale, args->cols);
    args->shift_partials = take(&room, shift, args->cols);
    args->weight_partials = take(&room, weight, args->cols);
    args->bias_partials = take(&room, bias, args->cols);
    return FP8PIPE_OK;
}

/* An output by group, of its partial sums. */
static enum fp8pipe_status finish_groups(struct issue *issue,
                                         const struct op_modulate_backward *backward,
                                         const struct op_summed *summed, const float *partials)
{
    struct kernel_group_sums_args args = {
        .partials = partials,
        .rows_of = backward->rows_of,
        .rows = backward->rows,
        .groups = summed->groups,
        .cols = backward->cols,
        .out = summed->to,
    };

    return summed->to.data == NULL || summed->groups == 0 || backward->cols == 0
               ? FP8PIPE_OK
               : issue->backend->ops->group_sums(issue->backend, issue->stream, &args);
}

static enum fp8pipe_status finish(struct issue *issue, const struct op *op,
                                  const struct kernel_modulate_backward_args *args)
{
    const struct op_modulate_backward *backward = &op->u.modulate_backward;
    bool accumulate = (op->flags & OP_ACCUMULATE) != 0;
    enum fp8pipe_status status =
        finish_groups(issue, backward, &backward->dgate, args->gate_partials);

    if (status == FP8PIPE_OK) {
        status = finish_groups(issue, backward, &backward->dscale, args->scale_partials);
    }
    if (status == FP8PIPE_OK) {
        status = finish_groups(issue, backward, &backward->dshift, args->shift_partials);
    }
    if (status == FP8PIPE_OK && backward->dweight != NULL) {
        status = target_sums(issue, args->weight_partials, args->rows, args->cols,
                             backward->dweight, accumulate);
    }
    if (status == FP8PIPE_OK && backward->dbias != NULL) {
        status = target_sums(issue, args->bias_partials, args->rows, args->cols, backward->dbias,
                             accumulate);
    }
    return status != FP8PIPE_OK ? status
                                : target_end(issue, &backward->out, op->flags, &args->target);
}

/* The view of an output that is written for each token. */
static struct kernel_view by_token(const struct op_summed *summed)
{
    return summed->groups == 0 ? summed->to : (struct kernel_view){NULL, 0, FP8PIPE_FP32};
}

enum fp8pipe_status modulate_run_backward(struct issue *issue, const struct op *op)
{
    const struct op_modulate_backward *backward = &op->u.modulate_backward;
    struct kernel_modulate_backward_args args = {
        .rows = backward->rows,
        .cols = backward->cols,
        .dz = backward->dz,
        .dx_out = backward->dx_out,
        .x_out = backward->x_out,
        .y = backward->y,
        .gate = backward->gate,
        .scale = backward->scale,
        .rows_of = backward->rows_of,
        .norm = backward->norm,
        .weight = backward->weight,
        .bias = backward->bias,
        .mean = backward->mean,
        .rstd = backward->rstd,
        .dx = backward->dx,
        .dy = backward->dy,
        .dgate = by_token(&backward->dgate),
        .dscale = by_token(&backward->dscale),
        .dshift = by_token(&backward->dshift),
    };
    bool empty = args.rows == 0 || args.cols == 0;
    enum fp8pipe_status status =
        target_begin(issue, &backward->out, op->flags, args.rows, args.cols, &args.target);

    if (status == FP8PIPE_OK && !empty) {
        status = alloc_partials(issue, backward, &args);
    }
    if (status == FP8PIPE_OK && !empty) {
        status = issue->backend->ops->modulate_backward(issue->backend, issue->stream, &args);
    }
    return status != FP8PIPE_OK ? status : finish(issue, op, &args);
}
