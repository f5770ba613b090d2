/* Guards tickets: marks, state, waits, defers, and the order that lanes and tickets promise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "chaos.h"

/* ---- Marks, state and waits --------------------------------------------------------------- */

static void *opens_later(void *gate)
{
    sleep_ns(30 * MS_NS);
    gate_open(gate);
    return NULL;
}

static void marks(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(backend, mode, 2, 0, NULL);
    struct gate gate = GATE_INIT;
    struct fp8pipe_state state;
    fp8pipe_ticket held, behind, elsewhere;
    char sentence[64] = "unset";
    int64_t start_ns;
    pthread_t opener;

    held = submit_host_call(pipe, ON(0), gate_work, &gate);
    behind = submit_call(pipe, ON(0), call_nothing, NULL);
    elsewhere = submit_call(pipe, AFTER(1, held), call_nothing, NULL);
    is_int(fp8pipe_wait(pipe, held, FP8PIPE_ISSUED, -1), FP8PIPE_OK, "held: issued");
    is_int(fp8pipe_wait(pipe, behind, FP8PIPE_ISSUED, -1), FP8PIPE_OK,
           "the op behind it is issued while it runs");
    is_int(fp8pipe_wait(pipe, elsewhere, FP8PIPE_ISSUED, -1), FP8PIPE_OK,
           "so is the one on another lane that names it");
    gate_await(&gate, 1);
    state = state_of(pipe, behind);
    ok(state.issued && !state.done && state.outcome == FP8PIPE_OUTCOME_OK && state.root == 0,
       "which is issued and not done");
    state = state_of(pipe, elsewhere);
    ok(state.issued && !state.done, "nor is the other");
    is_int(fp8pipe_wait(pipe, held, FP8PIPE_DONE, 0), FP8PIPE_ETIMEDOUT, "time-out 0 only looks");
    start_ns = test_now_ns();
    is_int(fp8pipe_wait(pipe, behind, FP8PIPE_DONE, 20 * MS_NS), FP8PIPE_ETIMEDOUT,
           "a time-out of 20 ms passes");
    start_ns = test_now_ns() - start_ns;
    ok(start_ns >= 20 * MS_NS && start_ns < A_SECOND_NS, "after 20 ms and not much later");
    start_ns = test_now_ns();
    is_int(fp8pipe_drain(pipe, 20 * MS_NS), FP8PIPE_ETIMEDOUT, "drain's passes too");
    start_ns = test_now_ns() - start_ns;
    ok(start_ns >= 20 * MS_NS && start_ns < A_SECOND_NS, "after 20 ms as well");
    is_int(fp8pipe_drain(pipe, 0), FP8PIPE_ETIMEDOUT, "drain with time-out 0 only looks");

    opener = test_thread(opens_later, &gate);
    is_int(fp8pipe_wait(pipe, behind, FP8PIPE_DONE, -1), FP8PIPE_OK, "no limit: until it is done");
    test_join(opener);
    is_int(fp8pipe_drain(pipe, -1), FP8PIPE_OK, "drain without limit");
    state = state_of(pipe, elsewhere);
    ok(state.issued && state.done && state.outcome == FP8PIPE_OUTCOME_OK &&
           state.status == FP8PIPE_OK && state.root == 0,
       "then all are done and OK");
    is_int(fp8pipe_wait(pipe, held, FP8PIPE_DONE, 0), FP8PIPE_OK, "time-out 0 on a done op is OK");
    is_int(fp8pipe_error_get(pipe, held, sentence, sizeof(sentence)), FP8PIPE_OK, "its error");
    is_str(sentence, "", "is empty");

    state = state_of(pipe, 0);
    ok(state.issued && state.done && state.outcome == FP8PIPE_OUTCOME_OK, "ticket 0 is done");
    is_int(fp8pipe_wait(pipe, 0, FP8PIPE_ISSUED, 0), FP8PIPE_OK, "and needs no wait for issued");
    is_int(fp8pipe_wait(pipe, 0, FP8PIPE_DONE, -1), FP8PIPE_OK, "nor for done");
    test_close(pipe);
}

/* A launcher that is held: what is behind it is not even issued. */
static void not_issued(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    struct gate gate = GATE_INIT;
    fp8pipe_ticket held = submit_call(pipe, ON(0), gate_call, &gate);
    fp8pipe_ticket behind = submit_host_call(pipe, ON(0), work_nothing, NULL);
    fp8pipe_ticket elsewhere = submit_host_call(pipe, AFTER(1, behind), work_nothing, NULL);
    int64_t start_ns;

    gate_await(&gate, 1);
    ok(!state_of(pipe, held).issued && !state_of(pipe, behind).issued,
       "neither the call that runs nor the op behind it is issued");
    is_int(fp8pipe_wait(pipe, behind, FP8PIPE_ISSUED, 0), FP8PIPE_ETIMEDOUT, "looking says so");
    start_ns = test_now_ns();
    is_int(fp8pipe_wait(pipe, elsewhere, FP8PIPE_ISSUED, 20 * MS_NS), FP8PIPE_ETIMEDOUT,
           "nor is an op of another lane that names it");
    ok(test_now_ns() - start_ns < A_SECOND_NS, "which the time-out says in time");
    ok(stats_of(pipe, 0).queue_depth > 0, "the queue has a depth");
    gate_open(&gate);
    is_int(fp8pipe_wait(pipe, elsewhere, FP8PIPE_DONE, -1), FP8PIPE_OK, "then it is done");
    test_close(pipe);
}

static void many_waiters(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 2, 32, NULL);
    struct gate launcher = GATE_INIT, stream = GATE_INIT;
    struct waiter waiters[8];
    pthread_t threads[8];
    fp8pipe_ticket old = submit_host_call(pipe, ON(0), work_nothing, NULL), ticket;
    int answered = 0;

    submit_call(pipe, ON(0), gate_call, &launcher);
    ticket = submit_host_call(pipe, ON(0), gate_work, &stream);
    for (int i = 0; i < 8; i++) {
        waiters[i] =
            (struct waiter){pipe, ticket, i % 2 ? FP8PIPE_DONE : FP8PIPE_ISSUED, FP8PIPE_EINVAL};
        threads[i] = test_thread(waiter_wait, &waiters[i]);
    }
    sleep_ns(5 * MS_NS);
    gate_open(&launcher);
    for (int i = 0; i < 8; i += 2)
        test_join(threads[i]);
    gate_open(&stream);
    for (int i = 1; i < 8; i += 2)
        test_join(threads[i]);
    for (int i = 0; i < 8; i++)
        answered += waiters[i].status == FP8PIPE_OK;
    is_int(answered, 8, "eight threads that wait for one ticket are all answered");

    for (int i = 0; i < 1000; i++)
        ticket = submit_host_call(pipe, ON(0), work_nothing, NULL);
    test_wait(pipe, ticket);
    ok(state_of(pipe, old).done && state_of(pipe, old).outcome == FP8PIPE_OUTCOME_OK,
       "a ticket that the ring has passed many times is still done and OK");
    is_int(fp8pipe_wait(pipe, old, FP8PIPE_DONE, 0), FP8PIPE_OK, "and waits agree");
    is_int(stats_of(pipe, -1).rescues, 0, "no sleep had to be rescued");
    test_close(pipe);
}

/* ---- Defers ------------------------------------------------------------------------------- */

struct order {
    int next;
};

struct turn {
    struct order *order;
    struct answer answer;
    int turn;
};

static void take_turn(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    struct turn *turn = arg;

    turn->turn = turn->order->next++;
    answer_take(&turn->answer, ticket, status);
}

static enum fp8pipe_status who_am_i(struct fp8pipe_stream *stream, void *self)
{
    (void)stream;
    *(pthread_t *)self = pthread_self();
    return FP8PIPE_OK;
}

static void defers(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(backend, mode, 2, 0, NULL);
    struct gate gate = GATE_INIT;
    struct order order = {0};
    struct turn turns[10];
    pthread_t launcher;
    fp8pipe_ticket held, whoever;
    int wrong = 0;

    memset(turns, 0, sizeof(turns));
    whoever = submit_call(pipe, ON(0), who_am_i, &launcher);
    test_wait(pipe, whoever);
    held = submit_host_call(pipe, ON(0), gate_work, &gate);
    /* even turns: done, odd ones: issued; the last two are asked for once all is over */
    for (int i = 0; i < 8; i++) {
        turns[i].order = &order;
        must(fp8pipe_defer(pipe, held, i % 2 ? FP8PIPE_ISSUED : FP8PIPE_DONE, take_turn, &turns[i],
                           0));
    }
    ok(answer_await(&turns[7].answer), "an issued defer runs while the op is not done");
    ok(!__atomic_load_n(&turns[0].answer.calls, __ATOMIC_ACQUIRE), "a done one does not");
    gate_open(&gate);
    ok(answer_await(&turns[6].answer), "and runs once it is");
    for (int i = 8; i < 10; i++) {
        turns[i].order = &order;
        must(fp8pipe_defer(pipe, i == 8 ? held : 0, FP8PIPE_DONE, take_turn, &turns[i], 0));
        ok(answer_await(&turns[i].answer), "a defer on what is done already runs too");
    }
    for (int i = 0; i < 10; i++) {
        int want = i >= 8 ? i : i % 2 ? i / 2 : 4 + i / 2;

        wrong += turns[i].turn != want || turns[i].answer.calls != 1;
        wrong += turns[i].answer.status != FP8PIPE_OK;
        wrong += turns[i].answer.ticket != (i == 9 ? 0 : held);
        wrong += !pthread_equal(turns[i].answer.thread, turns[0].answer.thread);
    }
    is_int(wrong, 0, "issued ones before done ones, each in the order of the calls, once");
    ok(!pthread_equal(turns[0].answer.thread, pthread_self()) &&
           !pthread_equal(turns[0].answer.thread, launcher),
       "on a thread that is neither the caller's nor a launcher");
    test_close(pipe);
}

/* Both marks reached at once: the issued defers run first all the same. */
static void defers_at_once(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, NULL);
    struct gate gate = GATE_INIT;
    struct order order = {0};
    struct turn turns[200];
    int wrong = 0;

    memset(turns, 0, sizeof(turns));
    submit_call(pipe, ON(0), gate_call, &gate);
    for (int i = 0; i < 200; i += 2) {
        fp8pipe_ticket ticket = submit_host_call(pipe, ON(0), work_nothing, NULL);

        turns[i].order = turns[i + 1].order = &order;
        must(fp8pipe_defer(pipe, ticket, FP8PIPE_DONE, take_turn, &turns[i], 0));
        must(fp8pipe_defer(pipe, ticket, FP8PIPE_ISSUED, take_turn, &turns[i + 1], 0));
    }
    gate_open(&gate);
    test_drain(pipe);
    test_close(pipe);
    for (int i = 0; i < 200; i += 2)
        wrong += turns[i].answer.calls != 1 || turns[i + 1].answer.calls != 1 ||
                 turns[i].turn < turns[i + 1].turn;
    is_int(wrong, 0, "a ticket's issued defer runs before its done one, also if asked for later");
}

struct deferring {
    struct fp8pipe *pipe;
    struct answer answer;
    enum fp8pipe_status status;
    fp8pipe_ticket ticket;
};

static void *defers_once(void *arg)
{
    struct deferring *self = arg;

    self->status =
        fp8pipe_defer(self->pipe, self->ticket, FP8PIPE_DONE, answer_take, &self->answer, 0);
    __atomic_store_n(&self->ticket, 0, __ATOMIC_RELEASE);
    return NULL;
}

static void defer_limit(enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 1, 0, NULL);
    struct gate gate = GATE_INIT;
    struct answer answers[4];
    struct deferring blocked;
    struct fp8pipe *pipe;
    pthread_t thread;
    fp8pipe_ticket held;

    memset(answers, 0, sizeof(answers));
    memset(&blocked, 0, sizeof(blocked));
    options.defer_limit = 4;
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    held = submit_host_call(pipe, ON(0), gate_work, &gate);
    for (int i = 0; i < 4; i++)
        must(fp8pipe_defer(pipe, held, FP8PIPE_DONE, answer_take, &answers[i], FP8PIPE_NONBLOCK));
    is_int(fp8pipe_defer(pipe, held, FP8PIPE_DONE, answer_take, &answers[0], FP8PIPE_NONBLOCK),
           FP8PIPE_EAGAIN, "%s: the defer above the limit is EAGAIN", mode_name(mode));
    blocked.pipe = pipe;
    blocked.ticket = held;
    thread = test_thread(defers_once, &blocked);
    sleep_ns(20 * MS_NS);
    ok(__atomic_load_n(&blocked.ticket, __ATOMIC_ACQUIRE) != 0, "without NONBLOCK it blocks");
    gate_open(&gate);
    test_join(thread);
    is_int(blocked.status, FP8PIPE_OK, "until there is room");
    test_close(pipe);
    ok(blocked.answer.calls == 1 && answers[0].calls == 1 && answers[3].calls == 1,
       "and each has run once when close returns");
}

/* From inside a defer: submits and defers as if with NONBLOCK. */
struct nested {
    struct fp8pipe *pipe;
    struct gate *gate;
    int counter;
    int full;
    enum fp8pipe_status submit;
    enum fp8pipe_status defer;
    struct answer answer;
};

static void submits_inside(void *arg, fp8pipe_ticket ticket, enum fp8pipe_status status)
{
    struct nested *nested = arg;
    fp8pipe_ticket inner = 0;

    (void)ticket, (void)status;
    nested->submit = try_host_call(nested->pipe, ON(0), work_count, &nested->counter, &inner);
    nested->defer =
        fp8pipe_defer(nested->pipe, inner, FP8PIPE_DONE, answer_take, &nested->answer, 0);
    submit_call(nested->pipe, ON(1), gate_call, nested->gate);
    for (nested->full = 0; nested->full < 100000; nested->full++)
        if (try_host_call(nested->pipe, ON(1), work_nothing, NULL, NULL) != FP8PIPE_OK)
            break;
    status = try_host_call(nested->pipe, ON(1), work_nothing, NULL, NULL);
    if (status != FP8PIPE_EAGAIN)
        nested->full = -1;
    gate_open(nested->gate);
}

static void inside_a_defer(void)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 2, 32, NULL);
    struct gate gate = GATE_INIT;
    struct nested nested = {.pipe = pipe, .gate = &gate};
    fp8pipe_ticket ticket = submit_host_call(pipe, ON(0), work_nothing, NULL);

    must(fp8pipe_defer(pipe, ticket, FP8PIPE_DONE, submits_inside, &nested, 0));
    ok(answer_await(&nested.answer), "a defer submits and defers");
    is_int(nested.submit, FP8PIPE_OK, "its submit is OK");
    is_int(nested.defer, FP8PIPE_OK, "so is its defer");
    ok(nested.full > 0 && nested.full < 100000, "on a full ring its submit is EAGAIN, unasked");
    test_drain(pipe);
    is_int(nested.counter, 1, "what it submitted has run");
    test_close(pipe);
}

/* ---- Order -------------------------------------------------------------------------------- */

#define NODES_MAX 480

/* `ended` is plain memory: ThreadSanitizer then sees whether order means visibility. */
struct node {
    struct graph *graph;
    fp8pipe_ticket ticket;                     /* stored with release once it is known */
    struct node *after[FP8PIPE_AFTER_MAX + 1]; /* the last may be the one before in the lane */
    int after_count;
    int sleep_us;
    int ended;
};

struct graph {
    struct fp8pipe *pipe;
    struct node nodes[NODES_MAX];
    int lanes;
    int threads;
    int broken; /* ops that ran before something they were to run after */
};

struct author {
    struct graph *graph;
    int number;
    uint64_t seed;
};

static void node_runs(void *arg)
{
    struct node *node = arg;

    for (int i = 0; i < node->after_count; i++)
        if (!node->after[i]->ended)
            work_count(&node->graph->broken);
    if (node->sleep_us)
        sleep_ns(node->sleep_us * INT64_C(1000));
    node->ended = 1;
}

static void *writes_nodes(void *arg)
{
    struct author *author = arg;
    struct graph *graph = author->graph;
    struct test_rng rng = {author->seed};
    struct node *before_in_lane[FP8PIPE_LANES_MAX] = {NULL};

    for (int i = author->number; i < NODES_MAX; i += graph->threads) {
        struct node *node = &graph->nodes[i];
        int lane = (int)test_random_range(&rng, -1, graph->lanes - 1);
        int wanted = (int)test_random_range(&rng, 0, 3);
        struct fp8pipe_submit submit = ON(lane);
        fp8pipe_ticket ticket = 0;

        if (test_random_range(&rng, 0, 15) == 0)
            wanted = FP8PIPE_AFTER_MAX;
        node->graph = graph;
        for (int j = 0; j < wanted; j++) {
            /* near ones, mostly: they are not done yet */
            int back = (int)test_random_range(&rng, 1, test_random_range(&rng, 1, 40));
            struct node *other = i >= back ? &graph->nodes[i - back] : NULL;
            fp8pipe_ticket named = other ? __atomic_load_n(&other->ticket, __ATOMIC_ACQUIRE) : 0;

            submit.after[submit.after_count++] = named;
            if (named)
                node->after[node->after_count++] = other;
        }
        if (lane >= 0 && before_in_lane[lane])
            node->after[node->after_count++] = before_in_lane[lane];
        if (lane >= 0)
            before_in_lane[lane] = node;
        if (test_random_range(&rng, 0, 15) == 0)
            node->sleep_us = (int)test_random_range(&rng, 1, 200);
        must(try_host_call(graph->pipe, submit, node_runs, node, &ticket));
        __atomic_store_n(&node->ticket, ticket, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void random_graph(struct fp8pipe *pipe, int lanes, int threads, const char *what)
{
    struct graph *graph = test_calloc(1, sizeof(*graph));
    struct author authors[4];
    pthread_t running[4];
    int ended = 0;

    graph->pipe = pipe;
    graph->lanes = lanes;
    graph->threads = threads;
    for (int i = 0; i < threads; i++) {
        authors[i] = (struct author){graph, i, (uint64_t)(lanes * 100 + threads * 10 + i)};
        running[i] = test_thread(writes_nodes, &authors[i]);
    }
    for (int i = 0; i < threads; i++)
        test_join(running[i]);
    test_drain(pipe);
    for (int i = 0; i < NODES_MAX; i++)
        ended += graph->nodes[i].ended;
    ok(ended == NODES_MAX && graph->broken == 0,
       "%s, %d lanes, %d threads: no op starts before what it comes after", what, lanes, threads);
    if (ended != NODES_MAX || graph->broken)
        diag("%d of %d ended, %d orders broken", ended, NODES_MAX, graph->broken);
    free(graph);
}

static void random_graphs(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        for (int lanes = 1; lanes <= 4; lanes *= 2) {
            for (int threads = 1; threads <= 4; threads *= 2) {
                struct fp8pipe *pipe =
                    async_open(backend, (enum fp8pipe_mode)mode, lanes, 32, NULL);

                random_graph(pipe, lanes, threads, mode_name((enum fp8pipe_mode)mode));
                is_int(stats_of(pipe, -1).rescues, 0, "no sleep had to be rescued");
                test_close(pipe);
            }
        }
    }
}

static void random_graphs_delayed(void)
{
    for (int i = 0; i < 4; i++) {
        enum fp8pipe_mode mode = i % 2 ? FP8PIPE_INLINE : FP8PIPE_ASYNC;
        struct fp8pipe_options options = async_options(mode, 3, 32, NULL);
        struct fp8pipe *pipe =
            chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, i < 2 ? 0 : MS_NS / 5);

        chaos_delays((uint64_t)i + 1, MS_NS / 10);
        random_graph(pipe, 3, 3, "with delays");
        test_close(pipe);
        chaos_check("with delays");
    }
}

static void limits(enum fp8pipe_mode mode)
{
    struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, mode, 2, 0, NULL);
    struct fp8pipe_submit submit = ON(1);
    int counter = 0;

    for (int i = 0; i < FP8PIPE_AFTER_MAX; i++)
        submit.after[i] = submit_host_call(pipe, ON(0), work_count, &counter);
    submit.after[3] = submit.after[2];
    submit.after[5] = 0;
    submit.after_count = FP8PIPE_AFTER_MAX;
    test_wait(pipe, submit_host_call(pipe, submit, work_count, &counter));
    is_int(counter, FP8PIPE_AFTER_MAX + 1, "%s: eight tickets, one twice and a 0", mode_name(mode));
    submit.after_count = 2;
    submit.after[7] = ~(fp8pipe_ticket)0;
    is_int(try_host_call(pipe, submit, work_count, &counter, NULL), FP8PIPE_OK,
           "entries beyond after_count are not read, and the ticket may be NULL");
    for (int i = 0; i < 100; i++)
        submit_host_call(pipe, ON(FP8PIPE_LANE_AUTO), work_count, &counter);
    test_drain(pipe);
    is_int(counter, FP8PIPE_AFTER_MAX + 102, "ops on automatic lanes run");
    is_int(stats_of(pipe, 0).submitted + stats_of(pipe, 1).submitted, FP8PIPE_AFTER_MAX + 102,
           "on the pipe's lanes");
    test_close(pipe);
}

static enum fp8pipe_status call_returns(struct fp8pipe_stream *stream, void *status)
{
    (void)stream;
    return *(enum fp8pipe_status *)status;
}

/* A function may fail with any status, also one that a wait has a meaning of its own for. */
static void statuses_of_functions(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    enum fp8pipe_status statuses[] = {FP8PIPE_ETIMEDOUT, FP8PIPE_ETOOOLD, FP8PIPE_EDEVICE,
                                      (enum fp8pipe_status)4711};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        struct fp8pipe *pipe = async_open(backend, mode, 1, 0, NULL);
        struct fp8pipe_state state = FP8PIPE_STATE_INIT;
        char root[80];
        fp8pipe_ticket ticket = submit_call(pipe, ON(0), call_returns, &statuses[i]);

        fp8pipe_ticket after = submit_call(pipe, ON(0), call_returns, &statuses[i]);

        is_int(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, -1),
               statuses[i] == 4711 ? FP8PIPE_ECALL : statuses[i],
               "%s, %s: a function's %s is what a wait returns", test_backend_name(backend),
               mode_name(mode), fp8pipe_status_name(statuses[i]));
        ok(fp8pipe_state_get(pipe, ticket, &state) == FP8PIPE_OK && state.root == ticket &&
               state.outcome == FP8PIPE_OUTCOME_FAILED,
           "its state is failed");
        snprintf(root, sizeof(root),
                 "cancelled, ticket %#llx failed: call: ", (unsigned long long)ticket);
        fp8pipe_wait(pipe, after, FP8PIPE_DONE, -1);
        ok(strstr(fp8pipe_last_error(), root) != NULL, "what it cancels names it: %s",
           fp8pipe_last_error());
        is_int(fp8pipe_drain(pipe, -1), FP8PIPE_OK, "drain takes it for what it is");
        is_int(fp8pipe_close(pipe, 0, -1), FP8PIPE_OK, "and so does close");
    }
}

static void cases(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        watchdog("marks", 60);
        marks(backend, (enum fp8pipe_mode)mode);
        watchdog("defers", 60);
        defers(backend, (enum fp8pipe_mode)mode);
        watchdog("statuses of functions", 60);
        statuses_of_functions(backend, (enum fp8pipe_mode)mode);
    }
    watchdog("not issued", 60);
    not_issued(backend);
    watchdog("random graphs", 120);
    random_graphs(backend);
}

int main(void)
{
    test_each_backend(cases);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        watchdog("defer limit", 60);
        defer_limit((enum fp8pipe_mode)mode);
        watchdog("limits", 60);
        limits((enum fp8pipe_mode)mode);
    }
    watchdog("defers at once", 60);
    defers_at_once();
    watchdog("inside a defer", 60);
    inside_a_defer();
    watchdog("many waiters", 60);
    many_waiters();
    watchdog("random graphs with delays", 120);
    random_graphs_delayed();
    return done_testing();
}
