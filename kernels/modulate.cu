/*
 * modulate: gate and add, norm, modulate, quantize.
 *
 * x, y, z and the stored x' are [rows, cols] of any dtype, stride and alignment; gate, scale and
 * shift have rows of `cols`, chosen by token. FP8 rows and transposed rows are 16-byte aligned with
 * strides that are multiples of 16 bytes, padding written as zeros.
 *
 * Scaling rule: code = cast(z * scale), z in float32, one scale for the tensor, read or made on the
 * device; *scale_inv = 1 / scale. Statistics of a row are of x' as stored, by the order of
 * kernels/modulate.h.
 *
 * Four ways, all with the same bits:
 *   rows    (kernels/modulate_rows.cuh) all in one pass, rows in registers; sm_90, bf16, codes
 *   panels  (kernels/modulate_panels.cuh) all in one pass; sm_90, bf16, up to 8192 columns
 *   stats   a warp a row: x', mean and rstd; then
 *   apply   tiles of 128 rows by 64 columns: from x', mean and rstd to all the rest. Alone where
 *           there is no norm, and for the pass that finds the values' own amax.
 */
#include <stddef.h>

#include "kernels/modulate.cuh"
#include "kernels/modulate_panels.cuh"
#include "kernels/modulate_rows.cuh"

#define STATS_UNITS (MODULATE_SEGMENT / UNIT / 32)

struct modulate_launch {
    kernel_modulate_args args;
    int x_dtype; /* what x' is rounded to */
    bool only_amax;
};

/* x' of a unit: x + gate * y, rounded. */
template <bool FAST>
static __device__ __forceinline__ void unit_add(float values[UNIT], const modulate_launch &launch,
                                                int64_t row, int64_t col)
{
    const kernel_modulate_args &args = launch.args;
    const loaded<FAST> x = view_load<FAST>(args.x, row, col, args.cols);
    loaded<FAST> y = view_zeros<FAST>(), gate = y;

    if (args.y.data != NULL) {
        y = view_load<FAST>(args.y, row, col, args.cols);
        if (args.gate.data != NULL)
            gate = view_load<FAST>(args.gate, row_of(args.rows_of, row), col, args.cols);
    }
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        values[i] = x.value(i);
    if (args.y.data != NULL) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            values[i] =
                __fadd_rn(values[i], args.gate.data != NULL ? __fmul_rn(gate.value(i), y.value(i))
                                                            : y.value(i));
        values_round(values, launch.x_dtype);
    } else if (!FAST) {
        values_round(values, launch.x_dtype);
    }
}

template <bool FAST>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    modulate_stats_kernel(const __grid_constant__ modulate_launch launch)
{
    const kernel_modulate_args &args = launch.args;
    const int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / 32;

    kernel_wait_for_stream();
    for (; row < args.rows; row += (int64_t)gridDim.x * BLOCK_WARPS) {
        modulate_moments moments = {0.0f, 0.0f, 0.0f};

        for (int64_t from = 0; from < args.cols; from += MODULATE_SEGMENT) {
            const int64_t left = args.cols - from;
            const float count = (float)(left < MODULATE_SEGMENT ? left : MODULATE_SEGMENT);
            float values[STATS_UNITS][UNIT];
            float middle = 0.0f, square = 0.0f;

#pragma unroll
            for (int u = 0; u < STATS_UNITS; u++)
                unit_add<FAST>(values[u], launch, row, from + (u * 32 + lane) * UNIT);
#pragma unroll
            for (int u = 0; u < STATS_UNITS; u++)
                if (args.x_out.data != NULL)
                    view_store<FAST>(args.x_out, row, from + (u * 32 + lane) * UNIT, args.cols,
                                     values[u]);
            if (args.norm == FP8PIPE_NORM_LAYER) {
                float sum = 0.0f;
#pragma unroll
                for (int u = 0; u < STATS_UNITS; u++)
                    sum = unit_sum(sum, values[u]);
                middle = __fdiv_rn(warp_sum(sum), count);
            }
#pragma unroll
            for (int u = 0; u < STATS_UNITS; u++)
                square = unit_squares(square, values[u], middle, from + (u * 32 + lane) * UNIT,
                                      args.cols);
            square = warp_sum(square);
            if (args.norm == FP8PIPE_NORM_LAYER)
                modulate_merge(&moments, count, middle, square);
            else
                moments.square = __fadd_rn(moments.square, square);
        }
        if (lane == 0) {
            args.mean[row] = moments.mean;
            args.rstd[row] = modulate_rstd(moments.square, args.cols, args.epsilon);
        }
    }
}

template <bool FAST>
static __global__ void __launch_bounds__(BLOCK_THREADS, FAST ? 3 : 2)
    modulate_apply_kernel(const __grid_constant__ modulate_launch launch)
{
    __shared__ transposed_tile transposed;
    __shared__ sums_tile sums;
    const kernel_modulate_args &args = launch.args;
    const fp8pipe_quantize_target &target = args.target;
    const bool quantizes = target.scale_inv != NULL;
    const int64_t tile_col = (int64_t)blockIdx.x * TILE_COLS;
    const int64_t col = tile_col + tile_thread_col();
    const int64_t rows =
        quantizes && target.transposed != NULL ? target.transposed_stride : args.rows;
    int64_t tile_row = (int64_t)blockIdx.y * TILE_ROWS;
    found f = {0, 0, 0};

    kernel_wait_for_stream();
    if (launch.only_amax && *target.has_scale != 0)
        return;
    const float scale = quantizes && !launch.only_amax ? target_scale(target) : 1.0f;
    for (; tile_row < rows; tile_row += (int64_t)gridDim.y * TILE_ROWS) {
        const int64_t row = tile_row + tile_group() * UNIT_ROWS;
        uint2 codes[UNIT_ROWS];
        float four[UNIT];

#pragma unroll
        for (int i = 0; i < UNIT_ROWS; i++) {
            const int64_t count = row + i < args.rows ? args.cols - col : 0;
            float values[UNIT] = {0, 0, 0, 0, 0, 0, 0, 0};

            if (count > 0) {
                unit_add<FAST>(values, launch, row + i, col);
                if (args.x_out.data != NULL && !launch.only_amax)
                    view_store<FAST>(args.x_out, row + i, col, args.cols, values);
                modulate_values<FAST>(
                    values, args, modulation_load<FAST>(args, row_of(args.rows_of, row + i), col),
                    col, args.norm != FP8PIPE_NORM_NONE ? args.mean[row + i] : 0.0f,
                    args.norm != FP8PIPE_NORM_NONE ? args.rstd[row + i] : 0.0f);
                found_amax(f, values, count);
                if (args.z.data != NULL && !launch.only_amax)
                    view_store<FAST>(args.z, row + i, col, args.cols, values);
            }
            codes[i] = make_uint2(0, 0);
            if (quantizes && !launch.only_amax) {
                codes[i] = values_quantize(values, scale, target.format, count);
                if (target.extremes != NULL)
                    found_extremes(f, values, scale, target.format, count);
                if (target.row != NULL && row + i < args.rows && col < target.row_stride)
                    *(uint2 *)(target.row + (row + i) * target.row_stride + col) = codes[i];
            }
#pragma unroll
            for (int j = 0; j < UNIT; j++)
                four[j] = i == 0 ? values[j] : __fadd_rn(four[j], values[j]);
        }
        if (!quantizes || launch.only_amax)
            continue;
        if (target.transposed != NULL)
            transposed.put(tile_thread_col(), tile_group(), codes);
        if (target.partials != NULL)
            sums.put(tile_thread_col(), tile_group(), four);
        __syncthreads();
        if (target.transposed != NULL)
            transposed.write<BLOCK_THREADS, false>(target.transposed, target.transposed_stride,
                                                   tile_row, tile_col, args.cols);
        if (target.partials != NULL)
            partials_write(sums, target.partials, args.rows, args.cols, tile_row, tile_col);
        __syncthreads();
    }
    if (launch.only_amax)
        amax_publish(f.largest, target.own_amax);
    else if (quantizes)
        target_publish(target, f, scale);
}

/* ---- Launch -------------------------------------------------------------------------------- */

template <bool FAST> static int stats_launch(const modulate_launch &launch, cudaStream_t stream)
{
    const int64_t blocks = kernel_divide_up(launch.args.rows, BLOCK_WARPS);
    kernel_geometry geometry;

    geometry.grid = dim3((unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX));
    geometry.block = dim3(BLOCK_THREADS);
    return kernel_launch(modulate_stats_kernel<FAST>, geometry, launch, stream);
}

/* With a norm after the statistics: x' is then what was stored, or made of x and y once more. */
template <bool FAST>
static int apply_launch(modulate_launch launch, bool only_amax, cudaStream_t stream)
{
    kernel_modulate_args &args = launch.args;
    const kernel_view none = {NULL, 0, FP8PIPE_FP32};

    launch.only_amax = only_amax;
    if (args.norm != FP8PIPE_NORM_NONE && args.x_out.data != NULL) {
        args.x = args.x_out;
        args.y = args.x_out = none;
    }
    return kernel_launch(
        modulate_apply_kernel<FAST>,
        tiles_geometry(target_rows(&args.target, args.rows), target_cols(&args.target, args.cols)),
        launch, stream);
}

template <bool FAST>
static int modulate_launch_both(const modulate_launch &launch, cudaStream_t stream)
{
    const kernel_modulate_args &args = launch.args;
    int error = 0;

    if (args.norm != FP8PIPE_NORM_NONE)
        error = stats_launch<FAST>(launch, stream);
    if (error == 0 && args.target.scale_inv != NULL && args.target.own_amax != NULL)
        error = apply_launch<FAST>(launch, true, stream);
    if (error == 0 &&
        (args.norm == FP8PIPE_NORM_NONE || args.target.scale_inv != NULL || args.z.data != NULL))
        error = apply_launch<FAST>(launch, false, stream);
    return error;
}

static bool modulate_valid(const struct kernel_modulate_args *args)
{
    return args->rows > 0 && args->cols > 0 && args->x.data != NULL &&
           (unsigned)args->norm <= FP8PIPE_NORM_RMS &&
           (args->norm == FP8PIPE_NORM_NONE || (args->mean != NULL && args->rstd != NULL)) &&
           view_valid(&args->x) && view_valid(&args->y) && view_valid(&args->gate) &&
           view_valid(&args->x_out) && view_valid(&args->scale) && view_valid(&args->shift) &&
           view_valid(&args->z) && target_valid(&args->target, args->rows, args->cols);
}

int kernel_modulate_cuda(const struct kernel_modulate_args *args, struct CUstream_st *stream)
{
    modulate_launch launch;
    int error;
    bool fast;

    if (!modulate_valid(args))
        return (int)cudaErrorInvalidValue;
    fast = shape_fast(args->rows, args->cols, &args->target) && view_fast(&args->x) &&
           view_fast(&args->y) && view_fast(&args->gate) && view_fast(&args->x_out) &&
           view_fast(&args->scale) && view_fast(&args->shift) && view_fast(&args->z);
    if (fast && rows_can(args)) {
        error = rows_launch_best(args, stream);
        if (!panels_refused(error))
            return error;
    }
    if (fast && panels_can(args)) {
        error = panels_launch(args, stream);
        if (!panels_refused(error))
            return error;
    }
    launch.args = *args;
    launch.x_dtype = args->x_out.data != NULL ? (int)args->x_out.dtype : FP8PIPE_FP32;
    launch.only_amax = false;
    return fast ? modulate_launch_both<true>(launch, stream)
                : modulate_launch_both<false>(launch, stream);
}
