/*
 * adamw: the shape of the library's kernel (kernels/adamw.cuh has it), and the kernel that makes
 * the first FP8 copies of what has no scale, a block a tile.
 */
#include "kernels/adamw.cuh"

/* What is tried with bench/kernels --variants. */
typedef adamw_shape<4, 2, 3, false> shape;

typedef adamw_shape<THREAD_QUADS, 4, 1, true> first_shape;

static __global__ void __launch_bounds__(BLOCK_THREADS)
    adamw_first_kernel(const __grid_constant__ kernel_adamw_args args)
{
    __shared__ adamw::codes_part<first_shape::CHUNKS> codes;
    __shared__ kernel_parameter parameter;

    kernel_wait_for_stream();
    const kernel_tile tile = args.tiles[blockIdx.x];
    if (args.skip_if != NULL && *args.skip_if != 0)
        return;
    adamw::parameter_put(parameter, adamw::parameter_word(&args.parameters[tile.parameter]));
    __syncthreads();
    if (parameter.row == NULL || *parameter.has_scale != 0)
        return;
    const uint32_t amax = args.own_amax[tile.parameter];
    const float scale =
        amax == 0 || amax >= 0x7f800000u
            ? 1.0f
            : fp8_scale(__fdiv_rn(parameter.scale_numerator, float_from_bits(amax)));
    const quads q = quads_of<THREAD_QUADS>(parameter, tile.index, 0);
    const int64_t thread_row = q.row + threadIdx.x / 32 * THREAD_QUADS;
    const int64_t thread_col = q.col + threadIdx.x % 32 * QUAD;
    fp8pipe_cuda::detail::extremes counts = {0, 0};
    for (int rows = 0; rows < THREAD_QUADS; rows += 4) {
        float4 x[4];
        uint32_t quad[4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int count = quad_count(q, rows + j);

            x[j] = quad_load(parameter.master, q.at + (rows + j) * q.pitch, count,
                             q.aligned && count == QUAD);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int count = quad_count(q, rows + j);

            quad[j] = adamw::quad_codes(x[j], scale, count);
            adamw::codes_store(parameter, thread_row + rows + j, thread_col, count, quad[j]);
            if (parameter.extremes != NULL)
                adamw::quad_extremes(counts, x[j], scale, count);
        }
        codes.put((threadIdx.x / 32 * THREAD_QUADS + rows) / 4, quad);
    }
    if (parameter.extremes != NULL)
        fp8pipe_cuda::detail::extremes_publish(counts, parameter.extremes);
    __syncthreads();
    codes.write(parameter, q.row, q.col);
    if (tile.index == 0 && threadIdx.x == 0)
        *parameter.scale_inv = __fdiv_rn(1.0f, scale);
}

int kernel_adamw_cuda(const struct kernel_adamw_args *args, struct CUstream_st *stream)
{
    if (!args->first)
        return adamw::run<shape>(args, stream);
    if (!adamw::valid(args))
        return (int)cudaErrorInvalidValue;
    return args->tile_count == 0
               ? 0
               : kernel_launch(adamw_first_kernel, quads_geometry(args->tile_count, BLOCK_THREADS),
                               *args, stream);
}
