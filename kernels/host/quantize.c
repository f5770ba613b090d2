#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/fp8.h"
#include "kernels/host/convert.h"

/* A matrix is worked on in tiles of KERNEL_SUM_ROWS x TILE_COLS, so that a tile of bytes is still
 * in the first-level cache when it is transposed. */
#define TILE_COLS 256

/* Bytes transposed at a time, in registers. */
#define BLOCK 8

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/*
 * *amax = max(*amax, bits). Executors of several streams fold into one slot at the same time: the
 * exchange alone makes each fold whole; whoever reads the result is ordered after them by events.
 */
static void amax_fold(uint32_t *amax, uint32_t bits)
{
    uint32_t seen = __atomic_load_n(amax, __ATOMIC_RELAXED);

    while (bits > seen && !__atomic_compare_exchange_n(amax, &seen, bits, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
}

/* Largest bits of |x|, and `largest`. Signed: the sign bit is cleared, and SSE2 has no other. */
static int32_t bits_max(const float *x, int64_t count, int32_t largest)
{
    VECTOR_LOOP(i, count, {
        int32_t bits = (int32_t)(float_bits(x[i]) & 0x7fffffffu);

        largest = bits > largest ? bits : largest;
    });
    return largest;
}

/* The piece of a row as float32: in place, or converted into `buffer`. */
static const float *row_piece(const struct fp8pipe_matrix *x, int64_t row, int64_t col,
                              int64_t count, float *buffer)
{
    const void *from = matrix_at(x, row, col);

    if (x->dtype == FP8PIPE_FP32) {
        return from;
    }
    row_load(buffer, from, x->dtype, count);
    return buffer;
}

void kernel_amax_host(const struct kernel_amax_args *args)
{
    const struct fp8pipe_matrix *x = &args->x;
    float buffer[TILE_COLS];
    int32_t largest = 0;

    if (args->skip_if != NULL && *args->skip_if != 0) {
        return;
    }
    for (int64_t row = 0; row < x->rows; row++) {
        for (int64_t col = 0; col < x->cols; col += TILE_COLS) {
            int64_t count = minimum(TILE_COLS, x->cols - col);

            largest = bits_max(row_piece(x, row, col, count, buffer), count, largest);
        }
    }
    amax_fold(args->amax, (uint32_t)largest);
}

static void sums_add(float *restrict sums, const float *restrict x, int64_t count)
{
    VECTOR_LOOP(i, count, sums[i] += x[i]);
}

static void cast(uint8_t *restrict out, const float *restrict x, float scale,
                 enum fp8pipe_format format, int64_t count)
{
    if (format == FP8PIPE_E5M2) {
        VECTOR_LOOP(i, count, out[i] = fp8_e5m2_from_float(x[i] * scale));
    } else {
        VECTOR_LOOP(i, count, out[i] = fp8_e4m3_from_float(x[i] * scale));
    }
}

/* Elements that saturate and elements that are flushed to zero. */
struct extremes {
    uint64_t saturated;
    uint64_t flushed;
};

static void extremes_count(struct extremes *extremes, const float *x, const uint8_t *codes,
                           float scale, float largest, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        extremes->saturated += fabsf(x[i] * scale) > largest;
        extremes->flushed += (float_bits(x[i]) & 0x7fffffffu) != 0 && (codes[i] & 0x7fu) == 0;
    }
}

/* As amax_fold: each addition is whole, whoever reads is ordered after all of them by events. */
static void extremes_add(uint64_t *to, const struct extremes *extremes)
{
    __atomic_fetch_add(&to[0], extremes->saturated, __ATOMIC_RELAXED);
    __atomic_fetch_add(&to[1], extremes->flushed, __ATOMIC_RELAXED);
}

/* Eight bytes as a number whose byte i, from its low end, is bytes[i]; and back. */
static uint64_t bytes_load(const uint8_t *bytes)
{
    uint64_t word;

    __builtin_memcpy(&word, bytes, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static void bytes_store(uint8_t *bytes, uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    __builtin_memcpy(bytes, &word, sizeof(word));
}

/* Swaps the upper half of 2 * bits bits of a with the lower half in b, which `lower` selects. */
static void halves_swap(uint64_t *a, uint64_t *b, unsigned bits, uint64_t lower)
{
    uint64_t difference = ((*a >> bits) ^ *b) & lower;

    *a ^= difference << bits;
    *b ^= difference;
}

/* Transposes BLOCK x BLOCK bytes: quadrants of 4 x 4, then of 2 x 2, then single bytes. */
static void block_transpose(uint8_t *out, int64_t out_stride, const uint8_t *in, int64_t in_stride)
{
    uint64_t rows[BLOCK];

    for (int i = 0; i < BLOCK; i++) {
        rows[i] = bytes_load(in + i * in_stride);
    }
    for (int i = 0; i < 4; i++) {
        halves_swap(&rows[i], &rows[i + 4], 32, 0x00000000ffffffffu);
    }
    for (int i = 0; i < 4; i++) {
        int row = i / 2 * 4 + i % 2;

        halves_swap(&rows[row], &rows[row + 2], 16, 0x0000ffff0000ffffu);
    }
    for (int i = 0; i < 4; i++) {
        halves_swap(&rows[2 * i], &rows[2 * i + 1], 8, 0x00ff00ff00ff00ffu);
    }
    for (int i = 0; i < BLOCK; i++) {
        bytes_store(out + i * out_stride, rows[i]);
    }
}

/* out[c, r] = in[r, c] for a tile. */
static void tile_transpose(uint8_t *out, int64_t out_stride, const uint8_t *in, int64_t in_stride,
                           int64_t rows, int64_t cols)
{
    int64_t whole_rows = rows - rows % BLOCK;
    int64_t whole_cols = cols - cols % BLOCK;

    for (int64_t col = 0; col < whole_cols; col += BLOCK) {
        for (int64_t row = 0; row < whole_rows; row += BLOCK) {
            block_transpose(out + col * out_stride + row, out_stride, in + row * in_stride + col,
                            in_stride);
        }
    }
    for (int64_t col = 0; col < cols; col++) {
        int64_t row = col < whole_cols ? whole_rows : 0;

        for (; row < rows; row++) {
            out[col * out_stride + row] = in[row * in_stride + col];
        }
    }
}

/* Columns from .. stride-1 of every row become zeros. */
static void pad(uint8_t *data, int64_t rows, int64_t stride, int64_t from)
{
    assert(from <= stride);
    if (from == stride) {
        return;
    }
    for (int64_t row = 0; row < rows; row++) {
        memset(data + row * stride + from, 0, (size_t)(stride - from));
    }
}

static float quantize_scale(const struct kernel_quantize_args *args)
{
    uint32_t bits;
    float quotient;

    if (args->own_amax == NULL || *args->has_scale != 0) {
        return *args->scale;
    }
    bits = *args->own_amax;
    if (bits == 0 || bits >= 0x7f800000u) {
        return 1.0f;
    }
    quotient = args->scale_numerator / float_from_bits(bits);
    return fp8_scale(quotient);
}

/* One tile: rows row .. row + rows - 1, columns col .. col + cols - 1. Returns its largest bits. */
static int32_t quantize_tile(const struct kernel_quantize_args *args, float scale, int64_t row,
                             int64_t rows, int64_t col, int64_t cols, struct extremes *extremes)
{
    uint8_t bytes[KERNEL_SUM_ROWS * TILE_COLS];
    float buffer[TILE_COLS];
    float sums[TILE_COLS] = {0};
    uint8_t *out = bytes;
    int64_t out_stride = TILE_COLS;
    int32_t largest = 0;

    if (args->row != NULL) {
        out = args->row + row * args->row_stride + col;
        out_stride = args->row_stride;
    }
    for (int64_t i = 0; i < rows; i++) {
        const float *x = row_piece(&args->x, row + i, col, cols, buffer);

        if (args->amax != NULL) {
            largest = bits_max(x, cols, largest);
        }
        if (args->partials != NULL) {
            sums_add(sums, x, cols);
        }
        cast(out + i * out_stride, x, scale, args->format, cols);
        if (args->extremes != NULL) {
            extremes_count(extremes, x, out + i * out_stride, scale, fp8_max(args->format), cols);
        }
    }
    if (args->transposed != NULL) {
        tile_transpose(args->transposed + col * args->transposed_stride + row,
                       args->transposed_stride, out, out_stride, rows, cols);
    }
    if (args->partials != NULL) {
        memcpy(args->partials + row / KERNEL_SUM_ROWS * args->x.cols + col, sums,
               (size_t)cols * sizeof(float));
    }
    return largest;
}

void kernel_quantize_host(const struct kernel_quantize_args *args)
{
    const struct fp8pipe_matrix *x = &args->x;
    float scale = quantize_scale(args);
    struct extremes extremes = {0, 0};
    int32_t largest = 0;

    *args->scale_inv = 1.0f / scale;
    if (x->rows == 0 || x->cols == 0) {
        return;
    }
    for (int64_t row = 0; row < x->rows; row += KERNEL_SUM_ROWS) {
        int64_t rows = minimum(KERNEL_SUM_ROWS, x->rows - row);

        for (int64_t col = 0; col < x->cols; col += TILE_COLS) {
            int32_t bits = quantize_tile(args, scale, row, rows, col,
                                         minimum(TILE_COLS, x->cols - col), &extremes);

            largest = bits > largest ? bits : largest;
        }
    }
    if (args->row != NULL) {
        pad(args->row, x->rows, args->row_stride, x->cols);
    }
    if (args->transposed != NULL) {
        pad(args->transposed, x->cols, args->transposed_stride, x->rows);
    }
    if (args->amax != NULL) {
        amax_fold(args->amax, (uint32_t)largest);
    }
    if (args->extremes != NULL) {
        extremes_add(args->extremes, &extremes);
    }
}

void kernel_partials_host(const struct kernel_partials_args *args)
{
    const struct fp8pipe_matrix *x = &args->x;
    float buffer[TILE_COLS];

    for (int64_t row = 0; row < x->rows; row++) {
        float *sums = args->partials + row / KERNEL_SUM_ROWS * x->cols;

        if (row % KERNEL_SUM_ROWS == 0) {
            memset(sums, 0, (size_t)x->cols * sizeof(float));
        }
        for (int64_t col = 0; col < x->cols; col += TILE_COLS) {
            int64_t count = minimum(TILE_COLS, x->cols - col);

            sums_add(sums + col, row_piece(x, row, col, count, buffer), count);
        }
    }
}

void kernel_transpose_host(const struct kernel_transpose_args *args)
{
    if (args->rows == 0 || args->cols == 0) {
        return;
    }
    for (int64_t row = 0; row < args->rows; row += KERNEL_SUM_ROWS) {
        int64_t rows = minimum(KERNEL_SUM_ROWS, args->rows - row);

        for (int64_t col = 0; col < args->cols; col += TILE_COLS) {
            tile_transpose(args->out + col * args->out_stride + row, args->out_stride,
                           args->in + row * args->in_stride + col, args->in_stride, rows,
                           minimum(TILE_COLS, args->cols - col));
        }
    }
    pad(args->out, args->cols, args->out_stride, args->rows);
}
