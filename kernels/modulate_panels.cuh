/*
 * modulate in one pass, for kernels/modulate.cu alone.
 *
 * A cluster of blocks takes 64 rows, each of its blocks a panel of 512 columns, one segment of the
 * row sums. x' stays in shared memory as the bf16 that it is stored as, so everything is read once
 * and written once:
 *   1  a warp a row segment: x + gate * y, rounded, stored and kept; mean and squares of the
 *      segment go to every block of the cluster
 *   2  each block merges the segments of a row
 *   3  a thread's cells, 4 rows by 8 columns: normalise, modulate, quantize; the codes, transposed,
 *      take the place of the cell
 *   4  the transposed codes go out, 64 bytes for each column
 *
 * A panel is 64 rows of 64 units of 16 bytes, 64 KiB, so three blocks fit a multiprocessor of
 * sm_90. Unit u of row r lies at u ^ panel_swizzle(r), so that 1 and 3 touch all banks evenly (8
 * units of one row) and 4 too (the same word of 8 columns and 4 chunks of 16 rows).
 */
#ifndef KERNELS_MODULATE_PANELS_CUH
#define KERNELS_MODULATE_PANELS_CUH

#include "kernels/modulate.cuh"

#define PANEL_ROWS KERNEL_SUM_ROWS
#define PANEL_COLS MODULATE_SEGMENT
#define PANEL_UNITS (PANEL_COLS / UNIT)
#define PANEL_BYTES (PANEL_ROWS * PANEL_UNITS * 16)
#define PANELS_MAX 16     /* the largest cluster that sm_90 takes */
#define PANELS_PORTABLE 8 /* the largest that is not to be asked for */

/* ---- Clusters ------------------------------------------------------------------------------ */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PANELS_COMPILED 1
#else
#define PANELS_COMPILED 0
#endif

/* Both by all threads of the cluster. What was written before the arrival, in any of its blocks'
 * shared memory too, is seen after the wait. */
static __device__ __forceinline__ void cluster_arrive()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Writes to the place that `own` has in this block, but in block `rank` of the cluster. */
static __device__ __forceinline__ void cluster_store(float2 *own, int rank, float2 value)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t here = (uint32_t)__cvta_generic_to_shared(own);
    uint32_t there;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(value.x),
                 "f"(value.y)
                 : "memory");
#endif
}

/* ---- The kernel ---------------------------------------------------------------------------- */

static __device__ __forceinline__ int panel_swizzle(int row)
{
    return (row / 16 % 4) | row % 2 * 4;
}

static __device__ __forceinline__ int panel_at(int row, int unit)
{
    return row * PANEL_UNITS + (unit ^ panel_swizzle(row));
}

/* Step 1 for two rows, `row` and `row` + BLOCK_WARPS: x' stored and kept. Rows that the matrix does
 * not have are zeros. */
struct panel_rows {
    float values[2][2][UNIT];
};

static __device__ __forceinline__ void panel_add(uint4 *panel, const kernel_modulate_args &args,
                                                 int64_t tile_row, int row, int64_t from,
                                                 panel_rows &rows)
{
    const int lane = threadIdx.x % 32;
    loaded<true> x[2][2], y[2][2], gate[2][2];

#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const int64_t at = tile_row + row + r * BLOCK_WARPS;
            const int64_t col = from + (u * 32 + lane) * UNIT;

            x[r][u] = y[r][u] = view_zeros<true>();
            if (at < args.rows) {
                x[r][u] = view_load<true>(args.x, at, col, args.cols);
                if (args.y.data != NULL)
                    y[r][u] = view_load<true>(args.y, at, col, args.cols);
            }
        }
    if (args.gate.data != NULL && args.y.data != NULL)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int64_t at = tile_row + row + r * BLOCK_WARPS;
            const int64_t group = at < args.rows ? row_of(args.rows_of, at) : 0;

#pragma unroll
            for (int u = 0; u < 2; u++)
                gate[r][u] = view_load<true>(args.gate, group, from + (u * 32 + lane) * UNIT,
                                             at < args.rows ? args.cols : 0);
        }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const int64_t at = tile_row + row + r * BLOCK_WARPS;
            const int64_t col = from + (u * 32 + lane) * UNIT;
            float *values = rows.values[r][u];
            uint4 bits = x[r][u].bits;

            if (args.y.data != NULL) {
#pragma unroll
                for (int i = 0; i < UNIT; i++)
                    values[i] = __fadd_rn(x[r][u].value(i),
                                          args.gate.data != NULL
                                              ? __fmul_rn(gate[r][u].value(i), y[r][u].value(i))
                                              : y[r][u].value(i));
                bits = bf16_unit(values);
            }
            const loaded<true> rounded = {bits};
#pragma unroll
            for (int i = 0; i < UNIT; i++)
                values[i] = rounded.value(i);
            if (args.x_out.data != NULL && at < args.rows && col < args.cols)
                *(uint4 *)((uint16_t *)args.x_out.data + at * args.x_out.stride + col) = bits;
            panel[panel_at(row + r * BLOCK_WARPS, u * 32 + lane)] = bits;
        }
}

/* What the block's segment adds to the statistics of one row: mean and squares, or squares. */
static __device__ __forceinline__ float2 panel_moments(const kernel_modulate_args &args,
                                                       const float values[2][UNIT], int64_t from,
                                                       float count)
{
    const int lane = threadIdx.x % 32;
    float2 moments = make_float2(0.0f, 0.0f);

    if (args.norm == FP8PIPE_NORM_LAYER)
        moments.x = __fdiv_rn(warp_sum(unit_sum(unit_sum(0.0f, values[0]), values[1])), count);
#pragma unroll
    for (int u = 0; u < 2; u++)
        moments.y =
            unit_squares(moments.y, values[u], moments.x, from + (u * 32 + lane) * UNIT, args.cols);
    moments.y = warp_sum(moments.y);
    return moments;
}

/* Mean and rstd of a row, of its segments' moments. */
static __device__ __forceinline__ float2 panel_stats(const kernel_modulate_args &args,
                                                     const float2 segments[PANELS_MAX][PANEL_ROWS],
                                                     int row)
{
    modulate_moments moments = {0.0f, 0.0f, 0.0f};

    for (int k = 0; k < (int)gridDim.x; k++) {
        const float2 one = segments[k][row];

        if (args.norm == FP8PIPE_NORM_LAYER)
            modulate_merge(&moments, (float)modulate_segment_cols(k, args.cols), one.x, one.y);
        else
            moments.square = __fadd_rn(moments.square, one.y);
    }
    return make_float2(moments.mean, modulate_rstd(moments.square, args.cols, args.epsilon));
}

/* Step 3 for the cell of rows 4 * group .. and unit `unit` of the panel. */
static __device__ __forceinline__ void panel_cell(uint4 *panel, const kernel_modulate_args &args,
                                                  const float2 stats[PANEL_ROWS], int64_t tile_row,
                                                  int64_t from, int group, int unit, float scale,
                                                  found &f, float four[UNIT])
{
    const fp8pipe_quantize_target &target = args.target;
    const int64_t col = from + unit * UNIT;
    modulation<true> by = modulation_none<true>();
    uint2 codes[UNIT_ROWS];
    uint32_t words[UNIT];
    int64_t taken[UNIT_ROWS];

#pragma unroll
    for (int i = 0; i < UNIT_ROWS; i++) {
        const int64_t at = tile_row + group * UNIT_ROWS + i;

        taken[i] = at < args.rows ? row_of(args.rows_of, at) : -1;
    }
#pragma unroll
    for (int i = 0; i < UNIT_ROWS; i++) {
        const int row = group * UNIT_ROWS + i;
        const int64_t at = tile_row + row;
        const int64_t count = at < args.rows ? args.cols - col : 0;
        const loaded<true> kept = {panel[panel_at(row, unit)]};
        float values[UNIT] = {0, 0, 0, 0, 0, 0, 0, 0};

        if (count > 0) {
#pragma unroll
            for (int j = 0; j < UNIT; j++)
                values[j] = kept.value(j);
            /* The same for most rows of a cell. */
            if (i == 0 || taken[i] != taken[i - 1])
                by = modulation_load<true>(args, taken[i], col);
            modulate_values<true>(values, args, by, col, stats[row].x, stats[row].y);
            found_amax(f, values, UNIT);
            if (args.z.data != NULL)
                view_store<true>(args.z, at, col, args.cols, values);
        }
        codes[i] = values_quantize(values, scale, target.format, UNIT);
        if (target.extremes != NULL)
            found_extremes(f, values, scale, target.format, count);
        if (target.row != NULL && at < args.rows && col < target.row_stride)
            *(uint2 *)(target.row + at * target.row_stride + col) = codes[i];
#pragma unroll
        for (int j = 0; j < UNIT; j++)
            four[j] = i == 0 ? values[j] : __fadd_rn(four[j], values[j]);
    }
    bytes_transpose(words, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
    bytes_transpose(words + 4, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
    panel[panel_at(group * UNIT_ROWS, unit)] = make_uint4(words[0], words[1], words[2], words[3]);
    panel[panel_at(group * UNIT_ROWS + 1, unit)] =
        make_uint4(words[4], words[5], words[6], words[7]);
}

/* Step 4. */
static __device__ __forceinline__ void panel_transposed(const uint4 *panel,
                                                        const fp8pipe_quantize_target &target,
                                                        int64_t tile_row, int64_t from)
{
    const uint32_t *words = (const uint32_t *)panel;

#pragma unroll
    for (int i = threadIdx.x; i < PANEL_COLS * (PANEL_ROWS / 16); i += BLOCK_THREADS) {
        const int chunk = i % (PANEL_ROWS / 16);
        const int c = i / (PANEL_ROWS / 16);
        uint32_t word[4];

        if (from + c >= target.cols || tile_row + chunk * 16 >= target.transposed_stride)
            continue;
#pragma unroll
        for (int j = 0; j < 4; j++)
            word[j] =
                words[panel_at(chunk * 16 + j * UNIT_ROWS + c % UNIT / 4, c / UNIT) * 4 + c % 4];
        *(uint4 *)(target.transposed + (from + c) * target.transposed_stride + tile_row +
                   chunk * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

static __global__ void __launch_bounds__(BLOCK_THREADS, 3)
    modulate_panels_kernel(const __grid_constant__ kernel_modulate_args args)
{
#if PANELS_COMPILED
    extern __shared__ __align__(16) uint4 panel[];
    __shared__ float2 segments[PANELS_MAX][PANEL_ROWS];
    __shared__ float2 stats[PANEL_ROWS];
    __shared__ sums_tile sums;
    const fp8pipe_quantize_target &target = args.target;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t from = (int64_t)blockIdx.x * PANEL_COLS;
    const int64_t tile_row = (int64_t)blockIdx.y * PANEL_ROWS;
    const float count = (float)modulate_segment_cols(blockIdx.x, args.cols);
    const bool quantizes = target.scale_inv != NULL;
    found f = {0, 0, 0};

    cluster_arrive();
    kernel_wait_for_stream();
    for (int row = warp; row < PANEL_ROWS; row += 2 * BLOCK_WARPS) {
        panel_rows rows;

        panel_add(panel, args, tile_row, row, from, rows);
        const float2 first = panel_moments(args, rows.values[0], from, count);
        const float2 second = panel_moments(args, rows.values[1], from, count);
        /* Not into a block that has not started. */
        if (row == warp)
            cluster_wait();
        if (lane < (int)gridDim.x) {
            cluster_store(&segments[blockIdx.x][row], lane, first);
            cluster_store(&segments[blockIdx.x][row + BLOCK_WARPS], lane, second);
        }
    }
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x < PANEL_ROWS) {
        stats[threadIdx.x] = panel_stats(args, segments, threadIdx.x);
        if (blockIdx.x == 0 && tile_row + threadIdx.x < args.rows) {
            args.mean[tile_row + threadIdx.x] = stats[threadIdx.x].x;
            args.rstd[tile_row + threadIdx.x] = stats[threadIdx.x].y;
        }
    }
    __syncthreads();
    const float scale = quantizes ? *target.scale : 1.0f;
    for (int c = 0; c < PANEL_COLS; c += 2 * TILE_COLS) {
        const int unit = (c + warp / 4 * TILE_COLS) / UNIT + lane % TILE_UNITS;
        float four[UNIT];

        panel_cell(panel, args, stats, tile_row, from, warp % 4 * 4 + lane / TILE_UNITS, unit,
                   scale, f, four);
        if (target.partials != NULL) {
            sums.put(tile_thread_col(), tile_group(), four);
            __syncthreads();
            const int half = threadIdx.x / TILE_COLS;
            const int64_t col = from + c + half * TILE_COLS + threadIdx.x % TILE_COLS;

            if (half < 2 && col < args.cols && tile_row < args.rows)
                target.partials[blockIdx.y * args.cols + col] =
                    column_sums_get(sums, half, threadIdx.x % TILE_COLS);
            __syncthreads();
        }
    }
    if (target.transposed != NULL) {
        __syncthreads();
        panel_transposed(panel, target, tile_row, from);
    }
    if (quantizes)
        target_publish(target, f, scale);
#endif
}

/* ---- Launch -------------------------------------------------------------------------------- */

/* Whether the code that is compiled for the current device is that of sm_90 or later: other devices
 * run what was compiled for an earlier one. */
static bool panels_compiled(void)
{
    static const int compiled[] = {__CUDA_ARCH_LIST__};
    int device, major, minor;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return false;
    for (size_t i = 0; i < sizeof(compiled) / sizeof(compiled[0]); i++)
        if (compiled[i] >= 900 && compiled[i] == major * 100 + minor * 10)
            return true;
    return false;
}

/* Of FAST args. A row's x' must be what is kept of it: bf16. */
static bool panels_can(const struct kernel_modulate_args *args)
{
    const struct fp8pipe_quantize_target *target = &args->target;
    const int64_t panels = kernel_divide_up(args->cols, PANEL_COLS);
    const bool quantizes = target->scale_inv != NULL;

    return args->norm != FP8PIPE_NORM_NONE && (args->x_out.data != NULL || args->y.data == NULL) &&
           (quantizes || args->z.data != NULL) && !(quantizes && target->own_amax != NULL) &&
           panels <= PANELS_MAX &&
           kernel_divide_up(target_cols(target, args->cols), PANEL_COLS) == panels &&
           kernel_divide_up(target_rows(target, args->rows), PANEL_ROWS) <= GRID_Y_MAX &&
           panels_compiled();
}

/* What a launch says where the device, or the part of it that is ours, cannot hold the cluster. */
static inline bool panels_refused(int error)
{
    return error == (int)cudaErrorInvalidClusterSize ||
           error == (int)cudaErrorInvalidConfiguration ||
           error == (int)cudaErrorLaunchOutOfResources;
}

static int panels_launch(const struct kernel_modulate_args *args, cudaStream_t stream)
{
    kernel_geometry geometry;
    cudaError_t error = cudaSuccess;

    geometry.cluster = (unsigned)kernel_divide_up(args->cols, PANEL_COLS);
    geometry.grid =
        dim3(geometry.cluster,
             (unsigned)kernel_divide_up(target_rows(&args->target, args->rows), PANEL_ROWS));
    geometry.block = dim3(BLOCK_THREADS);
    geometry.shared_bytes = PANEL_BYTES;
    if (geometry.cluster > PANELS_PORTABLE)
        error = cudaFuncSetAttribute(modulate_panels_kernel,
                                     cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess && cudaPeekAtLastError() == error)
        (void)cudaGetLastError();
    return error != cudaSuccess ? (int)error
                                : kernel_launch(modulate_panels_kernel, geometry, *args, stream);
}

#endif
