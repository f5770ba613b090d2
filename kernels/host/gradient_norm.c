#include "kernels/optimizer.h"

#include <math.h>

#include "kernels/host/convert.h"

#define THREADS 256
#define WARP 32
#define QUAD 4

/* Over each warp by halves, then the warps in order. */
static double sum_threads(double *sums, int threads)
{
    double total = 0.0;

    for (int warp = 0; warp < threads; warp += WARP) {
        for (int half = WARP / 2; half > 0; half /= 2) {
            for (int lane = 0; lane < half; lane++) {
                sums[warp + lane] += sums[warp + lane + half];
            }
        }
        total = warp == 0 ? sums[0] : total + sums[warp];
    }
    return total;
}

/* Adds the squares of `count` elements, at most 4, from element `at` on, each to its sum. */
static void sum_quad(double sums[QUAD], const struct kernel_parameter *parameter, int64_t at,
                     int64_t count)
{
    enum fp8pipe_dtype dtype = (enum fp8pipe_dtype)parameter->gradient_dtype;
    float values[QUAD];

    if (count <= 0) {
        return;
    }
    count = count < QUAD ? count : QUAD;
    row_load(values, (const char *)parameter->gradient + (size_t)at * dtype_bytes(dtype), dtype,
             count);
    for (int64_t i = 0; i < count; i++) {
        sums[i] += (double)values[i] * (double)values[i];
    }
}

static double sum_tile(const struct kernel_parameter *parameter, int64_t index)
{
    int64_t across = (parameter->cols + KERNEL_TILE_SIDE - 1) / KERNEL_TILE_SIDE;
    int64_t elements = parameter->rows * parameter->cols;
    double sums[THREADS] = {0};

    for (int t = 0; t < THREADS; t++) {
        double quad[QUAD] = {0};

        for (int64_t i = 0; i < KERNEL_TILE_ELEMENTS / 4 / THREADS; i++) {
            if (parameter->square) {
                int64_t row = index / across * KERNEL_TILE_SIDE + t / WARP * 16 + i;
                int64_t col = index % across * KERNEL_TILE_SIDE + t % WARP * 4;

                if (row < parameter->rows) {
                    sum_quad(quad, parameter, row * parameter->cols + col, parameter->cols - col);
                }
            } else {
                int64_t at = index * KERNEL_TILE_ELEMENTS + i * 4 * THREADS + t * 4;

                sum_quad(quad, parameter, at, elements - at);
            }
        }
        sums[t] = (quad[0] + quad[1]) + (quad[2] + quad[3]);
    }
    return sum_threads(sums, THREADS);
}

void kernel_gradient_norm_host(const struct kernel_gradient_norm_args *args)
{
    double sums[THREADS] = {0};
    float norm, ratio, scale = args->gradient_scale != NULL ? *args->gradient_scale : 1.0f;

    for (int64_t i = 0; i < args->tile_count; i++) {
        const struct kernel_tile *tile = &args->tiles[i];

        args->partials[i] = sum_tile(&args->parameters[tile->parameter], tile->index);
        sums[i % THREADS] += args->partials[i];
    }
    norm = (float)(sqrt(sum_threads(sums, THREADS)) * fabs((double)scale));
    ratio = args->max_norm / (norm + 1e-6f);
    if (args->norm != NULL) {
        *args->norm = norm;
    }
    if (args->clip != NULL) {
        *args->clip = args->max_norm > 0.0f && ratio < 1.0f ? scale * ratio : scale;
    }
    if (args->nonfinite != NULL) {
        *args->nonfinite = (float_bits(norm) & 0x7fffffffu) >= 0x7f800000u;
    }
}
