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

static int64_t piece_cols(const struct kernel_modulate_args *args, int64_t col)
{
    return modulate_segment_cols(col / MODULATE_SEGMENT, args->cols);
}

/* x' as it is, or would be, stored. */
static void load_added(const struct kernel_modulate_args *args, int64_t row, int64_t col,
                       float *values)
{
    int64_t count = piece_cols(args, col), r = row_of(args->rows_of, row);
    float terms[MODULATE_SEGMENT], gate[MODULATE_SEGMENT];
    uint16_t rounded[MODULATE_SEGMENT];

    view_load(values, &args->x, row, col, count);
    if (view_load(terms, &args->y, row, col, count)) {
        if (view_load(gate, &args->gate, r, col, count)) {
            VECTOR_LOOP(i, count, terms[i] = gate[i] * terms[i]);
        }
        VECTOR_LOOP(i, count, values[i] = values[i] + terms[i]);
    }
    if (args->x_out.data != NULL && args->x_out.dtype != FP8PIPE_FP32) {
        row_store(rounded, args->x_out.dtype, values, count);
        row_load(values, rounded, args->x_out.dtype, count);
    }
}

/* Mean and rstd of a row; stores x' unless `dry`. */
static void row_stats(const struct kernel_modulate_args *args, int64_t row, bool dry, float *mean,
                      float *rstd)
{
    struct modulate_moments moments = {0.0f, 0.0f, 0.0f};
    float values[MODULATE_SEGMENT], squares[MODULATE_SEGMENT];

    for (int64_t col = 0; col < args->cols; col += MODULATE_SEGMENT) {
        int64_t count = piece_cols(args, col);
        float middle = 0.0f;

        load_added(args, row, col, values);
        if (!dry) {
            view_store(&args->x_out, row, col, values, count);
        }
        if (args->norm == FP8PIPE_NORM_LAYER) {
            middle = modulate_segment_sum(values, count) / (float)count;
        }
        VECTOR_LOOP(i, count, {
            float distance = values[i] - middle;

            squares[i] = distance * distance;
        });
        if (args->norm == FP8PIPE_NORM_LAYER) {
            modulate_merge(&moments, (float)count, middle, modulate_segment_sum(squares, count));
        } else {
            moments.square += modulate_segment_sum(squares, count);
        }
    }
    *mean = moments.mean;
    *rstd = modulate_rstd(moments.square, args->cols, args->epsilon);
}

/* Of x' to z. */
static void load_modulated(const struct kernel_modulate_args *args, int64_t row, int64_t col,
                           float mean, float rstd, float *values)
{
    int64_t count = piece_cols(args, col), r = row_of(args->rows_of, row);
    float terms[MODULATE_SEGMENT];

    if (args->norm != FP8PIPE_NORM_NONE) {
        VECTOR_LOOP(i, count, values[i] = (values[i] - mean) * rstd);
    }
    if (args->weight != NULL) {
        VECTOR_LOOP(i, count, values[i] = values[i] * args->weight[col + i]);
    }
    if (args->bias != NULL) {
        VECTOR_LOOP(i, count, values[i] = values[i] + args->bias[col + i]);
    }
    if (view_load(terms, &args->scale, r, col, count)) {
        VECTOR_LOOP(i, count, values[i] = values[i] * (1.0f + terms[i]));
    }
    if (view_load(terms, &args->shift, r, col, count)) {
        VECTOR_LOOP(i, count, values[i] = values[i] + terms[i]);
    }
}

/* x' once mean and rstd are known: from where it was stored, as x may be no more. */
static void load_again(const struct kernel_modulate_args *args, int64_t row, int64_t col, bool dry,
                       float *values)
{
    if (dry || args->norm == FP8PIPE_NORM_NONE || args->x_out.data == NULL) {
        load_added(args, row, col, values);
    } else {
        view_load(values, &args->x_out, row, col, piece_cols(args, col));
    }
}

static void find_own_amax(const struct kernel_modulate_args *args)
{
    float values[MODULATE_SEGMENT];
    uint32_t largest = 0;

    for (int64_t row = 0; row < args->rows; row++) {
        float mean = 0.0f, rstd = 0.0f;

        if (args->norm != FP8PIPE_NORM_NONE) {
            row_stats(args, row, true, &mean, &rstd);
        }
        for (int64_t col = 0; col < args->cols; col += MODULATE_SEGMENT) {
            load_again(args, row, col, true, values);
            load_modulated(args, row, col, mean, rstd, values);
            largest = result_amax(largest, values, piece_cols(args, col));
        }
    }
    result_amax_fold(args->target.own_amax, largest);
}

void kernel_modulate_host(const struct kernel_modulate_args *args)
{
    const struct fp8pipe_quantize_target *target = &args->target;
    bool quantizes = target->scale_inv != NULL;
    bool normalised = args->norm != FP8PIPE_NORM_NONE;
    struct result result;

    if (quantizes && target->own_amax != NULL && *target->has_scale == 0) {
        find_own_amax(args);
    }
    result_begin(&result, target);
    for (int64_t row = 0; normalised && row < args->rows; row++) {
        row_stats(args, row, false, &args->mean[row], &args->rstd[row]);
    }
    for (int64_t chunk = 0; chunk < args->rows; chunk += KERNEL_SUM_ROWS) {
        for (int64_t col = 0; col < args->cols; col += MODULATE_SEGMENT) {
            int64_t count = piece_cols(args, col);
            struct result_sums sums;

            for (int64_t i = 0; i < KERNEL_SUM_ROWS; i++) {
                float room[MODULATE_SEGMENT], *values = NULL;
                int64_t row = chunk + i;

                if (row < args->rows) {
                    values = room;
                    load_again(args, row, col, false, values);
                    if (!normalised) {
                        view_store(&args->x_out, row, col, values, count);
                    }
                    load_modulated(args, row, col, normalised ? args->mean[row] : 0.0f,
                                   normalised ? args->rstd[row] : 0.0f, values);
                    view_store(&args->z, row, col, values, count);
                    result_row(&result, row, col, values, count);
                }
                if (quantizes && target->partials != NULL) {
                    result_sums_add(&sums, i, values, count);
                }
            }
            if (quantizes && target->partials != NULL) {
                for (int64_t i = 0; i < count; i++) {
                    target->partials[chunk / KERNEL_SUM_ROWS * args->cols + col + i] =
                        sums.total[i];
                }
            }
        }
    }
    result_end(&result);
}
