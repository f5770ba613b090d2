/* Guards against hanging: calls from inside the library's own threads, and rings that are full. */
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "fp8pipe_cuda.h"

/* ---- Calls from inside functions that the library runs ------------------------------------ */

/* A pipe with one of each object, so that every call would be good from elsewhere. */
struct world {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *tensor;
    struct test_matrix x, w, y;
    fp8pipe_ticket held; /* not done yet */
};

struct probe {
    struct world *worlds[2];
    enum fp8pipe_backend backend;
    bool in_defer;
    enum fp8pipe_status status; /* what a call returns */
    int64_t took_ns;
    int wrong;
    int finished; /* stored with release */
};

static void world_open(struct world *w, enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{

    memset(w, 0, sizeof(*w));
    w->pipe = async_open(backend, mode, 2, 0, NULL);
    w->x = test_matrix_make(w->pipe, FP8PIPE_FP32, 4, 16, 0, 0);
    w->w = test_matrix_make(w->pipe, FP8PIPE_FP32, 8, 16, 0, 0);
    w->y = test_matrix_make(w->pipe, FP8PIPE_FP32, 4, 8, 0, 0);
    w->scaling = test_scaling(w->pipe, 3, 0);
    w->linear = test_linear(w->pipe, w->w.view, w->scaling);
    must(fp8pipe_tensor_create(w->pipe, &w->tensor));
    test_quantize(w->tensor, w->x.view, w->scaling, 0, FP8PIPE_ROWWISE, ON(0));
    test_drain(w->pipe);
}

static void world_close(struct world *w)
{
    test_drain(w->pipe);
    must(fp8pipe_tensor_destroy(w->tensor));
    must(fp8pipe_linear_destroy(w->linear));
    must(fp8pipe_scaling_destroy(w->scaling));
    test_matrix_free(&w->x);
    test_matrix_free(&w->w);
    test_matrix_free(&w->y);
    test_close(w->pipe);
}

static void expect(struct probe *p, const char *call, enum fp8pipe_status got,
                   enum fp8pipe_status want)
{
    if (got == want)
        return;
    p->wrong++;
    diag("%s returns %s", call, fp8pipe_status_name(got));
}

#define EXPECT(call, want) expect(p, #call, call, want)

static void probe_submits(struct probe *p, struct world *w, enum fp8pipe_status want)
{
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe_gemm_op gemm = FP8PIPE_GEMM_OP_INIT;
    struct fp8pipe_quantize_op quantize = FP8PIPE_QUANTIZE_OP_INIT;
    struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
    struct fp8pipe_scaling_op scaling = FP8PIPE_SCALING_OP_INIT;
    struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
    struct fp8pipe_wgrad_op wgrad = FP8PIPE_WGRAD_OP_INIT;

    forward.submit = gemm.submit = quantize.submit = read.submit = scaling.submit = ON(0);
    forward.x = gemm.a = quantize.x = w->x.view;
    forward.y = gemm.d = w->y.view;
    gemm.b = w->w.view;
    quantize.scaling = w->scaling;
    EXPECT(try_call(w->pipe, ON(1), call_nothing, NULL, NULL), want);
    EXPECT(try_host_call(w->pipe, ON(0), work_nothing, NULL, NULL), want);
    EXPECT(try_copy(w->pipe, ON(0), w->y.view.data, w->x.view.data, 16, NULL), want);
    EXPECT(fp8pipe_linear_forward(w->linear, &forward, NULL), want);
    EXPECT(fp8pipe_gemm(w->pipe, &gemm, NULL), want);
    EXPECT(fp8pipe_tensor_quantize(w->tensor, &quantize, NULL), want);
    EXPECT(fp8pipe_tensor_read(w->tensor, &read, NULL), want);
    EXPECT(fp8pipe_scaling_update(w->scaling, &scaling, NULL), want);
    EXPECT(fp8pipe_scaling_skip(w->scaling, &scaling, NULL), want);
    if (want != FP8PIPE_EDEADLK)
        return;
    dgrad.dy = w->y.view;
    dgrad.dx = w->x.view;
    EXPECT(fp8pipe_linear_dgrad(w->linear, &dgrad, NULL), want);
    wgrad.dy = w->y.view;
    wgrad.saved = w->tensor;
    wgrad.dw = w->w.view;
    EXPECT(fp8pipe_linear_wgrad(w->linear, &wgrad, NULL), want);
}

static void probe_waits(struct probe *p, struct world *w)
{
    struct fp8pipe_slot_state slot = FP8PIPE_SLOT_STATE_INIT;
    enum fp8pipe_status status;
    uint8_t buffer[4096];
    size_t bytes = 0;

    EXPECT(fp8pipe_wait(w->pipe, w->held, FP8PIPE_ISSUED, -1), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_wait(w->pipe, w->held, FP8PIPE_DONE, -1), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_drain(w->pipe, -1), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_scaling_slot_get(w->scaling, 0, &slot), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_scaling_state_bytes(w->scaling, &bytes), FP8PIPE_OK);
    if (bytes > sizeof(buffer))
        bail("a state of %zu bytes", bytes);
    EXPECT(fp8pipe_scaling_save(w->scaling, buffer, bytes), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_scaling_load(w->scaling, buffer, bytes), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_close(w->pipe, 0, -1), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_close(w->pipe, FP8PIPE_CLOSE_CANCEL, 0), FP8PIPE_EDEADLK);
    status = fp8pipe_stream_wait(w->pipe, w->held, NULL);
    if (p->backend == FP8PIPE_BACKEND_CUDA || status != FP8PIPE_ENOTSUP)
        expect(p, "fp8pipe_stream_wait", status, FP8PIPE_EDEADLK);
}

static void probe_objects(struct probe *p, struct world *w)
{
    struct fp8pipe_scaling_options scaling_options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear_options linear_options = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_options options = async_options(FP8PIPE_INLINE, 1, 32, NULL);
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *tensor;
    struct fp8pipe *pipe;

    scaling_options.slots = 3;
    linear_options.in_features = 16;
    linear_options.out_features = 8;
    linear_options.weight = w->w.view;
    options.backend = FP8PIPE_BACKEND_HOST;
    EXPECT(fp8pipe_open(&options, &pipe), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_scaling_create(w->pipe, &scaling_options, &scaling), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_linear_create(w->pipe, &linear_options, &linear), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_tensor_create(w->pipe, &tensor), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_tensor_destroy(w->tensor), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_linear_destroy(w->linear), FP8PIPE_EDEADLK);
    EXPECT(fp8pipe_scaling_destroy(w->scaling), FP8PIPE_EDEADLK);
}

static void probe_all(void *arg)
{
    struct probe *p = arg;
    int64_t start_ns = test_now_ns();

    for (int i = 0; i < 2; i++) {
        struct world *w = p->worlds[i];
        struct fp8pipe_state state = FP8PIPE_STATE_INIT;

        probe_submits(p, w, p->in_defer ? FP8PIPE_OK : FP8PIPE_EDEADLK);
        probe_waits(p, w);
        if (!p->in_defer)
            probe_objects(p, w);
        EXPECT(fp8pipe_state_get(w->pipe, w->held, &state), FP8PIPE_OK);
    }
    p->took_ns = test_now_ns() - start_ns;
    __atomic_store_n(&p->finished, 1, __ATOMIC_RELEASE);
}

static enum fp8pipe_status probe_call(struct fp8pipe_stream *stream, void *arg)
{
    (void)stream;
    probe_all(arg);
    return FP8PIPE_OK;
}

static enum fp8pipe_status probe_enqueued(struct fp8pipe_stream *stream, void *arg)
{
    return fp8pipe_host_enqueue(stream, probe_all, arg);
}

static void probe_defer(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    (void)ticket, (void)status;
    probe_all(arg);
}

enum place { IN_CALL, IN_HOST_CALL, IN_ENQUEUED, IN_DEFER, PLACES };

static const char *const place_names[PLACES] = {"call", "host_call", "host_enqueue's work",
                                                "defer"};

static void from_inside(enum fp8pipe_backend backend, enum fp8pipe_mode mode, enum place place)
{
    struct gate held = GATE_INIT;
    struct world worlds[2];
    struct probe p = {
        .worlds = {&worlds[0], &worlds[1]}, .backend = backend, .in_defer = place == IN_DEFER};
    int64_t end_ns;

    watchdog(place_names[place], 60);
    for (int i = 0; i < 2; i++)
        world_open(&worlds[i], backend, mode);
    if (backend == FP8PIPE_BACKEND_CUDA && (place == IN_HOST_CALL || place == IN_ENQUEUED))
        gate_open(&held); /* CUDA may run one host function at a time */
    for (int i = 0; i < 2; i++)
        worlds[i].held = submit_host_call(worlds[i].pipe, ON(1), gate_work, &held);
    switch (place) {
    case IN_CALL:
        submit_call(worlds[0].pipe, ON(0), probe_call, &p);
        break;
    case IN_HOST_CALL:
        submit_host_call(worlds[0].pipe, ON(0), probe_all, &p);
        break;
    case IN_ENQUEUED:
        submit_call(worlds[0].pipe, ON(0), probe_enqueued, &p);
        break;
    case IN_DEFER:
        must(fp8pipe_defer(worlds[0].pipe, 0, FP8PIPE_DONE, probe_defer, &p, 0));
        break;
    case PLACES:
        break;
    }
    end_ns = test_now_ns() + TEST_TIMEOUT_NS;
    while (!__atomic_load_n(&p.finished, __ATOMIC_ACQUIRE) && test_now_ns() < end_ns)
        sleep_ns(MS_NS / 10);
    gate_open(&held);
    is_int(p.wrong, 0, "%s, %s: every call from inside a %s has its status",
           test_backend_name(backend), mode_name(mode), place_names[place]);
    ok(p.finished && p.took_ns < A_SECOND_NS, "within a second");
    for (int i = 0; i < 2; i++)
        world_close(&worlds[i]);
}

static void insides(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++)
        for (int place = 0; place < PLACES; place++)
            if (place != IN_ENQUEUED || backend == FP8PIPE_BACKEND_HOST)
                from_inside(backend, (enum fp8pipe_mode)mode, (enum place)place);
}

/* ---- Full rings --------------------------------------------------------------------------- */

#define PRODUCERS 4
#define EACH 1500

struct producer {
    struct fp8pipe *pipe;
    fp8pipe_ticket *latest; /* of each lane, by anybody; atomic */
    int number;
    int *counter;
};

static void counts_defer(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    (void)ticket;
    if (status == FP8PIPE_OK)
        work_count(arg);
}

/* Each op waits for the newest of the other lane: rings this small are full all the time. */
static void *produces(void *arg)
{
    struct producer *self = arg;

    for (int i = 0; i < EACH; i++) {
        int lane = (self->number + i) % 2;
        fp8pipe_ticket other = __atomic_load_n(&self->latest[!lane], __ATOMIC_ACQUIRE), ticket;

        ticket = submit_host_call(self->pipe, AFTER(lane, other), work_count, &self->counter[0]);
        __atomic_store_n(&self->latest[lane], ticket, __ATOMIC_RELEASE);
        if (i % 4 == 0 && self->number % 2 == 0)
            must(fp8pipe_defer(self->pipe, ticket, i % 8 ? FP8PIPE_DONE : FP8PIPE_ISSUED,
                               counts_defer, &self->counter[1], 0));
    }
    return NULL;
}

static void full_rings(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 2, 32, NULL);
    struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    fp8pipe_ticket latest[2] = {0, 0};
    struct fp8pipe_stats stats;
    int counter[2] = {0, 0};
    struct fp8pipe *pipe;

    options.defer_limit = 8;
    pipe = test_open(backend, &options);
    watchdog("full rings", 60);
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){pipe, latest, i, counter};
        threads[i] = test_thread(produces, &producers[i]);
    }
    for (int i = 0; i < PRODUCERS; i++)
        test_join(threads[i]);
    test_drain(pipe);
    stats = stats_of(pipe, -1);
    test_close(pipe);
    is_int(counter[0], PRODUCERS * EACH, "%s, %s: two lanes that wait for each other's ops end",
           test_backend_name(backend), mode_name(mode));
    is_int(counter[1], PRODUCERS / 2 * EACH / 4,
           "and so do the defers, of which few may be outstanding");
    is_int(stats.rescues, 0, "without a rescue");
    ok(mode == FP8PIPE_INLINE || stats.full > 0, "the rings were full %ju times",
       (uintmax_t)stats.full);
}

/* Defers that submit to the ring that is full, again and again, until it takes their op. */
struct replay {
    struct fp8pipe *pipe;
    int *counter;
    int left;
};

static void resubmits(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    struct replay *replay = arg;
    fp8pipe_ticket next = 0; /* on a full ring: comes back at once, through another defer */

    (void)ticket;
    if (status != FP8PIPE_OK || replay->left == 0)
        return;
    status = try_host_call(replay->pipe, ON(0), work_count, replay->counter, &next);
    if (status == FP8PIPE_OK)
        replay->left--;
    else if (status != FP8PIPE_EAGAIN)
        return;
    (void)fp8pipe_defer(replay->pipe, next, FP8PIPE_DONE, resubmits, replay, 0);
}

static void defers_on_full_rings(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 2, 32, NULL);
    struct producer producer;
    fp8pipe_ticket latest[2] = {0, 0};
    struct replay replays[4];
    int counter[2] = {0, 0}, by_defers = 0, left = 0;

    watchdog("defers on full rings", 60);
    for (int i = 0; i < 4; i++) {
        replays[i] = (struct replay){pipe, &by_defers, 100};
        must(fp8pipe_defer(pipe, 0, FP8PIPE_DONE, resubmits, &replays[i], 0));
    }
    producer = (struct producer){pipe, latest, 0, counter};
    produces(&producer);
    test_close(pipe);
    for (int i = 0; i < 4; i++)
        left += replays[i].left;
    ok(counter[0] == EACH && counter[1] == EACH / 4,
       "a producer gets through while defers fill its rings");
    is_int(by_defers + left, 400, "and what the defers submitted has run");
}

static void rings(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++)
        full_rings(backend, (enum fp8pipe_mode)mode);
}

int main(void)
{
    test_each_backend(insides);
    test_each_backend(rings);
    defers_on_full_rings();
    return done_testing();
}
