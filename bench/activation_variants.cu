#include "bench/activation_variants.h"

#include "fp8pipe_quantize_launch.cuh"
#include "kernels/activation.cuh"

namespace detail = fp8pipe_cuda::detail;

using fp8pipe_cuda::operand;
using fp8pipe_cuda::result;

/* F in other shapes. */
template <class F, class ROWS, class TILES> struct shaped : F {
};

template <class F, class ROWS, class TILES>
struct fp8pipe_cuda::detail::tuning<shaped<F, ROWS, TILES>> {
    typedef ROWS rows;
    typedef TILES tiles;
};
template <class F, class ROWS, class TILES>
struct fp8pipe_cuda::detail::by_format<shaped<F, ROWS, TILES>> : std::false_type {
};

typedef activation::plain_backward<FP8PIPE_ACTIVATION_GELU_TANH> dgelu;
typedef activation::plain_forward<FP8PIPE_ACTIVATION_GELU_TANH> gelu;
typedef activation::gated_backward dswiglu;

static operand<FP8PIPE_BF16> in(const struct fp8pipe_matrix &m)
{
    return operand<FP8PIPE_BF16>::of(m, "in");
}

static result<FP8PIPE_BF16> out(const struct fp8pipe_matrix &m)
{
    return result<FP8PIPE_BF16>::of(m, "out");
}

static dgelu functor_of(const struct kernel_activation_args &args, const dgelu *)
{
    return {in(args.x), in(args.dy), out(args.result)};
}

static gelu functor_of(const struct kernel_activation_args &args, const gelu *)
{
    return {in(args.x), out(args.result)};
}

static dswiglu functor_of(const struct kernel_activation_args &args, const dswiglu *)
{
    return {args.x.cols / 2, in(args.x), in(args.dy), out(args.result)};
}

template <class F, class ROWS, class TILES>
static int run(const struct kernel_activation_args *args, cudaStream_t stream)
{
    typedef shaped<F, ROWS, TILES> functor;
    const detail::job<functor> job = {args->target, {functor_of(*args, (const F *)NULL)}};

    if (!detail::is_whole(job.target, job.functor) || job.target.extremes != NULL)
        return (int)cudaErrorInvalidValue;
    return (int)detail::run_format<functor, detail::ANY_FORMAT, true>(job, stream);
}

struct entry {
    const char *name;
    enum activation_family family;
    int (*run)(const struct kernel_activation_args *args, cudaStream_t stream);
};

typedef detail::row_shape<4, 2, 3> some_rows;
typedef detail::tile_shape<8, 2, 8, 4, 4> some_tiles;

/* Rows of a thread, those in flight, units across, blocks on a multiprocessor, tiles down before
 * across, rows of a tile. */
#define TILES(F, FAMILY, each, flight, units, blocks, group, height)                               \
    {                                                                                              \
#F " each " #each " flight " #flight " units " #units " blocks " #blocks " group " #group  \
           " height " #height,                                                                     \
            FAMILY, run < F, some_rows, detail::tile_shape < each, flight, units, blocks, group,   \
            height>>                                                                               \
    }
#define DGELU(...) TILES(dgelu, ACTIVATION_DGELU, __VA_ARGS__)
#define DSWIGLU(...) TILES(dswiglu, ACTIVATION_DSWIGLU, __VA_ARGS__)

/* Rows of a thread, those in flight, blocks on a multiprocessor. */
#define GELU(each, flight, blocks)                                                                 \
    {                                                                                              \
        "gelu each " #each " flight " #flight " blocks " #blocks, ACTIVATION_GELU,                 \
            run<gelu, detail::row_shape<each, flight, blocks>, some_tiles>                         \
    }

static const entry entries[ACTIVATION_VARIANTS] = {
    DGELU(4, 4, 8, 2, 4, 128),
    DGELU(4, 4, 8, 3, 4, 128),
    DGELU(4, 2, 8, 4, 4, 128),
    DGELU(8, 4, 8, 4, 4, 128),
    DGELU(8, 4, 8, 5, 1, 128),
    DGELU(8, 2, 8, 6, 4, 128),
    DGELU(8, 8, 8, 3, 4, 128),
    DGELU(8, 4, 8, 2, 1, 256),
    DGELU(8, 2, 8, 3, 1, 256),
    DGELU(16, 4, 8, 5, 1, 256),
    DGELU(16, 2, 8, 6, 1, 256),
    DGELU(8, 4, 16, 2, 1, 128),
    DGELU(8, 2, 16, 3, 1, 128),
    DGELU(16, 4, 16, 5, 1, 128),
    DGELU(16, 2, 16, 6, 1, 128),
    DSWIGLU(4, 2, 8, 2, 4, 128),
    DSWIGLU(8, 2, 8, 5, 4, 128),
    DSWIGLU(8, 1, 8, 6, 4, 128),
    DSWIGLU(8, 4, 8, 4, 4, 128),
    GELU(4, 4, 5),
    GELU(4, 2, 6),
    GELU(8, 4, 4),
    GELU(8, 4, 5),
    GELU(8, 8, 3),
};

int activation_variant(int variant, const struct kernel_activation_args *args,
                       struct CUstream_st *stream)
{
    return entries[variant].run(args, stream);
}

const char *activation_variant_name(int variant)
{
    return entries[variant].name;
}

enum activation_family activation_variant_family(int variant)
{
    return entries[variant].family;
}
