/*
 * What the files of the cuda backend share: the instance, its streams, errors, stream-ordered
 * memory. Not for other folders.
 */
#ifndef LIB_CUDA_INTERNAL_H
#define LIB_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backend.h"
#include "blocks.h"
#include "cublaslt.h"
#include "load_gate.h"
#include "plan_cache.h"
#include "replay_table.h"
#include "status.h"

/*
 * The device is made current by pushing its primary context, and left by popping it: cudaSetDevice
 * could only go back to a device by number, and would make a context (some 500 MiB) on one that the
 * thread had not touched.
 */
struct cuda_driver {
    CUresult (*device_get)(CUdevice *device, int ordinal);
    CUresult (*context_retain)(CUcontext *context, CUdevice device);
    CUresult (*context_release)(CUdevice device);
    CUresult (*context_push)(CUcontext context);
    CUresult (*context_pop)(CUcontext *context);
    CUresult (*address_range)(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);
    CUresult (*node_params)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params);
    CUresult (*node_attribute)(CUgraphNode node, CUlaunchAttributeID id,
                               CUlaunchAttributeValue *value);
    CUresult (*launch)(const CUlaunchConfig *config, CUfunction function, void **params,
                       void **extra);
};

struct cuda_backend {
    struct backend base;
    int device;
    int capability; /* 10 * major + minor */
    struct cuda_driver driver;
    CUdevice driver_device;
    CUcontext context; /* the device's primary one, retained */
    struct fp8pipe_allocator allocator;
    cudaMemPool_t pool; /* NULL where the allocator is the caller's */
    size_t workspace_bytes;
    struct cublaslt lt;
    const struct log *log;
    struct tuner *tuner; /* algorithms that were timed */
    struct plan_cache *plans;
    struct planner *planner; /* refines borrowed plans; NULL where plans are fixed */
    cudaStream_t loading;    /* the planner's, for captures; NULL before the first */
    uint32_t *loading_amax;  /* for captures of what has one; likewise */
    struct load_gate load_gate;
    uint64_t plan_ids; /* given out so far, atomic: by whoever makes a plan */
    bool replays;      /* GEMM calls are recorded; never changes */
    /*
     * For what belongs to no stream: blocking copies, memory that is usable at once. Non-blocking,
     * so that it never waits for the caller's work on the default stream. One user at a time.
     */
    pthread_mutex_t service_lock;
    cudaStream_t service;
};

struct cuda_stream {
    struct fp8pipe_stream base;
    cudaStream_t native;
    bool owned;      /* else the caller's */
    void *workspace; /* NULL until a GEMM needs it */
    void *staging;   /* page-locked, for copies of pageable memory; made by the first one */
    struct plan_front plans;
    struct blocks blocks; /* freed on the stream; not where the allocator is the caller's */
    /* Made by the stream's user at the first GEMM, published for stats; NULL before. */
    struct replay_table *replays;
    cudaStream_t capture; /* for recording; NULL before the first record */
};

static inline struct cuda_backend *cuda_backend_of(struct backend *backend)
{
    return (struct cuda_backend *)backend;
}

static inline struct cuda_stream *cuda_stream_of(struct fp8pipe_stream *stream)
{
    return (struct cuda_stream *)stream;
}

/* ---- error.c ------------------------------------------------------------------------------ */

/*
 * The status that a CUDA error stands for, `otherwise` where it stands for none in particular.
 * Records the sentence "<object>: <call>: <what CUDA says>", and takes the error back as the
 * thread's last one, so that the caller's cudaGetLastError does not find it.
 */
enum fp8pipe_status cuda_fail(cudaError_t error, enum fp8pipe_status otherwise, const char *call,
                              const char *object, ...) __attribute__((format(printf, 4, 5)));
/* The latter alone: for calls whose failure nobody can be told of. */
void cuda_forget(cudaError_t error);

/* ---- device.c ----------------------------------------------------------------------------- */

/* Finds and checks the device, retains its context. */
enum fp8pipe_status cuda_device_open(struct cuda_backend *backend, int32_t device);
void cuda_device_close(struct cuda_backend *backend);
void cuda_enter(struct backend *base, struct backend_scope *scope);
void cuda_leave(struct backend *base, struct backend_scope *scope);

/* ---- stream.c ----------------------------------------------------------------------------- */

enum fp8pipe_status cuda_stream_create(struct backend *base, void *native,
                                       struct fp8pipe_stream **stream);
void cuda_stream_destroy(struct backend *base, struct fp8pipe_stream *stream);
enum fp8pipe_status cuda_stream_check(struct backend *base, struct fp8pipe_stream *stream);
enum fp8pipe_status cuda_event_create(struct backend *base, struct backend_event **event);
void cuda_event_destroy(struct backend *base, struct backend_event *event);
enum fp8pipe_status cuda_event_record(struct backend *base, struct backend_event *event,
                                      struct fp8pipe_stream *stream);
enum fp8pipe_status cuda_event_query(struct backend *base, struct backend_event *event, bool *done);
enum fp8pipe_status cuda_stream_wait(struct backend *base, struct fp8pipe_stream *stream,
                                     struct backend_event *event);
enum fp8pipe_status cuda_stream_wait_native(struct backend *base, struct fp8pipe_stream *stream,
                                            void *native_event);
enum fp8pipe_status cuda_native_wait(struct backend *base, void *native_stream,
                                     struct backend_event *event);
enum fp8pipe_status cuda_host_call(struct backend *base, struct fp8pipe_stream *stream,
                                   fp8pipe_work_fn *fn, void *arg);

/* ---- trace.c ------------------------------------------------------------------------------ */

enum fp8pipe_status cuda_timer_create(struct backend *base, struct backend_timer **timer);
void cuda_timer_destroy(struct backend *base, struct backend_timer *timer);
enum fp8pipe_status cuda_timer_record(struct backend *base, struct backend_timer *timer,
                                      struct fp8pipe_stream *stream);
enum fp8pipe_status cuda_timer_now(struct backend *base, struct backend_timer *timer,
                                   int64_t *now_ns);
enum fp8pipe_status cuda_timer_elapsed(struct backend *base, struct backend_timer *from,
                                       struct backend_timer *to, int64_t *elapsed_ns);
void cuda_range_push(struct backend *base, const char *name);
void cuda_range_pop(struct backend *base);

/* ---- memory.c ----------------------------------------------------------------------------- */

/* The pool, where the allocator is not the caller's. */
enum fp8pipe_status cuda_pool_create(struct cuda_backend *backend);
void cuda_pool_destroy(struct cuda_backend *backend);
enum fp8pipe_status cuda_alloc(struct backend *base, struct fp8pipe_stream *stream, size_t bytes,
                               void **data);
void cuda_free(struct backend *base, struct fp8pipe_stream *stream, void *data, size_t bytes);
/* Gives the pool what a stream kept, in the order of `native`. By who uses the stream. */
void cuda_blocks_free(struct cuda_stream *stream, cudaStream_t native);
enum fp8pipe_status cuda_pinned_alloc(struct backend *base, size_t bytes, void **data);
void cuda_pinned_free(struct backend *base, void *data);
enum fp8pipe_status cuda_memory_alloc(struct backend *base, size_t bytes, void **data);
enum fp8pipe_status cuda_memory_free(struct backend *base, void *data);
enum fp8pipe_status cuda_memory_copy(struct backend *base, void *to, const void *from,
                                     size_t bytes);
enum fp8pipe_status cuda_memory_fill(struct backend *base, void *data, int value, size_t bytes);
enum fp8pipe_status cuda_copy_2d(struct backend *base, struct fp8pipe_stream *stream, void *to,
                                 size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                 size_t rows);
enum fp8pipe_status cuda_fill(struct backend *base, struct fp8pipe_stream *stream, void *data,
                              int value, size_t bytes);

/* ---- copy.c ------------------------------------------------------------------------------- */

/* Any kind of memory, in stream order; never waits for the stream, also not for pageable memory. */
enum fp8pipe_status cuda_copy(struct backend *base, struct fp8pipe_stream *stream, void *to,
                              const void *from, size_t bytes);
/* Frees the stream's page-locked buffer; its work is done. */
void cuda_staging_free(struct cuda_stream *stream);

/* ---- gemm.c ------------------------------------------------------------------------------- */

/*
 * Any args that lib/backend.h allows. What cuBLASLt cannot do directly goes through an fp32 D in
 * memory of the stream, then through the store kernel, which adds bias and old D in fp32 and rounds
 * once. That is no way for an epilogue: ENOTSUP for a residual or old D beside an activation, an
 * FP8 D of others than FP8 operands, with a bias that is not BF16, or of E5M2 without an E5M2
 * operand, and whatever else cuBLASLt has no kernel for.
 */
enum fp8pipe_status cuda_gemm(struct backend *base, struct fp8pipe_stream *stream,
                              const struct gemm_args *args);

#endif
