/* Launches a second of several chains of layers, each from a thread and on a lane of its own. */
#include <pthread.h>

#include "bench/issue.h"

#define CHAINS_MAX 4
#define CHAIN_TOKENS 16
#define CHAIN_FEATURES 256
#define CHAIN_OPS 20000
#define CHAIN_WINDOW 200

struct chain {
    struct layer layer;
    pthread_barrier_t *start;
    int32_t lane;
};

static void *run_chain(void *arg)
{
    struct chain *chain = arg;
    struct layer *layer = &chain->layer;
    fp8pipe_ticket tickets[CHAIN_WINDOW];

    pthread_barrier_wait(chain->start);
    for (int i = 0; i < CHAIN_OPS; i++) {
        /* A chain: each reads what the one before it wrote. */
        uint16_t *from = i % 2 ? layer->y : layer->x, *to = i % 2 ? layer->x : layer->y;

        if (i >= CHAIN_WINDOW) {
            must(fp8pipe_wait(layer->pipe, tickets[i % CHAIN_WINDOW], FP8PIPE_ISSUED, -1), "wait");
        }
        forward(layer, chain->lane, from, to, CHAIN_TOKENS, &tickets[i % CHAIN_WINDOW]);
    }
    return NULL;
}

/* Launches a second: a quantize and a GEMM an op. */
static double time_chains(int count)
{
    struct fp8pipe *pipe = pipe_open(count);
    struct chain chains[CHAINS_MAX];
    pthread_t threads[CHAINS_MAX];
    pthread_barrier_t start;
    int64_t started;
    double seconds;

    pthread_barrier_init(&start, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        chains[i] = (struct chain){layer_make(pipe, CHAIN_TOKENS, CHAIN_FEATURES), &start, i};
        forward(&chains[i].layer, i, chains[i].layer.x, chains[i].layer.y, CHAIN_TOKENS, NULL);
        if (pthread_create(&threads[i], NULL, run_chain, &chains[i]) != 0) {
            must(FP8PIPE_ENOMEM, "thread");
        }
    }
    must(fp8pipe_drain(pipe, -1), "drain");
    pthread_barrier_wait(&start);
    started = now_ns();
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    must(fp8pipe_drain(pipe, -1), "drain");
    seconds = (double)(now_ns() - started) / 1e9;
    for (int i = 0; i < count; i++) {
        layer_free(&chains[i].layer);
    }
    must(fp8pipe_close(pipe, 0, -1), "close");
    pthread_barrier_destroy(&start);
    return 2.0 * CHAIN_OPS * count / seconds;
}

void issue_chains(void)
{
    double one = 0;

    for (int count = 1; count <= CHAINS_MAX; count *= 2) {
        double rate = time_chains(count);
        char name[64];

        one = count == 1 ? rate : one;
        snprintf(name, sizeof(name), "launches of %d chains on %d lanes", count, count);
        report(name, "thousand a second", rate / 1e3);
        if (count > 1) {
            snprintf(name, sizeof(name), "%d chains / 1 chain", count);
            report(name, "x", rate / one);
        }
    }
}
