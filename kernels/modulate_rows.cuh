/*
 * modulate in one pass with rows in registers, for kernels/modulate.cu alone; sm_90 and later.
 *
 * A block takes a tile: ROWS rows by a panel of COLS columns. A warp takes one of the PARTS of a
 * row of the panel at a time, whole segments of the row sums, and keeps it in registers, as the
 * bf16 that x' is stored as, from its load to its codes, so everything is read once and written
 * once and warps wait for nothing but memory. Only codes go through shared memory, on their way to
 * the transposed copy.
 *
 * Where a row has more columns than a part, warps share it, and where it has more than a panel, the
 * blocks of a cluster. Each warp posts the moments of its segments to the blocks of the cluster and
 * waits for those of the same row alone: a place is written once, from EMPTY to what no moments can
 * be, so that the value is the signal. A block that has got all moments of all its rows is written
 * to no more and may end.
 *
 * Byte c of row r lies at r * COLS + (c ^ r / 16 * (128 / CHUNKS)), so that both the warp that
 * writes a row and the one that reads 16 rows of 32 / CHUNKS words in CHUNKS places touch every
 * bank once.
 */
#ifndef KERNELS_MODULATE_ROWS_CUH
#define KERNELS_MODULATE_ROWS_CUH

#include "kernels/modulate_panels.cuh"

#define ROWS_PANELS_MAX 8    /* the largest cluster that is not to be asked for */
#define ROWS_SEGMENTS_MAX 32 /* a lane for each */
#define ROWS_EMPTY UINT64_MAX
#define BF16_ONES 0x3f803f80u
#define BF16_MINUS_ZEROS 0x80008000u

/* UNITS of a lane in its part of a row, PARTS in a panel, WARPS in a block, ROWS in a tile; BLOCKS
 * fit on a multiprocessor. */
template <int UNITS_, int PARTS_, int WARPS_, int ROWS_, int BLOCKS_> struct rows_shape {
    enum {
        UNITS = UNITS_,
        PARTS = PARTS_,
        WARPS = WARPS_,
        GROUPS = WARPS_ / PARTS_, /* of warps: rows at a time */
        ROWS = ROWS_,
        BLOCKS = BLOCKS_,
        THREADS = WARPS_ * 32,
        STEP = 32 * UNIT, /* columns from one unit of a lane to the next */
        PART_COLS = UNITS_ * STEP,
        COLS = PARTS_ * PART_COLS,
        SEGMENTS = PART_COLS / MODULATE_SEGMENT, /* of a part */
        CHUNKS = ROWS_ / 16,
        BYTES = ROWS_ * COLS
    };
    static_assert(PART_COLS % MODULATE_SEGMENT == 0, "a part is whole segments");
    static_assert(WARPS % PARTS == 0 && ROWS % GROUPS == 0, "each row has its warps");
    static_assert(ROWS % 16 == 0 && CHUNKS != 3 && CHUNKS <= 4, "a tile is whole chunks");
};

/* ---- Moments of rows that a cluster shares --------------------------------------------------- */

static __device__ __forceinline__ uint64_t moments_pack(float mean, float square)
{
    /* A sum of squares has no sign; without one no NaN is EMPTY. */
    return (uint64_t)(float_bits(square) & 0x7fffffffu) << 32 | float_bits(mean);
}

static __device__ __forceinline__ void moments_post(uint64_t *own, int rank, uint64_t value)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t here = (uint32_t)__cvta_generic_to_shared(own);
    uint32_t there;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("st.relaxed.cluster.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(value)
                 : "memory");
#endif
}

static __device__ __forceinline__ uint64_t moments_peek(const uint64_t *own)
{
    uint64_t value = 0;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const uint32_t here = (uint32_t)__cvta_generic_to_shared(own);

    asm volatile("ld.relaxed.cluster.shared::cta.u64 %0, [%1];"
                 : "=l"(value)
                 : "r"(here)
                 : "memory");
#endif
    return value;
}

/* Mean and squares of a row: `to` becomes that of both. weight: that of the segment added. */
static __device__ __forceinline__ void rows_merge(int norm, float2 &to, float2 segment,
                                                  float2 weight)
{
    if (norm == FP8PIPE_NORM_LAYER) {
        const float delta = __fsub_rn(segment.x, to.x);

        to.x = __fadd_rn(to.x, __fmul_rn(delta, weight.x));
        to.y = __fadd_rn(to.y, __fadd_rn(segment.y, __fmul_rn(__fmul_rn(delta, delta), weight.y)));
    } else {
        to.y = __fadd_rn(to.y, segment.y);
    }
}

/* ---- One row -------------------------------------------------------------------------------- */

static __device__ __forceinline__ float half_value(const uint4 &bits, int i)
{
    const loaded<true> unit = {bits};

    return unit.value(i);
}

/* The unit at p, which no thread of the launch writes; `other` in each word if it is not there. */
static __device__ __forceinline__ uint4 load_if(bool there, const uint16_t *p, uint32_t other)
{
    uint4 bits = make_uint4(other, other, other, other);

    if (there)
        bits = __ldg((const uint4 *)p);
    return bits;
}

/* The row that `view` has for the token; of no use if the view is absent. */
static __device__ __forceinline__ const uint16_t *row_at(const kernel_view &view, int64_t row,
                                                         uint32_t col)
{
    return (const uint16_t *)view.data + row * view.stride + col;
}

/* x' of a row, stored too. `left`: columns from the lane's first to the end, 0 or less: none. */
template <class SHAPE>
static __device__ __forceinline__ void rows_add(uint4 x[SHAPE::UNITS],
                                                const kernel_modulate_args &args, int64_t row,
                                                int64_t taken, uint32_t col, int left)
{
    const bool adds = args.y.data != NULL, gated = args.gate.data != NULL;
    const uint16_t *x_row = row_at(args.x, row, col);
    const uint16_t *y_row = row_at(args.y, row, col);
    const uint16_t *gate_row = row_at(args.gate, taken, col);
    uint4 y[SHAPE::UNITS];

#pragma unroll
    for (int u = 0; u < SHAPE::UNITS; u++) {
        x[u] = make_uint4(0, 0, 0, 0);
        /* It may be where x' goes. */
        if (u * SHAPE::STEP < left)
            x[u] = *(const uint4 *)(x_row + u * SHAPE::STEP);
    }
    if (adds) {
#pragma unroll
        for (int u = 0; u < SHAPE::UNITS; u++)
            y[u] = load_if(u * SHAPE::STEP < left, y_row + u * SHAPE::STEP, 0);
#pragma unroll
        for (int u = 0; u < SHAPE::UNITS; u++) {
            const uint4 gate =
                load_if(gated && u * SHAPE::STEP < left, gate_row + u * SHAPE::STEP, BF16_ONES);
            float values[UNIT];

#pragma unroll
            for (int i = 0; i < UNIT; i++)
                values[i] = __fadd_rn(half_value(x[u], i),
                                      __fmul_rn(half_value(gate, i), half_value(y[u], i)));
            x[u] = bf16_unit(values);
        }
    }
    if (args.x_out.data != NULL) {
        uint16_t *to = (uint16_t *)args.x_out.data + row * args.x_out.stride + col;

#pragma unroll
        for (int u = 0; u < SHAPE::UNITS; u++)
            if (u * SHAPE::STEP < left)
                *(uint4 *)(to + u * SHAPE::STEP) = x[u];
    }
}

/* Moments of the segments of a part, the same in all lanes. `rest`: columns from the part's first to
 * the end. */
template <class SHAPE, int NORM>
static __device__ __forceinline__ void rows_moments(float2 moments[SHAPE::SEGMENTS],
                                                    const uint4 x[SHAPE::UNITS], int left, int rest)
{
#pragma unroll
    for (int s = 0; s < SHAPE::SEGMENTS; s++) {
        moments[s] = make_float2(0.0f, 0.0f);
        if (NORM == FP8PIPE_NORM_LAYER)
#pragma unroll
            for (int i = 0; i < 2 * UNIT; i++)
                moments[s].x = __fadd_rn(moments[s].x, half_value(x[2 * s + i / UNIT], i % UNIT));
    }
    if (NORM == FP8PIPE_NORM_LAYER) {
#pragma unroll
        for (int step = MODULATE_LANES / 2; step > 0; step /= 2)
#pragma unroll
            for (int s = 0; s < SHAPE::SEGMENTS; s++)
                moments[s].x =
                    __fadd_rn(moments[s].x, __shfl_xor_sync(WARP_ALL, moments[s].x, step));
#pragma unroll
        for (int s = 0; s < SHAPE::SEGMENTS; s++) {
            const int count = rest - s * MODULATE_SEGMENT;

            /* The same as the division. */
            if (count >= MODULATE_SEGMENT)
                moments[s].x = __fmul_rn(moments[s].x, 1.0f / MODULATE_SEGMENT);
            else
                moments[s].x = __fdiv_rn(moments[s].x, (float)count);
        }
    }
#pragma unroll
    for (int s = 0; s < SHAPE::SEGMENTS; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int u = 2 * s + half;
            /* Zeros that the row does not have are no distance away. */
            const float middle = u * SHAPE::STEP < left ? moments[s].x : 0.0f;

#pragma unroll
            for (int i = 0; i < UNIT; i++) {
                const float value = half_value(x[u], i);
                const float distance =
                    NORM == FP8PIPE_NORM_LAYER ? __fsub_rn(value, middle) : value;

                moments[s].y = __fadd_rn(moments[s].y, __fmul_rn(distance, distance));
            }
        }
#pragma unroll
    for (int step = MODULATE_LANES / 2; step > 0; step /= 2)
#pragma unroll
        for (int s = 0; s < SHAPE::SEGMENTS; s++)
            moments[s].y = __fadd_rn(moments[s].y, __shfl_xor_sync(WARP_ALL, moments[s].y, step));
}

/* Mean and squares of the whole row; `moments`: of the segments from `first` on, which are this
 * warp's. */
template <class SHAPE, int NORM>
static __device__ __forceinline__ float2 rows_whole(const float2 moments[SHAPE::SEGMENTS],
                                                    uint64_t posted[ROWS_SEGMENTS_MAX],
                                                    const float2 weights[ROWS_SEGMENTS_MAX],
                                                    int first, int segments)
{
    const int lane = threadIdx.x % 32;
    float2 whole = moments[0];

    if (SHAPE::PARTS == 1 && gridDim.x == 1) {
#pragma unroll
        for (int s = 1; s < SHAPE::SEGMENTS; s++)
            if (s < segments)
                rows_merge(NORM, whole, moments[s], weights[s]);
        return whole;
    }
    const int rank = lane / SHAPE::SEGMENTS;
    const int at = first + lane % SHAPE::SEGMENTS;
    float2 mine = moments[0];

#pragma unroll
    for (int s = 1; s < SHAPE::SEGMENTS; s++)
        if (lane % SHAPE::SEGMENTS == s)
            mine = moments[s];
    if (rank < (int)gridDim.x && at < segments)
        moments_post(&posted[at], rank, moments_pack(mine.x, mine.y));
    if (lane < segments)
        while (moments_peek(&posted[lane]) == ROWS_EMPTY)
            ;
    __syncwarp();
    for (int k = 0; k < segments; k++) {
        const uint64_t bits = moments_peek(&posted[k]);
        const float2 one =
            make_float2(float_from_bits((uint32_t)bits), float_from_bits((uint32_t)(bits >> 32)));

        if (k == 0)
            whole = one;
        else
            rows_merge(NORM, whole, one, weights[k]);
    }
    return whole;
}

/* The larger of both, NaN if one is. */
static __device__ __forceinline__ float larger(float a, float b)
{
    float c;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

/* From x' to the codes of a row, to memory and, for the transposed copy, to `codes`. Returns the
 * larger of `largest` and the row's magnitudes. */
template <class SHAPE, int NORM, int FORMAT>
static __device__ __forceinline__ float rows_codes(const uint4 x[SHAPE::UNITS], uint8_t *codes,
                                                   const kernel_modulate_args &args, int64_t row,
                                                   int64_t taken, uint32_t col, int left,
                                                   float2 stats, float scale, float largest)
{
    const fp8pipe_quantize_target &target = args.target;
    const bool scaled = args.scale.data != NULL, shifted = args.shift.data != NULL;
    const uint16_t *scale_row = row_at(args.scale, taken, col);
    const uint16_t *shift_row = row_at(args.shift, taken, col);
    uint8_t *to = target.row + row * target.row_stride + col;
    const int room = target.row != NULL && row < args.rows ? (int)target.row_stride - (int)col : 0;

#pragma unroll
    for (int u = 0; u < SHAPE::UNITS; u++) {
        const bool there = u * SHAPE::STEP < left;
        const uint4 by = load_if(scaled && there, scale_row + u * SHAPE::STEP, 0);
        const uint4 plus = load_if(shifted && there, shift_row + u * SHAPE::STEP, BF16_MINUS_ZEROS);
        uint32_t pair[UNIT / 2];
        float values[UNIT];
        float most = 0.0f;

#pragma unroll
        for (int i = 0; i < UNIT; i++) {
            values[i] = half_value(x[u], i);
            if (NORM == FP8PIPE_NORM_LAYER)
                values[i] = __fsub_rn(values[i], stats.x);
            if (NORM != FP8PIPE_NORM_NONE)
                values[i] = __fmul_rn(values[i], stats.y);
            values[i] = __fmul_rn(values[i], __fadd_rn(1.0f, half_value(by, i)));
            values[i] = __fadd_rn(values[i], half_value(plus, i));
            most = larger(most, fabsf(values[i]));
        }
        largest = there ? larger(largest, most) : largest;
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++)
            pair[i] = fp8pipe_cuda::detail::fp8_two<FORMAT>(__fmul_rn(values[2 * i], scale),
                                                            __fmul_rn(values[2 * i + 1], scale));
        const uint2 unit =
            make_uint2(there ? pair[0] | pair[1] << 16 : 0, there ? pair[2] | pair[3] << 16 : 0);
        if (u * SHAPE::STEP < room)
            *(uint2 *)(to + u * SHAPE::STEP) = unit;
        *(uint2 *)(codes + u * SHAPE::STEP) = unit;
    }
    return largest;
}

/* ---- The kernel ------------------------------------------------------------------------------ */

template <class SHAPE>
static __device__ __forceinline__ void rows_transposed(const uint8_t *codes,
                                                       const fp8pipe_quantize_target &target,
                                                       int64_t tile_row, uint32_t from)
{
    for (int i = threadIdx.x; i < SHAPE::COLS / 4 * SHAPE::CHUNKS; i += SHAPE::THREADS) {
        const int chunk = i % SHAPE::CHUNKS;
        const int c = i / SHAPE::CHUNKS * 4;
        const uint8_t *first =
            codes + chunk * 16 * SHAPE::COLS + (c ^ chunk * (128 / SHAPE::CHUNKS));
        uint32_t words[4][4];

        if (from + c >= target.cols || tile_row + chunk * 16 >= target.transposed_stride)
            continue;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            uint32_t in[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                in[j] = *(const uint32_t *)(first + (q * 4 + j) * SHAPE::COLS);
            bytes_transpose(words[q], in[0], in[1], in[2], in[3]);
        }
        uint8_t *to = target.transposed + (int64_t)(from + c) * target.transposed_stride +
                      tile_row + chunk * 16;
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(uint4 *)(to + j * target.transposed_stride) =
                make_uint4(words[0][j], words[1][j], words[2][j], words[3][j]);
    }
}

/* grid: panels of a row, which are one cluster if there are several; tiles. */
template <class SHAPE, int NORM>
static __global__ void __launch_bounds__(SHAPE::THREADS, SHAPE::BLOCKS)
    modulate_rows_kernel(const __grid_constant__ kernel_modulate_args args)
{
#if PANELS_COMPILED
    extern __shared__ __align__(16) uint8_t rows_codes_of[];
    __shared__ uint64_t posted[SHAPE::ROWS][ROWS_SEGMENTS_MAX];
    /* Of segments: what a merge multiplies the distance of the means by, and its square. */
    __shared__ float2 weights[ROWS_SEGMENTS_MAX];
    const fp8pipe_quantize_target &target = args.target;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t tile_row = (int64_t)blockIdx.y * SHAPE::ROWS;
    const uint32_t from = blockIdx.x * SHAPE::COLS;
    const int part = warp % SHAPE::PARTS * SHAPE::PART_COLS; /* its first column, of the panel */
    const uint32_t col = from + part + lane * UNIT;
    const int segments = (int)((args.cols + MODULATE_SEGMENT - 1) / MODULATE_SEGMENT);
    const bool shared = SHAPE::PARTS > 1 || gridDim.x > 1;
    found f = {0, 0, 0};
    float largest = 0.0f;

    if (NORM != FP8PIPE_NORM_NONE) {
        if (shared)
            for (int i = threadIdx.x; i < SHAPE::ROWS * ROWS_SEGMENTS_MAX; i += SHAPE::THREADS)
                posted[i / ROWS_SEGMENTS_MAX][i % ROWS_SEGMENTS_MAX] = ROWS_EMPTY;
        if (threadIdx.x < segments) {
            const float before = (float)(threadIdx.x * MODULATE_SEGMENT);
            const float count = (float)modulate_segment_cols(threadIdx.x, args.cols);
            const float part = __fdiv_rn(count, __fadd_rn(before, count));

            weights[threadIdx.x] = make_float2(part, __fmul_rn(before, part));
        }
        if (gridDim.x > 1) {
            cluster_arrive();
            cluster_wait();
        } else {
            __syncthreads();
        }
    }
    kernel_wait_for_stream();
    const float scale = *target.scale;
    for (int r = warp / SHAPE::PARTS; r < SHAPE::ROWS; r += SHAPE::GROUPS) {
        const int64_t row = tile_row + r;
        const bool exists = row < args.rows;
        const int64_t taken = exists ? row_of(args.rows_of, row) : 0;
        const int left = exists ? (int)args.cols - (int)col : 0;
        uint8_t *codes =
            rows_codes_of + r * SHAPE::COLS + part + (lane * UNIT ^ r / 16 * (128 / SHAPE::CHUNKS));
        uint4 x[SHAPE::UNITS];
        float2 stats = make_float2(0.0f, 1.0f);

        rows_add<SHAPE>(x, args, row, taken, col, left);
        if (NORM != FP8PIPE_NORM_NONE) {
            float2 moments[SHAPE::SEGMENTS];

            rows_moments<SHAPE, NORM>(moments, x, left, (int)args.cols - (int)from - part);
            stats = rows_whole<SHAPE, NORM>(moments, posted[r], weights,
                                            (int)(from + part) / MODULATE_SEGMENT, segments);
            stats.y = modulate_rstd(stats.y, args.cols, args.epsilon);
            if (from + part == 0 && lane == 0 && exists) {
                args.mean[row] = stats.x;
                args.rstd[row] = stats.y;
            }
        }
        if (target.format == FP8PIPE_E5M2)
            largest = rows_codes<SHAPE, NORM, FP8PIPE_E5M2>(x, codes, args, row, taken, col, left,
                                                            stats, scale, largest);
        else
            largest = rows_codes<SHAPE, NORM, FP8PIPE_E4M3>(x, codes, args, row, taken, col, left,
                                                            stats, scale, largest);
    }
    if (target.transposed != NULL) {
        __syncthreads();
        rows_transposed<SHAPE>(rows_codes_of, target, tile_row, from);
    }
    f.largest = float_bits(largest);
    target_publish(target, f, scale);
#endif
}

/* ---- Launch ---------------------------------------------------------------------------------- */

template <class SHAPE> static int64_t rows_panels(const struct kernel_modulate_args *args)
{
    return kernel_divide_up(target_cols(&args->target, args->cols), SHAPE::COLS);
}

template <class SHAPE> static int64_t rows_blocks(const struct kernel_modulate_args *args)
{
    return rows_panels<SHAPE>(args) *
           kernel_divide_up(target_rows(&args->target, args->rows), SHAPE::ROWS);
}

/* Of FAST args: codes and nothing out of the ordinary. A row's x' must be what is kept of it. */
static bool rows_can(const struct kernel_modulate_args *args)
{
    const struct fp8pipe_quantize_target *target = &args->target;
    const int64_t limit = INT32_MAX / 2;

    return (args->x_out.data != NULL || args->y.data == NULL) && target->scale_inv != NULL &&
           target->own_amax == NULL && target->partials == NULL && target->extremes == NULL &&
           args->z.data == NULL && args->weight == NULL && args->bias == NULL &&
           target_rows(target, args->rows) <= limit && target_cols(target, args->cols) <= limit &&
           panels_compiled();
}

/* Whether rows have at most as many panels as a cluster has blocks, each with columns of its own.
 */
template <class SHAPE> static bool rows_fit(const struct kernel_modulate_args *args)
{
    const int64_t panels = rows_panels<SHAPE>(args);

    return rows_blocks<SHAPE>(args) / panels <= GRID_Y_MAX &&
           (panels == 1 || args->norm == FP8PIPE_NORM_NONE ||
            (panels <= ROWS_PANELS_MAX &&
             panels * SHAPE::PARTS * SHAPE::SEGMENTS <= ROWS_SEGMENTS_MAX &&
             kernel_divide_up(args->cols, SHAPE::COLS) == panels));
}

template <class SHAPE, int NORM>
static int rows_launch_norm(const struct kernel_modulate_args *args, cudaStream_t stream)
{
    const unsigned panels = (unsigned)rows_panels<SHAPE>(args);
    kernel_geometry geometry;

    geometry.grid = dim3(panels, (unsigned)(rows_blocks<SHAPE>(args) / panels));
    geometry.block = dim3(SHAPE::THREADS);
    geometry.shared_bytes = SHAPE::BYTES;
    geometry.cluster = NORM != FP8PIPE_NORM_NONE && panels > 1 ? panels : 0;
    /* Spread out, not as many of the larger clusters fit at a time. */
    geometry.packs = geometry.cluster >= 4;
    return kernel_launch(modulate_rows_kernel<SHAPE, NORM>, geometry, *args, stream);
}

template <class SHAPE>
static int rows_launch(const struct kernel_modulate_args *args, cudaStream_t stream)
{
    switch (args->norm) {
    case FP8PIPE_NORM_NONE:
        return rows_launch_norm<SHAPE, FP8PIPE_NORM_NONE>(args, stream);
    case FP8PIPE_NORM_LAYER:
        return rows_launch_norm<SHAPE, FP8PIPE_NORM_LAYER>(args, stream);
    case FP8PIPE_NORM_RMS:
        return rows_launch_norm<SHAPE, FP8PIPE_NORM_RMS>(args, stream);
    }
    return (int)cudaErrorInvalidValue;
}

/*
 * With blocks for half of the multiprocessors: by how little of their panels is left over, for those
 * columns cost as much as others. Else smaller ones.
 */
typedef rows_shape<8, 1, 8, 32, 2> rows_eight; /* panels of 2048 columns */
typedef rows_shape<6, 1, 8, 32, 2> rows_six;   /* of 1536, for rows of 3072 and 6144 */
typedef rows_shape<4, 5, 20, 32, 1> rows_five; /* of 5120, for rows of so many */
typedef rows_shape<4, 1, 16, 32, 1> rows_middle;
typedef rows_shape<2, 1, 32, 32, 1> rows_narrow;

#define ROWS_BLOCKS_ENOUGH 96

template <class SHAPE> static bool rows_enough(const struct kernel_modulate_args *args)
{
    return rows_fit<SHAPE>(args) && rows_blocks<SHAPE>(args) >= ROWS_BLOCKS_ENOUGH;
}

static inline int rows_launch_best(const struct kernel_modulate_args *args, cudaStream_t stream)
{
    const int64_t cols = target_cols(&args->target, args->cols);
    const bool middle = rows_fit<rows_middle>(args), narrow = rows_fit<rows_narrow>(args);

    if (!rows_fit<rows_eight>(args))
        return (int)cudaErrorInvalidConfiguration;
    if (cols > 2 * rows_eight::COLS && cols <= rows_five::COLS && rows_enough<rows_five>(args))
        return rows_launch<rows_five>(args, stream);
    if (((cols > rows_eight::COLS && cols <= 2 * rows_six::COLS) ||
         (cols > rows_five::COLS && cols <= 4 * rows_six::COLS)) &&
        rows_enough<rows_six>(args))
        return rows_launch<rows_six>(args, stream);
    if (rows_enough<rows_eight>(args) || !middle)
        return rows_launch<rows_eight>(args, stream);
    if (rows_blocks<rows_middle>(args) >= ROWS_BLOCKS_ENOUGH || !narrow)
        return rows_launch<rows_middle>(args, stream);
    return rows_launch<rows_narrow>(args, stream);
}

#endif
