/* Guards what a program's own CUDA streams, events and captures see of a pipe, and it of them. */
#include "fp8pipe_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "async.h"

static void on_host(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, NULL);
    fp8pipe_ticket ticket = submit_host_call(pipe, ON(0), work_nothing, NULL);

    is_int(fp8pipe_stream_wait(pipe, ticket, NULL), FP8PIPE_ENOTSUP,
           "a host pipe does not know streams");
    ok(strlen(fp8pipe_last_error()) > 0, "and says so: %s", fp8pipe_last_error());
    test_close(pipe);
}

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>

#define BYTES (1 << 20)
#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t error_ = call;                                                                 \
                                                                                                   \
        if (error_ != cudaSuccess)                                                                 \
            bail("%s: %s", #call, cudaGetErrorString(error_));                                     \
    } while (0)

static void sleeps(void *arg)
{
    (void)arg;
    sleep_ns(30 * MS_NS);
}

static uint8_t *device_bytes(int value)
{
    void *data;

    CUDA(cudaMalloc(&data, BYTES));
    CUDA(cudaMemset(data, value, BYTES));
    CUDA(cudaDeviceSynchronize());
    return data;
}

static int last_byte(const uint8_t *data)
{
    uint8_t byte;

    CUDA(cudaMemcpy(&byte, data + BYTES - 1, 1, cudaMemcpyDeviceToHost));
    return byte;
}

/* ---- Events before, stream_wait after ----------------------------------------------------- */

static void before_and_after(enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_CUDA, mode, 2, 0, NULL);
    struct fp8pipe_submit submit = ON(0);
    uint8_t *a = device_bytes(1), *b = device_bytes(2), *c = device_bytes(3);
    fp8pipe_ticket ticket;
    cudaStream_t stream;
    cudaEvent_t event;

    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    /* stream: sleep, a <- 7; lane 0, after the event: b <- a; lane 1: sleep; stream: c <- b */
    CUDA(cudaLaunchHostFunc(stream, sleeps, NULL));
    CUDA(cudaMemsetAsync(a, 7, BYTES, stream));
    CUDA(cudaEventRecord(event, stream));
    submit.event = event;
    must(try_copy(pipe, submit, b, a, BYTES, &ticket));
    ticket = submit_host_call(pipe, AFTER(1, ticket), sleeps, NULL);
    is_int(fp8pipe_stream_wait(pipe, ticket, stream), FP8PIPE_OK, "%s: stream_wait",
           mode_name(mode));
    CUDA(cudaMemcpyAsync(c, b, BYTES, cudaMemcpyDeviceToDevice, stream));
    ok(cudaStreamQuery(stream) == cudaErrorNotReady, "%s: returns before the op is done",
       mode_name(mode));
    CUDA(cudaStreamSynchronize(stream));
    is_int(last_byte(b), 7, "%s: the op comes after the caller's event", mode_name(mode));
    is_int(last_byte(c), 7, "%s: the caller's stream comes after the op", mode_name(mode));
    ok(state_of(pipe, ticket).done || fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, A_SECOND_NS) == 0,
       "%s: which is then done", mode_name(mode));
    is_int(fp8pipe_stream_wait(pipe, 0, stream), FP8PIPE_OK, "ticket 0 is nothing to wait for");
    is_int(fp8pipe_stream_wait(pipe, ticket + 1000, stream), FP8PIPE_EINVAL,
           "a ticket that was not given out is refused");
    test_close(pipe);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFree(c));
}

/* Launches, then fails: the stream still waits for what was launched. */
static enum fp8pipe_status launches_and_fails(struct fp8pipe_stream *stream, void *arg)
{
    cudaStream_t lane = fp8pipe_stream_cuda(stream);

    CUDA(cudaLaunchHostFunc(lane, sleeps, NULL));
    CUDA(cudaMemsetAsync(arg, 9, BYTES, lane));
    return FP8PIPE_ECALL;
}

static void after_a_failure(enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_CUDA, mode, 2, 0, NULL);
    uint8_t *a = device_bytes(1), *b = device_bytes(2);
    fp8pipe_ticket failed, cancelled;
    cudaStream_t stream;

    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    failed = submit_call(pipe, ON(0), launches_and_fails, a);
    cancelled = submit_host_call(pipe, AFTER(1, failed), work_nothing, NULL);
    is_int(fp8pipe_stream_wait(pipe, cancelled, stream), FP8PIPE_ECALL,
           "%s: stream_wait on a cancelled op has the root's status", mode_name(mode));
    is_int(fp8pipe_stream_wait(pipe, failed, stream), FP8PIPE_ECALL, "%s: on the failed one too",
           mode_name(mode));
    CUDA(cudaMemcpyAsync(b, a, BYTES, cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaStreamSynchronize(stream));
    is_int(last_byte(b), 9, "%s: the stream waits for what the op launched all the same",
           mode_name(mode));
    test_close(pipe);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
}

/* ---- Capture ------------------------------------------------------------------------------ */

static void captures(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_CUDA, FP8PIPE_ASYNC, 2, 0, NULL);
    uint8_t *a = device_bytes(1), *b = device_bytes(2);
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    fp8pipe_ticket ticket;
    size_t nodes = 0;
    int counter = 0;

    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemcpyAsync(b, a, BYTES, cudaMemcpyDeviceToDevice, stream));
    for (int i = 0; i < 200; i++)
        ticket = submit_host_call(pipe, ON(i % 2), work_count, &counter);
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_OK,
           "a pipe works while another stream is being captured");
    is_int(fp8pipe_stream_wait(pipe, ticket, stream), FP8PIPE_ECAPTURE,
           "stream_wait refuses the captured stream");
    CUDA(cudaMemcpyAsync(a, b, BYTES, cudaMemcpyDeviceToDevice, stream));
    is_int(cudaStreamEndCapture(stream, &graph), cudaSuccess, "and neither disturbs the capture");
    CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
    is_int(nodes, 2, "which holds what the program captured");
    CUDA(cudaGraphDestroy(graph));
    test_close(pipe);
    is_int(counter, 200, "all ops have run");
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
}

/* ---- INLINE on the caller's stream -------------------------------------------------------- */

static enum fp8pipe_status keep_stream(struct fp8pipe_stream *stream, void *kept)
{
    *(struct CUstream_st **)kept = fp8pipe_stream_cuda(stream);
    return FP8PIPE_OK;
}

static void on_own_stream(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_INLINE, 1, 0, NULL);
    uint8_t *a = device_bytes(1), *b = device_bytes(2), *c = device_bytes(3);
    struct CUstream_st *seen = NULL;
    fp8pipe_ticket ticket = 7;
    struct fp8pipe *pipe;
    void *streams[1];
    cudaStream_t stream;
    cudaGraph_t graph = NULL;

    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    streams[0] = stream;
    options.streams = streams;
    pipe = test_open(FP8PIPE_BACKEND_CUDA, &options);
    CUDA(cudaLaunchHostFunc(stream, sleeps, NULL));
    CUDA(cudaMemsetAsync(a, 5, BYTES, stream));
    must(try_copy(pipe, ON(0), b, a, BYTES, NULL));
    CUDA(cudaMemcpyAsync(c, b, BYTES, cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaStreamSynchronize(stream));
    is_int(last_byte(c), 5, "an inline pipe on the caller's stream needs no joining");
    submit_call(pipe, ON(0), keep_stream, &seen);
    ok(seen == stream, "which is the stream that a call sees");

    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    is_int(try_copy(pipe, ON(0), b, a, BYTES, &ticket), FP8PIPE_ECAPTURE,
           "a submit while it is captured is refused");
    is_int(ticket, 7, "without a ticket");
    is_int(cudaStreamEndCapture(stream, &graph), cudaSuccess, "and does not disturb the capture");
    CUDA(cudaGraphDestroy(graph));
    is_int(try_copy(pipe, ON(0), b, a, BYTES, &ticket), FP8PIPE_OK, "afterwards it is accepted");
    test_wait(pipe, ticket);
    test_close(pipe);
    is_int(cudaStreamQuery(stream), cudaSuccess, "close leaves the caller's stream alone");
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFree(c));
}

static void streams_and_devices(void)
{
    struct fp8pipe_options bad = async_options(FP8PIPE_ASYNC, 1, 0, NULL);
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_CUDA, FP8PIPE_ASYNC, 2, 0, NULL);
    struct CUstream_st *seen[2] = {NULL, NULL};
    void *streams[1] = {NULL};
    struct fp8pipe *untouched = pipe;
    int count = 0, device = -1;

    for (int lane = 0; lane < 2; lane++)
        submit_call(pipe, ON(lane), keep_stream, &seen[lane]);
    test_drain(pipe);
    ok(seen[0] && seen[1] && seen[0] != seen[1], "each lane has a stream of its own");
    CUDA(cudaGetDeviceCount(&count));
    if (count > 1) {
        struct fp8pipe_options options = async_options(FP8PIPE_INLINE, 1, 0, NULL);
        struct fp8pipe *second;
        int counter = 0;

        options.device = 1;
        second = test_open(FP8PIPE_BACKEND_CUDA, &options);
        test_wait(second, submit_host_call(second, ON(0), work_count, &counter));
        test_close(second);
        is_int(counter, 1, "a pipe on another device works");
    } else {
        skip(1, "one device");
    }
    CUDA(cudaGetDevice(&device));
    is_int(device, 0, "the caller's current device is as it was");
    test_close(pipe);

    bad.backend = FP8PIPE_BACKEND_CUDA;
    bad.device = count;
    is_int(fp8pipe_open(&bad, &untouched), FP8PIPE_ENODEV, "there is no device %d", count);
    ok(untouched == pipe && strlen(fp8pipe_last_error()) > 0, "which it says: %s",
       fp8pipe_last_error());
    bad.device = 0;
    bad.streams = streams;
    is_int(fp8pipe_open(&bad, &untouched), FP8PIPE_EINVAL, "streams of the caller's need INLINE");
    bad.mode = FP8PIPE_INLINE;
    is_int(fp8pipe_open(&bad, &untouched), FP8PIPE_EINVAL, "and each is given");
    ok(untouched == pipe && strstr(fp8pipe_last_error(), "streams[0] = NULL") != NULL,
       "which it says: %s", fp8pipe_last_error());
}

/* ---- An allocator of the caller's --------------------------------------------------------- */

#define SKEW 16 /* bytes; what CUDA gives is aligned to 256 and more */

/* Counts what it gives; all of it is read and written atomically. */
struct pool {
    int live;
    int given;
    int64_t live_bytes;
    bool skewed;  /* what is given from now on is aligned to SKEW alone */
    int returned; /* blocks of these that came back */
};

static void *pool_alloc(void *arg, size_t bytes, void *stream)
{
    struct pool *pool = arg;
    const size_t skew = __atomic_load_n(&pool->skewed, __ATOMIC_RELAXED) ? SKEW : 0;
    void *data = NULL;

    if (cudaMallocAsync(&data, bytes + skew, stream) != cudaSuccess)
        return NULL;
    __atomic_fetch_add(&pool->live, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&pool->given, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&pool->live_bytes, (int64_t)bytes, __ATOMIC_RELAXED);
    return (char *)data + skew;
}

static void pool_free(void *arg, void *data, size_t bytes, void *stream)
{
    const size_t skew = (uintptr_t)data % 256;
    struct pool *pool = arg;

    (void)cudaFreeAsync((char *)data - skew, stream);
    __atomic_fetch_add(&pool->live, -1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&pool->live_bytes, -(int64_t)bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&pool->returned, skew == SKEW, __ATOMIC_RELAXED);
}

static void own_allocator(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 2, 0, NULL);
    struct pool pool = {0};
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensor;
    struct test_rng rng = {6};
    struct test_matrix x;
    struct fp8pipe *pipe;

    options.allocator = (struct fp8pipe_allocator){pool_alloc, pool_free, &pool};
    pipe = test_open(FP8PIPE_BACKEND_CUDA, &options);
    x = test_matrix_random(pipe, FP8PIPE_BF16, 100, 60, 0, 0, 1, &rng, NULL);
    scaling = test_scaling(pipe, 1, 0);
    must(fp8pipe_tensor_create(pipe, &tensor));
    for (int i = 0; i < 20; i++)
        test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(i % 2));
    test_drain(pipe);
    ok(pool.given >= 20, "the allocator is asked for device memory");
    test_matrix_free(&x);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
    CUDA(cudaDeviceSynchronize());
    ok(pool.live == 0 && pool.live_bytes == 0, "and gets all of it back");
}

#define THE_RULE "it is aligned to 256 bytes"

/* An op and a create that get memory which is not aligned as it must be. */
static void skewed_allocator(enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 1, 0, NULL);
    struct fp8pipe_scaling_options scaling_options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct pool pool = {0};
    struct fp8pipe_scaling *scaling, *untouched = (struct fp8pipe_scaling *)&pool;
    struct fp8pipe_scaling *made = untouched;
    struct fp8pipe_tensor *tensor;
    struct test_rng rng = {7};
    char sentence[200];
    struct test_matrix x;
    struct fp8pipe *pipe;
    fp8pipe_ticket ticket;
    uint64_t held_bytes;
    int live, given;

    watchdog("skewed allocator", 60);
    options.allocator = (struct fp8pipe_allocator){pool_alloc, pool_free, &pool};
    pipe = test_open(FP8PIPE_BACKEND_CUDA, &options);
    x = test_matrix_random(pipe, FP8PIPE_BF16, 100, 60, 0, 0, 1, &rng, NULL);
    scaling = test_scaling(pipe, 1, 1);
    must(fp8pipe_tensor_create(pipe, &tensor));
    held_bytes = stats_of(pipe, -1).memory_bytes;
    live = pool.live;
    given = pool.given;

    __atomic_store_n(&pool.skewed, true, __ATOMIC_RELAXED);
    ticket = test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(0));
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_EINVAL,
           "%s: memory that is 16 bytes off fails the op", mode_name(mode));
    must(fp8pipe_error_get(pipe, ticket, sentence, sizeof(sentence)));
    ok(strstr(sentence, "options.allocator gave 0x") != NULL && strstr(sentence, THE_RULE) != NULL,
       "with the sentence: %s", sentence);
    scaling_options.slots = 1;
    is_int(fp8pipe_scaling_create(pipe, &scaling_options, &made), FP8PIPE_EINVAL,
           "%s: and a create", mode_name(mode));
    ok(made == untouched && strstr(fp8pipe_last_error(), THE_RULE) != NULL,
       "which sets nothing, and says: %s", fp8pipe_last_error());
    is_int(pool.given - given, 2, "%s: each asked once", mode_name(mode));
    is_int(pool.returned, 2, "%s: and gave back what it got, once", mode_name(mode));
    is_int(pool.live, live, "%s: and nothing else", mode_name(mode));
    is_int(stats_of(pipe, -1).memory_bytes, held_bytes, "%s: the pipe holds what it held",
           mode_name(mode));
    ok(test_slot(scaling, 0).amax == 0, "%s: no amax was folded", mode_name(mode));

    __atomic_store_n(&pool.skewed, false, __ATOMIC_RELAXED);
    ticket = test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE,
                           test_submit(0, FP8PIPE_RESUME, 0, 0));
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_OK,
           "%s: with aligned memory all goes on", mode_name(mode));
    test_matrix_free(&x);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
    CUDA(cudaDeviceSynchronize());
    ok(pool.live == 0 && pool.live_bytes == 0 && pool.returned == 2, "%s: and nothing is lost",
       mode_name(mode));
}

static void cases(enum fp8pipe_backend backend)
{
    if (backend != FP8PIPE_BACKEND_CUDA)
        return;
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        watchdog("events and streams", 60);
        before_and_after((enum fp8pipe_mode)mode);
        after_a_failure((enum fp8pipe_mode)mode);
    }
    watchdog("captures", 60);
    captures();
    watchdog("own streams", 60);
    on_own_stream();
    streams_and_devices();
    own_allocator();
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++)
        skewed_allocator((enum fp8pipe_mode)mode);
}
#else
static void cases(enum fp8pipe_backend backend)
{
    (void)backend;
}
#endif

int main(void)
{
    watchdog("interop", 60);
    on_host();
    test_each_backend(cases);
    return done_testing();
}
