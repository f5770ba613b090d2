/*
 * What a submit costs its caller.
 *
 *   bench/submit [--ops N] [--runs N] [--backend host|cuda] [--json FILE]
 *
 * First table: time of single submits while the launcher is busy with ops of about 10 us and the
 * ring is not full, for 1, 2 and 4 callers on one lane; with a launcher that sleeps at every
 * submit; and INLINE, where the caller issues the op itself. Two kinds of op: a `call` whose
 * function takes 10 us, and the FP8 forward of a small linear. Times are of CLOCK_MONOTONIC around
 * the submit, with the median cost of an empty pair of readings taken off.
 *
 * Second table: bursts of four tight producers on two CPUs, the runs' total times and the longest
 * single submit of each.
 *
 * --ops is how many submits each caller makes, in either table: in the first at most 500 with a
 * launcher that sleeps at every one. --runs is how many bursts there are.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/arguments.h"
#include "examples/clock.h"
#include "examples/json.h"
#include "fp8pipe.h"

#define CALL_NS 10000
#define BATCH 200 /* submits between drains: fewer than the ring has slots */
#define CALLERS_MAX 4
#define FEATURES 64
#define TOKENS 16

enum kind { KIND_CALL, KIND_FORWARD };

struct setting {
    const char *name;
    enum fp8pipe_mode mode;
    enum kind kind;
    int callers;
    int parked;
};

struct bench {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_matrix x;
    struct fp8pipe_matrix y[CALLERS_MAX];
    void *memory;
    const struct setting *setting;
    pthread_barrier_t start;
    int64_t overhead_ns;
    int ops;
};

struct caller {
    struct bench *bench;
    int index;
    int64_t *took_ns;
};

struct result {
    int64_t median_ns;
    int64_t p99_ns;
    int64_t max_ns;
    uint64_t parked;
    uint64_t full;
};

static enum fp8pipe_backend backend = FP8PIPE_BACKEND_HOST;

static void must(enum fp8pipe_status status, const char *what)
{
    if (status != FP8PIPE_OK) {
        fprintf(stderr, "submit: %s: %s\n", what, fp8pipe_last_error());
        exit(1);
    }
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int64_t clock_overhead_ns(void)
{
    int64_t took[1001];

    for (size_t i = 0; i < sizeof(took) / sizeof(*took); i++) {
        int64_t start = now_ns();

        took[i] = now_ns() - start;
    }
    qsort(took, sizeof(took) / sizeof(*took), sizeof(*took), by_value);
    return took[sizeof(took) / sizeof(*took) / 2];
}

static enum fp8pipe_status spin(struct fp8pipe_stream *stream, void *arg)
{
    int64_t end = now_ns() + (arg != NULL ? CALL_NS : 0);

    (void)stream;
    while (now_ns() < end) {
    }
    return FP8PIPE_OK;
}

static struct fp8pipe_matrix matrix(void *data, int64_t rows, int64_t cols)
{
    return (struct fp8pipe_matrix){data, rows, cols, cols, FP8PIPE_FP32, 0};
}

static void make_linear(struct bench *bench)
{
    size_t x = TOKENS * FEATURES, w = FEATURES * FEATURES;
    struct fp8pipe_scaling_options scaling = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear_options linear = FP8PIPE_LINEAR_OPTIONS_INIT;
    float *values = malloc((x + w) * sizeof(float)), *memory;

    if (values == NULL) {
        must(FP8PIPE_ENOMEM, "malloc");
    }
    for (size_t i = 0; i < x + w; i++) {
        values[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    }
    must(fp8pipe_alloc(bench->pipe, (x + w + CALLERS_MAX * x) * sizeof(float), &bench->memory),
         "alloc");
    memory = bench->memory;
    must(fp8pipe_upload(bench->pipe, memory, values, (x + w) * sizeof(float)), "upload");
    free(values);
    bench->x = matrix(memory, TOKENS, FEATURES);
    linear.weight = matrix(memory + x, FEATURES, FEATURES);
    for (int i = 0; i < CALLERS_MAX; i++) {
        bench->y[i] = matrix(memory + x + w + (size_t)i * x, TOKENS, FEATURES);
    }
    scaling.slots = 3;
    scaling.initial_scale = 16.0f;
    must(fp8pipe_scaling_create(bench->pipe, &scaling, &bench->scaling), "scaling");
    linear.in_features = FEATURES;
    linear.out_features = FEATURES;
    linear.scaling = bench->scaling;
    must(fp8pipe_linear_create(bench->pipe, &linear, &bench->linear), "linear");
}

static void open_bench(struct bench *bench, const struct setting *setting, int ops)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;

    memset(bench, 0, sizeof(*bench));
    bench->setting = setting;
    bench->ops = ops;
    bench->overhead_ns = clock_overhead_ns();
    options.backend = backend;
    options.mode = setting->mode;
    options.lanes = 1;
    options.ring_slots = 4096;
    must(fp8pipe_open(&options, &bench->pipe), "open");
    make_linear(bench);
}

static void close_bench(struct bench *bench)
{
    must(fp8pipe_drain(bench->pipe, -1), "drain");
    must(fp8pipe_linear_destroy(bench->linear), "destroy");
    must(fp8pipe_scaling_destroy(bench->scaling), "destroy");
    must(fp8pipe_free(bench->pipe, bench->memory), "free");
    must(fp8pipe_close(bench->pipe, 0, -1), "close");
}

static void submit_call(struct bench *bench, void *busy)
{
    struct fp8pipe_call_op op = FP8PIPE_CALL_OP_INIT;

    op.submit.lane = 0;
    op.fn = spin;
    op.arg = busy;
    must(fp8pipe_call(bench->pipe, &op, NULL), "call");
}

static void submit_forward(struct bench *bench, int index)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit.lane = 0;
    op.x = bench->x;
    op.y = bench->y[index];
    must(fp8pipe_linear_forward(bench->linear, &op, NULL), "forward");
}

static void *run_caller(void *arg)
{
    struct caller *caller = arg;
    struct bench *bench = caller->bench;
    struct timespec nap = {0, 2000000};

    for (int i = 0; i < bench->ops; i++) {
        int64_t start;

        if (i % (BATCH / bench->setting->callers) == 0) {
            pthread_barrier_wait(&bench->start);
            must(fp8pipe_drain(bench->pipe, -1), "drain");
            pthread_barrier_wait(&bench->start);
        }
        if (bench->setting->parked) {
            nanosleep(&nap, NULL);
        }
        start = now_ns();
        if (bench->setting->kind == KIND_CALL) {
            submit_call(bench, bench);
        } else {
            submit_forward(bench, caller->index);
        }
        caller->took_ns[i] = now_ns() - start - bench->overhead_ns;
    }
    return NULL;
}

static struct result measure(const struct setting *setting, int ops)
{
    int each = setting->parked ? (ops < 500 ? ops : 500) : ops;
    size_t count = (size_t)each * (size_t)setting->callers;
    int64_t *took_ns = malloc(count * sizeof(*took_ns));
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;
    struct caller callers[CALLERS_MAX];
    pthread_t threads[CALLERS_MAX];
    struct result result;
    struct bench bench;

    if (took_ns == NULL) {
        must(FP8PIPE_ENOMEM, "malloc");
    }
    open_bench(&bench, setting, each);
    pthread_barrier_init(&bench.start, NULL, (unsigned)setting->callers);
    for (int i = 0; i < setting->callers; i++) {
        callers[i] = (struct caller){&bench, i, took_ns + (size_t)i * (size_t)each};
        if (pthread_create(&threads[i], NULL, run_caller, &callers[i]) != 0) {
            must(FP8PIPE_ENOMEM, "thread");
        }
    }
    for (int i = 0; i < setting->callers; i++) {
        pthread_join(threads[i], NULL);
    }
    must(fp8pipe_stats_get(bench.pipe, -1, &stats), "stats");
    close_bench(&bench);
    pthread_barrier_destroy(&bench.start);
    qsort(took_ns, count, sizeof(*took_ns), by_value);
    result = (struct result){took_ns[count / 2], took_ns[count * 99 / 100], took_ns[count - 1],
                             stats.parked, stats.full};
    free(took_ns);
    return result;
}

/* ---- Bursts of four producers on two CPUs --------------------------------------------------- */

struct producer {
    struct bench *bench;
    int64_t longest_ns;
};

static void *run_producer(void *arg)
{
    struct producer *producer = arg;

    pthread_barrier_wait(&producer->bench->start);
    for (int i = 0; i < producer->bench->ops; i++) {
        int64_t start = now_ns(), took_ns;

        submit_call(producer->bench, NULL);
        took_ns = now_ns() - start;
        if (took_ns > producer->longest_ns) {
            producer->longest_ns = took_ns;
        }
    }
    return NULL;
}

static void burst(struct bench *bench, int64_t *total_ns, int64_t *longest_ns)
{
    struct producer producers[CALLERS_MAX];
    pthread_t threads[CALLERS_MAX];
    int64_t start;

    pthread_barrier_init(&bench->start, NULL, CALLERS_MAX + 1);
    for (int i = 0; i < CALLERS_MAX; i++) {
        producers[i] = (struct producer){bench, 0};
        if (pthread_create(&threads[i], NULL, run_producer, &producers[i]) != 0) {
            must(FP8PIPE_ENOMEM, "thread");
        }
    }
    pthread_barrier_wait(&bench->start);
    start = now_ns();
    *longest_ns = 0;
    for (int i = 0; i < CALLERS_MAX; i++) {
        pthread_join(threads[i], NULL);
        if (producers[i].longest_ns > *longest_ns) {
            *longest_ns = producers[i].longest_ns;
        }
    }
    must(fp8pipe_drain(bench->pipe, -1), "drain");
    *total_ns = now_ns() - start;
    pthread_barrier_destroy(&bench->start);
}

static void bursts(int ops, int runs, struct json *json)
{
    static const struct setting setting = {"burst", FP8PIPE_ASYNC, KIND_CALL, CALLERS_MAX, 0};
    int64_t *total_ns = malloc((size_t)runs * sizeof(*total_ns)), longest_ns = 0, median_ns;
    struct bench bench;
    cpu_set_t cpus;

    if (total_ns == NULL) {
        must(FP8PIPE_ENOMEM, "malloc");
    }
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    CPU_SET(1, &cpus);
    if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) {
        fprintf(stderr, "submit: two CPUs are not to be had: %s\n", strerror(errno));
        exit(1);
    }
    open_bench(&bench, &setting, ops);
    for (int i = 0; i < runs; i++) {
        int64_t longest;

        burst(&bench, &total_ns[i], &longest);
        longest_ns = longest > longest_ns ? longest : longest_ns;
    }
    close_bench(&bench);
    qsort(total_ns, (size_t)runs, sizeof(*total_ns), by_value);
    median_ns = total_ns[runs / 2];
    printf("\n%d bursts of 4 producers x %d submits on 2 CPUs, launcher among them\n"
           "median run %.2f ms, longest run %.2f ms (%.2f x), longest submit %.2f ms\n",
           runs, ops, (double)median_ns / 1e6, (double)total_ns[runs - 1] / 1e6,
           (double)total_ns[runs - 1] / (double)median_ns, (double)longest_ns / 1e6);
    json_lines(json, 1);
    json_object(json, "bursts");
    json_lines(json, -1);
    json_integer(json, "runs", runs);
    json_integer(json, "producers", CALLERS_MAX);
    json_integer(json, "submits", ops);
    json_integer(json, "median_run_ns", median_ns);
    json_integer(json, "longest_run_ns", total_ns[runs - 1]);
    json_integer(json, "longest_submit_ns", longest_ns);
    json_object_end(json);
    free(total_ns);
}

struct arguments {
    int64_t ops;
    int64_t runs;
    enum fp8pipe_backend backend;
    FILE *json; /* or NULL */
    bool help;
};

static struct arguments parse(int argc, char **argv)
{
    static const struct argument_program program = {
        "submit", "Times what a submit costs its caller, and bursts of submits."};
    static const struct argument_choice backends[] = {
        {"host", FP8PIPE_BACKEND_HOST}, {"cuda", FP8PIPE_BACKEND_CUDA}, {NULL, 0}};
    static const struct argument known[] = {
        {"--ops", ARGUMENT_NUMBER, offsetof(struct arguments, ops), 1, 10000000, NULL,
         "submits of each caller and of each producer; to a sleeping launcher 500 at most (20000)"},
        {"--runs", ARGUMENT_NUMBER, offsetof(struct arguments, runs), 1, 10000000, NULL,
         "bursts (30)"},
        {"--backend", ARGUMENT_CHOICE, offsetof(struct arguments, backend), 0, 0, backends,
         "host or cuda (host)"},
        {"--json", ARGUMENT_OUTPUT, offsetof(struct arguments, json), 0, 0, NULL,
         "write the numbers to this file"},
        {"--help", ARGUMENT_FLAG, offsetof(struct arguments, help), 0, 0, NULL, "this text"},
        {.name = NULL},
    };
    struct arguments arguments = {.ops = 20000, .runs = 30, .backend = FP8PIPE_BACKEND_HOST};

    arguments_take(&program, known, argc, argv, &arguments);
    return arguments;
}

int main(int argc, char **argv)
{
    static const struct setting settings[] = {
        {"call, 1 caller", FP8PIPE_ASYNC, KIND_CALL, 1, 0},
        {"call, 2 callers", FP8PIPE_ASYNC, KIND_CALL, 2, 0},
        {"call, 4 callers", FP8PIPE_ASYNC, KIND_CALL, 4, 0},
        {"call, launcher parked", FP8PIPE_ASYNC, KIND_CALL, 1, 1},
        {"forward, 1 caller", FP8PIPE_ASYNC, KIND_FORWARD, 1, 0},
        {"forward, 2 callers", FP8PIPE_ASYNC, KIND_FORWARD, 2, 0},
        {"forward, 4 callers", FP8PIPE_ASYNC, KIND_FORWARD, 4, 0},
        {"forward, launcher parked", FP8PIPE_ASYNC, KIND_FORWARD, 1, 1},
        {"forward, INLINE", FP8PIPE_INLINE, KIND_FORWARD, 1, 0},
    };
    struct arguments arguments = parse(argc, argv);
    struct bench first;
    struct json json;

    backend = arguments.backend;
    /* A backend that is not there ends the program here. */
    open_bench(&first, &settings[0], 1);
    close_bench(&first);
    json = json_to(arguments.json);
    json_object(&json, NULL);
    json_text(&json, "version", fp8pipe_version());
    json_text(&json, "backend", backend == FP8PIPE_BACKEND_HOST ? "host" : "cuda");
    json_list(&json, "submits");
    printf("%-26s %10s %10s %12s %8s %6s\n", "submit", "median ns", "p99 ns", "longest ns",
           "parked", "full");
    for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
        struct result result = measure(&settings[i], (int)arguments.ops);

        printf("%-26s %10lld %10lld %12lld %8llu %6llu\n", settings[i].name,
               (long long)result.median_ns, (long long)result.p99_ns, (long long)result.max_ns,
               (unsigned long long)result.parked, (unsigned long long)result.full);
        fflush(stdout);
        json_lines(&json, 2);
        json_object(&json, NULL);
        json_lines(&json, -1);
        json_text(&json, "name", settings[i].name);
        json_integer(&json, "median_ns", result.median_ns);
        json_integer(&json, "p99_ns", result.p99_ns);
        json_integer(&json, "longest_ns", result.max_ns);
        json_object_end(&json);
    }
    json_lines(&json, 1);
    json_list_end(&json);
    bursts((int)arguments.ops, (int)arguments.runs, &json);
    json_lines(&json, 0);
    json_object_end(&json);
    if (json_close(&json) != 0) {
        fprintf(stderr, "submit: --json: %s\n", strerror(errno));
        return 1;
    }
    return 0;
}
