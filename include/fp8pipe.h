/*
 * libfp8pipe: FP8 linear layers, enqueued from any thread, issued by launcher threads.
 *
 * A pipe owns one backend (a CUDA device, or the host), and some lanes. A lane is one stream with
 * one launcher thread and one ring. A caller enqueues an op into a lane's ring and gets a ticket;
 * the launcher issues the op's kernels in dependency order. Nothing on the caller's path waits for
 * a launch, a plan or an allocation.
 *
 * Matrix maths, row-major:  forward  Y[M,N] = X[M,K] . W[N,K]^T + b[N]
 *                           dgrad    dX[M,K] = dY[M,N] . W[N,K]
 *                           wgrad    dW[N,K] (+)= dY[M,N]^T . X[M,K];  db[N] (+)= sum over M of dY
 * M is the number of tokens and may change at every call.
 *
 * Conventions of every call below, unless its comment says otherwise:
 *   Returns    FP8PIPE_OK, or a status; outputs are written only on FP8PIPE_OK. The sentence that
 *              explains a refused call is fp8pipe_last_error(). A refused call changes nothing.
 *   Threads    any thread, at any time, also at the same time as other calls on the same object;
 *              only destroying an object while another thread is inside a call on it is the
 *              caller's to prevent.
 *   Inside     a function that the library runs (call, host_call and the work of
 *              fp8pipe_host_enqueue) every function that submits, waits, creates, changes or
 *              destroys an object, opens, closes, or moves memory returns FP8PIPE_EDEADLK; inside a
 *              defer those that wait or close do.
 *   Structs    option and op structs start with `size_t size` and have an _INIT initialiser. A
 *              shorter struct (from an older header) is accepted; a longer one only if all its
 *              unknown bytes are zero.
 *
 * Pipes, memory, tickets and ops on memory are here; scalings and quantized tensors in
 * fp8pipe_tensor.h, GEMMs and linear layers in fp8pipe_linear.h, which come with this header.
 *
 * Orders of magnitude: sizes are in bytes where named _bytes, times in nanoseconds where named _ns,
 * all other counts in elements.
 */
#ifndef FP8PIPE_H
#define FP8PIPE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FP8PIPE_API __attribute__((visibility("default")))
#else
#define FP8PIPE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FP8PIPE_VERSION_MAJOR 0
#define FP8PIPE_VERSION_MINOR 1
#define FP8PIPE_VERSION_PATCH 0

/* ---- Status ------------------------------------------------------------------------------- */

/* X(name, code, sentence) */
#define FP8PIPE_STATUS_TABLE(X)                                                                    \
    X(OK, 0, "success")                                                                            \
    X(EINVAL, 1, "an argument breaks a rule of the call")                                          \
    X(ENOMEM, 2, "host or device memory ran out")                                                  \
    X(EAGAIN, 3, "the queue is full and the call may not block")                                   \
    X(ETIMEDOUT, 4, "the time-out passed first")                                                   \
    X(ECLOSED, 5, "the pipe is closed or closing")                                                 \
    X(ECANCELED, 6, "the op was cancelled by close")                                               \
    X(EDEADLK, 7, "the call would wait for the function it is made from")                          \
    X(EBUSY, 8, "the object is still used by ops in flight or by another object")                  \
    X(ETOOOLD, 9, "the ticket is older than the failures that its lane remembers")                 \
    X(ENODEV, 10, "the backend or the device is not available")                                    \
    X(EDEVICE, 11, "the device reported an error after issue; the pipe has failed")                \
    X(ENOTSUP, 12, "not supported by this backend, device or build")                               \
    X(ECAPTURE, 13, "the stream is being captured into a graph")                                   \
    X(EFORKED, 14, "the pipe was opened before fork(); the child can only close it")               \
    X(ELAUNCH, 15, "a kernel, copy or library call could not be issued")                           \
    X(ESTATE, 16, "the saved state is truncated, damaged, or of another version or shape")         \
    X(ECALL, 17, "the caller's function failed")

enum fp8pipe_status {
#define FP8PIPE_STATUS_ENUM(name, code, sentence) FP8PIPE_##name = code,
    FP8PIPE_STATUS_TABLE(FP8PIPE_STATUS_ENUM)
#undef FP8PIPE_STATUS_ENUM
};

/* The sentence of a status. Never NULL, also for an unknown code. Static storage. */
FP8PIPE_API const char *fp8pipe_strerror(enum fp8pipe_status status);

/* The name of a status, "FP8PIPE_EINVAL". Never NULL. Static storage. */
FP8PIPE_API const char *fp8pipe_status_name(enum fp8pipe_status status);

/*
 * What the calling thread's last refused call complained of: field, value and rule. Never NULL,
 * empty if no call was refused yet. Valid until the thread's next refused call.
 */
FP8PIPE_API const char *fp8pipe_last_error(void);

/* The version of the library that is linked, "0.1.0". */
FP8PIPE_API const char *fp8pipe_version(void);

/* ---- Basic types -------------------------------------------------------------------------- */

struct fp8pipe;         /* a pipe */
struct fp8pipe_scaling; /* a recipe, and for each slot its amax history and scale */
struct fp8pipe_linear;  /* a layer: weight, bias, slots, cached FP8 weight */
struct fp8pipe_tensor;  /* a quantized tensor */
struct fp8pipe_stream;  /* the lane's stream, as seen by a function of the caller's */

/*
 * Names an enqueued op of one pipe. 0 is 'nothing to wait for'. Tickets are never reused.
 */
typedef uint64_t fp8pipe_ticket;

enum fp8pipe_dtype { FP8PIPE_FP32 = 0, FP8PIPE_BF16 = 1, FP8PIPE_FP16 = 2 };

/* E4M3: largest finite 448, no infinities. E5M2: largest finite 57344. */
enum fp8pipe_format { FP8PIPE_E4M3 = 0, FP8PIPE_E5M2 = 1 };

enum fp8pipe_backend {
    FP8PIPE_BACKEND_AUTO = 0,
    FP8PIPE_BACKEND_HOST = 1,
    FP8PIPE_BACKEND_CUDA = 2
};

enum fp8pipe_mode { FP8PIPE_ASYNC = 0, FP8PIPE_INLINE = 1 };

/*
 * A dense row-major matrix in memory of the pipe's backend. `stride` is the distance between rows,
 * in elements, >= cols. `data` may be NULL when rows or cols is 0, is aligned to the element, and
 * needs no other alignment (16-byte aligned rows are faster).
 *
 * Ownership: the caller's. It stays, at the same address, until every op that names it is done.
 */
struct fp8pipe_matrix {
    void *data;
    int64_t rows;
    int64_t cols;
    int64_t stride;
    enum fp8pipe_dtype dtype;
    int32_t reserved; /* 0 */
};

/* A dense vector; `data` NULL and count 0: absent. Ownership as for a matrix. */
struct fp8pipe_vector {
    void *data;
    int64_t count;
    enum fp8pipe_dtype dtype;
    int32_t reserved; /* 0 */
};

/* ---- Pipe --------------------------------------------------------------------------------- */

#define FP8PIPE_LANES_MAX 64

enum fp8pipe_log_level {
    FP8PIPE_LOG_DEFAULT = 0, /* the environment's FP8PIPE_LOG (none, error, warn, info, debug), or
                                warn */
    FP8PIPE_LOG_NONE = 1,
    FP8PIPE_LOG_ERROR = 2,
    FP8PIPE_LOG_WARN = 3,
    FP8PIPE_LOG_INFO = 4,
    FP8PIPE_LOG_DEBUG = 5
};

/* Receives one line, without newline. Called from any thread; may not call the library. */
typedef void fp8pipe_log_fn(void *arg, enum fp8pipe_log_level level, const char *line);

/*
 * Where device memory comes from. `stream` is the cudaStream_t on which the memory will be used
 * first (alloc) or was used last (free), NULL on the host backend. alloc returns 256-byte aligned
 * memory, or NULL; both are called from any thread and may not call the library. A pool may hand
 * freed memory out again for later work on the same stream.
 */
struct fp8pipe_allocator {
    void *(*alloc)(void *arg, size_t bytes, void *stream);
    void (*free)(void *arg, void *data, size_t bytes, void *stream);
    void *arg;
};

/*
 * How GEMM shapes that no tune file knows get their plans. REFINED: a shape seen for the first time
 * borrows the algorithm of a neighbouring one at once, and a thread of the pipe's replaces it by
 * the one that cuBLASLt would choose for it; results may differ in their last bits before and
 * after. FIXED: each shape keeps cuBLASLt's first choice, which its first op waits for (some 150
 * us): runs are reproducible to the bit. Plans of a tune file are fixed in either.
 */
enum fp8pipe_plans { FP8PIPE_PLANS_REFINED = 0, FP8PIPE_PLANS_FIXED = 1 };

/*
 * Whether lanes record GEMM calls that repeat. ON: from the third time that a lane issues a product
 * with the same shapes at the same addresses it launches the kernels that cuBLASLt launched before,
 * in half of the launcher's time; the results are the same to the bit. A lane keeps up to 4,096
 * such calls, those that were not used for longest make room. OFF: each goes through
 * cublasLtMatmul, so that cuBLASLt's own log shows it. No difference on the host backend.
 */
enum fp8pipe_replays { FP8PIPE_REPLAYS_ON = 0, FP8PIPE_REPLAYS_OFF = 1 };

struct fp8pipe_options {
    size_t size;
    enum fp8pipe_backend backend; /* AUTO: FP8PIPE_BACKEND=host|cuda of the environment if set,
                                     else cuda if it opens, else host */
    int32_t device;               /* CUDA device ordinal, >= 0; ignored by the host backend */
    enum fp8pipe_mode mode;       /* INLINE: ops are issued by the submitting thread */
    int32_t lanes;                /* 1 to FP8PIPE_LANES_MAX; 0: 2 */
    uint32_t ring_slots;          /* 256-byte slots in a lane's ring, a power of two, 32 to 65536;
                                     0: 1024. An op takes 1, rarely up to 5 */
    uint32_t defer_limit;         /* defers outstanding at once; 0: 4096 */
    int64_t spin_ns;              /* how long launchers and waiters spin before they park, 0 to 1 s;
                                     -1: 20 us, or 0 on a machine with one CPU */
    const int32_t *affinity;      /* NULL, or for each lane the CPU of its launcher, -1: any. Read
                                     by open only */
    enum fp8pipe_log_level log_level;
    enum fp8pipe_replays replays;
    fp8pipe_log_fn *log; /* NULL: stderr */
    void *log_arg;
    struct fp8pipe_allocator allocator; /* all zero: the backend's stream-ordered pool */
    void *const *streams;               /* NULL, or, CUDA and INLINE only, for each lane the
                                           caller's cudaStream_t to issue on. Read by open only;
                                           the streams stay the caller's until close */
    size_t workspace_bytes;             /* cuBLASLt workspace of each lane; 0: 32 MiB */
    enum fp8pipe_plans plans;
    int32_t measure_idle;               /* 1: stats count idle_ns; costs an event query an op */
    const char *tune_file;              /* NULL: FP8PIPE_TUNE_FILE of the environment, or none. Read
                                           by open, which ignores a file that is missing, damaged,
                                           of another version or another card, with one warning */
};

#define FP8PIPE_OPTIONS_INIT                                                                       \
    {                                                                                              \
        sizeof(struct fp8pipe_options), FP8PIPE_BACKEND_AUTO, 0, FP8PIPE_ASYNC, 0, 0, 0, -1, NULL, \
            FP8PIPE_LOG_DEFAULT, FP8PIPE_REPLAYS_ON, NULL, NULL, {NULL, NULL, NULL}, NULL, 0,      \
            FP8PIPE_PLANS_REFINED, 0, NULL                                                         \
    }

/*
 * Opens a pipe: finds the device, makes the lanes' streams, starts the launchers and the
 * completion thread. `options` may be NULL (all defaults).
 * Returns    ENODEV (no such device or backend; the sentence says what to set), EINVAL, ENOMEM.
 * Ownership  the caller closes the pipe. Nothing of `options` is kept but the allocator, the log
 *            function with their args, and the streams.
 * Blocks     while the device is set up (CUDA: up to a second).
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_open(const struct fp8pipe_options *options,
                                             struct fp8pipe **pipe);

/* flags of fp8pipe_close */
#define FP8PIPE_CLOSE_CANCEL 1u /* ops that are not issued yet are cancelled (ECANCELED) */

/*
 * Refuses new submits, lets what is enqueued finish (with CANCEL: what is issued), runs every
 * defer, then stops the threads and frees the pipe's device memory, that of its scalings, linears
 * and tensors too; their host shells stay until their own destroy. Never frees the handle: calls
 * on a closed pipe answer ECLOSED for ever.
 * timeout_ns < 0: no limit. Returns ETIMEDOUT when it passes: the pipe is then failed, its threads
 * are left behind, and what they use must live on. ECLOSED if it was closed already.
 * In a child of fork(): OK, and only marks the handle closed.
 * Blocks     until closed or timed out. EDEADLK inside a function that the library runs.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_close(struct fp8pipe *pipe, unsigned flags,
                                              int64_t timeout_ns);

/* What a pipe runs on (HOST or CUDA), and its number of lanes. ECLOSED after close. */
FP8PIPE_API enum fp8pipe_status fp8pipe_backend_get(struct fp8pipe *pipe,
                                                    enum fp8pipe_backend *backend);
FP8PIPE_API enum fp8pipe_status fp8pipe_lanes_get(struct fp8pipe *pipe, int32_t *lanes);

struct fp8pipe_stats {
    size_t size;
    uint64_t submitted;    /* ops enqueued */
    uint64_t issued;       /* ops that left the ring, also those that failed or were cancelled */
    uint64_t done;         /* ops seen finished */
    uint64_t failed;       /* ops that failed by themselves */
    uint64_t cancelled;    /* ops cancelled by another's failure or by close */
    uint64_t parked;       /* times the launcher went to sleep on an empty ring */
    uint64_t full;         /* submits that found the ring full */
    uint64_t queue_depth;  /* ring slots in use now */
    uint64_t rescues;      /* sleeps ended by the slow re-check instead of a wake-up; always 0
                              unless the library is at fault */
    uint64_t plans;        /* GEMM plans cached now (the pipe's; the same for every lane) */
    uint64_t plans_evicted;
    uint64_t plans_borrowed; /* shapes that started with a neighbour's algorithm */
    uint64_t plans_refined;  /* of those, how many have got their own */
    uint64_t launcher_cpu_ns; /* CPU time of the launcher; 0 in INLINE */
    uint64_t idle_ns; /* with options.measure_idle: time in which the lane's latest event was done
                         when its launcher came to issue the next op, at most: the stream ran dry
                         some time after the previous issue ended, and after a wait or a stats_get
                         last found it busy */
    uint64_t memory_bytes;      /* device memory that the pipe holds now: its objects', temporaries,
                                   workspaces, fp8pipe_alloc's; not what was freed and stays with
                                   its pool or streams (the same for each lane) */
    uint64_t memory_peak_bytes; /* its highest so far */
    uint64_t replays;           /* GEMM calls of which the lane has a record now */
    uint64_t replays_evicted;   /* records that made room for other calls */
    uint64_t replayed;          /* GEMM calls that were issued from a record. Plans and replays are
                                   CUDA's, and 0 on the host backend */
};

#define FP8PIPE_STATS_INIT                                                                         \
    {                                                                                              \
        sizeof(struct fp8pipe_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0  \
    }

/* Counters of one lane, or summed over all (lane = -1). stats->size must be set (_INIT). */
FP8PIPE_API enum fp8pipe_status fp8pipe_stats_get(struct fp8pipe *pipe, int32_t lane,
                                                  struct fp8pipe_stats *stats);

/* ---- Memory of the pipe's backend --------------------------------------------------------- */

/*
 * Blocking helpers, so that one program runs on both backends. None is ordered with ops: wait for
 * the tickets first. alloc returns 256-byte aligned memory from the backend (cudaMalloc, or the
 * host's allocator); free takes NULL; memory that was not freed is given back by nobody.
 * upload: host to backend. download: backend to host. fill: every byte becomes `value`.
 * bytes = 0 is allowed (alloc then sets *data to NULL).
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_alloc(struct fp8pipe *pipe, size_t bytes, void **data);
FP8PIPE_API enum fp8pipe_status fp8pipe_free(struct fp8pipe *pipe, void *data);
FP8PIPE_API enum fp8pipe_status fp8pipe_upload(struct fp8pipe *pipe, void *to, const void *from,
                                               size_t bytes);
FP8PIPE_API enum fp8pipe_status fp8pipe_download(struct fp8pipe *pipe, void *to, const void *from,
                                                 size_t bytes);
FP8PIPE_API enum fp8pipe_status fp8pipe_fill(struct fp8pipe *pipe, void *data, int value,
                                             size_t bytes);

/* ---- Submitting --------------------------------------------------------------------------- */

#define FP8PIPE_LANE_AUTO (-1)
#define FP8PIPE_AFTER_MAX 8
#define FP8PIPE_NAME_MAX 23

/* flags of fp8pipe_submit.flags */
#define FP8PIPE_NONBLOCK 1u /* a full ring: EAGAIN at once */
#define FP8PIPE_RESUME 2u   /* ends the cancellation by lane order of an earlier failure; only with
                               a lane given by number */
#define FP8PIPE_LAST_USE 4u /* the quantized tensors that the op reads become empty; their memory is
                               given back once their submitted uses are issued */
#define FP8PIPE_NO_AMAX 8u  /* what the op quantizes is not folded into the amax history
                               (evaluation, recomputation); a weight's first quantize always is */

/*
 * The part that all ops share. In a lane given by number, ops run in the order of their submits;
 * a lane chosen automatically promises no order but the tickets'.
 */
struct fp8pipe_submit {
    int32_t lane;           /* 0 to lanes - 1, or FP8PIPE_LANE_AUTO */
    uint32_t flags;         /* FP8PIPE_NONBLOCK ... */
    uint32_t after_count;   /* entries used in `after`, <= FP8PIPE_AFTER_MAX */
    uint32_t reserved;      /* 0 */
    fp8pipe_ticket after[FP8PIPE_AFTER_MAX]; /* done before the op starts; of this pipe; 0: none */
    void *event;            /* NULL or a recorded cudaEvent_t that must have happened before the op
                               starts; alive and not recorded again until the op is issued */
    const char *name;       /* NULL or a name for logs and traces; its first FP8PIPE_NAME_MAX bytes
                               are copied */
    uint64_t reserved2[2];  /* 0 */
};

#define FP8PIPE_SUBMIT_INIT                                                                        \
    { FP8PIPE_LANE_AUTO, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0}, NULL, NULL, {0, 0} }

#define FP8PIPE_MATRIX_NONE { NULL, 0, 0, 0, FP8PIPE_FP32, 0 }
#define FP8PIPE_VECTOR_NONE { NULL, 0, FP8PIPE_FP32, 0 }

/*
 * All functions that submit:
 * Returns    EINVAL (with a sentence naming field, value and rule), EAGAIN (NONBLOCK and full),
 *            ECLOSED, ETOOOLD (a ticket in `after`), EDEVICE (the pipe has failed), EFORKED,
 *            EDEADLK. *ticket (may be NULL) is set on FP8PIPE_OK only.
 * Ownership  the descriptor is copied before the call returns. Matrices and vectors stay as they
 *            are until the ticket is done.
 * Blocks     only while the ring is full (ASYNC; a full ring with NONBLOCK: never), or while the
 *            op is issued (INLINE).
 */

/* ---- Tickets ------------------------------------------------------------------------------ */

/* issued: the op's kernels are in the lane's stream. done: they have finished. */
enum fp8pipe_mark { FP8PIPE_ISSUED = 1, FP8PIPE_DONE = 2 };

enum fp8pipe_outcome {
    FP8PIPE_OUTCOME_OK = 0,
    FP8PIPE_OUTCOME_FAILED = 1,
    FP8PIPE_OUTCOME_CANCELLED = 2
};

struct fp8pipe_state {
    size_t size;
    int32_t issued; /* 1 when the mark is reached; for failed and cancelled ops too */
    int32_t done;   /* 1 when final: the op's buffers are no longer touched */
    enum fp8pipe_outcome outcome; /* meaningful once issued */
    enum fp8pipe_status status;   /* the root's status when failed or cancelled */
    fp8pipe_ticket root;          /* the op whose failure this is, itself when failed; 0: none */
};

#define FP8PIPE_STATE_INIT { sizeof(struct fp8pipe_state), 0, 0, FP8PIPE_OUTCOME_OK, FP8PIPE_OK, 0 }

/*
 * Where an op is. state->size must be set. Ticket 0 is done and OK.
 * Returns    ETOOOLD, ECLOSED (closed, or a ticket of an earlier pipe), EINVAL (another pipe's, or
 *            not given out).
 * Blocks     never.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_state_get(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                                  struct fp8pipe_state *state);

/*
 * Waits until the op reaches the mark. timeout_ns: < 0 no limit, 0 only looks.
 * Returns    OK; for a failed or cancelled op the root's status; ETIMEDOUT; ETOOOLD; EDEVICE;
 *            ECLOSED; EDEADLK inside a function that the library runs.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                             enum fp8pipe_mark mark, int64_t timeout_ns);

/*
 * Waits until all ops submitted before the call are done, whatever their outcome.
 * Returns    OK, ETIMEDOUT, EDEVICE, ECLOSED, EDEADLK.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_drain(struct fp8pipe *pipe, int64_t timeout_ns);

/*
 * The sentence of the failure that made the op fail or be cancelled, copied into buffer, cut to
 * bytes - 1 and terminated; empty if the op is OK or not issued.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_error_get(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                                  char *buffer, size_t bytes);

typedef void fp8pipe_defer_fn(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status);

/*
 * Runs fn(arg, ticket, status) on the pipe's completion thread once the op reaches the mark; status
 * is what fp8pipe_wait would return. A ticket's ISSUED defers run before its DONE ones, those of
 * one mark in the order of their calls. fn may submit and defer (both then act as NONBLOCK) and may
 * not wait or close. flags: 0 or FP8PIPE_NONBLOCK.
 * Blocks     while options.defer_limit defers are outstanding; with NONBLOCK: EAGAIN.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_defer(struct fp8pipe *pipe, fp8pipe_ticket ticket,
                                              enum fp8pipe_mark mark, fp8pipe_defer_fn *fn,
                                              void *arg, unsigned flags);

/* ---- Ops on memory and functions ---------------------------------------------------------- */

/*
 * Copies bytes from -> to; either may be memory of the backend or (CUDA) page-locked or pageable
 * host memory. The ranges may not overlap. Both must live until done.
 */
struct fp8pipe_copy_op {
    size_t size;
    struct fp8pipe_submit submit;
    void *to;
    const void *from;
    size_t bytes;
};
#define FP8PIPE_COPY_OP_INIT { sizeof(struct fp8pipe_copy_op), FP8PIPE_SUBMIT_INIT, NULL, NULL, 0 }
FP8PIPE_API enum fp8pipe_status fp8pipe_copy(struct fp8pipe *pipe, const struct fp8pipe_copy_op *op,
                                             fp8pipe_ticket *ticket);

/*
 * call: runs fn(stream, arg) on the launcher (INLINE: on the caller), at issue. fn may only
 * enqueue: its own kernels on fp8pipe_stream_cuda(stream) (fp8pipe_cuda.h), or
 * fp8pipe_host_enqueue.
 * It runs before the op's predecessors are finished: it must not read their results. A status other
 * than FP8PIPE_OK fails the op (a value that is no status: with FP8PIPE_ECALL). Skipped when the op
 * is cancelled.
 * Ownership  arg must live until the ticket is issued (what its kernels use: until done), unless it
 *            is copied (arg_bytes).
 */
typedef enum fp8pipe_status fp8pipe_call_fn(struct fp8pipe_stream *stream, void *arg);
struct fp8pipe_call_op {
    size_t size;
    struct fp8pipe_submit submit;
    fp8pipe_call_fn *fn;
    void *arg;
    size_t arg_bytes; /* 0: fn gets `arg`. 1 to FP8PIPE_ARG_MAX: that many bytes at `arg` are copied
                         at submit, and fn gets a pointer to the copy, 8-byte aligned, which lives
                         until fn returns */
};
#define FP8PIPE_ARG_MAX 256
#define FP8PIPE_CALL_OP_INIT { sizeof(struct fp8pipe_call_op), FP8PIPE_SUBMIT_INIT, NULL, NULL, 0 }
FP8PIPE_API enum fp8pipe_status fp8pipe_call(struct fp8pipe *pipe, const struct fp8pipe_call_op *op,
                                             fp8pipe_ticket *ticket);

/*
 * host_call: runs fn(arg) in stream order, on either backend, after the op's predecessors have
 * finished. fn may not call CUDA. Skipped when the op is cancelled or the pipe has failed.
 * Ownership  arg must live until done.
 */
typedef void fp8pipe_work_fn(void *arg);
struct fp8pipe_host_call_op {
    size_t size;
    struct fp8pipe_submit submit;
    fp8pipe_work_fn *fn;
    void *arg;
};
#define FP8PIPE_HOST_CALL_OP_INIT                                                                  \
    { sizeof(struct fp8pipe_host_call_op), FP8PIPE_SUBMIT_INIT, NULL, NULL }
FP8PIPE_API enum fp8pipe_status fp8pipe_host_call(struct fp8pipe *pipe,
                                                  const struct fp8pipe_host_call_op *op,
                                                  fp8pipe_ticket *ticket);

/*
 * From inside a `call` only: what the stream is on, and work for it. host_enqueue (host backend
 * only, ENOTSUP on CUDA) runs work(arg) on the lane's executor thread in stream order; arg must
 * live until the op is done.
 */
FP8PIPE_API enum fp8pipe_backend fp8pipe_stream_backend(const struct fp8pipe_stream *stream);
FP8PIPE_API enum fp8pipe_status fp8pipe_host_enqueue(struct fp8pipe_stream *stream,
                                                     fp8pipe_work_fn *work, void *arg);

#ifdef __cplusplus
}
#endif

/* The rest of it: scalings and quantized tensors; GEMMs and linear layers. */
#include <fp8pipe_tensor.h>
#include <fp8pipe_linear.h>

#endif
