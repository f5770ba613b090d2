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

#include "kernels/modulate.cuh"

#define STATS_UNITS (MODULATE_SEGMENT / UNIT / 32)
#define HALVES (TILE_ROWS / KERNEL_SUM_ROWS)
#define HALF_WARPS (BLOCK_WARPS / HALVES)

struct backward_launch {
    kernel_modulate_backward_args args;
    bool only_amax;
};

/* ---- One unit ------------------------------------------------------------------------------ */

/* What is loaded of one unit. */
template <bool FAST> struct unit_inputs {
    loaded<FAST> dz;
    loaded<FAST> x;
    loaded<FAST> dx;
    loaded<FAST> y;
};

/* What is the same for most rows of a thread. */
template <bool FAST> struct unit_factors {
    loaded<FAST> gate;
    loaded<FAST> scale;
};

template <bool FAST>
static __device__ __forceinline__ loaded<FAST> load_given(const kernel_view &view, int64_t row,
                                                          int64_t col, int64_t cols)
{
    return view.data != NULL ? view_load<FAST>(view, row, col, cols) : view_zeros<FAST>();
}

/* dz, its part through scale (g), and the normalised value before and after weight and bias. */
struct unit_gradient {
    float dz[UNIT];
    float g[UNIT];
    float n[UNIT];
};

template <bool FAST>
static __device__ __forceinline__ void
gradient_begin(unit_gradient &to, const unit_inputs<FAST> &in, const loaded<FAST> &scale,
               const kernel_modulate_backward_args &args, float mean, float rstd)
{
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        to.dz[i] = to.g[i] = in.dz.value(i);
        to.n[i] = in.x.value(i);
        if (args.norm != FP8PIPE_NORM_NONE)
            to.n[i] = __fmul_rn(__fsub_rn(to.n[i], mean), rstd);
        if (args.scale.data != NULL)
            to.g[i] = __fmul_rn(to.g[i], __fadd_rn(1.0f, scale.value(i)));
    }
}

static __device__ __forceinline__ float row_mean(const kernel_modulate_backward_args &args,
                                                 int64_t row)
{
    return args.norm == FP8PIPE_NORM_LAYER ? args.mean[row] : 0.0f;
}

/* ---- Row means ----------------------------------------------------------------------------- */

template <bool FAST>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    backward_rows_kernel(const __grid_constant__ kernel_modulate_backward_args args)
{
    const int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / 32;

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

enum { SUM_GATE, SUM_SCALE, SUM_SHIFT, SUM_WEIGHT, SUM_BIAS, SUM_RESULT, SUMS };
#define SUMS_GROUPED 3

/* The distinct rows of gate and scale that the tokens of each half of a tile take, ascending. */
struct tile_groups {
    int32_t row[HALVES][KERNEL_SUM_ROWS];
    int32_t count[HALVES];
};

/* By all threads, barriers around. Without need for groups: one, 0, for each half. */
static __device__ __forceinline__ void groups_find(tile_groups &groups,
                                                   const kernel_modulate_backward_args &args,
                                                   bool needed, int64_t tile_row)
{
    const int half = threadIdx.x / 32, lane = threadIdx.x % 32;
    int count = 0;

    if (half >= HALVES)
        return;
    if (!needed || args.rows_of == NULL) {
        if (lane == 0) {
            groups.row[half][0] = 0;
            groups.count[half] = 1;
        }
        return;
    }
    for (int from = 0; from < KERNEL_SUM_ROWS; from += 32) {
        const int64_t row = tile_row + half * KERNEL_SUM_ROWS + from + lane;
        const int32_t r = row < args.rows ? args.rows_of[row] : 0;
        const bool starts = row < args.rows && (from + lane == 0 || r != args.rows_of[row - 1]);
        const uint32_t all = __ballot_sync(WARP_ALL, starts);

        if (starts)
            groups.row[half][count + __popc(all & ((1u << lane) - 1))] = r;
        count += __popc(all);
    }
    if (lane == 0)
        groups.count[half] = count;
}

static __device__ __forceinline__ void sum_add(float sums[UNIT], const float a[UNIT],
                                               const float b[UNIT], bool adds, bool first)
{
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        const float term = adds ? (b != NULL ? __fmul_rn(a[i], b[i]) : a[i]) : 0.0f;

        sums[i] = first ? term : __fadd_rn(sums[i], term);
    }
}

/* The sums of four rows of a thread; of those that are not wanted nothing is read. */
struct thread_sums {
    float of[SUMS][UNIT];
};

struct backward_tile {
    transposed_tile transposed;
    sums_tile sums[SUMS];
    tile_groups groups;
};

/*
 * One row of a thread's unit. `adds`: the row's token is one of those that are summed; `writes`:
 * the last time, in which outputs are written. Codes are 0 otherwise.
 */
template <bool FAST, bool AFFINE>
static __device__ __forceinline__ uint2 backward_row(const backward_launch &launch,
                                                     const unit_inputs<FAST> &in,
                                                     const unit_factors<FAST> &by, int64_t row,
                                                     int64_t col, float scale, bool adds,
                                                     bool writes, bool first, thread_sums &sums,
                                                     found &f)
{
    const kernel_modulate_backward_args &args = launch.args;
    const fp8pipe_quantize_target &target = args.target;
    const bool here = row < args.rows;
    const int64_t count = here ? args.cols - col : 0;
    const bool normalised = here && args.norm != FP8PIPE_NORM_NONE;
    const float rstd = normalised ? args.rstd[row] : 0.0f;
    const float mean_dn = normalised ? args.row_means[row] : 0.0f;
    const float mean_dnn = normalised ? args.row_means[args.rows + row] : 0.0f;
    unit_gradient gradient;
    float d[UNIT], after[UNIT];
    uint2 codes = make_uint2(0, 0);

    gradient_begin(gradient, in, by.scale, args, normalised ? row_mean(args, row) : 0.0f, rstd);
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        d[i] = gradient.g[i];
        after[i] = gradient.n[i];
    }
    if (AFFINE && args.weight != NULL) {
        float weight[UNIT];

        vector_load(weight, args.weight, col, args.cols);
#pragma unroll
        for (int i = 0; i < UNIT; i++) {
            d[i] = __fmul_rn(d[i], weight[i]);
            after[i] = __fmul_rn(after[i], weight[i]);
        }
    }
    if (AFFINE && args.bias != NULL) {
        float bias[UNIT];

        vector_load(bias, args.bias, col, args.cols);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            after[i] = __fadd_rn(after[i], bias[i]);
    }
    if (args.scale_partials != NULL)
        sum_add(sums.of[SUM_SCALE], gradient.dz, after, adds, first);
    if (args.shift_partials != NULL)
        sum_add(sums.of[SUM_SHIFT], gradient.dz, NULL, adds, first);
    if (AFFINE && args.weight_partials != NULL)
        sum_add(sums.of[SUM_WEIGHT], gradient.g, gradient.n, here, first);
    if (AFFINE && args.bias_partials != NULL)
        sum_add(sums.of[SUM_BIAS], gradient.g, NULL, here, first);
    if (writes && here && args.dscale.data != NULL) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            after[i] = __fmul_rn(gradient.dz[i], after[i]);
        view_store<FAST>(args.dscale, row, col, args.cols, after);
    }
    if (writes && here && args.dshift.data != NULL)
        view_store<FAST>(args.dshift, row, col, args.cols, gradient.dz);
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        d[i] = modulate_norm_backward(args.norm, d[i], gradient.n[i], rstd, mean_dn, mean_dnn);
        if (args.dx_out.data != NULL)
            d[i] = __fadd_rn(d[i], in.dx.value(i));
        gradient.g[i] = in.y.value(i);
    }
    if (args.gate_partials != NULL)
        sum_add(sums.of[SUM_GATE], d, gradient.g, adds, first);
    if (writes && here && args.dgate.data != NULL) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            after[i] = __fmul_rn(d[i], gradient.g[i]);
        view_store<FAST>(args.dgate, row, col, args.cols, after);
    }
    if (writes && here && args.dx.data != NULL)
        view_store<FAST>(args.dx, row, col, args.cols, d);
    if (args.y.data != NULL || args.dy.data != NULL) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            gradient.g[i] = args.gate.data != NULL ? __fmul_rn(by.gate.value(i), d[i]) : d[i];
        if (writes && here && args.dy.data != NULL)
            view_store<FAST>(args.dy, row, col, args.cols, gradient.g);
        if (args.y.data != NULL)
#pragma unroll
            for (int i = 0; i < UNIT; i++)
                d[i] = gradient.g[i];
    }
    if (count <= 0)
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            d[i] = 0.0f;
    if (target.partials != NULL)
        sum_add(sums.of[SUM_RESULT], d, NULL, here, first);
    if (writes || launch.only_amax)
        found_amax(f, d, count);
    if (writes && target.scale_inv != NULL) {
        codes = values_quantize(d, scale, target.format, count);
        if (AFFINE && target.extremes != NULL)
            found_extremes(f, d, scale, target.format, count);
        if (target.row != NULL && here && col < target.row_stride)
            *(uint2 *)(target.row + row * target.row_stride + col) = codes;
    }
    return codes;
}

/* The inputs of a unit, zeros beyond the matrix. */
template <bool FAST>
static __device__ __forceinline__ unit_inputs<FAST>
backward_load(const kernel_modulate_backward_args &args, int64_t row, int64_t col)
{
    const int64_t cols = row < args.rows ? args.cols : 0;
    const bool with_y = args.gate_partials != NULL || args.dgate.data != NULL;
    unit_inputs<FAST> in;

    in.dz = in.x = in.dx = in.y = view_zeros<FAST>();
    if (col < cols) {
        in.dz = load_given<FAST>(args.dz, row, col, cols);
        in.x = view_load<FAST>(args.x_out, row, col, cols);
        in.dx = load_given<FAST>(args.dx_out, row, col, cols);
        if (with_y)
            in.y = load_given<FAST>(args.y, row, col, cols);
    }
    return in;
}

template <bool FAST>
static __device__ __forceinline__ unit_factors<FAST>
backward_factors(const kernel_modulate_backward_args &args, int64_t r, int64_t col)
{
    return {load_given<FAST>(args.gate, r, col, args.cols),
            load_given<FAST>(args.scale, r, col, args.cols)};
}

/* Where the sums of kind `sum` go, or NULL. */
static __device__ __forceinline__ float *sums_partials(const kernel_modulate_backward_args &args,
                                                       int sum)
{
    switch (sum) {
    case SUM_GATE:
        return args.gate_partials;
    case SUM_SCALE:
        return args.scale_partials;
    case SUM_SHIFT:
        return args.shift_partials;
    case SUM_WEIGHT:
        return args.weight_partials;
    case SUM_BIAS:
        return args.bias_partials;
    }
    return args.target.partials;
}

/* Blocks that a multiprocessor's registers are to hold; converting in software takes more. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
#define BACKWARD_BLOCKS(fast, affine) ((fast) && !(affine) ? 2 : 1)
#else
#define BACKWARD_BLOCKS(fast, affine) 1
#endif

/* AFFINE: with weight, bias, their sums and counts of extremes, whose registers leave room for one
 * block alone. */
template <bool FAST, bool AFFINE>
static __global__ void __launch_bounds__(BLOCK_THREADS, BACKWARD_BLOCKS(FAST, AFFINE))
    modulate_backward_kernel(const __grid_constant__ backward_launch launch)
{
    __shared__ backward_tile tile;
    const kernel_modulate_backward_args &args = launch.args;
    const fp8pipe_quantize_target &target = args.target;
    const bool quantizes = target.scale_inv != NULL;
    const bool grouped =
        !launch.only_amax &&
        (args.gate_partials != NULL || args.scale_partials != NULL || args.shift_partials != NULL);
    const int half = threadIdx.x / 32 / HALF_WARPS;
    const int64_t tile_col = (int64_t)blockIdx.x * TILE_COLS;
    const int64_t col = tile_col + tile_thread_col();
    const int64_t rows =
        quantizes && target.transposed != NULL ? target.transposed_stride : args.rows;
    int64_t tile_row = (int64_t)blockIdx.y * TILE_ROWS;
    found f = {0, 0, 0};

    if (launch.only_amax && *target.has_scale != 0)
        return;
    const float scale = quantizes && !launch.only_amax ? target_scale(target) : 1.0f;
    for (; tile_row < rows; tile_row += (int64_t)gridDim.y * TILE_ROWS) {
        const int64_t row = tile_row + tile_group() * UNIT_ROWS;

        groups_find(tile.groups, args, grouped, tile_row);
        __syncthreads();
        const int times = max(1, max(tile.groups.count[0], tile.groups.count[1]));
        for (int time = 0; time < times; time++) {
            /* Both halves end with their last group. */
            const int group = time - (times - tile.groups.count[half]);
            const int32_t r = group >= 0 ? tile.groups.row[half][group] : -1;
            const bool writes = !launch.only_amax && time == times - 1;
            thread_sums sums;
            uint2 codes[UNIT_ROWS];
            unit_factors<FAST> by = {view_zeros<FAST>(), view_zeros<FAST>()};
            int32_t held = -1; /* the lower half is enough to tell neighbours apart */

#pragma unroll
            for (int pair = 0; pair < UNIT_ROWS; pair += 2) {
                unit_inputs<FAST> in[2];

#pragma unroll
                for (int i = 0; i < 2; i++)
                    in[i] = backward_load<FAST>(args, row + pair + i, col);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int64_t at = row + pair + i;
                    const int64_t taken = at < args.rows ? row_of(args.rows_of, at) : -1;
                    const bool adds = taken >= 0 && group >= 0 &&
                                      (args.rows_of == NULL || !grouped || taken == r);

                    if (taken >= 0 && (pair + i == 0 || (int32_t)taken != held)) {
                        by = backward_factors<FAST>(args, taken, col);
                        held = (int32_t)taken;
                    }
                    codes[pair + i] = backward_row<FAST, AFFINE>(
                        launch, in[i], by, at, col, scale, adds, writes, pair + i == 0, sums, f);
                }
            }
            if (launch.only_amax)
                continue;
            if (writes && target.transposed != NULL)
                tile.transposed.put(tile_thread_col(), tile_group(), codes);
#pragma unroll
            for (int sum = 0; sum < SUMS; sum++)
                if ((AFFINE || (sum != SUM_WEIGHT && sum != SUM_BIAS)) &&
                    sums_partials(args, sum) != NULL && (sum < SUMS_GROUPED || writes))
                    tile.sums[sum].put(tile_thread_col(), tile_group(), sums.of[sum]);
            __syncthreads();
            if (writes && target.transposed != NULL)
                tile.transposed.write<BLOCK_THREADS, false>(
                    target.transposed, target.transposed_stride, tile_row, tile_col, args.cols);
            for (int i = threadIdx.x; i < SUMS * HALVES * TILE_COLS; i += BLOCK_THREADS) {
                const int c = i % TILE_COLS, part = i / TILE_COLS % HALVES;
                const int sum = i / TILE_COLS / HALVES;
                const int index = time - (times - tile.groups.count[part]);
                float *partials = sums_partials(args, sum);
                int64_t to = tile_row / KERNEL_SUM_ROWS + part;

                if (partials == NULL || tile_col + c >= args.cols ||
                    to * KERNEL_SUM_ROWS >= args.rows)
                    continue;
                if (sum < SUMS_GROUPED ? index < 0 : !writes)
                    continue;
                if (sum < SUMS_GROUPED)
                    to += tile.groups.row[part][index];
                partials[to * args.cols + tile_col + c] = column_sums_get(tile.sums[sum], part, c);
            }
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

template <bool FAST, bool AFFINE>
static int tiles_launch(const kernel_modulate_backward_args &args, cudaStream_t stream)
{
    const kernel_geometry geometry =
        tiles_geometry(target_rows(&args.target, args.rows), target_cols(&args.target, args.cols));
    backward_launch launch;
    int error = 0;

    launch.args = args;
    launch.only_amax = true;
    if (args.target.scale_inv != NULL && args.target.own_amax != NULL)
        error = kernel_launch(modulate_backward_kernel<FAST, AFFINE>, geometry, launch, stream);
    launch.only_amax = false;
    if (error == 0)
        error = kernel_launch(modulate_backward_kernel<FAST, AFFINE>, geometry, launch, stream);
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
    const bool fast = args->cols % UNIT == 0 && view_fast(&args->dz) && view_fast(&args->dx_out) &&
                      view_fast(&args->x_out) && view_fast(&args->y) && view_fast(&args->gate) &&
                      view_fast(&args->scale) && view_fast(&args->dx) && view_fast(&args->dy) &&
                      view_fast(&args->dgate) && view_fast(&args->dscale) &&
                      view_fast(&args->dshift);
    int error = 0;

    if (args->norm != FP8PIPE_NORM_NONE)
        error = fast ? rows_launch<true>(*args, stream) : rows_launch<false>(*args, stream);
    if (error != 0)
        return error;
    if (!fast)
        return tiles_launch<false, true>(*args, stream);
    if (args->weight != NULL || args->bias != NULL || args->weight_partials != NULL ||
        args->bias_partials != NULL || args->target.extremes != NULL)
        return tiles_launch<true, true>(*args, stream);
    return tiles_launch<true, false>(*args, stream);
}
