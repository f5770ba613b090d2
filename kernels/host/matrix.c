#include "kernels/kernels.h"

#include <string.h>

#include "kernels/host/activate.h"
#include "kernels/host/convert.h"

/* Columns worked on at a time, in a buffer on the stack. */
#define PIECE_COLS 256

static void row_add(float *restrict to, const float *restrict from, int64_t count)
{
    VECTOR_LOOP(i, count, to[i] += from[i]);
}

static int64_t piece_cols(int64_t cols, int64_t col)
{
    return cols - col < PIECE_COLS ? cols - col : PIECE_COLS;
}

void kernel_column_sums_host(const struct kernel_column_sums_args *args)
{
    if (args->rows == 0 && args->accumulate) {
        return;
    }
    for (int64_t col = 0; col < args->cols; col += PIECE_COLS) {
        int64_t count = piece_cols(args->cols, col);
        float sums[PIECE_COLS] = {0};

        for (int64_t row = 0; row < args->rows; row++) {
            row_add(sums, args->partials + row * args->cols + col, count);
        }
        if (args->accumulate) {
            row_add(args->out + col, sums, count);
        } else {
            memcpy(args->out + col, sums, (size_t)count * sizeof(float));
        }
    }
}

void kernel_store_host(const struct kernel_store_args *args)
{
    const struct fp8pipe_matrix *to = &args->to;
    float values[PIECE_COLS];
    float terms[PIECE_COLS];

    for (int64_t row = 0; row < to->rows; row++) {
        for (int64_t col = 0; col < to->cols; col += PIECE_COLS) {
            int64_t count = piece_cols(to->cols, col);

            memset(values, 0, sizeof(values));
            if (args->accumulate) {
                row_load(values, matrix_at(to, row, col), to->dtype, count);
            }
            if (args->from.data != NULL) {
                row_load(terms, matrix_at(&args->from, row, col), args->from.dtype, count);
                row_add(values, terms, count);
            }
            if (args->bias.data != NULL) {
                const char *bias = args->bias.data;

                row_load(terms, bias + (size_t)col * dtype_bytes(args->bias.dtype),
                         args->bias.dtype, count);
                row_add(values, terms, count);
            }
            row_activate(values, args->activation, count);
            if (args->residual.data != NULL) {
                row_load(terms, matrix_at(&args->residual, row, col), to->dtype, count);
                row_add(values, terms, count);
            }
            row_store(matrix_at(to, row, col), to->dtype, values, count);
        }
    }
}
