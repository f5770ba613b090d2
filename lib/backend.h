/*
 * The table that every backend fills: streams, events, stream-ordered memory, copies, kernels,
 * GEMM.
 *
 * Promises to the layers above:
 *   - Every function may be called from any thread that is inside `enter`; a stream is used by one
 *     thread at a time (its launcher, or the holder of its lane's lock), events by any.
 *   - Functions that enqueue return before the work is done, and fail before anything is enqueued:
 *     a status other than FP8PIPE_OK means that the call left nothing in the stream. The reason is
 *     recorded with status_fail() (lib/status.h), which gives the calling thread's last error.
 *   - Work of one stream runs in order. An event stands for all work enqueued on the stream before
 *     its latest record; stream_wait takes the record that is current when it is called, so that a
 *     wait on an event recorded again later is a wait for more, never for less.
 *   - A device error that surfaces later is returned by event_query as FP8PIPE_EDEVICE.
 *   - Nothing here looks at tickets, lanes or ops. Only lib/pipe.c knows which backends exist.
 */
#ifndef LIB_BACKEND_H
#define LIB_BACKEND_H

#include <ck_pr.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "fp8pipe_tune.h"
#include "kernels/kernels.h"
#include "log.h"

struct backend_event; /* a backend's own */
struct backend_timer; /* likewise */

/*
 * First member of every backend's instance. The counts of device memory are written by whoever
 * allocates and frees, and read by stats: single atomic words that order nothing.
 */
struct backend {
    const struct backend_ops *ops;
    uint64_t memory_bytes;
    uint64_t memory_peak_bytes;
};

/* First member of every backend's stream; what a `call` is given. */
struct fp8pipe_stream {
    struct backend *backend;
};

struct backend_options {
    int32_t device;
    struct fp8pipe_allocator allocator; /* all zero: the backend's own pool */
    size_t workspace_bytes;             /* for each stream's GEMMs */
    enum fp8pipe_plans plans;
    enum fp8pipe_replays replays;
    const char *tune_file; /* NULL: none. Read by open */
    const struct log *log; /* lives as long as the backend */
    /*
     * Called, from any thread, when work that an event stands for has finished; may be called too
     * often. Only by backends whose poll_ns is 0.
     */
    void (*notify)(void *arg);
    void *notify_arg;
};

/* What `enter` saves of the calling thread (its current device, its capture mode). */
struct backend_scope {
    int32_t device;
    int32_t capture_mode;
    bool entered;
};

/* Element types of GEMM operands. */
enum gemm_type { GEMM_FP32, GEMM_BF16, GEMM_FP16, GEMM_E4M3, GEMM_E5M2 };

struct gemm_operand {
    const void *data;
    int64_t stride; /* elements between stored rows */
    enum gemm_type type;
    bool transposed;        /* stored as [contraction, rows] instead of [rows, contraction] */
    const float *scale_inv; /* device, 16-byte aligned; FP8 only */
};

/*
 * D[m,n] (+)= sa * sb * A[m,k] . B[n,k]^T + bias[n], all row-major; m, n, k >= 1.
 * FP8 operands are not transposed, 16-byte aligned, with k and strides multiples of KERNEL_FP8_PAD;
 * B then has round_up(n, 16) rows of memory, D's rows and data are 16-byte aligned and n is a
 * multiple of 16; not both E5M2. Otherwise both are of one type and of any alignment.
 * bias: NULL, or of d_dtype's own type, and with FP8 operands and an FP32 D of BF16.
 * accumulate: D is read and added to. fast: see fp8pipe_accumulation.
 *
 * Epilogue (fp8pipe_epilogue): with P the product, bias and old D, D = activation(P) + residual,
 * and with d_scale D = cast(activation(P) * *d_scale) as quantize casts, in rows of multiples of 16
 * bytes; then there is neither residual nor accumulate. A residual has 16-byte aligned rows. A
 * backend may refuse with ENOTSUP what it has no kernel for, before anything is enqueued;
 * lib/gemm.c then goes another way.
 * CUDA has none for a residual beside an activation, for an activation beside a bias that is not
 * 16-byte aligned, for an E5M2 D of two E4M3 operands, for an FP8 D of others than FP8 or with a
 * bias that is not BF16.
 */
struct gemm_args {
    int64_t m;
    int64_t n;
    int64_t k;
    struct gemm_operand a;
    struct gemm_operand b;
    void *d;
    int64_t d_stride;
    enum fp8pipe_dtype d_dtype;
    const void *bias;
    enum fp8pipe_dtype bias_dtype;
    bool accumulate;
    bool fast;
    const void *residual; /* NULL, or [m, n] of D's dtype, apart from D */
    int64_t residual_stride;
    enum fp8pipe_activation activation; /* NONE or GELU_TANH */
    const float *d_scale; /* device, 16-byte aligned; not NULL: D is FP8 of d_format, and d_dtype is
                             not read */
    enum fp8pipe_format d_format;
    uint32_t *d_amax; /* device, 16-byte aligned, 0 before; with d_scale: *set* to the bits of
                         max|result|, before scaling; or NULL */
};

struct backend_plan_stats {
    uint64_t cached;
    uint64_t evicted;
    uint64_t borrowed;
    uint64_t refined;
};

/* Of one stream: GEMM calls that it has recorded, that gave their place to others, and calls that
 * were issued from a record. */
struct backend_replay_stats {
    uint64_t kept;
    uint64_t evicted;
    uint64_t issued;
};

/* What to time, as in struct fp8pipe_tune_options; checked and completed. */
struct backend_tune {
    const struct fp8pipe_tune_shape *shapes; /* NULL: those of all plans */
    size_t shape_count;
    const char *file;
    int candidates;
    bool untuned;        /* of all plans, only those that were not timed yet; and if there are none,
                            the file is left alone */
    int64_t deadline_ns; /* no shape is begun after it */
};

/* Device memory that the backend's users hold, and the most that they held. */
struct backend_memory_stats {
    uint64_t bytes;
    uint64_t peak_bytes;
};

struct backend_ops {
    enum fp8pipe_backend kind;
    const char *name;
    /* How often event_query is to be asked while somebody waits; 0: the backend calls notify. */
    int64_t poll_ns;

    /* open enters nothing; close needs every stream and event destroyed. Neither needs `enter`. */
    enum fp8pipe_status (*open)(const struct backend_options *options, struct backend **backend);
    void (*close)(struct backend *backend);

    /* Makes the backend's device current for the calling thread; leave restores what was. */
    void (*enter)(struct backend *backend, struct backend_scope *scope);
    void (*leave)(struct backend *backend, struct backend_scope *scope);

    /* native: NULL, or the caller's own stream (cudaStream_t), which stays the caller's. */
    enum fp8pipe_status (*stream_create)(struct backend *backend, void *native,
                                         struct fp8pipe_stream **stream);
    /* Waits for the stream's work, then frees it. */
    void (*stream_destroy)(struct backend *backend, struct fp8pipe_stream *stream);
    /* ECAPTURE if the stream is being captured into a graph, else OK. */
    enum fp8pipe_status (*stream_check)(struct backend *backend, struct fp8pipe_stream *stream);

    enum fp8pipe_status (*event_create)(struct backend *backend, struct backend_event **event);
    void (*event_destroy)(struct backend *backend, struct backend_event *event);
    enum fp8pipe_status (*event_record)(struct backend *backend, struct backend_event *event,
                                        struct fp8pipe_stream *stream);
    /* *done: all work before the latest record has finished (true if never recorded). */
    enum fp8pipe_status (*event_query)(struct backend *backend, struct backend_event *event,
                                       bool *done);
    enum fp8pipe_status (*stream_wait)(struct backend *backend, struct fp8pipe_stream *stream,
                                       struct backend_event *event);
    /* The stream waits for the caller's cudaEvent_t; ENOTSUP on host. */
    enum fp8pipe_status (*stream_wait_native)(struct backend *backend,
                                              struct fp8pipe_stream *stream, void *native_event);
    /* The caller's cudaStream_t waits for the event; ECAPTURE; ENOTSUP on host. */
    enum fp8pipe_status (*native_wait)(struct backend *backend, void *native_stream,
                                       struct backend_event *event);

    /*
     * A timer takes the device's time, in stream order. Recorded once, and read once its work is
     * done; a timer that was never recorded is not read.
     */
    enum fp8pipe_status (*timer_create)(struct backend *backend, struct backend_timer **timer);
    void (*timer_destroy)(struct backend *backend, struct backend_timer *timer);
    enum fp8pipe_status (*timer_record)(struct backend *backend, struct backend_timer *timer,
                                        struct fp8pipe_stream *stream);
    /* Records it now, on a stream of the backend's own, and waits: *now_ns is CLOCK_MONOTONIC of
     * that moment. */
    enum fp8pipe_status (*timer_now)(struct backend *backend, struct backend_timer *timer,
                                     int64_t *now_ns);
    /* From one to the other; exact to some 0.5 us, and less so beyond a few milliseconds. */
    enum fp8pipe_status (*timer_elapsed)(struct backend *backend, struct backend_timer *from,
                                         struct backend_timer *to, int64_t *elapsed_ns);

    /* Names what the calling thread issues until the pop, for profilers. */
    void (*range_push)(struct backend *backend, const char *name);
    void (*range_pop)(struct backend *backend);

    /* Stream-ordered, 256-byte aligned. stream NULL: usable at once; freed when nothing uses it. */
    enum fp8pipe_status (*alloc)(struct backend *backend, struct fp8pipe_stream *stream,
                                 size_t bytes, void **data);
    void (*free)(struct backend *backend, struct fp8pipe_stream *stream, void *data, size_t bytes);
    /* Host memory that copies reach without staging. */
    enum fp8pipe_status (*pinned_alloc)(struct backend *backend, size_t bytes, void **data);
    void (*pinned_free)(struct backend *backend, void *data);
    /* The public blocking helpers: plain memory, not of the pool nor of the caller's allocator. */
    enum fp8pipe_status (*memory_alloc)(struct backend *backend, size_t bytes, void **data);
    enum fp8pipe_status (*memory_free)(struct backend *backend, void *data);
    enum fp8pipe_status (*memory_copy)(struct backend *backend, void *to, const void *from,
                                       size_t bytes);
    enum fp8pipe_status (*memory_fill)(struct backend *backend, void *data, int value,
                                       size_t bytes);

    enum fp8pipe_status (*copy)(struct backend *backend, struct fp8pipe_stream *stream, void *to,
                                const void *from, size_t bytes);
    /* `rows` rows of `width` bytes, pitches in bytes */
    enum fp8pipe_status (*copy_2d)(struct backend *backend, struct fp8pipe_stream *stream, void *to,
                                   size_t to_pitch, const void *from, size_t from_pitch,
                                   size_t width, size_t rows);
    enum fp8pipe_status (*fill)(struct backend *backend, struct fp8pipe_stream *stream, void *data,
                                int value, size_t bytes);
    /* fn(arg) in stream order, on a thread of the backend's. */
    enum fp8pipe_status (*host_call)(struct backend *backend, struct fp8pipe_stream *stream,
                                     fp8pipe_work_fn *fn, void *arg);

    enum fp8pipe_status (*gemm)(struct backend *backend, struct fp8pipe_stream *stream,
                                const struct gemm_args *args);
    enum fp8pipe_status (*amax)(struct backend *backend, struct fp8pipe_stream *stream,
                                const struct kernel_amax_args *args);
    enum fp8pipe_status (*quantize)(struct backend *backend, struct fp8pipe_stream *stream,
                                    const struct kernel_quantize_args *args);
    enum fp8pipe_status (*capture)(struct backend *backend, struct fp8pipe_stream *stream,
                                   const struct kernel_capture_args *args);
    enum fp8pipe_status (*transpose)(struct backend *backend, struct fp8pipe_stream *stream,
                                     const struct kernel_transpose_args *args);
    enum fp8pipe_status (*partials)(struct backend *backend, struct fp8pipe_stream *stream,
                                    const struct kernel_partials_args *args);
    enum fp8pipe_status (*column_sums)(struct backend *backend, struct fp8pipe_stream *stream,
                                       const struct kernel_column_sums_args *args);
    enum fp8pipe_status (*store)(struct backend *backend, struct fp8pipe_stream *stream,
                                 const struct kernel_store_args *args);
    enum fp8pipe_status (*activation)(struct backend *backend, struct fp8pipe_stream *stream,
                                      const struct kernel_activation_args *args);
    enum fp8pipe_status (*scale_update)(struct backend *backend, struct fp8pipe_stream *stream,
                                        const struct kernel_scale_update_args *args);
    enum fp8pipe_status (*adamw)(struct backend *backend, struct fp8pipe_stream *stream,
                                 const struct kernel_adamw_args *args);
    enum fp8pipe_status (*gradient_norm)(struct backend *backend, struct fp8pipe_stream *stream,
                                         const struct kernel_gradient_norm_args *args);
    enum fp8pipe_status (*modulate)(struct backend *backend, struct fp8pipe_stream *stream,
                                    const struct kernel_modulate_args *args);
    enum fp8pipe_status (*modulate_backward)(struct backend *backend, struct fp8pipe_stream *stream,
                                             const struct kernel_modulate_backward_args *args);
    enum fp8pipe_status (*group_sums)(struct backend *backend, struct fp8pipe_stream *stream,
                                      const struct kernel_group_sums_args *args);

    void (*plan_stats)(struct backend *backend, struct backend_plan_stats *stats);
    /* Any thread, while the stream lives. */
    void (*replay_stats)(struct backend *backend, struct fp8pipe_stream *stream,
                         struct backend_replay_stats *stats);
    /* As fp8pipe_tune; blocks. NULL: the backend has no plans. */
    enum fp8pipe_status (*tune)(struct backend *backend, const struct backend_tune *tune);
    void (*memory_stats)(struct backend *backend, struct backend_memory_stats *stats);
};

/* For the backends: counts memory that was got, or is given back. */
static inline void backend_memory_got(struct backend *backend, size_t bytes)
{
    uint64_t now = ck_pr_faa_64(&backend->memory_bytes, bytes) + bytes;
    uint64_t peak = ck_pr_load_64(&backend->memory_peak_bytes);

    while (peak < now && !ck_pr_cas_64_value(&backend->memory_peak_bytes, peak, now, &peak)) {
    }
}

static inline void backend_memory_gave(struct backend *backend, size_t bytes)
{
    ck_pr_sub_64(&backend->memory_bytes, bytes);
}

/* The entry memory_stats of a backend that counts in this way. */
static inline void backend_memory_stats(struct backend *backend, struct backend_memory_stats *stats)
{
    stats->bytes = ck_pr_load_64(&backend->memory_bytes);
    stats->peak_bytes = ck_pr_load_64(&backend->memory_peak_bytes);
}

extern const struct backend_ops backend_host_ops;
/* In a build without CUDA its open returns ENODEV. */
extern const struct backend_ops backend_cuda_ops;

/* The cudaStream_t of a stream of the cuda backend, NULL for any other. */
void *backend_cuda_native(const struct fp8pipe_stream *stream);

#endif
