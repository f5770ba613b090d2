/*
 * libfp8pipe: the kernels behind fp8pipe_quantize.cuh. Nothing here is for users, and all of it may
 * change: only what is outside of `detail` is the interface. fp8pipe_quantize_launch.cuh has their
 * launches.
 *
 * Values v [rows, cols], float32, computed by a functor F in units of 8 columns. FP8 rows and
 * transposed rows are 16-byte aligned with strides that are multiples of 16 bytes, padding written
 * as zeros. Scaling rule: code = cast(v * scale), one scale for all, read or made on the device
 * from *has_scale, *scale and *own_amax; *scale_inv = 1 / scale. The amax is the largest of the
 * bits of |v|, one atomicMax a block. Sums over 64 rows are made in one fixed order.
 *
 * Two main kernels. Rows: a block of up to 256 threads, each with one unit of several rows, for
 * what only streams. Tiles of some hundred rows by 64 columns, for what transposes or sums; see
 * Tuning.
 */
#ifndef FP8PIPE_QUANTIZE_KERNEL_CUH
#define FP8PIPE_QUANTIZE_KERNEL_CUH

#include <type_traits>
#include <utility>

#include <fp8pipe_codes.cuh>

FP8PIPE_CUDA_BEGIN
namespace detail
{
enum {
    ROW_UNITS = 128, /* the widest block of the rows kernels */
    ROW_THREADS = 256,
    NO_FORMAT = -1 /* no FP8 output; beside FP8PIPE_E4M3, FP8PIPE_E5M2 and ANY_FORMAT */
};

/* ---- Tuning ------------------------------------------------------------------------------- */

/*
 * How tiles are worked on. ROWS rows, a multiple of 4, of one unit are a thread's; the loads of
 * FLIGHT of them are issued before the first is computed. BLOCKS fit on a multiprocessor. Blocks go
 * down GROUP tiles before they go on to the next column of tiles. HEIGHT: rows of a tile.
 */
template <int ROWS_, int FLIGHT_, int UNITS_, int BLOCKS_, int GROUP_, int HEIGHT_ = TILE_HEIGHT>
struct tile_shape {
    enum {
        ROWS = ROWS_,
        FLIGHT = FLIGHT_,
        UNITS = UNITS_,
        BLOCKS = BLOCKS_,
        GROUP = GROUP_,
        WIDTH = UNITS_ * UNIT,
        HEIGHT = HEIGHT_,
        THREADS = UNITS_ * HEIGHT_ / ROWS_
    };
    static_assert(ROWS % 4 == 0 && ROWS % FLIGHT == 0, "four rows are transposed at a time");
    static_assert(UNITS % 8 == 0, "a warp has 8 units of 4 times 4 rows");
};

/* The same of what only streams. */
template <int ROWS_, int FLIGHT_, int BLOCKS_> struct row_shape {
    enum { ROWS = ROWS_, FLIGHT = FLIGHT_, BLOCKS = BLOCKS_ };
    static_assert(ROWS % FLIGHT == 0, "all rows of a thread are worked on");
};

/* By what one unit of F loads, so that registers suffice: the more, the fewer rows in flight. */
template <class F> struct tuning {
    enum { WORDS = sizeof(typename F::loaded) / 4, FLIGHT = WORDS <= 12 ? 4 : WORDS <= 20 ? 2 : 1 };
    typedef row_shape<4, FLIGHT, WORDS <= 4 ? 4 : WORDS <= 8 ? 3 : 2> rows;
    typedef tile_shape<4, FLIGHT, 8, WORDS <= 4 ? 4 : WORDS <= 8 ? 3 : 2, 4> tiles;
};

/* Code for misaligned rows and for counting needs more registers: half as many blocks have them. */
constexpr int blocks_for(int blocks, bool lean)
{
    return lean ? blocks : (blocks + 1) / 2;
}

/* Whether F says, with a member bool aligned() const, that all of its accesses are aligned. */
template <class F, class = void> struct alignment {
    static constexpr bool KNOWN = false;
    static bool of(const F &)
    {
        return false;
    }
};
template <class F> struct alignment<F, std::void_t<decltype(std::declval<const F &>().aligned())>> {
    static constexpr bool KNOWN = true;
    static bool of(const F &functor)
    {
        return functor.aligned();
    }
};

/* Whether F's main kernels are made once for each format, a little faster than for any; else its
 * values cost much, and tiles all of whose units exist have code of their own. */
template <class F> struct by_format : std::true_type {
};

/* What is made for F: LEAN, kernels that sum and kernels that do not, else one that does all. It is
 * there for what F's own alignment excludes. */
template <class F, bool WHOLE> struct kernels {
    static constexpr bool LEAN = WHOLE || !alignment<F>::KNOWN;
    static constexpr bool FORMATS = LEAN && by_format<F>::value;
};

/* ---- One unit ----------------------------------------------------------------------------- */

/* A kernel's only argument. */
template <class F> struct job {
    fp8pipe_quantize_target target;
    F functor;
    int64_t first; /* tiles: the column at which the launch starts */
};

/* Rows and columns. WHOLE: all that there are, and a block's more, are below 2^31. */
template <bool WHOLE> using index = std::conditional_t<WHOLE, uint32_t, int64_t>;

/* Columns that exist of the unit at `col`, at most UNIT, 0 or less: none. WHOLE: all or none. */
template <bool WHOLE>
static FP8PIPE_DEVICE int unit_count(const fp8pipe_quantize_target &t, int64_t col)
{
    if (WHOLE)
        return (uint32_t)col < (uint32_t)t.cols ? (int)UNIT : 0;
    return (int)max((int64_t)0, min((int64_t)UNIT, t.cols - col));
}

/* A place of which the compiler knows that it is whole, if it is. count > 0. */
template <bool WHOLE>
static FP8PIPE_DEVICE place place_of(int64_t row, int64_t col, int count, bool writes)
{
    return {row, col, WHOLE ? (int)UNIT : count, writes, WHOLE};
}

/* What a thread gathers over its units. */
struct gathered {
    uint32_t largest;
    extremes counts;
};

/* Computes one unit that exists. *v: its values, 0 beyond at.count. Returns its codes, likewise. */
template <class F, int FORMAT, bool EXTREMES>
FP8PIPE_DEVICE uint2 unit_run(const job<F> &job, const place &at, const typename F::loaded &in,
                              float scale, gathered &g, values &v)
{
    v = values_cut(job.functor.compute(at, in), at.count);
    g.largest = folding<F>::fold(g.largest, in, v);
    const uint2 codes = fp8_cut(fp8_unit<FORMAT>(v, scale, job.target.format), at.count);
    if (EXTREMES)
        extremes_count(g.counts, v, scale, job.target.format);
    return codes;
}

template <class F, bool EXTREMES>
FP8PIPE_DEVICE void gathered_publish(const job<F> &job, const gathered &g)
{
    publish_scale(job.target);
    if (EXTREMES && job.target.extremes != NULL)
        extremes_publish(g.counts, job.target.extremes);
    if (job.target.amax != NULL)
        amax_publish(folding<F>::bits(g.largest), job.target.amax);
}

/*
 * What came before in the stream has ended, and is seen, from here on: a kernel may begin while
 * that still runs. Every thread calls it before it touches memory or ends: else its kernel could
 * end first, and let the next one begin.
 */
static FP8PIPE_DEVICE void wait_for_stream()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- Rows --------------------------------------------------------------------------------- */

/* Calls each(i, exists, place, in) for the rows of a thread, after FLIGHT of them were loaded. */
template <class F, class SHAPE, bool WHOLE, class EACH>
FP8PIPE_DEVICE void rows_run(const job<F> &job, index<WHOLE> first, index<WHOLE> col, int count,
                             bool writes, const EACH &each)
{
    enum { FLIGHT = SHAPE::FLIGHT };
    const index<WHOLE> rows = (index<WHOLE>)job.target.rows;

#pragma unroll
    for (int batch = 0; batch < SHAPE::ROWS; batch += FLIGHT) {
        typename F::loaded in[FLIGHT];

#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const index<WHOLE> row = first + (batch + i) * blockDim.y;

            if (row < rows)
                in[i] = job.functor.load(place_of<WHOLE>(row, col, count, writes));
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const index<WHOLE> row = first + (batch + i) * blockDim.y;

            each(batch + i, row < rows, place_of<WHOLE>(row, col, count, writes), in[i]);
        }
    }
}

/* FORMAT NO_FORMAT: only the functor's own results are written. */
template <class F, int FORMAT, bool WHOLE>
static __global__ void __launch_bounds__(ROW_THREADS, blocks_for(tuning<F>::rows::BLOCKS, WHOLE))
    rows_kernel(const __grid_constant__ job<F> job)
{
    typedef index<WHOLE> number;
    const fp8pipe_quantize_target &t = job.target;
    const number rows = (number)t.rows;
    const number col = ((number)blockIdx.x * blockDim.x + threadIdx.x) * UNIT;
    const number step = (number)gridDim.y * (blockDim.y * tuning<F>::rows::ROWS);
    number first = (number)blockIdx.y * (blockDim.y * tuning<F>::rows::ROWS) + threadIdx.y;
    const int count = unit_count<WHOLE>(t, col);
    gathered g = {};

    wait_for_stream();
    if (count > 0) {
        for (; first < rows; first += step) {
            float scale = 1.0f;

            rows_run<F, typename tuning<F>::rows, WHOLE>(
                job, first, col, count, true,
                [&](int i, bool exists, const place &at, const typename F::loaded &in) {
                    values v;

                    /* Read after the loads are on their way; later from a cache. */
                    if (FORMAT != NO_FORMAT && i == 0)
                        scale = target_scale(t);
                    if (!exists)
                        return;
                    if constexpr (FORMAT == NO_FORMAT)
                        (void)job.functor.compute(at, in);
                    else
                        *(uint2 *)(t.row + offset<WHOLE>(at.row, t.row_stride) + col) =
                            unit_run<F, FORMAT, false>(job, at, in, scale, g, v);
                });
        }
    } else if (FORMAT != NO_FORMAT && col < (number)t.row_stride) {
        for (; first < rows; first += step)
            for (int i = 0; i < tuning<F>::rows::ROWS; i++)
                if (first + i * blockDim.y < rows)
                    *(uint2 *)(t.row + offset<WHOLE>(first + i * blockDim.y, t.row_stride) + col) =
                        make_uint2(0, 0);
    }
    if constexpr (FORMAT == NO_FORMAT)
        publish_scale(t);
    else
        gathered_publish<F, false>(job, g);
}

/* The pass in front: the amax of all values into *to. Nothing is read if *skip_if is set. */
template <class F, bool WHOLE>
static __global__ void __launch_bounds__(ROW_THREADS, blocks_for(tuning<F>::rows::BLOCKS, WHOLE))
    amax_kernel(const __grid_constant__ job<F> job, const int32_t *skip_if, uint32_t *to)
{
    typedef index<WHOLE> number;
    const number rows = (number)job.target.rows;
    const number col = ((number)blockIdx.x * blockDim.x + threadIdx.x) * UNIT;
    const number step = (number)gridDim.y * (blockDim.y * tuning<F>::rows::ROWS);
    number first = (number)blockIdx.y * (blockDim.y * tuning<F>::rows::ROWS) + threadIdx.y;
    const int count = unit_count<WHOLE>(job.target, col);
    uint32_t largest = 0;

    wait_for_stream();
    if (skip_if != NULL && *skip_if != 0)
        return;
    for (; count > 0 && first < rows; first += step)
        rows_run<F, typename tuning<F>::rows, WHOLE>(
            job, first, col, count, false,
            [&](int, bool exists, const place &at, const typename F::loaded &in) {
                if (exists)
                    largest = folding<F>::fold(largest, in,
                                               values_cut(job.functor.compute(at, in), at.count));
            });
    amax_publish(folding<F>::bits(largest), to);
}

/* For no elements: the scale alone. */
static __global__ void empty_kernel(const __grid_constant__ fp8pipe_quantize_target target)
{
    wait_for_stream();
    publish_scale(target);
}

/* ---- Tiles -------------------------------------------------------------------------------- */

struct nothing {
};

/* Where a thread stands in a tile: a warp has 8 units of 4 groups of 4 rows. */
template <class SHAPE> struct tile_thread {
    enum { BANDS = SHAPE::UNITS / 8, QUAD_HEIGHT = SHAPE::HEIGHT / (SHAPE::ROWS / 4) };
    unsigned col;   /* of its unit, in the tile */
    unsigned group; /* of its first four rows */

    FP8PIPE_DEVICE tile_thread()
        : col((threadIdx.x / 32 % BANDS * 8 + threadIdx.x % 8) * UNIT),
          group(threadIdx.x / 32 / BANDS * 4 + threadIdx.x % 32 / 8)
    {
    }
    /* Row i of the thread, in the tile. */
    FP8PIPE_DEVICE unsigned row(int i) const
    {
        return i / 4 * QUAD_HEIGHT + group * 4 + i % 4;
    }
};

/* Loads the thread's rows from .. from+COUNT-1 of the tile at tile_row, as far as they exist. ALL:
 * they do. */
template <class F, int COUNT, bool WHOLE, bool ALL, class SHAPE>
FP8PIPE_DEVICE void tile_load(const job<F> &job, const tile_thread<SHAPE> &thread,
                              index<WHOLE> tile_row, index<WHOLE> col, int count, int from,
                              typename F::loaded in[COUNT])
{
    const index<WHOLE> rows = (index<WHOLE>)job.target.rows;

#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const index<WHOLE> row = tile_row + thread.row(from + i);

        if (ALL || (count > 0 && row < rows))
            in[i] = job.functor.load(place_of<WHOLE>(row, col, count, true));
    }
}

/* A thread's units of the tile at tile_row, `col` its own, up to a barrier. ALL: all of the tile's
 * exist. */
template <class F, int FORMAT, bool EXTREMES, bool WHOLE, bool ALL, class SHAPE, class TRANSPOSED,
          class SUMS>
FP8PIPE_DEVICE void tile_run(const job<F> &job, const tile_thread<SHAPE> &thread,
                             index<WHOLE> tile_row, index<WHOLE> col, TRANSPOSED &transposed,
                             SUMS &sums, gathered &g)
{
    enum { FLIGHT = SHAPE::FLIGHT };
    constexpr bool SUMMED = !std::is_same_v<SUMS, nothing>;
    typedef index<WHOLE> number;
    const fp8pipe_quantize_target &t = job.target;
    const number rows = (number)t.rows;
    const int count = ALL ? (int)UNIT : unit_count<WHOLE>(t, col);
    const bool stores = t.row != NULL && (ALL || col < (number)t.row_stride);
    typename F::loaded in[FLIGHT];
    float scale = 1.0f;
    uint2 codes[4];
    float sum[UNIT];

#pragma unroll
    for (int r = 0; r < SHAPE::ROWS; r++) {
        const number row = tile_row + thread.row(r);
        values v = {};

        if (r % FLIGHT == 0)
            tile_load<F, FLIGHT, WHOLE, ALL>(job, thread, tile_row, col, count, r, in);
        /* Read after the loads are on their way; all but the first time from a cache. */
        if (r == 0)
            scale = target_scale(t);
        codes[r % 4] = make_uint2(0, 0);
        if (ALL || row < rows) {
            if (count > 0)
                codes[r % 4] = unit_run<F, FORMAT, EXTREMES>(
                    job, place_of<WHOLE>(row, col, count, true), in[r % FLIGHT], scale, g, v);
            if (stores)
                *(uint2 *)(t.row + offset<WHOLE>(row, t.row_stride) + col) = codes[r % 4];
        }
        if (SUMMED)
#pragma unroll
            for (int i = 0; i < UNIT; i++)
                sum[i] = r % 4 == 0 ? v[i] : __fadd_rn(sum[i], v[i]);
        if (r % 4 == 3) {
            if (t.transposed != NULL)
                transposed.put(thread.col, thread.row(r) / 4, codes);
            if constexpr (SUMMED)
                sums.put(thread.col, thread.row(r) / 4, sum);
        }
    }
}

/* blockIdx: row of tiles in its group, column of tiles, from job.first on, group. */
template <class F, int FORMAT, bool SUMS, bool EXTREMES, bool WHOLE, class SHAPE>
static __global__ void __launch_bounds__(SHAPE::THREADS,
                                         blocks_for(SHAPE::BLOCKS, WHOLE && !EXTREMES))
    tiles_kernel(const __grid_constant__ job<F> job)
{
    enum { WIDTH = SHAPE::WIDTH, HEIGHT = SHAPE::HEIGHT };
    constexpr bool CHOOSES = WHOLE && !EXTREMES && !by_format<F>::value;
    typedef index<WHOLE> number;
    __shared__ transposed_tile<WIDTH, HEIGHT> transposed;
    __shared__ std::conditional_t<SUMS, sums_tile<WIDTH, HEIGHT>, nothing> sums;
    const fp8pipe_quantize_target &t = job.target;
    const tile_thread<SHAPE> thread;
    const number end = (number)(t.transposed != NULL ? t.transposed_stride : t.rows);
    const number step = (number)gridDim.z * (gridDim.x * HEIGHT);
    const number tile_col = (number)job.first + (number)blockIdx.y * WIDTH;
    const number col = tile_col + thread.col;
    number tile_row = ((number)blockIdx.z * gridDim.x + blockIdx.x) * HEIGHT;
    gathered g = {};

    wait_for_stream();
    for (; tile_row < end; tile_row += step) {
        /* Nearly all tiles. Without a look at each row there is a tenth less to do. */
        if (CHOOSES && tile_row + HEIGHT <= (number)t.rows && tile_col + WIDTH <= (number)t.cols)
            tile_run<F, FORMAT, EXTREMES, WHOLE, CHOOSES>(job, thread, tile_row, col, transposed,
                                                          sums, g);
        else
            tile_run<F, FORMAT, EXTREMES, WHOLE, false>(job, thread, tile_row, col, transposed,
                                                        sums, g);
        __syncthreads();
        if (t.transposed != NULL)
            transposed.template write<SHAPE::THREADS, WHOLE>(t.transposed, t.transposed_stride,
                                                             tile_row, tile_col, t.cols);
        if constexpr (SUMS)
            if (t.partials != NULL)
                sums.template write<SHAPE::THREADS, WHOLE>(t, tile_row, tile_col);
        if (tile_row + step < end)
            __syncthreads();
    }
    gathered_publish<F, EXTREMES>(job, g);
}
} /* namespace detail */
FP8PIPE_CUDA_END

#endif
