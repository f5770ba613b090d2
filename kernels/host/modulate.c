#include "kernels/host/modulate.h"

#include <stddef.h>

float modulate_segment_sum(const float *values, int64_t count)
{
    float lanes[MODULATE_LANES] = {0};

    for (int64_t from = 0; from < count; from += MODULATE_LANE_RUN) {
        int64_t lane = from / MODULATE_LANE_RUN % MODULATE_LANES;

        for (int64_t i = from; i < from + MODULATE_LANE_RUN && i < count; i++) {
            lanes[lane] += values[i];
        }
    }
    for (int64_t half = MODULATE_LANES / 2; half > 0; half /= 2) {
        for (int64_t lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    return lanes[0];
}

/* x' as it is, or would be, stored; from x and y. */
static void load_added(const struct kernel_modulate_args *args, const struct modulate_place *at,
                       float *values)
{
    int64_t count = at->count;
    float terms[MODULATE_SEGMENT], gate[MODULATE_SEGMENT];
    uint16_t rounded[MODULATE_SEGMENT];

    view_load(values, &args->x, at->row, at);
    if (view_load(terms, &args->y, at->row, at)) {
        if (view_load(gate, &args->gate, row_of(args->rows_of, at->row), at)) {
            VECTOR_LOOP(i, count, terms[i] = gate[i] * terms[i]);
        }
        VECTOR_LOOP(i, count, values[i] = values[i] + terms[i]);
    }
    if (args->x_out.data != NULL && args->x_out.dtype != FP8PIPE_FP32) {
        row_store(rounded, args->x_out.dtype, values, count);
        row_load(values, rounded, args->x_out.dtype, count);
    }
}

/* Stores x', mean and rstd of a row. */
static void row_stats(const struct kernel_modulate_args *args, int64_t row)
{
    struct modulate_moments moments = {0.0f, 0.0f, 0.0f};
    float values[MODULATE_SEGMENT];
    bool layer = args->norm == FP8PIPE_NORM_LAYER;

    for (int64_t k = 0; k * MODULATE_SEGMENT < args->cols; k++) {
        struct modulate_place at = {row, k * MODULATE_SEGMENT,
                                    modulate_segment_cols(k, args->cols)};
        float middle = 0.0f, square;

        load_added(args, &at, values);
        view_store(&args->x_out, &at, values);
        if (layer) {
            middle = modulate_segment_sum(values, at.count) / (float)at.count;
        }
        VECTOR_LOOP(i, at.count, {
            float distance = values[i] - middle;

            values[i] = distance * distance;
        });
        square = modulate_segment_sum(values, at.count);
        if (layer) {
            modulate_merge(&moments, (float)at.count, middle, square);
        } else {
            moments.square += square;
        }
    }
    args->mean[row] = moments.mean;
    args->rstd[row] = modulate_rstd(moments.square, args->cols, args->epsilon);
}

/* Of x' to z. */
static void modulate(const struct kernel_modulate_args *args, const struct modulate_place *at,
                     float *values)
{
    int64_t count = at->count, r = row_of(args->rows_of, at->row);
    float terms[MODULATE_SEGMENT];

    if (args->norm != FP8PIPE_NORM_NONE) {
        float mean = args->mean[at->row], rstd = args->rstd[at->row];

        VECTOR_LOOP(i, count, values[i] = (values[i] - mean) * rstd);
    }
    if (args->weight != NULL) {
        VECTOR_LOOP(i, count, values[i] = values[i] * args->weight[at->col + i]);
    }
    if (args->bias != NULL) {
        VECTOR_LOOP(i, count, values[i] = values[i] + args->bias[at->col + i]);
    }
    if (view_load(terms, &args->scale, r, at)) {
        VECTOR_LOOP(i, count, values[i] = values[i] * (1.0f + terms[i]));
    }
    if (view_load(terms, &args->shift, r, at)) {
        VECTOR_LOOP(i, count, values[i] = values[i] + terms[i]);
    }
}

static void modulate_piece(void *arg, const struct quantize_place *place, float *values)
{
    const struct kernel_modulate_args *args = arg;
    struct modulate_place at = {place->row, place->col, place->count};

    /* With a norm x' is stored by now, and x may be no more. */
    if (args->norm != FP8PIPE_NORM_NONE && args->x_out.data != NULL) {
        view_load(values, &args->x_out, at.row, &at);
    } else {
        load_added(args, &at, values);
        if (place->writes) {
            view_store(&args->x_out, &at, values);
        }
    }
    modulate(args, &at, values);
    if (place->writes) {
        view_store(&args->z, &at, values);
    }
}

void kernel_modulate_host(const struct kernel_modulate_args *args)
{
    struct kernel_modulate_args copy = *args;

    for (int64_t row = 0; args->norm != FP8PIPE_NORM_NONE && row < args->rows; row++) {
        row_stats(args, row);
    }
    quantize_pieces(&args->target, modulate_piece, &copy);
}
