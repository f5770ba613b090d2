/*
 * A matrix as a functor of fp8pipe_quantize.cuh: its values are its elements. What the library's
 * own quantize, amax and partials run.
 */
#ifndef KERNELS_QUANTIZE_CUH
#define KERNELS_QUANTIZE_CUH

#include "fp8pipe_quantize_kernel.cuh"
#include "kernels/kernels.h"

template <int DTYPE> struct identity {
    fp8pipe_cuda::detail::view x;
    typedef fp8pipe_cuda::raw<DTYPE> loaded;

    bool aligned() const
    {
        return fp8pipe_cuda::detail::view_whole<DTYPE>(x, 0);
    }
    FP8PIPE_DEVICE loaded load(const fp8pipe_cuda::place &at) const
    {
        return fp8pipe_cuda::detail::view_load<DTYPE>(x, at.row, at.col, 0, at.whole);
    }
    FP8PIPE_DEVICE fp8pipe_cuda::values compute(const fp8pipe_cuda::place &, const loaded &in) const
    {
        return fp8pipe_cuda::widen(in);
    }
};

/*
 * The amax of the bits as loaded, so that a NaN keeps its payload. 16-bit magnitudes order like the
 * float32 ones that they widen to: two are compared at once.
 */
template <int DTYPE> struct identity_folding {
    static FP8PIPE_DEVICE uint32_t fold(uint32_t largest, const fp8pipe_cuda::raw<DTYPE> &in,
                                        const fp8pipe_cuda::values &)
    {
#pragma unroll
        for (int i = 0; i < fp8pipe_cuda::raw<DTYPE>::WORDS; i++)
            largest = DTYPE == FP8PIPE_FP32 ? max(largest, in.word[i] & 0x7fffffffu)
                                            : __vmaxu2(largest, in.word[i] & 0x7fff7fffu);
        return largest;
    }
    static FP8PIPE_DEVICE uint32_t bits(uint32_t largest)
    {
        if (DTYPE == FP8PIPE_FP32)
            return largest;
        const uint16_t one = (uint16_t)max(largest & 0xffffu, largest >> 16);
        return fp8pipe_float_bits(DTYPE == FP8PIPE_BF16 ? fp8pipe_bf16_to_float(one)
                                                        : fp8pipe_fp16_to_float(one));
    }
};

template <int DTYPE>
struct fp8pipe_cuda::detail::folding<identity<DTYPE>> : identity_folding<DTYPE> {
};

/* What is tried with bench/kernels --variants. */
template <int DTYPE> struct identity_tuning {
    typedef fp8pipe_cuda::detail::row_shape<8, 4, 5> rows;
    typedef fp8pipe_cuda::detail::tile_shape<4, 4, 8, 2, 1, 256> tiles;
};
template <> struct identity_tuning<FP8PIPE_FP32> {
    typedef fp8pipe_cuda::detail::row_shape<4, 4, 4> rows;
    typedef fp8pipe_cuda::detail::tile_shape<4, 4, 8, 2, 8> tiles;
};

template <int DTYPE> struct fp8pipe_cuda::detail::tuning<identity<DTYPE>> : identity_tuning<DTYPE> {
};

#endif
