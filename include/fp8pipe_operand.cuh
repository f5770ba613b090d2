/*
 * libfp8pipe: how a kernel reaches its matrices. For functors of fp8pipe_quantize.cuh, which
 * includes this, and for kernels of the library's own.
 *
 * All is done in units: 8 consecutive elements of one row, from a column that is a multiple of 8
 * on. A unit is one 16-byte load in bf16 and fp16, two in fp32. `place` says which unit, raw<> is
 * what was loaded, values is it in float32, operand<> is a matrix that is read, result<> one that
 * is written:
 *
 *     raw<FP8PIPE_BF16> in = x.load(at);     issues the load, waits for nothing
 *     values v = widen(in);                  waits for it
 *     y.store(at, v);                        rounded to nearest even, overflow gives inf
 *
 * Matrices may have any stride and any alignment of whole elements; rows that are 16-byte aligned
 * are faster. A FP8PIPE_MATRIX_NONE reads as zeros and takes no store.
 *
 * With FP8PIPE_DEBUG defined every access checks its row and its columns; one out of bounds prints
 * the matrix's name and the index and stops the kernel. All files of a program that share functors
 * define it or none does.
 */
#ifndef FP8PIPE_OPERAND_CUH
#define FP8PIPE_OPERAND_CUH

#include <stddef.h>
#include <stdint.h>
#ifdef FP8PIPE_DEBUG
#include <stdio.h>
#endif

#include <cuda_runtime.h>

#include <fp8pipe.h>
#include <fp8pipe_convert.h>

/* What all of these headers stand in. Builds with and without checks lay types out differently, and
 * so name them apart. */
#ifdef FP8PIPE_DEBUG
#define FP8PIPE_CUDA_BEGIN                                                                         \
    namespace fp8pipe_cuda                                                                         \
    {                                                                                              \
    inline namespace checked                                                                       \
    {
#else
#define FP8PIPE_CUDA_BEGIN                                                                         \
    namespace fp8pipe_cuda                                                                         \
    {                                                                                              \
    inline namespace unchecked                                                                     \
    {
#endif
#define FP8PIPE_CUDA_END                                                                           \
    } /* inline namespace */                                                                       \
    } /* namespace fp8pipe_cuda */

#define FP8PIPE_DEVICE __device__ __forceinline__

FP8PIPE_CUDA_BEGIN

/* Elements in a unit. */
enum { UNIT = 8 };

/* Which unit of the target: columns col .. col+7 of a row, of which the first `count` exist. */
struct place {
    int64_t row;
    int64_t col; /* a multiple of UNIT */
    int count;   /* 1 to UNIT */
    bool writes; /* false in the pass in front, which finds the amax alone: stores do nothing */
    bool whole;  /* count is UNIT, and the functor has said that all of its accesses are aligned */
};

struct values {
    float v[UNIT];

    FP8PIPE_DEVICE float &operator[](int i)
    {
        return v[i];
    }
    FP8PIPE_DEVICE const float &operator[](int i) const
    {
        return v[i];
    }
};

/* A unit's bits, as they lie in memory. */
template <int DTYPE> struct raw {
    enum { WORDS = DTYPE == FP8PIPE_FP32 ? UNIT : UNIT / 2 };
    uint32_t word[WORDS];
};

namespace detail
{
template <int DTYPE> struct element {
    typedef uint16_t bits;
};
template <> struct element<FP8PIPE_FP32> {
    typedef uint32_t bits;
};

/* Element i, i known to the compiler. A NaN stays one, its payload may change. */
template <int DTYPE> FP8PIPE_DEVICE float value(const raw<DTYPE> &u, int i)
{
    if (DTYPE == FP8PIPE_FP32)
        return fp8pipe_float_from_bits(u.word[i % raw<DTYPE>::WORDS]);
    const uint32_t pair = u.word[i / 2];
    if (DTYPE == FP8PIPE_BF16)
        return fp8pipe_float_from_bits(i % 2 ? pair & 0xffff0000u : pair << 16);
    const uint16_t half = (uint16_t)(i % 2 ? pair >> 16 : pair);
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
    return wide;
}

/* The whole unit at p, which is 16-byte aligned. */
template <int DTYPE> FP8PIPE_DEVICE raw<DTYPE> load_all(const void *p)
{
    raw<DTYPE> u;

#pragma unroll
    for (int i = 0; i < raw<DTYPE>::WORDS; i += 4) {
        const uint4 words = ((const uint4 *)p)[i / 4];
        u.word[i] = words.x;
        u.word[i + 1] = words.y;
        u.word[i + 2] = words.z;
        u.word[i + 3] = words.w;
    }
    return u;
}

/* The first `count` elements of the unit at p, the rest 0. Any count. */
template <int DTYPE> FP8PIPE_DEVICE raw<DTYPE> load_some(const void *p, int64_t count)
{
    const typename element<DTYPE>::bits *from = (const typename element<DTYPE>::bits *)p;
    raw<DTYPE> u;

#pragma unroll
    for (int i = 0; i < raw<DTYPE>::WORDS; i++)
        u.word[i] = 0;
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        if (i < count) {
            if (DTYPE == FP8PIPE_FP32)
                u.word[i % raw<DTYPE>::WORDS] = from[i];
            else
                u.word[i / 2] |= (uint32_t)from[i] << (i % 2 * 16);
        }
    return u;
}

/* The whole unit to p, which is 16-byte aligned. */
template <int DTYPE> FP8PIPE_DEVICE void store_all(void *p, const raw<DTYPE> &u)
{
#pragma unroll
    for (int i = 0; i < raw<DTYPE>::WORDS; i += 4)
        ((uint4 *)p)[i / 4] = make_uint4(u.word[i], u.word[i + 1], u.word[i + 2], u.word[i + 3]);
}

/* The first `count` elements of the unit to p. Any count. */
template <int DTYPE> FP8PIPE_DEVICE void store_some(void *p, const raw<DTYPE> &u, int64_t count)
{
    typename element<DTYPE>::bits *to = (typename element<DTYPE>::bits *)p;

#pragma unroll
    for (int i = 0; i < UNIT; i++)
        if (i < count)
            to[i] = (typename element<DTYPE>::bits)(DTYPE == FP8PIPE_FP32
                                                        ? u.word[i % raw<DTYPE>::WORDS]
                                                        : u.word[i / 2] >> (i % 2 * 16) & 0xffffu);
}

/* A matrix as the device sees it. What stands for all rows has a stride of 0. */
struct view {
    char *data;
    int64_t rows;
    int64_t cols;
    int64_t stride; /* elements */
    bool aligned;   /* every row is 16-byte aligned */
#ifdef FP8PIPE_DEBUG
    bool fits; /* its dtype is the accessor's */
    char name[32];
#endif
};

template <int DTYPE> inline view view_of(const struct fp8pipe_matrix &m, const char *name)
{
    const int64_t bytes = (int64_t)sizeof(typename element<DTYPE>::bits);
    view v;

    v.data = (char *)m.data;
    v.rows = m.data == NULL ? 0 : m.rows;
    v.cols = m.data == NULL ? 0 : m.cols;
    v.stride = m.stride;
    v.aligned = (uintptr_t)m.data % 16 == 0 && (m.rows <= 1 || m.stride * bytes % 16 == 0);
#ifdef FP8PIPE_DEBUG
    v.fits = m.data == NULL || (int)m.dtype == DTYPE;
    snprintf(v.name, sizeof(v.name), "%s", name);
#else
    (void)name;
#endif
    return v;
}

#ifdef FP8PIPE_DEBUG
/* Columns col .. col+count-1 of `row`; row 0 alone is read of what stands for all rows. */
static __device__ __noinline__ void view_stop(const view &v, int64_t row, int64_t col, int count)
{
    if (!v.fits)
        printf("fp8pipe: \"%s\" is used as a matrix of another dtype than its own\n", v.name);
    else
        printf("fp8pipe: \"%s\" [%lld, %lld to %lld] is out of bounds, it has %lld rows and %lld "
               "columns\n",
               v.name, (long long)row, (long long)col, (long long)(col + count - 1),
               (long long)v.rows, (long long)v.cols);
    __trap();
}

FP8PIPE_DEVICE void view_check(const view &v, int64_t row, int64_t col, int count)
{
    if (!v.fits ||
        (v.data != NULL && (row < 0 || row >= v.rows || col < 0 || col + count > v.cols)))
        view_stop(v, row, col, count);
}
#endif

/* Address of an element. SMALL: `row` and the bytes of a row are below 2^32, one multiplication. */
template <int DTYPE, bool SMALL>
FP8PIPE_DEVICE char *view_at(const view &v, int64_t row, int64_t col)
{
    const int64_t bytes = sizeof(typename element<DTYPE>::bits);

    if (SMALL)
        return v.data + col * bytes + (uint64_t)(uint32_t)row * (uint32_t)(v.stride * bytes);
    return v.data + (row * v.stride + col) * bytes;
}

/* Whether the unit at `col`, any column, is 16-byte aligned. */
template <int DTYPE> FP8PIPE_DEVICE bool view_aligned(const view &v, int64_t col)
{
    return v.aligned && (col & (16 / (int)sizeof(typename element<DTYPE>::bits) - 1)) == 0;
}

/* Whether units at a column that is `offset` more than a multiple of UNIT are 16-byte aligned, and
 * rows and their bytes below 2^32: what place.whole stands for. */
template <int DTYPE> inline bool view_whole(const view &v, int64_t offset)
{
    const int64_t bytes = sizeof(typename element<DTYPE>::bits);

    return v.data != NULL && v.aligned && offset * bytes % 16 == 0 && v.rows <= UINT32_MAX &&
           v.stride * bytes <= UINT32_MAX;
}

/* The unit at row, col + offset; what lies beyond v.cols is 0. `whole`, best known to the compiler:
 * nothing does, and view_whole() is true. */
template <int DTYPE>
FP8PIPE_DEVICE raw<DTYPE> view_load(const view &v, int64_t row, int64_t col, int64_t offset,
                                    bool whole)
{
    if (whole)
        return load_all<DTYPE>(view_at<DTYPE, true>(v, row, col + offset));
    const char *p = view_at<DTYPE, false>(v, row, col + offset);
    if (view_aligned<DTYPE>(v, col + offset) && col + offset + UNIT <= v.cols)
        return load_all<DTYPE>(p);
    return load_some<DTYPE>(p, v.cols - (col + offset));
}

template <int DTYPE> FP8PIPE_DEVICE uint32_t narrow_pair(float low, float high)
{
    uint32_t pair;

    if (DTYPE == FP8PIPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
} /* namespace detail */

template <int DTYPE> FP8PIPE_DEVICE values widen(const raw<DTYPE> &u)
{
    values v;

#pragma unroll
    for (int i = 0; i < UNIT; i++)
        v[i] = detail::value(u, i);
    return v;
}

/* Rounded to nearest even; overflow gives inf. As fp8pipe_convert.h, NaN too. */
template <int DTYPE> FP8PIPE_DEVICE raw<DTYPE> narrow(const values &v)
{
    raw<DTYPE> u;

    if constexpr (DTYPE == FP8PIPE_FP32) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            u.word[i] = fp8pipe_float_bits(v[i]);
    } else {
        bool nan = false;

#pragma unroll
        for (int i = 0; i < UNIT / 2; i++)
            u.word[i] = detail::narrow_pair<DTYPE>(v[2 * i], v[2 * i + 1]);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            nan |= !(v[i] == v[i]);
        /* The instructions give one NaN for all. */
        if (nan)
#pragma unroll
            for (int i = 0; i < UNIT / 2; i++)
                u.word[i] = DTYPE == FP8PIPE_BF16
                                ? fp8pipe_bf16_from_float(v[2 * i]) |
                                      (uint32_t)fp8pipe_bf16_from_float(v[2 * i + 1]) << 16
                                : fp8pipe_fp16_from_float(v[2 * i]) |
                                      (uint32_t)fp8pipe_fp16_from_float(v[2 * i + 1]) << 16;
    }
    return u;
}

/*
 * A matrix that a functor reads. One with a single row stands for all rows. rows_of, device memory
 * with one entry for each row of the target, says which row of the matrix belongs to it; the caller
 * keeps its entries below the matrix's rows.
 */
template <int DTYPE> struct operand {
    detail::view view;
    const int32_t *rows_of;

    /* `name` is for messages; nothing keeps it. Host code. */
    static operand of(const struct fp8pipe_matrix &m, const char *name,
                      const int32_t *rows_of = NULL)
    {
        operand o;

        o.view = detail::view_of<DTYPE>(m, name);
        o.rows_of = rows_of;
        if (rows_of == NULL && m.rows == 1)
            o.view.stride = 0;
        return o;
    }

    /* Whether it may be used by a functor that says it is aligned; each col_offset is asked for by
     * itself. Host code. */
    bool aligned(int64_t col_offset = 0) const
    {
        return detail::view_whole<DTYPE>(view, col_offset);
    }

    FP8PIPE_DEVICE raw<DTYPE> load(const place &at) const
    {
        return load(at, 0);
    }

    /* Of column at.col + col_offset on. What lies beyond the matrix's columns is 0. */
    FP8PIPE_DEVICE raw<DTYPE> load(const place &at, int64_t col_offset) const
    {
        const int64_t row = rows_of != NULL ? rows_of[at.row] : at.row;

#ifdef FP8PIPE_DEBUG
        detail::view_check(view, view.stride == 0 ? 0 : row, at.col + col_offset, at.count);
#endif
        return detail::view_load<DTYPE>(view, row, at.col, col_offset, at.whole);
    }
};

/* A matrix that a functor writes. It may be an operand itself if each element is loaded and stored
 * at one place only, and with one col_offset. */
template <int DTYPE> struct result {
    detail::view view;

    static result of(const struct fp8pipe_matrix &m, const char *name)
    {
        result r;

        r.view = detail::view_of<DTYPE>(m, name);
        return r;
    }

    /* As of an operand. One without data is: it is not touched. */
    bool aligned(int64_t col_offset = 0) const
    {
        return view.data == NULL || detail::view_whole<DTYPE>(view, col_offset);
    }

    FP8PIPE_DEVICE void store(const place &at, const values &v) const
    {
        store(at, v, 0);
    }

    /* To column at.col + col_offset on, the first at.count values. */
    FP8PIPE_DEVICE void store(const place &at, const values &v, int64_t col_offset) const
    {
        const int64_t col = at.col + col_offset;

        if (!at.writes || view.data == NULL)
            return;
#ifdef FP8PIPE_DEBUG
        detail::view_check(view, at.row, col, at.count);
#endif
        const raw<DTYPE> u = narrow<DTYPE>(v);
        if (at.whole)
            detail::store_all<DTYPE>(detail::view_at<DTYPE, true>(view, at.row, col), u);
        else if (at.count == UNIT && detail::view_aligned<DTYPE>(view, col))
            detail::store_all<DTYPE>(detail::view_at<DTYPE, false>(view, at.row, col), u);
        else
            detail::store_some<DTYPE>(detail::view_at<DTYPE, false>(view, at.row, col), u,
                                      at.count);
    }
};
FP8PIPE_CUDA_END

#endif
