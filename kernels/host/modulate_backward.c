#include "kernels/host/modulate.h"

#include <stddef.h>
#include <string.h>

/* What is summed over tokens. The first three by the row of gate, scale and shift. */
enum sum { SUM_GATE, SUM_SCALE, SUM_SHIFT, SUM_WEIGHT, SUM_BIAS, SUM_RESULT, SUMS };
#define SUMS_GROUPED 3

static int64_t piece_cols(const struct kernel_modulate_backward_args *args, int64_t col)
{
    return modulate_segment_cols(col / MODULATE_SEGMENT, args->cols);
}

/* Gradients of a piece of a row. */
struct piece {
    float sums[SUMS][MODULATE_SEGMENT]; /* what each sum adds */
    float n[MODULATE_SEGMENT];          /* normalised, before weight */
    float dn[MODULATE_SEGMENT];         /* its gradient */
};

/* All but what needs the row's sums: n, dn, and the terms of SCALE, SHIFT, WEIGHT and BIAS. */
static void piece_begin(const struct kernel_modulate_backward_args *args, int64_t row, int64_t col,
                        struct piece *piece)
{
    int64_t count = piece_cols(args, col), r = row_of(args->rows_of, row);
    float *dz = piece->sums[SUM_SHIFT], *g = piece->sums[SUM_BIAS];
    float *after = piece->sums[SUM_SCALE];
    float terms[MODULATE_SEGMENT];

    if (!view_load(dz, &args->dz, row, col, count)) {
        memset(dz, 0, sizeof(piece->sums[SUM_SHIFT]));
    }
    view_load(piece->n, &args->x_out, row, col, count);
    if (args->norm != FP8PIPE_NORM_NONE) {
        float mean = args->norm == FP8PIPE_NORM_LAYER ? args->mean[row] : 0.0f;

        VECTOR_LOOP(i, count, piece->n[i] = (piece->n[i] - mean) * args->rstd[row]);
    }
    memcpy(after, piece->n, (size_t)count * sizeof(float));
    memcpy(g, dz, (size_t)count * sizeof(float));
    if (view_load(terms, &args->scale, r, col, count)) {
        VECTOR_LOOP(i, count, g[i] = g[i] * (1.0f + terms[i]));
    }
    memcpy(piece->dn, g, (size_t)count * sizeof(float));
    if (args->weight != NULL) {
        VECTOR_LOOP(i, count, after[i] = after[i] * args->weight[col + i]);
        VECTOR_LOOP(i, count, piece->dn[i] = piece->dn[i] * args->weight[col + i]);
    }
    if (args->bias != NULL) {
        VECTOR_LOOP(i, count, after[i] = after[i] + args->bias[col + i]);
    }
    VECTOR_LOOP(i, count, after[i] = dz[i] * after[i]);
    VECTOR_LOOP(i, count, piece->sums[SUM_WEIGHT][i] = g[i] * piece->n[i]);
}

static void row_sums(const struct kernel_modulate_backward_args *args, int64_t row)
{
    float dn = 0.0f, dnn = 0.0f;
    struct piece piece;

    for (int64_t col = 0; col < args->cols; col += MODULATE_SEGMENT) {
        int64_t count = piece_cols(args, col);

        piece_begin(args, row, col, &piece);
        dn += modulate_segment_sum(piece.dn, count);
        VECTOR_LOOP(i, count, piece.dn[i] = piece.dn[i] * piece.n[i]);
        dnn += modulate_segment_sum(piece.dn, count);
    }
    args->row_sums[row] = dn / (float)args->cols;
    args->row_sums[args->rows + row] = dnn / (float)args->cols;
}

/* D, dx, dy; the terms of GATE and RESULT. `write`: outputs by token, too. */
static void piece_end(const struct kernel_modulate_backward_args *args, int64_t row, int64_t col,
                      struct piece *piece, bool write, struct result *result)
{
    int64_t count = piece_cols(args, col), r = row_of(args->rows_of, row);
    bool normalised = args->norm != FP8PIPE_NORM_NONE;
    float mean_dn = normalised ? args->row_sums[row] : 0.0f;
    float mean_dnn = normalised ? args->row_sums[args->rows + row] : 0.0f;
    float rstd = normalised ? args->rstd[row] : 0.0f;
    float *dy = piece->sums[SUM_RESULT], *gate = piece->sums[SUM_GATE];
    float terms[MODULATE_SEGMENT];

    VECTOR_LOOP(i, count, {
        piece->dn[i] = modulate_norm_backward(args->norm, piece->dn[i], piece->n[i], rstd, mean_dn,
                                              mean_dnn);
    });
    if (view_load(terms, &args->dx_out, row, col, count)) {
        VECTOR_LOOP(i, count, piece->dn[i] = piece->dn[i] + terms[i]);
    }
    memcpy(dy, piece->dn, (size_t)count * sizeof(float));
    if (view_load(terms, &args->gate, r, col, count)) {
        VECTOR_LOOP(i, count, dy[i] = terms[i] * dy[i]);
    }
    memset(gate, 0, sizeof(piece->sums[SUM_GATE]));
    if (view_load(terms, &args->y, row, col, count)) {
        VECTOR_LOOP(i, count, gate[i] = piece->dn[i] * terms[i]);
    }
    if (write) {
        view_store(&args->dx, row, col, piece->dn, count);
        view_store(&args->dy, row, col, dy, count);
        view_store(&args->dgate, row, col, gate, count);
        view_store(&args->dscale, row, col, piece->sums[SUM_SCALE], count);
        view_store(&args->dshift, row, col, piece->sums[SUM_SHIFT], count);
    }
    if (args->y.data == NULL) {
        memcpy(dy, piece->dn, (size_t)count * sizeof(float));
    }
    if (write) {
        result_row(result, row, col, dy, count);
    }
}

/* The distinct rows that the tokens of a chunk take, ascending. */
static int64_t chunk_groups(const struct kernel_modulate_backward_args *args, int64_t chunk,
                            int32_t groups[KERNEL_SUM_ROWS])
{
    int64_t count = 0;

    if (args->rows_of == NULL) {
        groups[0] = 0;
        return 1;
    }
    for (int64_t row = chunk; row < args->rows && row < chunk + KERNEL_SUM_ROWS; row++) {
        if (row == chunk || args->rows_of[row] != args->rows_of[row - 1]) {
            groups[count++] = args->rows_of[row];
        }
    }
    return count;
}

/* One chunk and segment. Once for each group, whose tokens alone are summed; the last time writes,
 * as outputs may be where the inputs were. */
static void chunk_run(const struct kernel_modulate_backward_args *args, int64_t chunk, int64_t col,
                      float *const partials[SUMS], struct result *result)
{
    int64_t count = piece_cols(args, col), index = chunk / KERNEL_SUM_ROWS;
    int32_t groups[KERNEL_SUM_ROWS];
    int64_t group_count = chunk_groups(args, chunk, groups);
    struct result_sums sums;
    struct piece piece;

    for (int64_t k = 0; k < group_count; k++) {
        bool last = k == group_count - 1;
        /* The pass over rows for a sum is repeated rather than all sums kept at once. */
        for (int sum = 0; sum < SUMS; sum++) {
            bool grouped = sum < SUMS_GROUPED;
            bool write = last && sum == SUMS - 1;
            bool wanted = partials[sum] != NULL && (grouped || last);

            for (int64_t i = 0; (wanted || write) && i < KERNEL_SUM_ROWS; i++) {
                int64_t row = chunk + i;
                bool here = row < args->rows;
                bool adds = here && (!grouped || args->rows_of == NULL ||
                                     args->rows_of[row] == groups[k]);

                if (here && (adds || write)) {
                    piece_begin(args, row, col, &piece);
                    piece_end(args, row, col, &piece, write, result);
                }
                if (wanted) {
                    result_sums_add(&sums, i, adds ? piece.sums[sum] : NULL, count);
                }
            }
            if (wanted) {
                memcpy(partials[sum] + (index + (grouped ? groups[k] : 0)) * args->cols + col,
                       sums.total, (size_t)count * sizeof(float));
            }
        }
    }
}

void kernel_modulate_backward_host(const struct kernel_modulate_backward_args *args)
{
    const struct fp8pipe_quantize_target *target = &args->target;
    bool quantizes = target->scale_inv != NULL;
    float *const partials[SUMS] = {
        args->gate_partials,   args->scale_partials, args->shift_partials,
        args->weight_partials, args->bias_partials,  quantizes ? target->partials : NULL};
    struct result result;

    for (int64_t row = 0; args->norm != FP8PIPE_NORM_NONE && row < args->rows; row++) {
        row_sums(args, row);
    }
    if (quantizes && target->own_amax != NULL && *target->has_scale == 0) {
        struct piece piece;
        uint32_t largest = 0;

        for (int64_t row = 0; row < args->rows; row++) {
            for (int64_t col = 0; col < args->cols; col += MODULATE_SEGMENT) {
                piece_begin(args, row, col, &piece);
                piece_end(args, row, col, &piece, false, NULL);
                largest = result_amax(largest, piece.sums[SUM_RESULT], piece_cols(args, col));
            }
        }
        result_amax_fold(target->own_amax, largest);
    }
    result_begin(&result, target);
    for (int64_t chunk = 0; chunk < args->rows; chunk += KERNEL_SUM_ROWS) {
        for (int64_t col = 0; col < args->cols; col += MODULATE_SEGMENT) {
            chunk_run(args, chunk, col, partials, &result);
        }
    }
    result_end(&result);
}

/* The first token from which on rows_of is at least r. */
static int64_t first_token(const struct kernel_group_sums_args *args, int64_t r)
{
    int64_t low = 0, high = args->rows;

    if (args->rows_of == NULL) {
        return r <= 0 ? 0 : args->rows;
    }
    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (args->rows_of[middle] < r) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void kernel_group_sums_host(const struct kernel_group_sums_args *args)
{
    for (int64_t r = 0; r < args->groups; r++) {
        int64_t from = first_token(args, r), to = first_token(args, r + 1);

        for (int64_t col = 0; col < args->cols; col += MODULATE_SEGMENT) {
            int64_t count = modulate_segment_cols(col / MODULATE_SEGMENT, args->cols);
            float sums[MODULATE_SEGMENT] = {0};

            for (int64_t b = from / KERNEL_SUM_ROWS; from < to && b * KERNEL_SUM_ROWS < to; b++) {
                const float *partials = args->partials + (b + r) * args->cols + col;

                VECTOR_LOOP(i, count, sums[i] += partials[i]);
            }
            view_store(&args->out, r, col, sums, count);
        }
    }
}
