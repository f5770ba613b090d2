/* Guards quantized tensors and weights as objects: fillings, memory given back, sharing, EBUSY. */
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "chaos.h"

#define M 4
#define K 32
#define N 16
#define LANES 4

struct world {
    struct fp8pipe *pipe;
    enum fp8pipe_mode mode;
    struct test_matrix x[2]; /* the second has another amax */
    struct test_matrix w, dy, dx, dw;
    struct test_matrix y[LANES];
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *tensor, *saved, *dy_saved;
    float *inverses; /* 8, on the backend */
};

static void forward(struct world *w, struct fp8pipe_submit submit, struct fp8pipe_tensor *from,
                    struct fp8pipe_tensor *saved, enum fp8pipe_keep keep)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit = submit;
    if (from)
        op.x_tensor = from;
    else
        op.x = w->x[0].view;
    op.y = w->y[submit.lane].view;
    op.saved = saved;
    op.keep = keep;
    must(fp8pipe_linear_forward(w->linear, &op, NULL));
}

static void dgrad(struct world *w, uint32_t flags)
{
    struct fp8pipe_dgrad_op op = FP8PIPE_DGRAD_OP_INIT;

    op.submit = test_submit(0, flags, 0, 0);
    op.dy = w->dy.view;
    op.saved = w->saved;
    op.dx = w->dx.view;
    op.dy_saved = w->dy_saved;
    must(fp8pipe_linear_dgrad(w->linear, &op, NULL));
}

static void wgrad(struct world *w, uint32_t flags)
{
    struct fp8pipe_wgrad_op op = FP8PIPE_WGRAD_OP_INIT;

    op.submit = test_submit(0, flags, 0, 0);
    op.dy_tensor = w->dy_saved;
    op.saved = w->saved;
    op.dw = w->dw.view;
    must(fp8pipe_linear_wgrad(w->linear, &op, NULL));
}

static void quantize(struct world *w, int x, struct fp8pipe_submit submit)
{
    test_quantize(w->tensor, w->x[x].view, w->scaling, 0, FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED,
                  submit);
}

static enum fp8pipe_status try_read(struct world *w, struct fp8pipe_submit submit, int to)
{
    struct fp8pipe_read_op op = FP8PIPE_READ_OP_INIT;

    op.submit = submit;
    op.scale_inv = w->inverses + to;
    return fp8pipe_tensor_read(w->tensor, &op, NULL);
}

static bool filled(struct fp8pipe_tensor *tensor)
{
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;

    must(fp8pipe_tensor_info_get(tensor, &info));
    return info.filled;
}

static void world_open(struct world *w, enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, LANES, 64, NULL);
    struct test_rng rng = {5};
    void *data;

    memset(w, 0, sizeof(*w));
    w->pipe = chaos_open_pipe(backend, &options, 0);
    w->mode = mode;
    w->x[0] = test_matrix_random(w->pipe, FP8PIPE_FP32, M, K, 0, 0, 1, &rng, NULL);
    w->x[1] = test_matrix_random(w->pipe, FP8PIPE_FP32, M, K, 0, 0, 100, &rng, NULL);
    w->w = test_matrix_random(w->pipe, FP8PIPE_FP32, N, K, 0, 0, 1, &rng, NULL);
    w->dy = test_matrix_random(w->pipe, FP8PIPE_FP32, M, N, 0, 0, 1, &rng, NULL);
    for (int lane = 0; lane < LANES; lane++)
        w->y[lane] = test_matrix_make(w->pipe, FP8PIPE_FP32, M, N, 0, 0);
    w->dx = test_matrix_make(w->pipe, FP8PIPE_FP32, M, K, 0, 0);
    w->dw = test_matrix_make(w->pipe, FP8PIPE_FP32, N, K, 0, 0);
    w->scaling = test_scaling(w->pipe, 4, 0);
    w->linear = test_linear(w->pipe, w->w.view, w->scaling);
    must(fp8pipe_tensor_create(w->pipe, &w->tensor));
    must(fp8pipe_tensor_create(w->pipe, &w->saved));
    must(fp8pipe_tensor_create(w->pipe, &w->dy_saved));
    must(fp8pipe_alloc(w->pipe, 8 * sizeof(float), &data));
    w->inverses = data;
    /* all that stays: the weight's copies, each lane's own memory */
    for (int lane = 0; lane < LANES; lane++) {
        quantize(w, 0, ON(lane));
        forward(w, ON(lane), NULL, w->saved, FP8PIPE_KEEP_ALL);
        dgrad(w, 0);
        wgrad(w, 0);
    }
    must(fp8pipe_tensor_clear(w->tensor));
    must(fp8pipe_tensor_clear(w->saved));
    must(fp8pipe_tensor_clear(w->dy_saved));
    test_drain(w->pipe);
}

static void world_close(struct world *w)
{
    test_drain(w->pipe);
    must(fp8pipe_free(w->pipe, w->inverses));
    test_matrix_free(&w->x[0]);
    test_matrix_free(&w->x[1]);
    test_matrix_free(&w->w);
    test_matrix_free(&w->dy);
    for (int lane = 0; lane < LANES; lane++)
        test_matrix_free(&w->y[lane]);
    test_matrix_free(&w->dx);
    test_matrix_free(&w->dw);
    must(fp8pipe_tensor_destroy(w->tensor));
    must(fp8pipe_tensor_destroy(w->saved));
    must(fp8pipe_tensor_destroy(w->dy_saved));
    must(fp8pipe_linear_destroy(w->linear));
    must(fp8pipe_scaling_destroy(w->scaling));
    test_close(w->pipe);
    chaos_check("tensors");
}

/* The pool's memory comes down to `allocs`; what another thread gives back may take a while. */
static bool allocs_become(int64_t allocs)
{
    int64_t end_ns = test_now_ns() + A_SECOND_NS;

    while (chaos_live().allocs != allocs && test_now_ns() < end_ns)
        sleep_ns(MS_NS);
    if (chaos_live().allocs != allocs)
        diag("%jd allocations, want %jd", (intmax_t)chaos_live().allocs, (intmax_t)allocs);
    return chaos_live().allocs == allocs;
}

/* The allocations once no other thread gives any back: what lanes and weights keep. */
static int64_t allocs_settle(void)
{
    int64_t since_ns = test_now_ns(), allocs = chaos_live().allocs;

    while (test_now_ns() - since_ns < A_SECOND_NS / 20) {
        if (chaos_live().allocs != allocs) {
            allocs = chaos_live().allocs;
            since_ns = test_now_ns();
        }
        sleep_ns(MS_NS);
    }
    return allocs;
}

static void inverse_is(struct world *w, int at, int x, const char *what)
{
    float *values = test_calloc(M * K, sizeof(float)), amax = 0, got, want;

    test_matrix_get_raw(&w->x[x], values);
    for (int i = 0; i < M * K; i++)
        amax = values[i] > amax ? values[i] : -values[i] > amax ? -values[i] : amax;
    free(values);
    must(fp8pipe_download(w->pipe, &got, w->inverses + at, sizeof(got)));
    want = 1 / (448 / amax);
    ok(got == want, "%s (%g, want %g)", what, (double)got, (double)want);
}

/* ---- Fillings ----------------------------------------------------------------------------- */

static void fillings(struct world *w)
{
    struct gate gate = GATE_INIT;

    if (w->mode == FP8PIPE_ASYNC)
        submit_call(w->pipe, ON(1), gate_call, &gate);
    quantize(w, 0, ON(0));
    must(try_read(w, ON(1), 0)); /* queued behind the gate */
    quantize(w, 1, ON(0));
    must(try_read(w, ON(0), 1));
    must(try_read(w, ON(1), 2));
    must(fp8pipe_tensor_clear(w->tensor));
    ok(!filled(w->tensor), "clear empties");
    is_int(try_read(w, ON(1), 3), FP8PIPE_EINVAL, "an empty tensor cannot be read");
    quantize(w, 0, ON(2));
    ok(filled(w->tensor), "a new filling fills");
    must(try_read(w, test_submit(1, FP8PIPE_LAST_USE, 0, 0), 4));
    ok(!filled(w->tensor), "LAST_USE empties");
    is_int(try_read(w, ON(0), 3), FP8PIPE_EINVAL, "after it nothing can be read");
    gate_open(&gate);
    test_drain(w->pipe);
    inverse_is(w, 0, 0, "a queued reader gets the filling of its submit");
    inverse_is(w, 1, 1, "a reader of the next filling gets that");
    inverse_is(w, 2, 1, "also when the tensor was cleared before it ran");
    inverse_is(w, 4, 0, "and the last use gets the last");
}

static void memory_returns(struct world *w)
{
    int64_t allocs = allocs_settle();
    struct gate gate = GATE_INIT;
    bool async = w->mode == FP8PIPE_ASYNC;

    quantize(w, 0, ON(0));
    test_drain(w->pipe);
    ok(chaos_live().allocs > allocs, "a filling has memory");
    quantize(w, 1, ON(1));
    must(try_read(w, test_submit(2, FP8PIPE_LAST_USE, 0, 0), 0));
    test_drain(w->pipe);
    ok(allocs_become(allocs), "which a new filling and LAST_USE give back");
    quantize(w, 0, ON(3));
    test_drain(w->pipe);
    must(fp8pipe_tensor_clear(w->tensor));
    ok(allocs_become(allocs), "and clear, once nothing uses it");

    quantize(w, 0, ON(0));
    if (async)
        submit_call(w->pipe, ON(1), gate_call, &gate);
    must(try_read(w, ON(1), 0));
    must(fp8pipe_tensor_clear(w->tensor));
    if (async) {
        test_wait(w->pipe, submit_call(w->pipe, ON(0), call_nothing, NULL));
        ok(chaos_live().allocs > allocs, "not while a submitted use is not issued");
    }
    gate_open(&gate);
    test_drain(w->pipe);
    ok(allocs_become(allocs), "but then");

    forward(w, ON(0), NULL, w->saved, FP8PIPE_KEEP_ALL);
    dgrad(w, 0);
    wgrad(w, FP8PIPE_LAST_USE);
    ok(!filled(w->saved) && !filled(w->dy_saved), "LAST_USE empties all that the op reads");
    test_drain(w->pipe);
    ok(allocs_become(allocs), "what a forward and a dgrad keep is given back too");
    for (int i = 0; i < 50; i++) {
        forward(w, ON(i % LANES), NULL, w->saved, FP8PIPE_KEEP_ALL);
        quantize(w, i % 2, ON(i % 3));
    }
    must(fp8pipe_tensor_clear(w->saved));
    must(fp8pipe_tensor_clear(w->tensor));
    test_drain(w->pipe);
    ok(allocs_become(allocs), "a hundred fillings leave nothing");
}

static enum fp8pipe_status try_keep_from(struct world *w, struct fp8pipe_submit submit,
                                         struct fp8pipe_tensor *from)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit = submit;
    op.x_tensor = from;
    op.y = w->y[submit.lane].view;
    return fp8pipe_linear_forward(w->linear, &op, NULL);
}

static uint64_t memory_bytes(struct world *w)
{
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;

    must(fp8pipe_stats_get(w->pipe, -1, &stats));
    return stats.memory_bytes;
}

/* What a forward keeps of a shared tensor are the transposed bytes; the others go with the tensor's
 * own hold, after the last op that reads them. */
static void halves(struct world *w)
{
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
    float want[N * K], got[N * K];
    int64_t allocs = allocs_settle();
    uint64_t bytes = memory_bytes(w), whole;
    struct gate gate = GATE_INIT;
    bool async = w->mode == FP8PIPE_ASYNC;

    forward(w, ON(0), NULL, w->saved, FP8PIPE_KEEP_ALL);
    dgrad(w, 0);
    wgrad(w, FP8PIPE_LAST_USE);
    test_drain(w->pipe);
    test_matrix_get_raw(&w->dw, want);
    test_matrix_poison(&w->dw);

    quantize(w, 0, ON(0));
    test_drain(w->pipe);
    whole = memory_bytes(w) - bytes;
    is_int(chaos_live().allocs, allocs + 2, "both copies are two blocks");
    forward(w, test_submit(0, FP8PIPE_LAST_USE, 0, 0), w->tensor, w->saved, FP8PIPE_KEEP_ALL);
    test_drain(w->pipe);
    ok(allocs_become(allocs + 1), "a forward that keeps X from a tensor leaves one");
    is_int((intmax_t)(whole - (memory_bytes(w) - bytes)), 16 * K, "without the row-wise bytes");
    must(fp8pipe_tensor_info_get(w->saved, &info));
    ok(info.rowwise == 0 && info.transposed == 1 && info.weight == 1, "as its info says");
    is_int(try_keep_from(w, ON(0), w->saved), FP8PIPE_EINVAL, "which a forward cannot take");
    read.submit = ON(0);
    read.rowwise = w->inverses;
    is_int(fp8pipe_tensor_read(w->saved, &read, NULL), FP8PIPE_EINVAL, "nor a read");
    dgrad(w, 0);
    wgrad(w, FP8PIPE_LAST_USE);
    test_drain(w->pipe);
    test_matrix_get_raw(&w->dw, got);
    is_mem(got, want, sizeof(want), "wgrad reads the transposed ones, to the same bits");
    ok(allocs_become(allocs), "and nothing is left");

    /* Another layer, on a lane that is held up, still reads them when the tensor lets go. */
    quantize(w, 0, ON(0));
    if (async)
        submit_call(w->pipe, ON(1), gate_call, &gate);
    test_matrix_poison(&w->y[1]);
    must(try_keep_from(w, ON(1), w->tensor));
    forward(w, test_submit(0, FP8PIPE_LAST_USE, 0, 0), w->tensor, w->saved, FP8PIPE_KEEP_ALL);
    if (async) {
        test_wait(w->pipe, submit_call(w->pipe, ON(0), call_nothing, NULL));
        is_int(allocs_settle(), allocs + 2, "a queued reader keeps the row-wise bytes");
    }
    gate_open(&gate);
    test_drain(w->pipe);
    ok(allocs_become(allocs + 1), "until it is issued");
    test_matrix_get_raw(&w->y[0], want);
    test_matrix_get_raw(&w->y[1], got);
    is_mem(got, want, M * N * sizeof(*got), "both layers read the same");
    must(fp8pipe_tensor_clear(w->saved));
    ok(allocs_become(allocs), "a clear gives the rest back");
}

/* A failed writer leaves no memory behind either, nor a filling that cannot be replaced. */
static enum fp8pipe_status arm(struct fp8pipe_stream *stream, void *nth)
{
    chaos_fail(CHAOS_WORK, stream, *(unsigned *)nth, FP8PIPE_ENOMEM);
    return FP8PIPE_OK;
}

static void failed_writer(struct world *w)
{
    int64_t allocs = allocs_settle();

    for (unsigned nth = 1; nth <= 4; nth++) {
        unsigned failures = chaos_failures();

        submit_call(w->pipe, ON(0), arm, &nth);
        quantize(w, 0, ON(0));
        forward(w, ON(0), w->tensor, w->saved, FP8PIPE_KEEP_ALL);
        test_drain(w->pipe);
        chaos_disarm();
        submit_call(w->pipe, test_submit(0, FP8PIPE_RESUME, 0, 0), call_nothing, NULL);
        must(fp8pipe_tensor_clear(w->tensor));
        must(fp8pipe_tensor_clear(w->saved));
        test_drain(w->pipe);
        ok(allocs_become(allocs), "a failed writer (piece %u, %u failed) leaves no memory", nth,
           chaos_failures() - failures);
    }
}

/* ---- Weights ------------------------------------------------------------------------------ */

static void weights(struct world *w)
{
    struct fp8pipe_linear *second;
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;
    float want[M * N], got[M * N];
    uint64_t quantized, again = 0;

    forward(w, ON(0), NULL, NULL, FP8PIPE_KEEP_NOTHING);
    test_drain(w->pipe);
    test_matrix_get_raw(&w->y[0], want);
    quantize(w, 0, ON(0));
    test_drain(w->pipe);
    quantized = chaos_count(CHAOS_QUANTIZE);
    forward(w, ON(1), w->tensor, NULL, FP8PIPE_KEEP_NOTHING);
    test_drain(w->pipe);
    test_matrix_get_raw(&w->y[1], got);
    is_mem(got, want, sizeof(want), "a forward from a shared tensor gives the same bits");
    is_int(chaos_count(CHAOS_QUANTIZE), quantized, "and quantizes nothing");

    second = test_linear(w->pipe, w->w.view, w->scaling);
    op.submit = ON(2);
    op.x_tensor = w->tensor;
    op.y = w->y[2].view;
    test_matrix_poison(&w->y[2]);
    must(fp8pipe_linear_forward(second, &op, NULL));
    test_drain(w->pipe);
    test_matrix_get_raw(&w->y[2], got);
    is_mem(got, want, sizeof(want), "so does another layer that shares the tensor");
    is_int(chaos_count(CHAOS_QUANTIZE), quantized + 1, "which quantizes its weight only");
    must(fp8pipe_linear_destroy(second));

    for (int round = 0; round < 50; round++) {
        quantized = chaos_count(CHAOS_QUANTIZE);
        must(fp8pipe_linear_weight_changed(w->linear, NULL, 0));
        for (int lane = 0; lane < LANES; lane++)
            forward(w, ON(lane), w->tensor, NULL, FP8PIPE_KEEP_NOTHING);
        test_drain(w->pipe);
        again += chaos_count(CHAOS_QUANTIZE) - quantized != 1;
    }
    is_int(again, 0, "four lanes that meet a new version quantize it once");
    must(fp8pipe_tensor_clear(w->tensor));
}

/* ---- Destroying what is used -------------------------------------------------------------- */

static bool destroyed_in_time(enum fp8pipe_status (*destroy)(void *), void *object)
{
    int64_t end_ns = test_now_ns() + A_SECOND_NS;
    enum fp8pipe_status status;

    while ((status = destroy(object)) == FP8PIPE_EBUSY && test_now_ns() < end_ns)
        sleep_ns(MS_NS);
    return status == FP8PIPE_OK;
}

static enum fp8pipe_status destroy_tensor(void *tensor)
{
    return fp8pipe_tensor_destroy(tensor);
}

static enum fp8pipe_status destroy_linear(void *linear)
{
    return fp8pipe_linear_destroy(linear);
}

static enum fp8pipe_status destroy_scaling(void *scaling)
{
    return fp8pipe_scaling_destroy(scaling);
}

static void busy(struct world *w)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *tensor;
    struct gate gate = GATE_INIT;

    scaling = test_scaling(w->pipe, 3, 0);
    linear = test_linear(w->pipe, w->w.view, scaling);
    must(fp8pipe_tensor_create(w->pipe, &tensor));
    is_int(fp8pipe_scaling_destroy(scaling), FP8PIPE_EBUSY, "a scaling with a linear is busy");
    ok(strlen(fp8pipe_last_error()) > 0, "and the sentence says so: %s", fp8pipe_last_error());

    submit_host_call(w->pipe, ON(0), gate_work, &gate); /* holds the stream: issued, not done */
    op.submit = ON(0);
    op.x = w->x[0].view;
    op.y = w->y[0].view;
    op.saved = tensor;
    op.keep = FP8PIPE_KEEP_DGRAD;
    must(fp8pipe_linear_forward(linear, &op, NULL));
    is_int(fp8pipe_linear_destroy(linear), FP8PIPE_EBUSY, "a linear in flight is busy");
    is_int(fp8pipe_tensor_destroy(tensor), FP8PIPE_EBUSY, "so is a tensor");
    is_int(fp8pipe_scaling_destroy(scaling), FP8PIPE_EBUSY, "and a scaling");
    gate_open(&gate);
    test_drain(w->pipe);
    is_int(fp8pipe_linear_destroy(linear), FP8PIPE_EBUSY,
           "a linear of which a tensor keeps a version is busy");
    must(fp8pipe_tensor_clear(tensor));
    ok(destroyed_in_time(destroy_linear, linear), "until the tensor is cleared");
    ok(destroyed_in_time(destroy_scaling, scaling), "then the scaling can go as well");
    ok(destroyed_in_time(destroy_tensor, tensor), "and the tensor");
    is_int(fp8pipe_tensor_destroy(NULL), FP8PIPE_OK, "destroy takes NULL");
    is_int(fp8pipe_linear_destroy(NULL), FP8PIPE_OK, "for linears too");
    is_int(fp8pipe_scaling_destroy(NULL), FP8PIPE_OK, "and for scalings");
}

static void cases(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        struct world world;

        watchdog("tensors", 60);
        world_open(&world, backend, (enum fp8pipe_mode)mode);
        fillings(&world);
        memory_returns(&world);
        halves(&world);
        failed_writer(&world);
        weights(&world);
        busy(&world);
        world_close(&world);
    }
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
