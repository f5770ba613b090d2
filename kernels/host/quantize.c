#include "kernels/host/quantize.h"

#include <assert.h>
#include <string.h>

#include "kernels/fp8.h"
#include "kernels/host/convert.h"

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
    float buffer[QUANTIZE_TILE_COLS];
    int32_t largest = 0;

    /* Rows without columns may be any number. */
    if (x->cols == 0 || (args->skip_if != NULL && *args->skip_if != 0)) {
        return;
    }
    for (int64_t row = 0; row < x->rows; row++) {
        for (int64_t col = 0; col < x->cols; col += QUANTIZE_TILE_COLS) {
            int64_t count = minimum(QUANTIZE_TILE_COLS, x->cols - col);

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

static float quantize_scale(const struct fp8pipe_quantize_target *target)
{
    uint32_t bits;
    float quotient;

    if (target->own_amax == NULL || *target->has_scale != 0) {
        return *target->scale;
    }
    bits = *target->own_amax;
    if (bits == 0 || bits >= 0x7f800000u) {
        return 1.0f;
    }
    quotient = target->scale_numerator / float_from_bits(bits);
    return fp8_scale(quotient);
}

/* Adds what a cast of x saturated and what it flushed to zero. */
static void extremes_count(uint64_t *extremes, const uint8_t *codes, const float *x, float scale,
                           enum fp8pipe_format format, int64_t count)
{
    float largest = fp8_max(format);
    uint32_t saturated = 0, flushed = 0;

    VECTOR_LOOP(i, count, {
        saturated += float_from_bits(float_bits(x[i] * scale) & 0x7fffffffu) > largest;
        flushed += (x[i] != 0.0f) & ((codes[i] & 0x7f) == 0);
    });
    extremes[0] += saturated;
    extremes[1] += flushed;
}

void quantize_tile(struct quantize_pass *pass, const struct fp8pipe_matrix *x, int64_t row,
                   int64_t col)
{
    const struct fp8pipe_quantize_target *target = pass->target;
    uint8_t bytes[KERNEL_SUM_ROWS * QUANTIZE_TILE_COLS];
    float buffer[QUANTIZE_TILE_COLS];
    float sums[QUANTIZE_TILE_COLS] = {0};
    uint8_t *out = bytes;
    int64_t out_stride = QUANTIZE_TILE_COLS;

    assert(x->rows <= KERNEL_SUM_ROWS && x->cols <= QUANTIZE_TILE_COLS);
    if (!pass->quantizes) {
        return;
    }
    if (target->row != NULL) {
        out = target->row + row * target->row_stride + col;
        out_stride = target->row_stride;
    }
    for (int64_t i = 0; i < x->rows; i++) {
        const float *values = row_piece(x, i, 0, x->cols, buffer);

        if (target->amax != NULL) {
            pass->largest = bits_max(values, x->cols, pass->largest);
        }
        if (target->partials != NULL) {
            sums_add(sums, values, x->cols);
        }
        cast(out + i * out_stride, values, pass->scale, target->format, x->cols);
        if (target->extremes != NULL) {
            extremes_count(pass->extremes, out + i * out_stride, values, pass->scale,
                           target->format, x->cols);
        }
    }
    if (target->transposed != NULL) {
        tile_transpose(target->transposed + col * target->transposed_stride + row,
                       target->transposed_stride, out, out_stride, x->rows, x->cols);
    }
    if (target->partials != NULL) {
        memcpy(target->partials + row / KERNEL_SUM_ROWS * target->cols + col, sums,
               (size_t)x->cols * sizeof(float));
    }
}

void quantize_begin(struct quantize_pass *pass, const struct fp8pipe_quantize_target *target)
{
    *pass = (struct quantize_pass){.target = target, .quantizes = target->scale_inv != NULL};
    if (pass->quantizes) {
        pass->scale = quantize_scale(target);
        *target->scale_inv = 1.0f / pass->scale;
    }
}

void quantize_end(struct quantize_pass *pass)
{
    const struct fp8pipe_quantize_target *target = pass->target;

    if (target->rows == 0 || target->cols == 0) {
        return;
    }
    if (target->row != NULL) {
        pad(target->row, target->rows, target->row_stride, target->cols);
    }
    if (target->transposed != NULL) {
        pad(target->transposed, target->cols, target->transposed_stride, target->rows);
    }
    if (target->amax != NULL) {
        amax_fold(target->amax, (uint32_t)pass->largest);
    }
    if (target->extremes != NULL) {
        __atomic_fetch_add(&target->extremes[0], pass->extremes[0], __ATOMIC_RELAXED);
        __atomic_fetch_add(&target->extremes[1], pass->extremes[1], __ATOMIC_RELAXED);
    }
}

void kernel_quantize_host(const struct kernel_quantize_args *args)
{
    const struct fp8pipe_matrix *x = &args->x;
    struct fp8pipe_quantize_target target = kernel_quantize_target(args);
    struct quantize_pass pass;

    quantize_begin(&pass, &target);
    for (int64_t row = 0; x->cols > 0 && row < x->rows; row += KERNEL_SUM_ROWS) {
        int64_t rows = minimum(KERNEL_SUM_ROWS, x->rows - row);

        for (int64_t col = 0; col < x->cols; col += QUANTIZE_TILE_COLS) {
            struct fp8pipe_matrix tile = *x;

            tile.data = matrix_at(x, row, col);
            tile.rows = rows;
            tile.cols = minimum(QUANTIZE_TILE_COLS, x->cols - col);
            quantize_tile(&pass, &tile, row, col);
        }
    }
    quantize_end(&pass);
}

void kernel_partials_host(const struct kernel_partials_args *args)
{
    const struct fp8pipe_matrix *x = &args->x;
    float buffer[QUANTIZE_TILE_COLS];

    for (int64_t row = 0; x->cols > 0 && row < x->rows; row++) {
        float *sums = args->partials + row / KERNEL_SUM_ROWS * x->cols;

        if (row % KERNEL_SUM_ROWS == 0) {
            memset(sums, 0, (size_t)x->cols * sizeof(float));
        }
        for (int64_t col = 0; col < x->cols; col += QUANTIZE_TILE_COLS) {
            int64_t count = minimum(QUANTIZE_TILE_COLS, x->cols - col);

            sums_add(sums + col, row_piece(x, row, col, count, buffer), count);
        }
    }
}

void kernel_capture_host(const struct kernel_capture_args *args)
{
    *args->scale_inv = 1.0f / *args->scale;
    if (args->amax != NULL) {
        amax_fold(args->amax, *args->own_amax & 0x7fffffffu);
        *args->own_amax = 0;
    }
}

void kernel_transpose_host(const struct kernel_transpose_args *args)
{
    if (args->rows == 0 || args->cols == 0) {
        return;
    }
    if (args->capture.scale_inv != NULL) {
        kernel_capture_host(&args->capture);
    }
    for (int64_t row = 0; row < args->rows; row += KERNEL_SUM_ROWS) {
        int64_t rows = minimum(KERNEL_SUM_ROWS, args->rows - row);

        for (int64_t col = 0; col < args->cols; col += QUANTIZE_TILE_COLS) {
            tile_transpose(args->out + col * args->out_stride + row, args->out_stride,
                           args->in + row * args->in_stride + col, args->in_stride, rows,
                           minimum(QUANTIZE_TILE_COLS, args->cols - col));
        }
    }
    pad(args->out, args->cols, args->out_stride, args->rows);
}

/* One tile of values from `piece`, in `values`. */
static struct fp8pipe_matrix tile_values(const struct fp8pipe_quantize_target *target,
                                         quantize_piece_fn *piece, void *arg, bool writes,
                                         int64_t row, int64_t col, float *values)
{
    struct fp8pipe_matrix tile = {values,
                                  minimum(KERNEL_SUM_ROWS, target->rows - row),
                                  minimum(QUANTIZE_TILE_COLS, target->cols - col),
                                  QUANTIZE_TILE_COLS,
                                  FP8PIPE_FP32,
                                  0};

    for (int64_t i = 0; i < tile.rows; i++) {
        const struct quantize_place at = {row + i, col, tile.cols, writes};

        piece(arg, &at, values + i * QUANTIZE_TILE_COLS);
    }
    return tile;
}

static void own_amax(const struct fp8pipe_quantize_target *target, quantize_piece_fn *piece,
                     void *arg, float *values)
{
    int32_t largest = 0;

    for (int64_t row = 0; target->cols > 0 && row < target->rows; row += KERNEL_SUM_ROWS) {
        for (int64_t col = 0; col < target->cols; col += QUANTIZE_TILE_COLS) {
            struct fp8pipe_matrix tile = tile_values(target, piece, arg, false, row, col, values);

            for (int64_t i = 0; i < tile.rows; i++) {
                largest = bits_max(values + i * tile.stride, tile.cols, largest);
            }
        }
    }
    amax_fold(target->own_amax, (uint32_t)largest);
}

void quantize_pieces(const struct fp8pipe_quantize_target *target, quantize_piece_fn *piece,
                     void *arg)
{
    float values[KERNEL_SUM_ROWS * QUANTIZE_TILE_COLS];
    struct quantize_pass pass;

    if (target->own_amax != NULL && *target->has_scale == 0) {
        own_amax(target, piece, arg, values);
    }
    quantize_begin(&pass, target);
    for (int64_t row = 0; target->cols > 0 && row < target->rows; row += KERNEL_SUM_ROWS) {
        for (int64_t col = 0; col < target->cols; col += QUANTIZE_TILE_COLS) {
            struct fp8pipe_matrix tile = tile_values(target, piece, arg, true, row, col, values);

            quantize_tile(&pass, &tile, row, col);
        }
    }
    quantize_end(&pass);
}
