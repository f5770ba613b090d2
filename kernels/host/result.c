#include "kernels/host/result.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/fp8.h"
#include "kernels/host/convert.h"

/*
 * Executors of several streams fold into one slot at the same time: the exchange alone makes each
 * fold whole; whoever reads the result is ordered after them by events.
 */
void result_amax_fold(uint32_t *amax, uint32_t bits)
{
    uint32_t seen = __atomic_load_n(amax, __ATOMIC_RELAXED);

    while (bits > seen && !__atomic_compare_exchange_n(amax, &seen, bits, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
}

uint32_t result_amax(uint32_t largest, const float *values, int64_t count)
{
    int32_t most = (int32_t)largest;

    VECTOR_LOOP(i, count, {
        int32_t bits = (int32_t)(float_bits(values[i]) & 0x7fffffffu);

        most = bits > most ? bits : most;
    });
    return (uint32_t)most;
}

static float target_scale(const struct fp8pipe_quantize_target *target)
{
    uint32_t bits;

    if (target->own_amax == NULL || *target->has_scale != 0) {
        return *target->scale;
    }
    bits = *target->own_amax;
    if (bits == 0 || bits >= 0x7f800000u) {
        return 1.0f;
    }
    return fp8_scale(target->scale_numerator / float_from_bits(bits));
}

void result_begin(struct result *result, const struct fp8pipe_quantize_target *target)
{
    *result = (struct result){.target = target};
    if (target->scale_inv != NULL) {
        result->scale = target_scale(target);
        *target->scale_inv = 1.0f / result->scale;
    }
}

static void count_extremes(struct result *result, const float *values, const uint8_t *codes,
                           int64_t count)
{
    float most = fp8_max(result->target->format);

    for (int64_t i = 0; i < count; i++) {
        float scaled = values[i] * result->scale;

        result->saturated += scaled > most || scaled < -most;
        result->flushed += values[i] != 0.0f && (codes[i] & 0x7f) == 0;
    }
}

void result_row(struct result *result, int64_t row, int64_t col, const float *values,
                int64_t count)
{
    const struct fp8pipe_quantize_target *target = result->target;
    uint8_t room[RESULT_COLS];
    uint8_t *codes = room;
    float scale = result->scale;

    if (target->scale_inv == NULL) {
        return;
    }
    if (target->amax != NULL) {
        result->largest = result_amax(result->largest, values, count);
    }
    if (target->row != NULL) {
        codes = target->row + row * target->row_stride + col;
    }
    if (target->format == FP8PIPE_E5M2) {
        VECTOR_LOOP(i, count, codes[i] = fp8_e5m2_from_float(values[i] * scale));
    } else {
        VECTOR_LOOP(i, count, codes[i] = fp8_e4m3_from_float(values[i] * scale));
    }
    if (target->transposed != NULL) {
        for (int64_t i = 0; i < count; i++) {
            target->transposed[(col + i) * target->transposed_stride + row] = codes[i];
        }
    }
    if (target->extremes != NULL) {
        count_extremes(result, values, codes, count);
    }
}

/* Bytes from .. stride-1 of every row become zeros. */
static void pad(uint8_t *data, int64_t rows, int64_t stride, int64_t from)
{
    for (int64_t row = 0; data != NULL && row < rows; row++) {
        memset(data + row * stride + from, 0, (size_t)(stride - from));
    }
}

void result_end(struct result *result)
{
    const struct fp8pipe_quantize_target *target = result->target;

    if (target->scale_inv == NULL) {
        return;
    }
    pad(target->row, target->rows, target->row_stride, target->cols);
    pad(target->transposed, target->cols, target->transposed_stride, target->rows);
    if (target->amax != NULL) {
        result_amax_fold(target->amax, result->largest);
    }
    /* Added to by executors of several streams at the same time, as the amax is. */
    if (target->extremes != NULL) {
        __atomic_fetch_add(&target->extremes[0], result->saturated, __ATOMIC_RELAXED);
        __atomic_fetch_add(&target->extremes[1], result->flushed, __ATOMIC_RELAXED);
    }
}

static void add(float *restrict to, const float *restrict from, int64_t count)
{
    VECTOR_LOOP(i, count, to[i] += from[i]);
}

/* to = from where it is the first, else to += from. */
static void put_or_add(float *to, const float *from, int64_t count, bool first)
{
    if (first) {
        memcpy(to, from, (size_t)count * sizeof(float));
    } else {
        add(to, from, count);
    }
}

void result_sums_add(struct result_sums *sums, int64_t row, const float *values, int64_t count)
{
    static const float zeros[RESULT_COLS];
    int64_t four = row / 4 % 4;

    put_or_add(sums->four, values != NULL ? values : zeros, count, row % 4 == 0);
    if (row % 4 != 3) {
        return;
    }
    put_or_add(four < 2 ? sums->first : sums->second, sums->four, count, four % 2 == 0);
    if (four == 3) {
        add(sums->first, sums->second, count);
        put_or_add(sums->total, sums->first, count, row % KERNEL_SUM_ROWS < 16);
    }
}
