/*
 * libfp8pipe: launches of the kernels of fp8pipe_quantize_kernel.cuh: which of them a target takes,
 * on what grid, and whether it may begin early. As there, nothing is for users, and all of it may
 * change.
 */
#ifndef FP8PIPE_QUANTIZE_LAUNCH_CUH
#define FP8PIPE_QUANTIZE_LAUNCH_CUH

#include <atomic>

#include <fp8pipe_quantize_kernel.cuh>

FP8PIPE_CUDA_BEGIN
namespace detail
{
constexpr int64_t GRID_MAX = 65535; /* in y and z */

inline int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/*
 * Whether kernels of F's, as they run on the current device, may begin before what is in front of
 * them in the stream has ended: whether they were made for sm_90 or later, and so wait themselves
 * (wait_for_stream). All are from one source file, for the same architectures: any of them tells.
 * Static as the kernels are: another file's, also another library's, may be for other architectures
 * although its F has the same name.
 */
template <class F> static inline bool may_begin_early(const void *kernel)
{
    enum { UNKNOWN, EARLY, LATE, DEVICES = 64 };
    /* Written by whoever finds out, always alike; nothing else goes with it. */
    static std::atomic<uint8_t> found[DEVICES];
    cudaFuncAttributes attributes;
    int device;

    if (cudaGetDevice(&device) != cudaSuccess || device >= DEVICES)
        return false;
    if (found[device].load(std::memory_order_relaxed) == UNKNOWN) {
        if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
            (void)cudaGetLastError();
            return false;
        }
        found[device].store(attributes.ptxVersion >= 90 ? EARLY : LATE, std::memory_order_relaxed);
    }
    return found[device].load(std::memory_order_relaxed) == EARLY;
}

struct geometry {
    dim3 grid;
    dim3 block;
    size_t shared_bytes = 0; /* dynamic */
    unsigned cluster = 0;    /* blocks in x; 0: none */
    bool packs = false;      /* a cluster's blocks may share a multiprocessor */
};

/*
 * Launches and returns what the launch itself said. The runtime keeps that error as the thread's
 * last one as well: it is taken back, and an older error, which is somebody else's, is left alone.
 * `early`: the kernel calls wait_for_stream() before it touches memory or ends, and its code is
 * there.
 */
inline cudaError_t launch(const void *kernel, const geometry &g, void **args, cudaStream_t stream,
                          bool early)
{
    cudaLaunchAttribute attributes[3] = {};
    cudaLaunchConfig_t config = {};
    cudaError_t error = cudaSuccess;

    config.gridDim = g.grid;
    config.blockDim = g.block;
    config.dynamicSmemBytes = g.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    if (early) {
        cudaLaunchAttribute &attribute = attributes[config.numAttrs++];

        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (g.cluster > 0) {
        cudaLaunchAttribute &attribute = attributes[config.numAttrs++];

        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = g.cluster;
        attribute.val.clusterDim.y = 1;
        attribute.val.clusterDim.z = 1;
    }
    if (g.packs) {
        cudaLaunchAttribute &attribute = attributes[config.numAttrs++];

        attribute.id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
        attribute.val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
    }
    if (g.shared_bytes > 0)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)g.shared_bytes);
    if (error == cudaSuccess)
        error = cudaLaunchKernelExC(&config, kernel, args);
    if (error != cudaSuccess && cudaPeekAtLastError() == error)
        (void)cudaGetLastError();
    return error;
}

/* Blocks as wide as the rows need, up to ROW_UNITS, each thread with `each` rows; small ones where
 * there are few of them. */
inline geometry rows_geometry(int64_t rows, int64_t cols, int64_t each)
{
    const int64_t units = divide_up(cols, UNIT);
    int64_t width = 1, threads = ROW_THREADS;
    geometry g;

    while (width < units && width < ROW_UNITS)
        width *= 2;
    while (threads > 64 && threads > width && rows * units < threads * each * 256)
        threads /= 2;
    const int64_t height = threads / width;
    const int64_t down = divide_up(rows, height * each);
    g.grid = dim3((unsigned)divide_up(units, width), (unsigned)(down < GRID_MAX ? down : GRID_MAX));
    g.block = dim3((unsigned)width, (unsigned)height);
    return g;
}

template <class F>
inline cudaError_t launch_job(void (*kernel)(const job<F>), const geometry &g, const job<F> &job,
                              cudaStream_t stream)
{
    void *args[] = {(void *)&job};

    return launch((const void *)kernel, g, args, stream, may_begin_early<F>((const void *)kernel));
}

/* Of `across` columns of tiles as many at a time as a grid has in y: nearly always all. The first
 * launch publishes the scale. */
template <class SHAPE, class F>
inline cudaError_t launch_tiles(void (*kernel)(const job<F>), geometry g, int64_t across,
                                job<F> job, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;

    for (; across > 0 && error == cudaSuccess; across -= GRID_MAX) {
        g.grid.y = (unsigned)(across < GRID_MAX ? across : GRID_MAX);
        error = launch_job<F>(kernel, g, job, stream);
        job.first += GRID_MAX * SHAPE::WIDTH;
        job.target.scale_inv = NULL;
    }
    return error;
}

template <class F, int FORMAT, bool WHOLE>
inline cudaError_t run_tiles(const job<F> &job, cudaStream_t stream)
{
    typedef typename tuning<F>::tiles shape;
    const fp8pipe_quantize_target &t = job.target;
    const int64_t rows = t.transposed != NULL ? t.transposed_stride : t.rows;
    const int64_t cols = t.row != NULL ? t.row_stride : t.cols;
    const int64_t down = divide_up(rows, shape::HEIGHT);
    const int64_t across = divide_up(cols, shape::WIDTH);
    const int64_t group = down < shape::GROUP ? down : (int64_t)shape::GROUP;
    const int64_t groups = divide_up(down, group);
    geometry g;

    g.grid = dim3((unsigned)group, 1, (unsigned)(groups < GRID_MAX ? groups : GRID_MAX));
    g.block = dim3(shape::THREADS);
    if constexpr (FORMAT == ANY_FORMAT)
        if (t.extremes != NULL || !kernels<F, WHOLE>::LEAN)
            return launch_tiles<shape>(tiles_kernel<F, ANY_FORMAT, true, true, WHOLE, shape>, g,
                                       across, job, stream);
    if constexpr (kernels<F, WHOLE>::LEAN && (FORMAT == ANY_FORMAT) != kernels<F, WHOLE>::FORMATS) {
        if (t.partials != NULL)
            return launch_tiles<shape>(tiles_kernel<F, FORMAT, true, false, WHOLE, shape>, g,
                                       across, job, stream);
        return launch_tiles<shape>(tiles_kernel<F, FORMAT, false, false, WHOLE, shape>, g, across,
                                   job, stream);
    }
    return cudaErrorInvalidValue;
}

template <class F, int FORMAT, bool WHOLE>
inline cudaError_t run_format(const job<F> &job, cudaStream_t stream)
{
    const fp8pipe_quantize_target &t = job.target;

    if constexpr ((FORMAT == ANY_FORMAT) != kernels<F, WHOLE>::FORMATS)
        if (t.row != NULL && t.transposed == NULL && t.partials == NULL && t.extremes == NULL)
            return launch_job<F>(rows_kernel<F, FORMAT, WHOLE>,
                                 rows_geometry(t.rows, t.row_stride, tuning<F>::rows::ROWS), job,
                                 stream);
    return run_tiles<F, FORMAT, WHOLE>(job, stream);
}

template <class F, bool WHOLE> inline cudaError_t run_whole(const job<F> &job, cudaStream_t stream)
{
    const fp8pipe_quantize_target &t = job.target;

    if (t.row == NULL && t.transposed == NULL && t.partials == NULL && t.amax == NULL &&
        t.extremes == NULL)
        return launch_job<F>(rows_kernel<F, NO_FORMAT, WHOLE>,
                             rows_geometry(t.rows, t.cols, tuning<F>::rows::ROWS), job, stream);
    if (t.format != FP8PIPE_E4M3 && t.format != FP8PIPE_E5M2)
        return cudaErrorInvalidValue;
    if constexpr (kernels<F, WHOLE>::FORMATS)
        if (t.extremes == NULL)
            return t.format == FP8PIPE_E4M3 ? run_format<F, FP8PIPE_E4M3, WHOLE>(job, stream)
                                            : run_format<F, FP8PIPE_E5M2, WHOLE>(job, stream);
    return run_format<F, ANY_FORMAT, WHOLE>(job, stream);
}

template <class F> inline bool is_whole(const fp8pipe_quantize_target &target, const F &functor)
{
    const int64_t limit = INT32_MAX / 2;

    return target.cols % UNIT == 0 && target.rows <= limit && target.cols <= limit &&
           target.row_stride <= limit && target.transposed_stride <= limit &&
           alignment<F>::of(functor);
}

/* The main pass. */
template <class F>
inline cudaError_t run(const fp8pipe_quantize_target &target, const F &functor, cudaStream_t stream)
{
    const job<F> work{target, functor, 0};

    if (target.rows == 0 || target.cols == 0) {
        void *args[] = {(void *)&target};

        return target.scale_inv == NULL
                   ? cudaSuccess
                   : launch((const void *)empty_kernel, geometry(), args, stream,
                            may_begin_early<F>((const void *)empty_kernel));
    }
    if constexpr (alignment<F>::KNOWN)
        if (is_whole(target, functor))
            return run_whole<F, true>(work, stream);
    return run_whole<F, false>(work, stream);
}

/* The amax of the values into *to, unless *skip_if (may be NULL) is set. */
template <class F>
inline cudaError_t run_amax(const fp8pipe_quantize_target &target, const F &functor,
                            const int32_t *skip_if, uint32_t *to, cudaStream_t stream)
{
    const job<F> work{target, functor, 0};
    void *args[] = {(void *)&work, (void *)&skip_if, (void *)&to};
    const geometry g = rows_geometry(target.rows, target.cols, tuning<F>::rows::ROWS);
    const void *kernel = (const void *)amax_kernel<F, false>;

    if (target.rows == 0 || target.cols == 0)
        return cudaSuccess;
    if constexpr (alignment<F>::KNOWN)
        if (is_whole(target, functor))
            kernel = (const void *)amax_kernel<F, true>;
    return launch(kernel, g, args, stream, may_begin_early<F>(kernel));
}

/* The pass in front, where the slot may lack a scale. */
template <class F>
inline cudaError_t front(const fp8pipe_quantize_target &target, const F &functor,
                         cudaStream_t stream)
{
    if (target.own_amax == NULL)
        return cudaSuccess;
    return run_amax<F>(target, functor, target.has_scale, target.own_amax, stream);
}
} /* namespace detail */
FP8PIPE_CUDA_END

#endif
