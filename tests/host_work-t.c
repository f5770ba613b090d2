/*
 * The host backend through its table: memory is given back in stream order, copies and kernels take
 * their arguments when they are enqueued, and what it refuses.
 */
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "host_rig.h"
#include "kernels/fp8.h"
#include "status.h"

/* ---- Memory ------------------------------------------------------------------------------- */

struct pool {
    int allocated;
    int freed;
    size_t freed_bytes;
    int empty;
    int misaligned;
};

static void *pool_alloc(void *arg, size_t bytes, void *stream)
{
    struct pool *pool = arg;
    void *data = NULL;

    if (pool->empty || stream != NULL || posix_memalign(&data, 256, bytes + 256) != 0) {
        return NULL;
    }
    rig_increment(&pool->allocated);
    return (char *)data + (pool->misaligned ? 16 : 0);
}

static void pool_free(void *arg, void *data, size_t bytes, void *stream)
{
    struct pool *pool = arg;

    (void)stream;
    free((char *)data - (pool->misaligned ? 16 : 0));
    pool->freed_bytes = bytes;
    rig_increment(&pool->freed);
}

static void test_own_memory(void)
{
    struct fp8pipe_stream *stream = rig_stream();
    void *data = NULL, *untouched = &data;
    int open = 0;

    must(ops->alloc(backend, stream, 1000, &data));
    ok((uintptr_t)data % 256 == 0, "memory is aligned to 256 bytes");
    must(ops->fill(backend, stream, data, 1, 1000));
    rig_call(stream, rig_hold, &open);
    must(ops->fill(backend, stream, data, 2, 1000));
    ops->free(backend, stream, data, 1000);
    rig_set(&open, 1);
    rig_drain(stream);
    pass("memory freed on a stream may still be used by work before it");
    must(ops->alloc(backend, NULL, 0, &data));
    ok(data == NULL, "no bytes are NULL");
    ops->free(backend, stream, NULL, 0);
    is_int(ops->alloc(backend, NULL, SIZE_MAX, &untouched), FP8PIPE_ENOMEM, "too much is ENOMEM");
    ok(untouched == &data && strstr(status_sentence(), "18446744073709551615") != NULL,
       "says how much, and sets nothing");
    is_int(ops->memory_alloc(backend, SIZE_MAX, &untouched), FP8PIPE_ENOMEM,
           "too much plain memory is ENOMEM");
    must(ops->memory_alloc(backend, 0, &data));
    ok(data == NULL, "no bytes of plain memory are NULL");
    must(ops->memory_free(backend, data));
    must(ops->pinned_alloc(backend, 5, &data));
    must(ops->memory_fill(backend, data, 3, 5));
    must(ops->memory_copy(backend, NULL, NULL, 0));
    ops->pinned_free(backend, data);
    ops->stream_destroy(backend, stream);
}

static void test_pool(void)
{
    struct pool pool = {0};
    struct fp8pipe_allocator allocator = {pool_alloc, pool_free, &pool};
    struct fp8pipe_stream *stream;
    void *data = NULL;
    int open = 0;

    rig_open(&allocator);
    stream = rig_stream();
    must(ops->alloc(backend, stream, 64, &data));
    rig_call(stream, rig_hold, &open);
    ops->free(backend, stream, data, 64);
    sleep_ns(20 * MS_NS);
    is_int(rig_get(&pool.freed), 0, "the caller's allocator is given memory back in stream order");
    rig_set(&open, 1);
    rig_await(&pool.freed, 1);
    ok(pool.freed_bytes == 64, "with its size");
    must(ops->alloc(backend, stream, 128, &data));
    ops->free(backend, NULL, data, 128);
    is_int(rig_get(&pool.freed), 2, "without a stream, at once");
    pool.empty = 1;
    is_int(ops->alloc(backend, stream, 77, &data), FP8PIPE_ENOMEM, "its NULL is ENOMEM");
    ok(strstr(status_sentence(), "77") != NULL, "which says how much");
    pool.empty = 0;
    pool.misaligned = 1;
    is_int(ops->alloc(backend, stream, 77, &data), FP8PIPE_EINVAL, "misaligned memory is refused");
    is_int(rig_get(&pool.allocated), rig_get(&pool.freed), "and everything was given back");
    ops->stream_destroy(backend, stream);
    ops->close(backend);
}

static void test_copies(void)
{
    struct fp8pipe_stream *stream = rig_stream();
    uint8_t from[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    uint8_t to[12], want[12] = {0, 1, 9, 9, 4, 5, 9, 9, 8, 9, 9, 9};
    uint8_t line[12];

    must(ops->fill(backend, stream, to, 9, sizeof(to)));
    must(ops->copy_2d(backend, stream, to, 4, from, 4, 2, 3));
    must(ops->copy(backend, stream, line, to, sizeof(to)));
    must(ops->fill(backend, stream, to, 0, sizeof(to)));
    must(ops->copy(backend, stream, NULL, NULL, 0));
    must(ops->copy_2d(backend, stream, NULL, 0, NULL, 0, 0, 3));
    must(ops->fill(backend, stream, NULL, 0, 0));
    rig_drain(stream);
    is_mem(line, want, sizeof(want), "fill, copy_2d and copy, in order");
    ops->stream_destroy(backend, stream);
}

/* ---- Kernels and refusals ------------------------------------------------------------------ */

static void test_kernels(void)
{
    struct fp8pipe_stream *stream = rig_stream();
    float x[3] = {1, -3, 2}, scale = 2, inv = 0, out[3] = {0};
    uint32_t amax = 0;
    int32_t has_scale = 1;
    uint8_t row[16];
    int open = 0;
    struct fp8pipe_matrix matrix = {x, 1, 3, 3, FP8PIPE_FP32, 0};
    struct kernel_quantize_args quantize = {.x = matrix,
                                            .format = FP8PIPE_E4M3,
                                            .scale = &scale,
                                            .has_scale = &has_scale,
                                            .scale_inv = &inv,
                                            .row = row,
                                            .row_stride = 16,
                                            .amax = &amax};
    struct kernel_store_args store = {.to = matrix, .from = matrix};

    rig_call(stream, rig_hold, &open);
    must(ops->quantize(backend, stream, &quantize));
    memset(&quantize, 0xff, sizeof(quantize));
    store.to.data = out;
    must(ops->store(backend, stream, &store));
    memset(&store, 0xff, sizeof(store));
    rig_set(&open, 1);
    rig_drain(stream);
    ok(inv == 0.5f && row[1] == fp8_e4m3_from_float(-6) && amax == test_float_bits(3) &&
           out[2] == 2,
       "a kernel's arguments are copied when it is enqueued");
    ops->stream_destroy(backend, stream);
}

static void test_refusals(void)
{
    struct fp8pipe_stream *stream = rig_stream(), *none = NULL;
    struct backend_event *event = rig_event();
    struct backend_plan_stats stats;

    is_int(ops->stream_create(backend, &none, &none), FP8PIPE_EINVAL,
           "a stream of the caller's is EINVAL");
    ok(none == NULL, "and sets nothing");
    is_int(ops->stream_wait_native(backend, stream, &none), FP8PIPE_ENOTSUP, "a CUDA event");
    is_int(ops->native_wait(backend, &none, event), FP8PIPE_ENOTSUP, "a CUDA stream");
    is_int(ops->stream_check(backend, stream), FP8PIPE_OK, "no stream is ever captured");
    ops->plan_stats(backend, &stats);
    ok(stats.cached == 0 && stats.evicted == 0, "no plans");
    ops->event_destroy(backend, event);
    ops->event_destroy(backend, NULL);
    ops->stream_destroy(backend, stream);
}

int main(void)
{
    static void (*const tests[])(void) = {test_own_memory, test_copies, test_kernels,
                                          test_refusals};

    rig_run(tests, sizeof(tests) / sizeof(tests[0]));
    test_pool();
    return done_testing();
}
