#include "bench/quantize_variants.h"

#include "fp8pipe_quantize_launch.cuh"
#include "kernels/quantize.cuh"

namespace detail = fp8pipe_cuda::detail;

typedef identity<FP8PIPE_BF16> plain;

/* How a unit is loaded. */
enum hint { NORMAL, NO_ALLOCATE, AHEAD_256, FIRST };

template <int HINT> static FP8PIPE_DEVICE uint4 hinted_load(const void *p)
{
    uint4 w;

    if (HINT == NO_ALLOCATE)
        asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
            : "l"(p));
    else if (HINT == AHEAD_256)
        asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
            : "l"(p));
    else if (HINT == FIRST)
        asm("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
            : "l"(p));
    else
        w = *(const uint4 *)p;
    return w;
}

template <class ROWS, class TILES, int HINT> struct variant {
    plain x;
    typedef plain::loaded loaded;
    typedef ROWS rows;
    typedef TILES tiles;

    FP8PIPE_DEVICE loaded load(const fp8pipe_cuda::place &at) const
    {
        const uint4 w = hinted_load<HINT>(detail::view_at<FP8PIPE_BF16, true>(x.x, at.row, at.col));
        return {{w.x, w.y, w.z, w.w}};
    }
    FP8PIPE_DEVICE fp8pipe_cuda::values compute(const fp8pipe_cuda::place &at,
                                                const loaded &in) const
    {
        return x.compute(at, in);
    }
};

template <class ROWS, class TILES, int HINT>
struct fp8pipe_cuda::detail::tuning<variant<ROWS, TILES, HINT>> {
    typedef ROWS rows;
    typedef TILES tiles;
};
template <class ROWS, class TILES, int HINT>
struct fp8pipe_cuda::detail::folding<variant<ROWS, TILES, HINT>> : identity_folding<FP8PIPE_BF16> {
};

typedef detail::row_shape<4, 4, 4> some_rows;
typedef detail::tile_shape<4, 4, 8, 4, 8> some_tiles;

template <class ROWS, class TILES, int HINT>
static int run(const struct kernel_quantize_args *args, cudaStream_t stream)
{
    typedef variant<ROWS, TILES, HINT> functor;
    const detail::job<functor> job = {kernel_quantize_target(args),
                                      {{detail::view_of<FP8PIPE_BF16>(args->x, "x")}}};

    if (!detail::is_whole(job.target, job.functor.x) || args->format != FP8PIPE_E4M3)
        return (int)cudaErrorInvalidValue;
    return (int)detail::run_format<functor, FP8PIPE_E4M3, true>(job, stream);
}

struct entry {
    const char *name;
    int (*run)(const struct kernel_quantize_args *args, cudaStream_t stream);
};

/* Rows of a thread, those in flight, blocks on a multiprocessor; how units are loaded. */
#define ROWS(each, flight, blocks, hint)                                                           \
    {                                                                                              \
        "rows " #each " flight " #flight " blocks " #blocks " " #hint,                             \
            run<detail::row_shape<each, flight, blocks>, some_tiles, hint>                         \
    }
static const entry rows_entries[QUANTIZE_ROW_VARIANTS] = {
    ROWS(4, 4, 4, NORMAL),      ROWS(4, 4, 6, NORMAL),    ROWS(4, 4, 8, NORMAL),
    ROWS(2, 2, 8, NORMAL),      ROWS(8, 4, 5, NORMAL),    ROWS(8, 8, 3, NORMAL),
    ROWS(4, 4, 6, NO_ALLOCATE), ROWS(4, 4, 6, AHEAD_256), ROWS(4, 4, 6, FIRST),
    ROWS(2, 2, 8, NO_ALLOCATE),
};

/* Rows of a thread, those in flight, units across, blocks on a multiprocessor, tiles down before
 * across, rows of a tile; how units are loaded. */
#define TILES(each, flight, units, blocks, group, height, hint)                                    \
    {                                                                                              \
        "each " #each " flight " #flight " units " #units " blocks " #blocks " group " #group      \
        " height " #height " " #hint,                                                              \
            run<some_rows, detail::tile_shape<each, flight, units, blocks, group, height>, hint>   \
    }
static const entry tiles_entries[QUANTIZE_TILE_VARIANTS] = {
    TILES(4, 4, 8, 4, 4, 128, NORMAL),   TILES(8, 4, 8, 8, 4, 128, NORMAL),
    TILES(4, 4, 8, 4, 4, 128, FIRST),    TILES(4, 4, 8, 2, 1, 256, NORMAL),
    TILES(8, 4, 8, 4, 1, 256, NORMAL),   TILES(8, 4, 8, 4, 4, 256, NORMAL),
    TILES(8, 4, 8, 5, 1, 256, NORMAL),   TILES(8, 8, 8, 3, 1, 256, NORMAL),
    TILES(16, 4, 8, 8, 1, 256, NORMAL),  TILES(16, 4, 8, 4, 1, 512, NORMAL),
    TILES(8, 4, 16, 4, 1, 128, NORMAL),  TILES(8, 4, 16, 2, 1, 256, NORMAL),
    TILES(16, 4, 16, 4, 1, 256, NORMAL), TILES(16, 4, 32, 4, 1, 128, NORMAL),
    TILES(8, 4, 32, 2, 1, 128, NORMAL),  TILES(16, 8, 16, 3, 1, 256, NORMAL),
};

int quantize_rows_variant(int variant, const struct kernel_quantize_args *args,
                          struct CUstream_st *stream)
{
    return rows_entries[variant].run(args, stream);
}

int quantize_tiles_variant(int variant, const struct kernel_quantize_args *args,
                           struct CUstream_st *stream)
{
    return tiles_entries[variant].run(args, stream);
}

const char *quantize_rows_variant_name(int variant)
{
    return rows_entries[variant].name;
}

const char *quantize_tiles_variant_name(int variant)
{
    return tiles_entries[variant].name;
}
