#include "kernels/host/modulate.h"

#include <stddef.h>
#include <string.h>

/* What is summed over tokens. The first three by the row of gate, scale and shift. */
enum sum { SUM_GATE, SUM_SCALE, SUM_SHIFT, SUM_WEIGHT, SUM_BIAS, SUMS };
#define SUMS_GROUPED 3

/* Gradients of a piece of a row. */
struct piece {
    float terms[SUMS][MODULATE_SEGMENT]; /* of each sum */
    float n[MODULATE_SEGMENT];           /* normalised, before weight */
    float d[MODULATE_SEGMENT];           /* the gradient of n, then D */
    float result[MODULATE_SEGMENT];      /* dy, or D without y */
};

/* All but what needs the row's sums: n, its gradient, the terms of SCALE, SHIFT, WEIGHT, BIAS. */
static void piece_begin(const struct kernel_modulate_backward_args *args,
                        const struct modulate_place *at, struct piece *piece)
{
    const float *weight = args->weight != NULL ? args->weight + at->col : NULL;
    const float *bias = args->bias != NULL ? args->bias + at->col : NULL;
    float *dz = piece->terms[SUM_SHIFT], *g = piece->terms[SUM_BIAS];
    float *after = piece->terms[SUM_SCALE];
    float factor[MODULATE_SEGMENT];
    int64_t count = at->count;

    if (!view_load(dz, &args->dz, at->row, at)) {
        memset(dz, 0, sizeof(piece->terms[SUM_SHIFT]));
    }
    view_load(piece->n, &args->x_out, at->row, at);
    if (args->norm != FP8PIPE_NORM_NONE) {
        float mean = args->norm == FP8PIPE_NORM_LAYER ? args->mean[at->row] : 0.0f;
        float rstd = args->rstd[at->row];

        VECTOR_LOOP(i, count, piece->n[i] = (piece->n[i] - mean) * rstd);
    }
    memcpy(after, piece->n, (size_t)count * sizeof(float));
    memcpy(g, dz, (size_t)count * sizeof(float));
    if (view_load(factor, &args->scale, row_of(args->rows_of, at->row), at)) {
        VECTOR_LOOP(i, count, g[i] = g[i] * (1.0f + factor[i]));
    }
    memcpy(piece->d, g, (size_t)count * sizeof(float));
    if (weight != NULL) {
        VECTOR_LOOP(i, count, after[i] = after[i] * weight[i]);
        VECTOR_LOOP(i, count, piece->d[i] = piece->d[i] * weight[i]);
    }
    if (bias != NULL) {
        VECTOR_LOOP(i, count, after[i] = after[i] + bias[i]);
    }
    VECTOR_LOOP(i, count, after[i] = dz[i] * after[i]);
    VECTOR_LOOP(i, count, piece->terms[SUM_WEIGHT][i] = g[i] * piece->n[i]);
}

static void row_means(const struct kernel_modulate_backward_args *args, int64_t row)
{
    float dn = 0.0f, dnn = 0.0f;
    struct piece piece;

    for (int64_t k = 0; k * MODULATE_SEGMENT < args->cols; k++) {
        struct modulate_place at = {row, k * MODULATE_SEGMENT,
                                    modulate_segment_cols(k, args->cols)};

        piece_begin(args, &at, &piece);
        dn += modulate_segment_sum(piece.d, at.count);
        VECTOR_LOOP(i, at.count, piece.d[i] = piece.d[i] * piece.n[i]);
        dnn += modulate_segment_sum(piece.d, at.count);
    }
    args->row_means[row] = dn / (float)args->cols;
    args->row_means[args->rows + row] = dnn / (float)args->cols;
}

/* D, the terms of GATE, the result; after piece_begin. */
static void piece_end(const struct kernel_modulate_backward_args *args,
                      const struct modulate_place *at, struct piece *piece)
{
    enum fp8pipe_norm norm = args->norm;
    bool normalised = norm != FP8PIPE_NORM_NONE;
    float mean_dn = normalised ? args->row_means[at->row] : 0.0f;
    float mean_dnn = normalised ? args->row_means[args->rows + at->row] : 0.0f;
    float rstd = normalised ? args->rstd[at->row] : 0.0f;
    float *d = piece->d, *gate = piece->terms[SUM_GATE], *result = piece->result;
    float factor[MODULATE_SEGMENT];
    int64_t count = at->count;

    VECTOR_LOOP(i, count, {
        d[i] = modulate_norm_backward(norm, d[i], piece->n[i], rstd, mean_dn, mean_dnn);
    });
    if (view_load(factor, &args->dx_out, at->row, at)) {
        VECTOR_LOOP(i, count, d[i] = d[i] + factor[i]);
    }
    memcpy(result, d, (size_t)count * sizeof(float));
    if (view_load(factor, &args->gate, row_of(args->rows_of, at->row), at)) {
        VECTOR_LOOP(i, count, result[i] = factor[i] * result[i]);
    }
    if (view_load(factor, &args->y, at->row, at)) {
        VECTOR_LOOP(i, count, gate[i] = d[i] * factor[i]);
    }
}

/* ---- Sums over tokens ---------------------------------------------------------------------- */

/*
 * The sum over the KERNEL_SUM_ROWS rows of a chunk: 4 rows in ascending order, four such sums as a
 * tree, four of these in ascending order. Every row is added; NULL: it counts as zeros.
 */
struct chunk_sum {
    float four[MODULATE_SEGMENT];
    float half[2][MODULATE_SEGMENT];
    float total[MODULATE_SEGMENT];
};

static void put_or_add(float *restrict to, const float *restrict from, int64_t count, bool first)
{
    if (first) {
        memcpy(to, from, (size_t)count * sizeof(float));
    } else {
        VECTOR_LOOP(i, count, to[i] += from[i]);
    }
}

static void chunk_sum_add(struct chunk_sum *sum, int64_t row, const float *terms, int64_t count)
{
    static const float zeros[MODULATE_SEGMENT];
    int64_t four = row / 4 % 4;

    put_or_add(sum->four, terms != NULL ? terms : zeros, count, row % 4 == 0);
    if (row % 4 == 3) {
        put_or_add(sum->half[four / 2], sum->four, count, four % 2 == 0);
    }
    if (row % 16 == 15) {
        put_or_add(sum->half[0], sum->half[1], count, false);
        put_or_add(sum->total, sum->half[0], count, row == 15);
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

/* One sum of a chunk and segment; group NULL: over all tokens, else over those of *group. */
static void chunk_run(const struct kernel_modulate_backward_args *args, int64_t chunk, int64_t k,
                      enum sum which, const int32_t *group, float *partials)
{
    struct modulate_place at = {chunk, k * MODULATE_SEGMENT, modulate_segment_cols(k, args->cols)};
    struct chunk_sum sum;
    struct piece piece;

    for (int64_t i = 0; i < KERNEL_SUM_ROWS; i++) {
        bool adds;

        at.row = chunk + i;
        adds = at.row < args->rows &&
               (group == NULL || args->rows_of == NULL || args->rows_of[at.row] == *group);
        if (adds) {
            piece_begin(args, &at, &piece);
            piece_end(args, &at, &piece);
        }
        chunk_sum_add(&sum, i, adds ? piece.terms[which] : NULL, at.count);
    }
    memcpy(partials + (chunk / KERNEL_SUM_ROWS + (group != NULL ? *group : 0)) * args->cols +
               at.col,
           sum.total, (size_t)at.count * sizeof(float));
}

static void sums_run(const struct kernel_modulate_backward_args *args)
{
    float *const partials[SUMS] = {args->gate_partials, args->scale_partials, args->shift_partials,
                                   args->weight_partials, args->bias_partials};

    for (int64_t chunk = 0; chunk < args->rows; chunk += KERNEL_SUM_ROWS) {
        int32_t groups[KERNEL_SUM_ROWS];
        int64_t group_count = chunk_groups(args, chunk, groups);

        for (int64_t k = 0; k * MODULATE_SEGMENT < args->cols; k++) {
            for (int sum = 0; sum < SUMS; sum++) {
                for (int64_t i = 0; sum < SUMS_GROUPED && partials[sum] != NULL && i < group_count;
                     i++) {
                    chunk_run(args, chunk, k, (enum sum)sum, &groups[i], partials[sum]);
                }
                if (sum >= SUMS_GROUPED && partials[sum] != NULL) {
                    chunk_run(args, chunk, k, (enum sum)sum, NULL, partials[sum]);
                }
            }
        }
    }
}

/* ---- Outputs by token ---------------------------------------------------------------------- */

static void backward_piece(void *arg, const struct quantize_place *place, float *values)
{
    const struct kernel_modulate_backward_args *args = arg;
    struct modulate_place at = {place->row, place->col, place->count};
    struct piece piece;

    piece_begin(args, &at, &piece);
    piece_end(args, &at, &piece);
    if (place->writes) {
        view_store(&args->dx, &at, piece.d);
        view_store(&args->dy, &at, piece.result);
        view_store(&args->dgate, &at, piece.terms[SUM_GATE]);
        view_store(&args->dscale, &at, piece.terms[SUM_SCALE]);
        view_store(&args->dshift, &at, piece.terms[SUM_SHIFT]);
    }
    memcpy(values, args->y.data != NULL ? piece.result : piece.d, (size_t)at.count * sizeof(float));
}

void kernel_modulate_backward_host(const struct kernel_modulate_backward_args *args)
{
    struct kernel_modulate_backward_args copy = *args;

    for (int64_t row = 0; args->norm != FP8PIPE_NORM_NONE && row < args->rows; row++) {
        row_means(args, row);
    }
    /* Before dx is written, which may be where dx_out was. */
    sums_run(args);
    quantize_pieces(&args->target, backward_piece, &copy);
}

/* ---- group_sums ---------------------------------------------------------------------------- */

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

        for (int64_t k = 0; k * MODULATE_SEGMENT < args->cols; k++) {
            struct modulate_place at = {r, k * MODULATE_SEGMENT,
                                        modulate_segment_cols(k, args->cols)};
            float sums[MODULATE_SEGMENT] = {0};

            for (int64_t b = from / KERNEL_SUM_ROWS; from < to && b * KERNEL_SUM_ROWS < to; b++) {
                const float *partials = args->partials + (b + r) * args->cols + at.col;

                VECTOR_LOOP(i, at.count, sums[i] += partials[i]);
            }
            view_store(&args->out, &at, sums);
        }
    }
}
