#include "bench/adamw_variants.h"

#include "kernels/adamw.cuh"

struct entry {
    const char *name;
    int (*run)(const struct kernel_adamw_args *args, struct CUstream_st *stream);
};

/* Quads of a thread, those in flight, blocks on a multiprocessor; quotients by the compiler. */
#define SHAPE(quads, flight, blocks, exact)                                                        \
    {                                                                                              \
        "quads " #quads " flight " #flight " blocks " #blocks " exact " #exact,                    \
            adamw::run<adamw_shape<quads, flight, blocks, exact>>                                  \
    }
static const entry entries[ADAMW_VARIANTS] = {
    SHAPE(4, 2, 3, false), SHAPE(4, 2, 3, true),   SHAPE(4, 4, 2, false),
    SHAPE(8, 4, 2, false), SHAPE(16, 4, 2, false), SHAPE(8, 2, 2, false),
};

int adamw_variant(int variant, const struct kernel_adamw_args *args, struct CUstream_st *stream)
{
    return entries[variant].run(args, stream);
}

const char *adamw_variant_name(int variant)
{
    return entries[variant].name;
}
