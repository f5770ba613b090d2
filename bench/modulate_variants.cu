#include "bench/modulate_variants.h"

#include "kernels/modulate_rows.cuh"

struct entry {
    const char *name;
    int (*run)(const struct kernel_modulate_args *args, cudaStream_t stream);
};

template <class SHAPE> static int run(const struct kernel_modulate_args *args, cudaStream_t stream)
{
    if (!rows_can(args) || !rows_fit<SHAPE>(args))
        return (int)cudaErrorInvalidValue;
    return rows_launch_norm<SHAPE, FP8PIPE_NORM_LAYER>(args, stream);
}

static int run_panels(const struct kernel_modulate_args *args, cudaStream_t stream)
{
    return panels_can(args) ? panels_launch(args, stream) : (int)cudaErrorInvalidValue;
}

/* Units of a lane, parts of a panel, warps of a block, rows of a tile, blocks on a multiprocessor. */
#define ROWS(units, parts, warps, rows, blocks)                                                    \
    {                                                                                              \
        "units " #units " parts " #parts " warps " #warps " rows " #rows " blocks " #blocks,       \
            run<rows_shape<units, parts, warps, rows, blocks>>                                     \
    }
static const entry entries[MODULATE_VARIANTS] = {
    {"panels", run_panels}, ROWS(8, 1, 8, 32, 2),  ROWS(6, 1, 8, 32, 2),
    ROWS(4, 5, 20, 32, 1),  ROWS(8, 2, 16, 32, 1), ROWS(8, 2, 8, 16, 2),
    ROWS(6, 2, 16, 32, 1),  ROWS(4, 1, 8, 32, 2),  ROWS(4, 4, 16, 32, 1),
};

int modulate_variant(int variant, const struct kernel_modulate_args *args,
                     struct CUstream_st *stream)
{
    return entries[variant].run(args, stream);
}

const char *modulate_variant_name(int variant)
{
    return entries[variant].name;
}
