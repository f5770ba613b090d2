/*
 * modulate_backward, group_sums.
 *
 * dz, dx_out, x_out, y and the outputs by token are [rows, cols] of any dtype, stride, alignment;
 * gate and scale have rows of `cols`, chosen by token. FP8 rows and transposed rows are 16-byte
 * aligned with strides that are multiples of 16 bytes, padding written as zeros.
 *
 * Scaling rule: code = cast(value * scale), the value float32, one scale for the tensor, read or
 * made on the device; *scale_inv = 1 / scale.
 *
 * Two launches: the row means that the norm's backward needs, a warp a row; then tiles of 128 rows
 * by 64 columns for all else. Sums over tokens are of chunks of 64 rows: 4 rows of a thread, a tree
 * over the 4 threads of a warp, 4 warps in ascending order. A tile whose tokens take several rows
 * of gate and scale is gone through once for each, every time with the tokens of one alone adding
 * to the sums; outputs are written the last time, for they may be where inputs were.
 */
#include <stddef.h>

#include "kernels/modulate_backward.cuh"

#define STATS_UNITS (MODULATE_SEGMENT / UNIT / 32)

/* ---- Row means ----------------------------------------------------------------------------- */

template <bool FAST>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    backward_rows_kernel(const __grid_constant__ kernel_modulate_backward_args args)
{
    const int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / 32;

    kernel_wait_for_stream();
    for (; row < args.rows; row += (int64_t)gridDim.x * BLOCK_WARPS) {
        const int64_t r = row_of(args.rows_of, row);
        const float mean = row_mean(args, row), rstd = args.rstd[row];
        float all_dn = 0.0f, all_dnn = 0.0f;

        for (int64_t from = 0; from < args.cols; from += MODULATE_SEGMENT) {
            unit_inputs<FAST> in[STATS_UNITS];
            loaded<FAST> scale[STATS_UNITS];
            float dn = 0.0f, dnn = 0.0f;

#pragma unroll
            for (int u = 0; u < STATS_UNITS; u++) {
                const int64_t col = from + (u * 32 + lane) * UNIT;

                in[u].dz = load_given<FAST>(args.dz, row, col, args.cols);
                in[u].x = view_load<FAST>(args.x_out, row, col, args.cols);
                scale[u] = load_given<FAST>(args.scale, r, col, args.cols);
            }
#pragma unroll
            for (int u = 0; u < STATS_UNITS; u++) {
                const int64_t col = from + (u * 32 + lane) * UNIT;
                unit_gradient gradient;
                float *value = gradient.g;

                gradient_begin(gradient, in[u], scale[u], args, mean, rstd);
                if (args.weight != NULL) {
                    float weight[UNIT];

                    vector_load(weight, args.weight, col, args.cols);
#pragma unroll
                    for (int i = 0; i < UNIT; i++)
                        value[i] = __fmul_rn(value[i], weight[i]);
                }
                dn = unit_sum(dn, value);
#pragma unroll
                for (int i = 0; i < UNIT; i++)
                    value[i] = col + i < args.cols ? __fmul_rn(value[i], gradient.n[i]) : 0.0f;
                dnn = unit_sum(dnn, value);
            }
            all_dn = __fadd_rn(all_dn, warp_sum(dn));
            all_dnn = __fadd_rn(all_dnn, warp_sum(dnn));
        }
        if (lane == 0) {
            args.row_means[row] = __fdiv_rn(all_dn, (float)args.cols);
            args.row_means[args.rows + row] = __fdiv_rn(all_dnn, (float)args.cols);
        }
    }
}

/* ---- Tiles --------------------------------------------------------------------------------- */

/* Blocks that a multiprocessor's registers are to hold; converting in software takes more. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define BACKWARD_BLOCKS(fast, affine) ((fast) && !(affine) ? 2 : 1)
#else
#define BACKWARD_BLOCKS(fast, affine) 1
#endif

/* After a barrier: the sums of a tile that was gone through for time `time` of `times`. */
static __device__ __forceinline__ void sums_write(const backward_tile<true> &tile,
                                                  const kernel_modulate_backward_args &args,
                                                  int64_t tile_row, int64_t tile_col, int time,
                                                  int times)
{
    for (int i = threadIdx.x; i < SUMS * HALVES * TILE_COLS; i += BLOCK_THREADS) {
        const int c = i % TILE_COLS, part = i / TILE_COLS % HALVES;
        const int sum = i / TILE_COLS / HALVES;
        const int index = time - (times - tile.groups.count[part]);
        float *partials = sums_partials(args, sum);
        int64_t to = tile_row / KERNEL_SUM_ROWS + part;

        if (partials == NULL || tile_col + c >= args.cols || to * KERNEL_SUM_ROWS >= args.rows)
            continue;
        if (sum < SUMS_GROUPED ? index < 0 : time != times - 1)
            continue;
        if (sum < SUMS_GROUPED)
            to += tile.groups.row[part][index];
        partials[to * args.cols + tile_col + c] = column_sums_get(tile.sums[sum], part, c);
    }
}

/* AFFINE: with weight, bias, their sums and counts of extremes, whose registers leave room for one
 * block alone. SUMMED: with sums over tokens. */
template <bool FAST, bool AFFINE, bool SUMMED>
static __global__ void __launch_bounds__(BLOCK_THREADS, BACKWARD_BLOCKS(FAST, AFFINE))
    modulate_backward_kernel(const __grid_constant__ backward_launch launch)
{
    __shared__ backward_tile<SUMMED> tile;
    constexpr bool CHOOSES = FAST && !AFFINE;
    const kernel_modulate_backward_args &args = launch.args;
    const fp8pipe_quantize_target &target = args.target;
    const bool quantizes = target.scale_inv != NULL;
    const bool grouped =
        SUMMED && !launch.only_amax &&
        (args.gate_partials != NULL || args.scale_partials != NULL || args.shift_partials != NULL);
    const int half = threadIdx.x / 32 / HALF_WARPS;
    const int64_t tile_col = (int64_t)blockIdx.x * TILE_COLS;
    const int64_t col = tile_col + tile_thread_col();
    const int64_t rows =
        quantizes && target.transposed != NULL ? target.transposed_stride : args.rows;
    /* From the last rows on: of these the row means left most in the second-level cache. */
    int64_t tile_row = (int64_t)(gridDim.y - 1 - blockIdx.y) * TILE_ROWS;
    found f = {0, 0, 0};

    kernel_wait_for_stream();
    if (launch.only_amax && *target.has_scale != 0)
        return;
    const float scale = quantizes && !launch.only_amax ? target_scale(target) : 1.0f;
    for (; tile_row < rows; tile_row += (int64_t)gridDim.y * TILE_ROWS) {
        const int64_t row = tile_row + tile_group() * UNIT_ROWS;
        unit_inputs<FAST> in[backward_flight<FAST, AFFINE, SUMMED>::ROWS];
        unit_factors<FAST> by = {view_zeros<FAST>(), view_zeros<FAST>()};
        int32_t held = -1;

#pragma unroll
        for (int i = 0; i < backward_flight<FAST, AFFINE, SUMMED>::ROWS; i++)
            in[i] = backward_load<FAST, false>(args, row + i, col);
        if (row < args.rows) {
            const int64_t taken = row_of(args.rows_of, row);

            by = backward_factors<FAST>(args, taken, col);
            held = (int32_t)taken;
        }
        rows_stage(tile.stage, args, tile_row);
        if (SUMMED)
            groups_find(tile.groups, args, grouped, tile_row);
        __syncthreads();
        const int times = SUMMED ? max(1, max(tile.groups.count[0], tile.groups.count[1])) : 1;
        const bool all =
            times == 1 && tile_row + TILE_ROWS <= args.rows && tile_col + TILE_COLS <= args.cols;
        for (int time = 0; time < times; time++) {
            tile_pass pass = {0, 0, grouped, !launch.only_amax && time == times - 1};
            thread_sums sums;
            uint2 codes[UNIT_ROWS];

            if (SUMMED) {
                /* Both halves end with their last group. */
                pass.group = time - (times - tile.groups.count[half]);
                pass.r = pass.group >= 0 ? tile.groups.row[half][pass.group] : -1;
            }
            /* Nearly all tiles: there is less to look at. */
            if (CHOOSES && all)
                backward_units<FAST, AFFINE, SUMMED, CHOOSES>(launch, tile.stage, pass, in,
                                                              time == 0, by, held, row, col, scale,
                                                              codes, sums, f);
            else
                backward_units<FAST, AFFINE, SUMMED, false>(launch, tile.stage, pass, in, time == 0,
                                                            by, held, row, col, scale, codes, sums,
                                                            f);
            if (launch.only_amax)
                continue;
            if (pass.writes && target.transposed != NULL)
                tile.transposed.put(tile_thread_col(), tile_group(), codes);
            if constexpr (SUMMED)
#pragma unroll
                for (int sum = 0; sum < SUMS; sum++)
                    if ((AFFINE || (sum != SUM_WEIGHT && sum != SUM_BIAS)) &&
                        sums_partials(args, sum) != NULL && (sum < SUMS_GROUPED || pass.writes))
                        tile.sums[sum].put(tile_thread_col(), tile_group(), sums.of[sum]);
            __syncthreads();
            if (pass.writes && target.transposed != NULL)
                tile.transposed.template write<BLOCK_THREADS, FAST>(
                    target.transposed, target.transposed_stride, tile_row, tile_col, args.cols);
            if constexpr (SUMMED)
                sums_write(tile, args, tile_row, tile_col, time, times);
            __syncthreads();
        }
        __syncthreads();
    }
    if (launch.only_amax)
        amax_publish(f.largest, target.own_amax);
    else if (quantizes)
        target_publish(target, f, scale);
}

/* ---- group_sums ---------------------------------------------------------------------------- */

/* The first token from which on rows_of is at least r. */
static __device__ __forceinline__ int64_t first_token(const kernel_group_sums_args &args, int64_t r)
{
    int64_t low = 0, high = args.rows;

    if (args.rows_of == NULL)
        return r <= 0 ? 0 : args.rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (args.rows_of[middle] < r)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    group_sums_kernel(const __grid_constant__ kernel_group_sums_args args)
{
    const int64_t col = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    kernel_wait_for_stream();
    for (int64_t r = blockIdx.y; r < args.groups; r += gridDim.y) {
        const int64_t from = first_token(args, r), to = first_token(args, r + 1);
        float sum = 0.0f;

        if (col >= args.cols)
            return;
        if (from < to) {
            const int64_t last = (to - 1) / KERNEL_SUM_ROWS;
#pragma unroll 4
            for (int64_t b = from / KERNEL_SUM_ROWS; b <= last; b++)
                sum = __fadd_rn(sum, args.partials[(b + r) * args.cols + col]);
        }
        const int64_t at = r * args.out.stride + col;
        if (args.out.dtype == FP8PIPE_FP32)
            ((float *)args.out.data)[at] = sum;
        else
            ((uint16_t *)args.out.data)[at] =
                args.out.dtype == FP8PIPE_BF16 ? bf16_from_float(sum) : fp16_from_float(sum);
    }
}

int kernel_group_sums_cuda(const struct kernel_group_sums_args *args, struct CUstream_st *stream)
{
    kernel_geometry geometry;

    if (args->rows < 0 || args->groups <= 0 || args->cols <= 0 || args->out.data == NULL ||
        !view_valid(&args->out) || (args->partials == NULL && args->rows > 0))
        return (int)cudaErrorInvalidValue;
    geometry.grid = dim3((unsigned)kernel_divide_up(args->cols, BLOCK_THREADS),
                         (unsigned)(args->groups < GRID_Y_MAX ? args->groups : GRID_Y_MAX));
    geometry.block = dim3(BLOCK_THREADS);
    return kernel_launch(group_sums_kernel, geometry, *args, stream);
}

/* ---- Launch -------------------------------------------------------------------------------- */

template <bool FAST>
static int rows_launch(const kernel_modulate_backward_args &args, cudaStream_t stream)
{
    const int64_t blocks = kernel_divide_up(args.rows, BLOCK_WARPS);
    kernel_geometry geometry;

    geometry.grid = dim3((unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX));
    geometry.block = dim3(BLOCK_THREADS);
    return kernel_launch(backward_rows_kernel<FAST>, geometry, args, stream);
}

template <bool FAST, bool AFFINE, bool SUMMED>
static int tiles_launch(const kernel_modulate_backward_args &args, cudaStream_t stream)
{
    const kernel_geometry geometry =
        tiles_geometry(target_rows(&args.target, args.rows), target_cols(&args.target, args.cols));
    backward_launch launch;
    int error = 0;

    launch.args = args;
    launch.only_amax = true;
    if (args.target.scale_inv != NULL && args.target.own_amax != NULL)
        error =
            kernel_launch(modulate_backward_kernel<FAST, AFFINE, SUMMED>, geometry, launch, stream);
    launch.only_amax = false;
    if (error == 0)
        error =
            kernel_launch(modulate_backward_kernel<FAST, AFFINE, SUMMED>, geometry, launch, stream);
    return error;
}

static bool backward_valid(const struct kernel_modulate_backward_args *args)
{
    return args->rows > 0 && args->cols > 0 && args->x_out.data != NULL &&
           (unsigned)args->norm <= FP8PIPE_NORM_RMS &&
           (args->norm == FP8PIPE_NORM_NONE || (args->rstd != NULL && args->row_means != NULL)) &&
           (args->norm != FP8PIPE_NORM_LAYER || args->mean != NULL) && view_valid(&args->dz) &&
           view_valid(&args->dx_out) && view_valid(&args->x_out) && view_valid(&args->y) &&
           view_valid(&args->gate) && view_valid(&args->scale) && view_valid(&args->dx) &&
           view_valid(&args->dy) && view_valid(&args->dgate) && view_valid(&args->dscale) &&
           view_valid(&args->dshift) && target_valid(&args->target, args->rows, args->cols);
}

int kernel_modulate_backward_cuda(const struct kernel_modulate_backward_args *args,
                                  struct CUstream_st *stream)
{
    if (!backward_valid(args))
        return (int)cudaErrorInvalidValue;
    const bool fast = shape_fast(args->rows, args->cols, &args->target) && view_fast(&args->dz) &&
                      view_fast(&args->dx_out) && view_fast(&args->x_out) && view_fast(&args->y) &&
                      view_fast(&args->gate) && view_fast(&args->scale) && view_fast(&args->dx) &&
                      view_fast(&args->dy) && view_fast(&args->dgate) && view_fast(&args->dscale) &&
                      view_fast(&args->dshift);
    int error = 0;

    if (args->norm != FP8PIPE_NORM_NONE)
        error = fast ? rows_launch<true>(*args, stream) : rows_launch<false>(*args, stream);
    if (error != 0)
        return error;
    if (!fast)
        return tiles_launch<false, true, true>(*args, stream);
    if (args->weight != NULL || args->bias != NULL || args->weight_partials != NULL ||
        args->bias_partials != NULL || args->target.extremes != NULL)
        return tiles_launch<true, true, true>(*args, stream);
    if (args->gate_partials != NULL || args->scale_partials != NULL ||
        args->shift_partials != NULL || args->target.partials != NULL)
        return tiles_launch<true, false, true>(*args, stream);
    return tiles_launch<true, false, false>(*args, stream);
}
