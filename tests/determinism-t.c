/*
 * Determinism: one graph of ops - chains of layers, gradients added up over steps, weights written
 * anew, an update a step - gives the same bits in either mode, on any number of lanes, from any
 * number of threads.
 *
 * Matrices are ordered by tickets; the scaling, the weights' versions and what a forward keeps are
 * left to order themselves.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

#define CHAINS 4
#define LAYERS 2 /* of a chain */
#define STEPS 3
#define TOKENS 29
#define WIDTH 40

struct node {
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *saved, *dy_saved;
    struct test_matrix w, bias, dw, db;
    struct test_matrix w_source; /* [STEPS * WIDTH, WIDTH]: the weight of each step */
};

struct chain {
    struct test_matrix x[LAYERS + 1];  /* x[0] given; x[i + 1] = forward of layer i */
    struct test_matrix dx[LAYERS + 1]; /* dx[LAYERS] given; dx[i] = dgrad of layer i */
    struct node node[LAYERS];
    fp8pipe_ticket last; /* of the chain's step before */
};

struct graph {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct chain chain[CHAINS];
    int32_t lanes;
    int threads;
    pthread_barrier_t barrier;
};

/* ---- Making ------------------------------------------------------------------------------- */

/* Awkward sides and dtypes: a chain's number changes them. */
static void make_node(struct graph *graph, struct node *node, int chain, int layer,
                      struct test_rng *rng)
{
    struct fp8pipe_linear_options options = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe *pipe = graph->pipe;

    node->w = test_matrix_make(pipe, FP8PIPE_BF16, WIDTH, WIDTH, 0, 0);
    node->w_source = test_matrix_random(pipe, FP8PIPE_BF16, (int64_t)STEPS * WIDTH, WIDTH, 0, 0,
                                        0.15, rng, NULL);
    node->bias = test_matrix_random(pipe, FP8PIPE_FP32, 1, WIDTH, 0, 0, 1, rng, NULL);
    node->dw = test_matrix_random(pipe, FP8PIPE_FP32, WIDTH, WIDTH, WIDTH + chain, 0, 1, rng, NULL);
    node->db = test_matrix_random(pipe, FP8PIPE_FP32, 1, WIDTH, 0, 0, 1, rng, NULL);
    options.in_features = WIDTH;
    options.out_features = WIDTH;
    options.weight = node->w.view;
    options.bias = test_vector(&node->bias);
    if (chain < CHAINS - 1) { /* the last chain is unquantized; 0 and 1 share their slots */
        uint32_t first = (uint32_t)((chain == 0 ? 1 : chain) * LAYERS + layer) * 3;

        options.scaling = graph->scaling;
        options.slot_x = first;
        options.slot_w = first + 1;
        options.slot_dy = first + 2;
    }
    must(fp8pipe_linear_create(pipe, &options, &node->linear));
    must(fp8pipe_tensor_create(pipe, &node->saved));
    must(fp8pipe_tensor_create(pipe, &node->dy_saved));
}

static void graph_make(struct graph *graph, enum fp8pipe_backend backend, enum fp8pipe_mode mode,
                       int32_t lanes, int threads)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct fp8pipe_scaling_options scaling = FP8PIPE_SCALING_OPTIONS_INIT;
    struct test_rng rng = {99};

    memset(graph, 0, sizeof(*graph));
    options.mode = mode;
    options.lanes = lanes;
    options.plans = FP8PIPE_PLANS_FIXED;
    graph->lanes = lanes;
    graph->threads = threads;
    graph->pipe = test_open(backend, &options);
    scaling.slots = CHAINS * LAYERS * 3;
    scaling.history = 2;
    must(fp8pipe_scaling_create(graph->pipe, &scaling, &graph->scaling));
    for (int c = 0; c < CHAINS; c++) {
        struct chain *chain = &graph->chain[c];
        int64_t rows = TOKENS + 17 * c;

        chain->x[0] =
            test_matrix_random(graph->pipe, FP8PIPE_BF16, rows, WIDTH, WIDTH + c, 0, 1, &rng, NULL);
        chain->dx[LAYERS] =
            test_matrix_random(graph->pipe, FP8PIPE_BF16, rows, WIDTH, 0, c, 0.1, &rng, NULL);
        for (int i = 0; i < LAYERS; i++) {
            chain->x[i + 1] = test_matrix_make(graph->pipe, FP8PIPE_BF16, rows, WIDTH, 0, c);
            chain->dx[i] = test_matrix_make(graph->pipe, FP8PIPE_BF16, rows, WIDTH, WIDTH + c, 0);
        }
        for (int i = 0; i < LAYERS; i++)
            make_node(graph, &chain->node[i], c, i, &rng);
    }
    if (pthread_barrier_init(&graph->barrier, NULL, (unsigned)threads) != 0)
        bail("pthread_barrier_init");
}

/* ---- Submitting --------------------------------------------------------------------------- */

/* Spreads a chain's ops over the lanes, some of them automatically. */
static struct fp8pipe_submit place(const struct graph *graph, int chain, int op,
                                   fp8pipe_ticket after)
{
    int32_t lane = op % 4 == 3 ? FP8PIPE_LANE_AUTO : (chain + op) % graph->lanes;

    return test_submit(lane, 0, after, 0);
}

static void submit_chain(struct graph *graph, int c, int step)
{
    struct chain *chain = &graph->chain[c];
    bool quantized = c < CHAINS - 1;
    fp8pipe_ticket ticket = chain->last;
    int op = 0;

    for (int i = 0; i < LAYERS; i++) {
        struct node *node = &chain->node[i];
        struct fp8pipe_copy_op copy = FP8PIPE_COPY_OP_INIT;
        struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
        fp8pipe_ticket written;

        copy.submit = place(graph, c, op++, chain->last);
        copy.to = node->w.view.data;
        copy.bytes = (size_t)WIDTH * WIDTH * 2;
        copy.from = (const char *)node->w_source.view.data + (size_t)step * copy.bytes;
        must(fp8pipe_copy(graph->pipe, &copy, &written));
        must(fp8pipe_linear_weight_changed(node->linear, NULL, written));
        forward.submit = place(graph, c, op++, ticket);
        forward.x = chain->x[i].view;
        forward.y = chain->x[i + 1].view;
        forward.saved = node->saved;
        forward.keep = FP8PIPE_KEEP_ALL;
        must(fp8pipe_linear_forward(node->linear, &forward, &ticket));
    }
    for (int i = LAYERS - 1; i >= 0; i--) {
        struct node *node = &chain->node[i];
        struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
        struct fp8pipe_wgrad_op wgrad = FP8PIPE_WGRAD_OP_INIT;

        dgrad.submit = place(graph, c, op++, ticket);
        dgrad.dy = chain->dx[i + 1].view;
        dgrad.saved = node->saved;
        dgrad.dx = chain->dx[i].view;
        dgrad.dy_saved = quantized ? node->dy_saved : NULL;
        dgrad.bias_grad = test_vector(&node->db);
        dgrad.bias_grad_accumulate = 1;
        must(fp8pipe_linear_dgrad(node->linear, &dgrad, &ticket));
        wgrad.submit = place(graph, c, op++, ticket);
        wgrad.submit.flags = FP8PIPE_LAST_USE;
        wgrad.saved = node->saved;
        wgrad.dw = node->dw.view;
        wgrad.accumulate = 1;
        if (quantized) {
            wgrad.dy_tensor = node->dy_saved;
        } else {
            wgrad.dy = chain->dx[i + 1].view;
            wgrad.x = chain->x[i].view;
        }
        must(fp8pipe_linear_wgrad(node->linear, &wgrad, &ticket));
    }
    chain->last = ticket;
}

struct caller {
    struct graph *graph;
    int number;
    pthread_t thread;
};

static void *caller_run(void *arg)
{
    struct caller *caller = arg;
    struct graph *graph = caller->graph;

    for (int step = 0; step < STEPS; step++) {
        for (int c = caller->number; c < CHAINS; c += graph->threads)
            submit_chain(graph, c, step);
        pthread_barrier_wait(&graph->barrier);
        if (caller->number == 0)
            test_update(graph->scaling);
        pthread_barrier_wait(&graph->barrier);
    }
    return NULL;
}

/* ---- Results ------------------------------------------------------------------------------ */

struct result {
    uint8_t *data;
    size_t bytes;
    bool ran;
};

static void result_add(struct result *result, const struct test_matrix *matrix)
{
    size_t bytes =
        (size_t)(matrix->view.rows * matrix->view.cols) * test_dtype_bytes(matrix->view.dtype);

    result->data = realloc(result->data, result->bytes + bytes);
    if (!result->data)
        bail("no memory for %zu bytes", result->bytes + bytes);
    test_matrix_get_raw(matrix, result->data + result->bytes);
    result->bytes += bytes;
}

/* The outputs of the chain's ops are finite, and its scales are no longer 1. */
static bool chain_ran(struct graph *graph, int c)
{
    struct chain *chain = &graph->chain[c];
    int64_t count = chain->x[0].view.rows * WIDTH;
    double *values = test_calloc((size_t)count, sizeof(*values));
    bool ran = true;

    for (int i = 0; i < LAYERS; i++) {
        test_matrix_get(&chain->x[i + 1], values);
        for (int64_t j = 0; j < count; j++)
            ran = ran && isfinite(values[j]);
        test_matrix_get(&chain->dx[i], values);
        for (int64_t j = 0; j < count; j++)
            ran = ran && isfinite(values[j]);
    }
    for (uint32_t i = 0; i < LAYERS * 3 && c > 0 && c < CHAINS - 1; i++)
        ran = ran && test_slot(graph->scaling, (uint32_t)c * LAYERS * 3 + i).has_scale;
    free(values);
    return ran;
}

/* All outputs, then each slot's scale; frees the graph. */
static struct result graph_take(struct graph *graph)
{
    struct result result = {NULL, 0, true};

    for (int c = 0; c < CHAINS; c++) {
        struct chain *chain = &graph->chain[c];

        result.ran = result.ran && chain_ran(graph, c);
        for (int i = 0; i <= LAYERS; i++) {
            result_add(&result, &chain->x[i]);
            result_add(&result, &chain->dx[i]);
        }
        for (int i = 0; i < LAYERS; i++) {
            struct node *node = &chain->node[i];

            result_add(&result, &node->dw);
            result_add(&result, &node->db);
            must(fp8pipe_tensor_destroy(node->saved));
            must(fp8pipe_tensor_destroy(node->dy_saved));
            must(fp8pipe_linear_destroy(node->linear));
            test_matrix_free(&node->w);
            test_matrix_free(&node->w_source);
            test_matrix_free(&node->bias);
            test_matrix_free(&node->dw);
            test_matrix_free(&node->db);
        }
        for (int i = 0; i <= LAYERS; i++) {
            test_matrix_free(&chain->x[i]);
            test_matrix_free(&chain->dx[i]);
        }
    }
    result.data = realloc(result.data, result.bytes + CHAINS * LAYERS * 3 * sizeof(float));
    if (!result.data)
        bail("no memory for the scales");
    for (uint32_t slot = 0; slot < CHAINS * LAYERS * 3; slot++) {
        float scale = test_slot(graph->scaling, slot).scale;

        memcpy(result.data + result.bytes, &scale, sizeof(scale));
        result.bytes += sizeof(scale);
    }
    must(fp8pipe_scaling_destroy(graph->scaling));
    test_close(graph->pipe);
    pthread_barrier_destroy(&graph->barrier);
    return result;
}

static struct result run(enum fp8pipe_backend backend, enum fp8pipe_mode mode, int32_t lanes,
                         int threads)
{
    struct caller callers[CHAINS];
    struct graph graph;

    graph_make(&graph, backend, mode, lanes, threads);
    for (int i = 0; i < threads; i++) {
        callers[i] = (struct caller){.graph = &graph, .number = i};
        if (pthread_create(&callers[i].thread, NULL, caller_run, &callers[i]) != 0)
            bail("pthread_create");
    }
    for (int i = 0; i < threads; i++)
        pthread_join(callers[i].thread, NULL);
    test_drain(graph.pipe);
    return graph_take(&graph);
}

static void cases(enum fp8pipe_backend backend)
{
    static const int counts[] = {1, 2, 4};
    struct result baseline = run(backend, FP8PIPE_INLINE, 1, 1);
    const char *name = test_backend_name(backend);

    ok(baseline.ran, "%s: the graph gives finite results and moves its scales", name);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++)
        for (int i = 0; i < 9; i++) {
            int lanes = counts[i % 3], threads = counts[i / 3];
            struct result result = run(backend, (enum fp8pipe_mode)mode, lanes, threads);

            ok(result.bytes == baseline.bytes &&
                   memcmp(result.data, baseline.data, result.bytes) == 0,
               "%s: %s, %d lanes, %d threads: the bits of one lane and one thread inline", name,
               mode == FP8PIPE_ASYNC ? "async" : "inline", lanes, threads);
            free(result.data);
        }
    free(baseline.data);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
