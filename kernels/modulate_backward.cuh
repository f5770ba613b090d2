/*
 * What a thread does in a tile of modulate's backward: units from their loads to codes and sums.
 * For kernels/modulate_backward.cu alone, which has the order of it all.
 *
 * A thread has one unit of four rows. What is known of the rows of a tile is staged in shared
 * memory while the first units are on their way, so that nothing else waits for memory.
 */
#ifndef KERNELS_MODULATE_BACKWARD_CUH
#define KERNELS_MODULATE_BACKWARD_CUH

#include "kernels/modulate.cuh"

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

/* What is known of a tile's rows, loaded all at once while the first units are on their way. */
struct tile_stage {
    float4 stats[TILE_ROWS]; /* mean, rstd, row means */
    int32_t taken[TILE_ROWS];
};

/* By all threads, a barrier after. */
static __device__ __forceinline__ void
rows_stage(tile_stage &to, const kernel_modulate_backward_args &args, int64_t tile_row)
{
    const int64_t row = tile_row + threadIdx.x;

    if (threadIdx.x >= TILE_ROWS || row >= args.rows)
        return;
    if (args.norm != FP8PIPE_NORM_NONE)
        to.stats[threadIdx.x] = make_float4(row_mean(args, row), args.rstd[row],
                                            args.row_means[row], args.row_means[args.rows + row]);
    if (args.rows_of != NULL)
        to.taken[threadIdx.x] = args.rows_of[row];
}

template <bool SUMMED> struct backward_tile {
    transposed_tile transposed;
    sums_tile sums[SUMMED ? SUMS : 1];
    tile_groups groups;
    tile_stage stage;
};

/* How a tile is gone through this time. */
struct tile_pass {
    int group;    /* of the thread's half, or negative */
    int32_t r;    /* the group's row */
    bool grouped; /* sums are by groups */
    bool writes;  /* the last time, in which outputs are written */
};

/*
 * One row of a thread's unit. `adds`: the row's token is one of those that are summed. Codes are 0
 * unless outputs are written. ALL: the row and the unit exist.
 */
template <bool FAST, bool AFFINE, bool SUMMED, bool ALL>
static __device__ __forceinline__ uint2 backward_row(const backward_launch &launch,
                                                     const unit_inputs<FAST> &in,
                                                     const unit_factors<FAST> &by, float4 stats,
                                                     int64_t row, int64_t col, float scale,
                                                     bool adds, bool writes, bool first,
                                                     thread_sums &sums, found &f)
{
    const kernel_modulate_backward_args &args = launch.args;
    const fp8pipe_quantize_target &target = args.target;
    const bool here = ALL || row < args.rows;
    const int64_t count = ALL ? UNIT : here ? args.cols - col : 0;
    const float rstd = stats.y, mean_dn = stats.z, mean_dnn = stats.w;
    unit_gradient gradient;
    float d[UNIT], after[UNIT];
    uint2 codes = make_uint2(0, 0);

    gradient_begin(gradient, in, by.scale, args, stats.x, rstd);
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
    if (SUMMED && args.scale_partials != NULL)
        sum_add(sums.of[SUM_SCALE], gradient.dz, after, adds, first);
    if (SUMMED && args.shift_partials != NULL)
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
    if (SUMMED && args.gate_partials != NULL)
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
    if (SUMMED && target.partials != NULL)
        sum_add(sums.of[SUM_RESULT], d, NULL, here, first);
    if (writes || launch.only_amax)
        found_amax(f, d, count);
    if (writes && target.scale_inv != NULL) {
        codes = values_quantize(d, scale, target.format, count);
        if (AFFINE && target.extremes != NULL)
            found_extremes(f, d, scale, target.format, count);
        if (target.row != NULL && here && (ALL || col < target.row_stride))
            *(uint2 *)(target.row + offset<FAST>(row, target.row_stride) + col) = codes;
    }
    return codes;
}

/* The inputs of a unit, zeros beyond the matrix. ALL: the unit exists. */
template <bool FAST, bool ALL>
static __device__ __forceinline__ unit_inputs<FAST>
backward_load(const kernel_modulate_backward_args &args, int64_t row, int64_t col)
{
    const int64_t cols = ALL || row < args.rows ? args.cols : 0;
    const bool with_y = args.gate_partials != NULL || args.dgate.data != NULL;
    unit_inputs<FAST> in;

    in.dz = in.x = in.dx = in.y = view_zeros<FAST>();
    if (ALL || col < cols) {
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

/* Rows of a thread whose units are loaded before the first is computed. */
template <bool FAST, bool AFFINE, bool SUMMED> struct backward_flight {
    enum { ROWS = FAST && !AFFINE && !SUMMED ? UNIT_ROWS : UNIT_ROWS / 2 };
};

/*
 * A thread's units of a tile. `in`: the first of them if `loaded` or ALL. `by`: the factors of row
 * `held` of gate and scale, whose lower half is enough to tell neighbours apart. ALL: all of the
 * tile's units exist, and all add to the sums.
 */
template <bool FAST, bool AFFINE, bool SUMMED, bool ALL>
static __device__ __forceinline__ void
backward_units(const backward_launch &launch, const tile_stage &stage, const tile_pass &pass,
               unit_inputs<FAST> in[backward_flight<FAST, AFFINE, SUMMED>::ROWS], bool loaded,
               unit_factors<FAST> &by, int32_t &held, int64_t row, int64_t col, float scale,
               uint2 codes[UNIT_ROWS], thread_sums &sums, found &f)
{
    enum { FLIGHT = backward_flight<FAST, AFFINE, SUMMED>::ROWS };
    const kernel_modulate_backward_args &args = launch.args;
    const bool normalised = args.norm != FP8PIPE_NORM_NONE;

#pragma unroll
    for (int batch = 0; batch < UNIT_ROWS; batch += FLIGHT) {
        if (batch > 0 || !(ALL || loaded))
#pragma unroll
            for (int i = 0; i < FLIGHT; i++)
                in[i] = backward_load<FAST, ALL>(args, row + batch + i, col);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            const int64_t at = row + batch + i;
            const int in_tile = tile_group() * UNIT_ROWS + batch + i;
            const bool here = ALL || at < args.rows;
            const int64_t taken = !here ? -1 : args.rows_of != NULL ? stage.taken[in_tile] : at;
            const bool adds =
                SUMMED && (ALL || (here && pass.group >= 0 &&
                                   (args.rows_of == NULL || !pass.grouped || taken == pass.r)));

            if (here && (int32_t)taken != held) {
                by = backward_factors<FAST>(args, taken, col);
                held = (int32_t)taken;
            }
            codes[batch + i] = backward_row<FAST, AFFINE, SUMMED, ALL>(
                launch, in[i], by,
                here && normalised ? stage.stats[in_tile] : make_float4(0.0f, 0.0f, 0.0f, 0.0f), at,
                col, scale, adds, pass.writes, batch + i == 0, sums, f);
        }
    }
}

#endif
