/*
 * GEMM calls that repeat: results are the same to the bit whether lanes record them or not, for new
 * values at old addresses, in place, through padding and float32, on more addresses than are kept;
 * and the stats say that it happened.
 *
 * FP8PIPE_TEST_SMALL=1 leaves out most of it (for compute-sanitizer).
 */
#include <stdlib.h>
#include <string.h>

#include "fp8pipe_tune.h"
#include "layer.h"
#include "util.h"

static bool small;

static struct fp8pipe *pipe_with(enum fp8pipe_backend backend, enum fp8pipe_replays replays,
                                 enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;

    options.mode = mode;
    options.lanes = 1;
    options.plans = FP8PIPE_PLANS_FIXED;
    options.replays = replays;
    return test_open(backend, &options);
}

static struct fp8pipe_stats stats_of(struct fp8pipe *pipe)
{
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;

    must(fp8pipe_stats_get(pipe, -1, &stats));
    return stats;
}

/* ---- Layers ------------------------------------------------------------------------------- */

static void *raw(const struct test_matrix *matrix, size_t *bytes)
{
    void *values;

    *bytes = (size_t)(matrix->view.rows * matrix->view.cols) *
             (matrix->view.dtype == FP8PIPE_FP32 ? 4 : 2);
    values = malloc(*bytes + 1);
    if (values == NULL)
        bail("malloc");
    test_matrix_get_raw(matrix, values);
    return values;
}

static bool same(const struct test_matrix *a, const struct test_matrix *b)
{
    size_t bytes;
    void *one = raw(a, &bytes), *two = raw(b, &bytes);
    bool equal = memcmp(one, two, bytes) == 0;

    free(one);
    free(two);
    return equal;
}

static void values_renew(struct test_matrix *matrix, uint64_t seed)
{
    size_t count = (size_t)(matrix->view.rows * matrix->view.cols);
    double *values = malloc((count + 1) * sizeof(*values));
    struct test_rng rng = {seed};

    if (values == NULL)
        bail("malloc");
    for (size_t i = 0; i < count; i++)
        values[i] = test_random_normal(&rng);
    test_matrix_set(matrix, values);
    free(values);
}

static void round_run(struct layer *layer, uint64_t round)
{
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;

    values_renew(&layer->x, 100 + round);
    submit.lane = 0;
    layer_forward(layer, FP8PIPE_KEEP_ALL, submit);
    layer_dgrad(layer, submit);
    layer_wgrad(layer, submit);
    test_drain(layer->pipe);
}

/* One layer of `config` in each pipe, for some rounds. Returns how many results differ. */
static int layers_differ(struct fp8pipe *recorded, struct fp8pipe *plain,
                         const struct layer_config *config, uint64_t seed)
{
    struct test_rng rng = {seed}, again = {seed};
    struct layer one = layer_make(recorded, config, &rng);
    struct layer two = layer_make(plain, config, &again);
    int differ = 0;

    for (uint64_t round = 0; round < 6; round++) {
        round_run(&one, round);
        round_run(&two, round);
        differ += !same(&one.y, &two.y) + !same(&one.dx, &two.dx) + !same(&one.dw, &two.dw);
    }
    layer_free(&one);
    layer_free(&two);
    return differ;
}

static void layers(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    const char *name = test_backend_name(backend);
    const char *how = mode == FP8PIPE_INLINE ? "INLINE" : "ASYNC";
    struct fp8pipe *recorded = pipe_with(backend, FP8PIPE_REPLAYS_ON, mode);
    struct fp8pipe *plain = pipe_with(backend, FP8PIPE_REPLAYS_OFF, mode);
    const bool cuda = backend == FP8PIPE_BACKEND_CUDA;
    struct fp8pipe_stats on, off;
    struct test_rng rng = {41};
    int differ = 0;

    for (uint64_t i = 0; i < (cuda && !small ? 60 : 12); i++) {
        struct layer_config config = layer_config_random(&rng, cuda ? 300 : 60, cuda ? 4096 : 200);

        /* One in five of a size that cuBLASLt takes as it is. */
        if (i % 5 == 0) {
            config.ragged = false;
            config.quantized = true;
            config.m = 16 * (1 + (int64_t)i);
            config.n = config.k = cuda ? 2048 : 32;
        }
        differ += layers_differ(recorded, plain, &config, i);
    }
    is_int(differ, 0, "%s, %s: the same bits with and without records", name, how);
    on = stats_of(recorded);
    off = stats_of(plain);
    ok(cuda ? on.replayed > 20 && on.replays > 10 : on.replayed == 0 && on.replays == 0,
       "%s, %s: %llu calls issued from %llu records", name, how, (unsigned long long)on.replayed,
       (unsigned long long)on.replays);
    ok(off.replayed == 0 && off.replays == 0, "%s, %s: none where they are off", name, how);
    test_close(recorded);
    test_close(plain);
}

/* ---- What is recorded --------------------------------------------------------------------- */

#define ROUNDS 20
#define TURNS 4 /* temporary memory takes turns among so many places, at most */

/* A plan takes another's place: its calls are recorded anew. */
static void tuned(enum fp8pipe_backend backend)
{
    struct fp8pipe_tune_options tune = FP8PIPE_TUNE_OPTIONS_INIT;
    const struct layer_config config = {.m = 240,
                                        .n = 512,
                                        .k = 256,
                                        .quantized = true,
                                        .first_scale = LAYER_SCALE_GIVEN,
                                        .x_dtype = FP8PIPE_BF16,
                                        .w_dtype = FP8PIPE_BF16,
                                        .dy_dtype = FP8PIPE_BF16,
                                        .y_dtype = FP8PIPE_BF16,
                                        .dx_dtype = FP8PIPE_BF16,
                                        .dw_dtype = FP8PIPE_FP32,
                                        .dy_deviation = 1};
    struct fp8pipe *pipe = pipe_with(backend, FP8PIPE_REPLAYS_ON, FP8PIPE_ASYNC);
    struct test_rng rng = {3};
    struct layer layer = layer_make(pipe, &config, &rng);
    struct fp8pipe_stats before, after;

    for (uint64_t round = 0; round < ROUNDS; round++)
        round_run(&layer, round);
    must(fp8pipe_tune(pipe, &tune));
    before = stats_of(pipe);
    for (uint64_t round = 0; round < ROUNDS; round++)
        round_run(&layer, round);
    after = stats_of(pipe);
    ok(after.replayed - before.replayed >= 3 * (ROUNDS - 2 * TURNS),
       "a tuned plan's calls are recorded as well: %llu of %d",
       (unsigned long long)(after.replayed - before.replayed), 3 * ROUNDS);
    layer_free(&layer);
    test_close(pipe);
}

/* Ways to finish a product that cuBLASLt has kernels for. */
static const struct way {
    const char *name;
    bool bias, accumulate, gelu, to_fp8;
} ways[] = {
    {"plain", false, false, false, false},      {"with a bias", true, false, false, false},
    {"added to D", false, true, false, false},  {"with a bias and GELU", true, false, true, false},
    {"into FP8", false, false, false, true},    {"into FP8 with a bias", true, false, false, true},
    {"GELU into FP8", false, false, true, true}};

static void every_way(enum fp8pipe_backend backend)
{
    enum { M = 240, N = 512, K = 256 };
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe *pipe = pipe_with(backend, FP8PIPE_REPLAYS_ON, FP8PIPE_ASYNC);
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    struct fp8pipe_tensor *a, *b, *out;
    struct fp8pipe_scaling *scaling;
    struct test_matrix x, w, bias, d;
    struct test_rng rng = {8};

    submit.lane = 0;
    options.slots = 6;
    options.initial_scale = 16;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    must(fp8pipe_tensor_create(pipe, &a));
    must(fp8pipe_tensor_create(pipe, &b));
    must(fp8pipe_tensor_create(pipe, &out));
    x = test_matrix_random(pipe, FP8PIPE_BF16, M, K, 0, 0, 1, &rng, NULL);
    w = test_matrix_random(pipe, FP8PIPE_BF16, N, K, 0, 0, 1, &rng, NULL);
    bias = test_matrix_random(pipe, FP8PIPE_BF16, 1, N, 0, 0, 1, &rng, NULL);
    d = test_matrix_random(pipe, FP8PIPE_BF16, M, N, 0, 0, 1, &rng, NULL);
    test_quantize(a, x.view, scaling, 0, FP8PIPE_ROWWISE, submit);
    test_quantize(b, w.view, scaling, 1, FP8PIPE_ROWWISE, submit);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct fp8pipe_stats before = stats_of(pipe), after;
        fp8pipe_ticket ticket = 0;

        for (int round = 0; round < ROUNDS; round++) {
            struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;

            op.submit.lane = 0;
            op.a_tensor = a;
            op.b_tensor = b;
            op.accumulate = ways[i].accumulate;
            if (ways[i].bias)
                op.bias = test_vector(&bias);
            if (ways[i].gelu)
                op.epilogue.activation = FP8PIPE_ACTIVATION_GELU_TANH;
            if (ways[i].to_fp8) {
                op.epilogue.tensor = out;
                op.epilogue.scaling = scaling;
                op.epilogue.slot = 3;
                op.epilogue.copies = FP8PIPE_ROWWISE;
            } else {
                op.d = d.view;
            }
            must(fp8pipe_gemm(pipe, &op, &ticket));
        }
        test_wait(pipe, ticket);
        after = stats_of(pipe);
        ok(after.replayed - before.replayed >= ROUNDS - 2 * TURNS,
           "a product %s is recorded: %llu of %d", ways[i].name,
           (unsigned long long)(after.replayed - before.replayed), ROUNDS);
    }
    must(fp8pipe_tensor_destroy(a));
    must(fp8pipe_tensor_destroy(b));
    must(fp8pipe_tensor_destroy(out));
    test_drain(pipe);
    must(fp8pipe_scaling_destroy(scaling));
    test_matrix_free(&x);
    test_matrix_free(&w);
    test_matrix_free(&bias);
    test_matrix_free(&d);
    test_close(pipe);
}

/* ---- More addresses than a lane keeps ----------------------------------------------------- */

#define SIDE 16
#define CALLS 6000
#define SIGHTS 4

static void submit_products(struct fp8pipe *pipe, const struct test_matrix *a,
                            const struct test_matrix *b, const struct test_matrix *d)
{
    for (int64_t i = 0; i < CALLS; i++)
        for (int again = 0; again < SIGHTS; again++) {
            struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;
            fp8pipe_ticket ticket;

            op.submit.lane = 0;
            op.a = a->view;
            op.a.rows = SIDE;
            op.a.data = (char *)a->view.data + i * SIDE * SIDE * 2;
            op.b = b->view;
            op.d = d->view;
            op.d.rows = SIDE;
            op.d.data = (char *)d->view.data + i * SIDE * SIDE * 2;
            must(fp8pipe_gemm(pipe, &op, &ticket));
        }
    test_drain(pipe);
}

static void addresses(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct fp8pipe *pipes[2] = {pipe_with(backend, FP8PIPE_REPLAYS_ON, FP8PIPE_ASYNC),
                                pipe_with(backend, FP8PIPE_REPLAYS_OFF, FP8PIPE_ASYNC)};
    struct test_matrix a[2], b[2], d[2];
    struct fp8pipe_stats stats;

    for (int i = 0; i < 2; i++) {
        struct test_rng rng = {5};

        a[i] = test_matrix_random(pipes[i], FP8PIPE_BF16, (int64_t)CALLS * SIDE, SIDE, 0, 0, 1,
                                  &rng, NULL);
        b[i] = test_matrix_random(pipes[i], FP8PIPE_BF16, SIDE, SIDE, 0, 0, 1, &rng, NULL);
        d[i] = test_matrix_make(pipes[i], FP8PIPE_BF16, (int64_t)CALLS * SIDE, SIDE, 0, 0);
        submit_products(pipes[i], &a[i], &b[i], &d[i]);
    }
    ok(same(&d[0], &d[1]), "%s: the same bits at %d addresses", name, CALLS);
    stats = stats_of(pipes[0]);
    ok(backend == FP8PIPE_BACKEND_HOST || (stats.replays <= 4096 && stats.replays_evicted > 0),
       "%s: %llu records, %llu made room", name, (unsigned long long)stats.replays,
       (unsigned long long)stats.replays_evicted);
    for (int i = 0; i < 2; i++) {
        test_matrix_free(&a[i]);
        test_matrix_free(&b[i]);
        test_matrix_free(&d[i]);
        test_close(pipes[i]);
    }
}

static void cases(enum fp8pipe_backend backend)
{
    layers(backend, FP8PIPE_ASYNC);
    layers(backend, FP8PIPE_INLINE);
    if (!small)
        addresses(backend);
    if (backend == FP8PIPE_BACKEND_CUDA) {
        tuned(backend);
        every_way(backend);
    }
}

int main(void)
{
    small = test_environment_is_set("FP8PIPE_TEST_SMALL");
    test_each_backend(cases);
    return done_testing();
}
