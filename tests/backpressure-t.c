/* Guards full rings: they block or say EAGAIN, and lose, change and reorder nothing. */
#include <stdlib.h>
#include <string.h>

#include "async.h"

#define SLOTS 32
#define SIDE 16

/* Ops that note the order in which they ran; each lane's list is written by its stream alone. */
struct noted {
    int *list;
    int *length;
    int number;
};

static void note_work(void *arg)
{
    struct noted *noted = arg;

    noted->list[(*noted->length)++] = noted->number;
}

static void full_ring(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 1, SLOTS, NULL);
    struct noted noted[4 * SLOTS];
    int list[4 * SLOTS], length = 0, accepted = 0, wrong = 0;
    struct fp8pipe_submit submit = test_submit(0, FP8PIPE_NONBLOCK, 0, 0);
    enum fp8pipe_status status = FP8PIPE_OK;
    struct gate gate = GATE_INIT;
    fp8pipe_ticket ticket = 7;
    uint64_t submitted, depth;

    watchdog("full ring", 60);
    submit_call(pipe, ON(0), gate_call, &gate);
    gate_await(&gate, 1);
    while (accepted < 4 * SLOTS && status == FP8PIPE_OK) {
        noted[accepted] = (struct noted){list, &length, accepted};
        ticket = 7;
        status = try_host_call(pipe, submit, note_work, &noted[accepted], &ticket);
        accepted += status == FP8PIPE_OK;
    }
    submitted = stats_of(pipe, 0).submitted;
    depth = stats_of(pipe, 0).queue_depth;
    is_int(status, FP8PIPE_EAGAIN, "a full ring is EAGAIN with NONBLOCK");
    is_int(ticket, 7, "which gives no ticket");
    ok(strlen(fp8pipe_last_error()) > 0, "and a sentence: %s", fp8pipe_last_error());
    ok(accepted >= SLOTS - 1 && accepted <= SLOTS, "%d ops fill %d slots", accepted, SLOTS);
    ok(depth >= SLOTS - 1 && depth <= SLOTS, "the depth says so (%ju)", (uintmax_t)depth);
    ok(stats_of(pipe, 0).full > 0, "and the count of submits that found it full");
    is_int(submitted, accepted + 1, "what was refused is not counted as submitted");
    gate_open(&gate);
    test_drain(pipe);
    for (int i = 0; i < length; i++)
        wrong += list[i] != i;
    ok(length == accepted && wrong == 0, "all that was accepted has run, in order");
    test_close(pipe);
}

struct blocked {
    struct fp8pipe *pipe;
    struct noted *noted;
    int done; /* atomic */
};

static void *submits_one(void *arg)
{
    struct blocked *blocked = arg;

    submit_host_call(blocked->pipe, ON(0), note_work, blocked->noted);
    __atomic_store_n(&blocked->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void blocks(int64_t spin_ns)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 1, SLOTS, NULL);
    struct fp8pipe_submit submit = test_submit(0, FP8PIPE_NONBLOCK, 0, 0);
    struct gate gate = GATE_INIT;
    struct blocked blocked[3];
    int list[3], length = 0;
    struct noted noted[3];
    pthread_t threads[3];
    struct fp8pipe *pipe;

    watchdog("blocking submits", 60);
    options.spin_ns = spin_ns;
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    submit_call(pipe, ON(0), gate_call, &gate);
    gate_await(&gate, 1);
    while (try_host_call(pipe, submit, work_nothing, NULL, NULL) == FP8PIPE_OK)
        ;
    for (int i = 0; i < 3; i++) {
        noted[i] = (struct noted){list, &length, i};
        blocked[i] = (struct blocked){pipe, &noted[i], 0};
        threads[i] = test_thread(submits_one, &blocked[i]);
    }
    sleep_ns(30 * MS_NS);
    ok(!__atomic_load_n(&blocked[0].done, __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&blocked[2].done, __ATOMIC_ACQUIRE),
       "without NONBLOCK submits wait for room (spin %jd ns)", (intmax_t)spin_ns);
    gate_open(&gate);
    for (int i = 0; i < 3; i++)
        test_join(threads[i]);
    test_drain(pipe);
    is_int(length, 3, "and then all of them run");
    is_int(stats_of(pipe, 0).rescues, 0, "without a rescue");
    test_close(pipe);
}

/* ---- Refused submits change nothing of the library's -------------------------------------- */

static void refused_changes_nothing(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, SLOTS, NULL);
    struct fp8pipe_submit nonblock = test_submit(0, FP8PIPE_NONBLOCK, 0, 0);
    struct fp8pipe_quantize_op quantize = FP8PIPE_QUANTIZE_OP_INIT;
    struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *tensor, *filled;
    struct test_matrix x;
    struct test_rng rng = {2};
    struct gate gate = GATE_INIT;

    watchdog("refused changes nothing", 60);
    x = test_matrix_random(pipe, FP8PIPE_FP32, SIDE, SIDE, 0, 0, 1, &rng, NULL);
    scaling = test_scaling(pipe, 1, 0);
    must(fp8pipe_tensor_create(pipe, &tensor));
    must(fp8pipe_tensor_create(pipe, &filled));
    test_quantize(filled, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(1));
    test_drain(pipe);
    submit_call(pipe, ON(0), gate_call, &gate);
    gate_await(&gate, 1);
    while (try_host_call(pipe, nonblock, work_nothing, NULL, NULL) == FP8PIPE_OK)
        ;
    quantize.submit = update.submit = read.submit = nonblock;
    quantize.x = x.view;
    quantize.scaling = scaling;
    is_int(fp8pipe_tensor_quantize(tensor, &quantize, NULL), FP8PIPE_EAGAIN,
           "a quantize is EAGAIN");
    must(fp8pipe_tensor_info_get(tensor, &info));
    ok(!info.filled, "and has not filled its tensor");
    read.submit.flags |= FP8PIPE_LAST_USE;
    is_int(fp8pipe_tensor_read(filled, &read, NULL), FP8PIPE_EAGAIN, "a last use is EAGAIN");
    must(fp8pipe_tensor_info_get(filled, &info));
    ok(info.filled, "and has not emptied its tensor");
    is_int(fp8pipe_scaling_update(scaling, &update, NULL), FP8PIPE_EAGAIN, "an update is EAGAIN");
    is_int(fp8pipe_scaling_skip(scaling, &update, NULL), FP8PIPE_EAGAIN, "a skip is EAGAIN");
    ok(!test_slot(scaling, 0).has_scale && test_slot(scaling, 0).amax > 0,
       "and neither has moved the scaling");
    gate_open(&gate);
    test_drain(pipe);
    ok(!test_slot(scaling, 0).has_scale, "also not later");
    test_matrix_free(&x);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_tensor_destroy(filled));
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
}

/* ---- Ops of several slots ----------------------------------------------------------------- */

#define EACH 800
#define LANES 4

struct mixer {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct test_matrix *x, *y;
    uint64_t seed;
    int *length; /* of the lane */
    int *list;
    int lane;
    struct noted noted[EACH];
};

/* One thread a lane: linears, gemms, updates (which take extra slots), noting ops between them. */
static void *mixes(void *arg)
{
    struct mixer *m = arg;
    struct test_rng rng = {m->seed};

    for (int i = 0; i < EACH; i++) {
        struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
        struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
        struct fp8pipe_gemm_op gemm = FP8PIPE_GEMM_OP_INIT;

        forward.submit = update.submit = gemm.submit = ON(m->lane);
        forward.x = gemm.a = gemm.b = m->x->view;
        forward.y = gemm.d = m->y->view;
        switch (test_random_range(&rng, 0, 5)) {
        case 0:
            must(fp8pipe_linear_forward(m->linear, &forward, NULL));
            break;
        case 1:
            must(fp8pipe_gemm(m->pipe, &gemm, NULL));
            break;
        case 2:
            must(fp8pipe_scaling_update(m->scaling, &update, NULL));
            break;
        default:
            break;
        }
        m->noted[i] = (struct noted){m->list, m->length, i};
        submit_host_call(m->pipe, ON(m->lane), note_work, &m->noted[i]);
    }
    return NULL;
}

/* Beside them on the same rings: ops that end fillings, and have to try again for room. */
static void *refills(void *arg)
{
    struct mixer *m = arg;
    struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
    struct fp8pipe_tensor *tensor;

    must(fp8pipe_tensor_create(m->pipe, &tensor));
    read.submit = test_submit(m->lane, FP8PIPE_LAST_USE, 0, 0);
    for (int i = 0; i < EACH; i++) {
        test_quantize(tensor, m->x->view, m->scaling, 0, FP8PIPE_ROWWISE, ON(m->lane));
        if (i % 2)
            must(fp8pipe_tensor_read(tensor, &read, NULL));
    }
    must(fp8pipe_tensor_clear(tensor));
    test_drain(m->pipe);
    must(fp8pipe_tensor_destroy(tensor));
    return NULL;
}

static void several_slots(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, LANES, SLOTS, NULL);
    static struct mixer mixers[LANES];
    static int lists[LANES][EACH];
    struct test_matrix x, w, y[LANES];
    int lengths[LANES] = {0}, wrong = 0;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    pthread_t threads[LANES], refillers[LANES];
    struct test_rng rng = {8};
    struct fp8pipe_stats stats;

    watchdog("ops of several slots", 60);
    x = test_matrix_random(pipe, FP8PIPE_FP32, SIDE, SIDE, 0, 0, 1, &rng, NULL);
    w = test_matrix_random(pipe, FP8PIPE_FP32, SIDE, SIDE, 0, 0, 1, &rng, NULL);
    scaling = test_scaling(pipe, 3, 0);
    linear = test_linear(pipe, w.view, scaling);
    for (int i = 0; i < LANES; i++) {
        y[i] = test_matrix_make(pipe, FP8PIPE_FP32, SIDE, SIDE, 0, 0);
        mixers[i] = (struct mixer){.pipe = pipe,
                                   .scaling = scaling,
                                   .linear = linear,
                                   .x = &x,
                                   .y = &y[i],
                                   .seed = (uint64_t)i,
                                   .length = &lengths[i],
                                   .list = lists[i],
                                   .lane = i};
    }
    for (int i = 0; i < LANES; i++) {
        threads[i] = test_thread(mixes, &mixers[i]);
        refillers[i] = test_thread(refills, &mixers[i / 2]); /* two of them on a lane */
    }
    for (int i = 0; i < LANES; i++) {
        test_join(threads[i]);
        test_join(refillers[i]);
    }
    test_drain(pipe);
    for (int i = 0; i < LANES; i++) {
        wrong += lengths[i] != EACH;
        for (int j = 0; j < lengths[i]; j++)
            wrong += lists[i][j] != j;
    }
    stats = stats_of(pipe, -1);
    is_int(wrong, 0, "%s: ops of several slots go round small rings and keep each lane's order",
           test_backend_name(backend));
    ok(stats.submitted == stats.done && stats.failed == 0 && stats.queue_depth == 0,
       "all are done, none failed");
    is_int(stats.rescues, 0, "without a rescue");
    test_matrix_free(&x);
    test_matrix_free(&w);
    for (int i = 0; i < LANES; i++)
        test_matrix_free(&y[i]);
    must(fp8pipe_linear_destroy(linear));
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
}

/* ---- A stream that runs behind ------------------------------------------------------------ */

#define BEHIND 300

struct slow {
    int ran;
};

static void work_slowly(void *arg)
{
    struct slow *slow = arg;

    sleep_ns(MS_NS / 20);
    __atomic_store_n(&slow->ran, 1, __ATOMIC_RELEASE);
}

struct behind {
    struct fp8pipe *pipe;
    struct test_matrix *x, *y;
    struct slow slow[BEHIND];
    fp8pipe_ticket tickets[BEHIND]; /* stored with release */
};

static void *runs_ahead(void *arg)
{
    struct behind *b = arg;
    struct test_rng rng = {12};

    for (int i = 0; i < BEHIND; i++) {
        struct fp8pipe_gemm_op gemm = FP8PIPE_GEMM_OP_INIT;
        fp8pipe_ticket ticket;

        gemm.submit = ON(0);
        gemm.a = gemm.b = b->x->view;
        gemm.d = b->y->view;
        for (int64_t gemms = test_random_range(&rng, 0, 2); gemms > 0; gemms--)
            must(fp8pipe_gemm(b->pipe, &gemm, NULL)); /* larger than the others */
        ticket = submit_host_call(b->pipe, ON(0), work_slowly, &b->slow[i]);
        __atomic_store_n(&b->tickets[i], ticket, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* More is issued than a ring holds before any of it is done: marks must not get mixed up. */
static void stream_behind(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, SLOTS, NULL);
    struct behind *b = test_calloc(1, sizeof(*b));
    struct gate gate = GATE_INIT;
    struct test_rng rng = {2};
    int early = 0, wrong = 0;
    struct test_matrix x, y;
    pthread_t thread;

    watchdog("a stream that runs behind", 60);
    x = test_matrix_random(pipe, FP8PIPE_FP32, SIDE, SIDE, 0, 0, 1, &rng, NULL);
    y = test_matrix_make(pipe, FP8PIPE_FP32, SIDE, SIDE, 0, 0);
    b->pipe = pipe;
    b->x = &x;
    b->y = &y;
    submit_host_call(pipe, ON(0), gate_work, &gate);
    gate_await(&gate, 1);
    thread = test_thread(runs_ahead, b);
    sleep_ns(20 * MS_NS);
    for (int i = 0; i < BEHIND; i++) {
        fp8pipe_ticket ticket = __atomic_load_n(&b->tickets[i], __ATOMIC_ACQUIRE);

        early += ticket && state_of(pipe, ticket).done;
    }
    gate_open(&gate);
    test_join(thread);
    for (int i = 0; i < BEHIND; i++) {
        test_wait(pipe, b->tickets[i]);
        wrong += !__atomic_load_n(&b->slow[i].ran, __ATOMIC_ACQUIRE);
    }
    is_int(early, 0, "%s: nothing is done while the stream is held", test_backend_name(backend));
    is_int(wrong, 0, "%s: what is done has run, however far the stream is behind",
           test_backend_name(backend));
    test_drain(pipe);
    test_matrix_free(&x);
    test_matrix_free(&y);
    test_close(pipe);
    free(b);
}

static void cases(enum fp8pipe_backend backend)
{
    stream_behind(backend);
    full_ring(backend);
    refused_changes_nothing(backend);
    several_slots(backend);
}

int main(void)
{
    test_each_backend(cases);
    blocks(-1);
    blocks(0);
    return done_testing();
}
