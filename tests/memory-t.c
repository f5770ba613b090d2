/* Guards the backend's memory: helpers, the copy op, what an allocator of the caller's is asked. */
#include <stdlib.h>
#include <string.h>

#include "async.h"

/* ---- Helpers and copies ------------------------------------------------------------------- */

#define BYTES 100003

static void helpers(struct fp8pipe *pipe)
{
    uint8_t *host = test_calloc(BYTES, 1), *back = test_calloc(BYTES, 1);
    struct test_rng rng = {11};
    void *data = host, *odd = NULL;

    is_int(fp8pipe_alloc(pipe, 0, &data), FP8PIPE_OK, "no bytes can be allocated");
    ok(data == NULL, "which gives NULL");
    must(fp8pipe_alloc(pipe, 1, &odd));
    must(fp8pipe_alloc(pipe, BYTES, &data));
    ok((uintptr_t)data % 256 == 0 && (uintptr_t)odd % 256 == 0, "memory is aligned to 256 bytes");
    for (int i = 0; i < BYTES; i++)
        host[i] = (uint8_t)test_random(&rng);
    must(fp8pipe_upload(pipe, data, host, BYTES));
    must(fp8pipe_download(pipe, back, data, BYTES));
    is_mem(back, host, BYTES, "what was uploaded is downloaded");
    must(fp8pipe_fill(pipe, (char *)data + 1, 0x1a5, BYTES - 2)); /* as memset: the low byte */
    must(fp8pipe_download(pipe, back, data, BYTES));
    memset(host + 1, 0xa5, BYTES - 2);
    is_mem(back, host, BYTES, "fill fills what it was told, and no more");
    must(fp8pipe_free(pipe, data));
    must(fp8pipe_free(pipe, odd));
    free(host);
    free(back);
}

static void copies(struct fp8pipe *pipe, enum fp8pipe_mode mode)
{
    uint8_t *host = test_calloc(BYTES, 1), *back = test_calloc(BYTES, 1);
    struct fp8pipe_copy_op op = FP8PIPE_COPY_OP_INIT;
    fp8pipe_ticket ticket = 0;
    uint8_t *blocks[3];
    struct gate gate = GATE_INIT;
    void *data;

    for (int i = 0; i < 3; i++) {
        must(fp8pipe_alloc(pipe, BYTES, &data));
        must(fp8pipe_fill(pipe, data, i, BYTES));
        blocks[i] = data;
    }
    for (int i = 0; i < BYTES; i++)
        host[i] = (uint8_t)(i % 251);
    /* host -> 0 -> 1 -> 2 -> host, each on another lane, behind a stream that is held */
    if (mode == FP8PIPE_INLINE)
        gate_open(&gate); /* to issue a copy of pageable memory may be to wait for the stream */
    ticket = submit_host_call(pipe, ON(0), gate_work, &gate);
    must(try_copy(pipe, AFTER(1, ticket), blocks[0], host, BYTES, &ticket));
    must(try_copy(pipe, AFTER(0, ticket), blocks[1] + 1, blocks[0] + 1, BYTES - 2, &ticket));
    must(try_copy(pipe, AFTER(1, ticket), blocks[2], blocks[1], BYTES, &ticket));
    must(try_copy(pipe, AFTER(0, ticket), back, blocks[2], BYTES, &ticket));
    gate_open(&gate);
    test_wait(pipe, ticket);
    host[0] = host[BYTES - 1] = 1;
    is_mem(back, host, BYTES, "copies go through host and backend, in order");
    op.submit = ON(0);
    must(fp8pipe_copy(pipe, &op, &ticket));
    test_wait(pipe, ticket);
    pass("a copy of nothing has its ticket");
    for (int i = 0; i < 3; i++)
        must(fp8pipe_free(pipe, blocks[i]));
    free(host);
    free(back);
}

static void on_each(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        struct fp8pipe *pipe = async_open(backend, (enum fp8pipe_mode)mode, 2, 0, NULL);

        watchdog("memory", 60);
        helpers(pipe);
        copies(pipe, (enum fp8pipe_mode)mode);
        test_close(pipe);
    }
}

/* ---- An allocator of the caller's --------------------------------------------------------- */

#define BLOCKS_MAX 4096

/* Gives garbage, spoils what it gets back, and remembers each block's size. */
struct pool {
    pthread_mutex_t mutex;
    struct {
        void *data;
        size_t bytes;
    } blocks[BLOCKS_MAX];
    int live;
    int given;
    int faults; /* unknown blocks, wrong sizes, streams on the host */
    bool empty; /* allocations fail */
};

static void *pool_alloc(void *arg, size_t bytes, void *stream)
{
    struct pool *pool = arg;
    void *data = NULL;

    pthread_mutex_lock(&pool->mutex);
    pool->faults += stream != NULL || bytes == 0;
    if (!pool->empty && pool->live < BLOCKS_MAX) {
        data = aligned_alloc(256, (bytes + 255) / 256 * 256);
        if (!data)
            bail("out of memory");
        memset(data, 0xdb, bytes);
        pool->blocks[pool->live].data = data;
        pool->blocks[pool->live++].bytes = bytes;
        pool->given++;
    }
    pthread_mutex_unlock(&pool->mutex);
    return data;
}

static void pool_free(void *arg, void *data, size_t bytes, void *stream)
{
    struct pool *pool = arg;
    int i = 0;

    pthread_mutex_lock(&pool->mutex);
    while (i < pool->live && pool->blocks[i].data != data)
        i++;
    if (stream || i == pool->live || pool->blocks[i].bytes != bytes) {
        pool->faults++;
    } else {
        memset(data, 0xdd, bytes);
        free(data);
        pool->blocks[i] = pool->blocks[--pool->live];
    }
    pthread_mutex_unlock(&pool->mutex);
}

static int pool_live(struct pool *pool)
{
    int live;

    pthread_mutex_lock(&pool->mutex);
    live = pool->live;
    pthread_mutex_unlock(&pool->mutex);
    return live;
}

static void pool_set_empty(struct pool *pool, bool empty)
{
    pthread_mutex_lock(&pool->mutex);
    pool->empty = empty;
    pthread_mutex_unlock(&pool->mutex);
}

#define M 37
#define K 50
#define N 23

/* A layer's three products of odd sizes, on two lanes. */
struct layer {
    struct test_matrix x, w, dy, y, dx, dw;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *saved, *dy_saved;
};

static void layer_create(struct layer *l, struct fp8pipe *pipe)
{
    struct test_rng rng = {4};

    l->x = test_matrix_random(pipe, FP8PIPE_BF16, M, K, 0, 0, 1, &rng, NULL);
    l->w = test_matrix_random(pipe, FP8PIPE_BF16, N, K, 0, 0, 1, &rng, NULL);
    l->dy = test_matrix_random(pipe, FP8PIPE_BF16, M, N, 0, 0, 1, &rng, NULL);
    l->y = test_matrix_make(pipe, FP8PIPE_FP32, M, N, 0, 0);
    l->dx = test_matrix_make(pipe, FP8PIPE_FP32, M, K, 0, 0);
    l->dw = test_matrix_make(pipe, FP8PIPE_FP32, N, K, 0, 0);
    l->scaling = test_scaling(pipe, 3, 0);
    l->linear = test_linear(pipe, l->w.view, l->scaling);
    must(fp8pipe_tensor_create(pipe, &l->saved));
    must(fp8pipe_tensor_create(pipe, &l->dy_saved));
}

static void layer_destroy_objects(struct layer *l)
{
    must(fp8pipe_tensor_destroy(l->saved));
    must(fp8pipe_tensor_destroy(l->dy_saved));
    must(fp8pipe_linear_destroy(l->linear));
    must(fp8pipe_scaling_destroy(l->scaling));
}

static void layer_free_matrices(struct layer *l)
{
    test_matrix_free(&l->x);
    test_matrix_free(&l->w);
    test_matrix_free(&l->dy);
    test_matrix_free(&l->y);
    test_matrix_free(&l->dx);
    test_matrix_free(&l->dw);
}

static void layer_destroy(struct layer *l)
{
    layer_destroy_objects(l);
    layer_free_matrices(l);
}

static fp8pipe_ticket layer_forward(struct layer *l, uint32_t flags)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = test_submit(0, flags, 0, 0);
    op.x = l->x.view;
    op.y = l->y.view;
    op.saved = l->saved;
    op.keep = FP8PIPE_KEEP_ALL;
    must(fp8pipe_linear_forward(l->linear, &op, &ticket));
    return ticket;
}

static void layer_backward(struct layer *l)
{
    struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
    struct fp8pipe_wgrad_op wgrad = FP8PIPE_WGRAD_OP_INIT;
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;

    dgrad.submit = ON(1);
    dgrad.dy = l->dy.view;
    dgrad.saved = l->saved;
    dgrad.dx = l->dx.view;
    dgrad.dy_saved = l->dy_saved;
    must(fp8pipe_linear_dgrad(l->linear, &dgrad, NULL));
    wgrad.submit = test_submit(0, FP8PIPE_LAST_USE, 0, 0);
    wgrad.dy_tensor = l->dy_saved;
    wgrad.saved = l->saved;
    wgrad.dw = l->dw.view;
    must(fp8pipe_linear_wgrad(l->linear, &wgrad, NULL));
    update.submit = ON(1);
    must(fp8pipe_scaling_update(l->scaling, &update, NULL));
}

struct results {
    float y[M * N], dx[M * K], dw[N * K];
};

static void layer_run(struct layer *l, struct fp8pipe *pipe, struct results *results)
{
    for (int step = 0; step < 3; step++) {
        layer_forward(l, 0);
        layer_backward(l);
        must(fp8pipe_linear_weight_changed(l->linear, NULL, 0));
    }
    test_drain(pipe);
    test_matrix_get_raw(&l->y, results->y);
    test_matrix_get_raw(&l->dx, results->dx);
    test_matrix_get_raw(&l->dw, results->dw);
}

static void own_allocator(enum fp8pipe_mode mode)
{
    static struct results want, got;
    static struct pool pool = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    struct fp8pipe_options options = async_options(mode, 2, 0, NULL);
    struct fp8pipe *pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    struct layer layer;
    int live = 0;

    watchdog("own allocator", 60);
    layer_create(&layer, pipe);
    layer_run(&layer, pipe, &want);
    layer_destroy(&layer);
    test_close(pipe);

    pool.given = 0;
    options.allocator = (struct fp8pipe_allocator){pool_alloc, pool_free, &pool};
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    layer_create(&layer, pipe);
    layer_run(&layer, pipe, &got);
    is_mem(&got, &want, sizeof(got), "%s: with an allocator of the caller's, the same bits",
           mode_name(mode));
    ok(pool.given > 0, "%s: which was asked %d times", mode_name(mode), pool.given);
    layer_free_matrices(&layer);
    test_close(pipe); /* before the objects: close gives their device memory back */
    is_int(pool.live, 0, "%s: close gives all of it back", mode_name(mode));
    is_int(pool.faults, 0, "%s: sizes and streams are right", mode_name(mode));
    layer_destroy_objects(&layer);

    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    for (int i = 0; i < 2; i++) {
        int64_t end_ns;

        layer_create(&layer, pipe);
        layer_run(&layer, pipe, &got);
        layer_destroy(&layer);
        sleep_ns(20 * MS_NS); /* some is given back by other threads */
        if (i == 0)
            live = pool_live(&pool); /* what the lanes keep */
        for (end_ns = test_now_ns() + A_SECOND_NS; pool_live(&pool) > live;)
            if (test_now_ns() > end_ns)
                break;
    }
    is_int(pool_live(&pool), live, "%s: destroy gives back what objects had", mode_name(mode));
    test_close(pipe);
    is_int(pool.live, 0, "%s: close the rest", mode_name(mode));
}

static void empty_allocator(enum fp8pipe_mode mode)
{
    static struct pool pool = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    struct fp8pipe_options options = async_options(mode, 2, 0, NULL);
    struct fp8pipe_scaling_options scaling_options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *untouched = (struct fp8pipe_scaling *)&pool, *scaling = untouched;
    static struct results got;
    struct fp8pipe *pipe;
    struct layer layer;
    fp8pipe_ticket ticket;
    char sentence[200];

    watchdog("empty allocator", 60);
    options.allocator = (struct fp8pipe_allocator){pool_alloc, pool_free, &pool};
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    layer_create(&layer, pipe);
    pool_set_empty(&pool, true);
    ticket = layer_forward(&layer, 0);
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_ISSUED, TEST_TIMEOUT_NS), FP8PIPE_ENOMEM,
           "%s: an allocator that has nothing fails the op, at issue", mode_name(mode));
    must(fp8pipe_error_get(pipe, ticket, sentence, sizeof(sentence)));
    ok(sentence[0], "with a sentence: %s", sentence);
    scaling_options.slots = 3;
    is_int(fp8pipe_scaling_create(pipe, &scaling_options, &scaling), FP8PIPE_ENOMEM,
           "%s: and a create", mode_name(mode));
    ok(scaling == untouched, "which sets nothing");
    pool_set_empty(&pool, false);
    ticket = layer_forward(&layer, FP8PIPE_RESUME);
    is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS), FP8PIPE_OK,
           "%s: once it has memory again all goes on", mode_name(mode));
    layer_backward(&layer);
    layer_run(&layer, pipe, &got);
    layer_destroy(&layer);
    test_close(pipe);
    ok(pool.live == 0 && pool.faults == 0, "%s: and nothing is lost", mode_name(mode));
}

int main(void)
{
    test_each_backend(on_each);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        own_allocator((enum fp8pipe_mode)mode);
        empty_allocator((enum fp8pipe_mode)mode);
    }
    return done_testing();
}
