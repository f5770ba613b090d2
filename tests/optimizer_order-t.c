/*
 * Guards an optimizer as an object: its ops' order against everything on its linears, on any lanes;
 * what forwards kept before a step; who has a linear, who may be destroyed; failed steps; close.
 */
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "chaos.h"
#include "parameters.h"

#define TOKENS 6
#define LAYERS 2
#define STEPS 8

static const struct fp8pipe_parameter_group group = {1.0f, 0.9f, 0.99f, 1e-8f, 0.01f, 0.9f};

static const struct parameter_config layers[LAYERS] = {
    {.rows = 48, .cols = 32, .linear = true, .slot_w = 1, .average = true},
    {.rows = 20,
     .cols = 48,
     .linear = true,
     .slot_w = 3,
     .copy = true,
     .copy_dtype = FP8PIPE_BF16,
     .gradient_dtype = FP8PIPE_BF16}};

/* Two linears, one after the other, and what a training step needs. */
struct model {
    struct fp8pipe *pipe;
    int32_t lanes;
    struct test_rng lane_rng;
    struct fp8pipe_scaling *scaling;
    struct parameter parameters[LAYERS];
    struct fp8pipe_optimizer *optimizer;
    struct fp8pipe_tensor *saved[LAYERS];
    struct test_matrix x, y[LAYERS], dx, dy;
    float *clip;
};

static struct fp8pipe_scaling *scaling_make(struct fp8pipe *pipe)
{
    static const uint8_t roles[] = {FP8PIPE_ROLE_X, FP8PIPE_ROLE_W, FP8PIPE_ROLE_DY,
                                    FP8PIPE_ROLE_W};
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *scaling = NULL;

    options.slots = 4;
    options.history = 4;
    options.roles = roles;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    return scaling;
}

static struct model model_make(struct fp8pipe *pipe, int32_t lanes, uint64_t seed)
{
    struct model m = {.pipe = pipe, .lanes = lanes, .lane_rng = {seed}};
    struct test_rng rng = {11};

    m.scaling = scaling_make(pipe);
    m.x = test_matrix_random(pipe, FP8PIPE_BF16, TOKENS, 32, 0, 0, 1, &rng, NULL);
    m.dy = test_matrix_random(pipe, FP8PIPE_BF16, TOKENS, 20, 0, 0, 1e-3, &rng, NULL);
    m.dx = test_matrix_make(pipe, FP8PIPE_BF16, TOKENS, 48, 0, 0);
    m.clip = test_alloc(pipe, sizeof(*m.clip), 0);
    for (int i = 0; i < LAYERS; i++) {
        m.parameters[i] = parameter_make(pipe, m.scaling, &layers[i], &rng);
        m.y[i] = test_matrix_make(pipe, FP8PIPE_BF16, TOKENS, layers[i].rows, 0, 0);
        must(fp8pipe_tensor_create(pipe, &m.saved[i]));
    }
    m.optimizer = parameters_optimizer(pipe, m.parameters, LAYERS, &group, 1);
    return m;
}

static void matrices_free(struct model *m)
{
    for (int i = 0; i < LAYERS; i++) {
        parameter_matrices_free(&m->parameters[i]);
        test_matrix_free(&m->y[i]);
    }
    test_matrix_free(&m->x);
    test_matrix_free(&m->dy);
    test_matrix_free(&m->dx);
    must(fp8pipe_free(m->pipe, m->clip));
}

static void objects_free(struct model *m)
{
    must(fp8pipe_optimizer_destroy(m->optimizer));
    for (int i = 0; i < LAYERS; i++) {
        must(fp8pipe_tensor_destroy(m->saved[i]));
        parameter_free(&m->parameters[i]);
    }
    must(fp8pipe_scaling_destroy(m->scaling));
}

/* Not the pipe. */
static void model_free(struct model *m)
{
    matrices_free(m);
    objects_free(m);
}

/* Any lane, by number or not. */
static int32_t any_lane(struct model *m)
{
    return (int32_t)test_random_range(&m->lane_rng, FP8PIPE_LANE_AUTO, m->lanes - 1);
}

static fp8pipe_ticket forward(struct model *m, int i, fp8pipe_ticket after, bool keep)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = AFTER(any_lane(m), after);
    op.x = i == 0 ? m->x.view : m->y[0].view;
    op.y = m->y[i].view;
    op.saved = keep ? m->saved[i] : NULL;
    op.keep = keep ? FP8PIPE_KEEP_ALL : FP8PIPE_KEEP_NOTHING;
    must(fp8pipe_linear_forward(m->parameters[i].view.linear, &op, &ticket));
    return ticket;
}

static enum fp8pipe_status try_dgrad(struct model *m, int i, fp8pipe_ticket *ticket)
{
    struct fp8pipe_dgrad_op op = FP8PIPE_DGRAD_OP_INIT;

    op.submit = ON(any_lane(m));
    op.dy = i == 0 ? m->dx.view : m->dy.view;
    op.saved = m->saved[i];
    op.dx = m->dx.view;
    if (i == 0)
        op.dx = m->x.view;
    return fp8pipe_linear_dgrad(m->parameters[i].view.linear, &op, ticket);
}

static enum fp8pipe_status try_wgrad(struct model *m, int i, fp8pipe_ticket after,
                                     fp8pipe_ticket *ticket)
{
    struct fp8pipe_wgrad_op op = FP8PIPE_WGRAD_OP_INIT;

    op.submit = AFTER(any_lane(m), after);
    op.dy = i == 0 ? m->dx.view : m->dy.view;
    op.saved = m->saved[i];
    op.dw = m->parameters[i].view.gradient;
    return fp8pipe_linear_wgrad(m->parameters[i].view.linear, &op, ticket);
}

/* Tickets only where matrices pass between ops of one step: what is the library's orders itself. */
static void train_step(struct model *m)
{
    struct fp8pipe_gradient_norm_op norm = FP8PIPE_GRADIENT_NORM_OP_INIT;
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;
    struct fp8pipe_adamw_op adamw = FP8PIPE_ADAMW_OP_INIT;
    fp8pipe_ticket dgrad, wgrad[LAYERS];

    forward(m, 1, forward(m, 0, 0, true), true);
    must(try_dgrad(m, 1, &dgrad));
    must(try_wgrad(m, 1, 0, &wgrad[1]));
    must(try_wgrad(m, 0, dgrad, &wgrad[0]));
    norm.submit = test_submit(any_lane(m), 0, wgrad[0], wgrad[1]);
    norm.max_norm = 1e-3f;
    norm.clip = m->clip;
    must(fp8pipe_optimizer_gradient_norm(m->optimizer, &norm, NULL));
    update.submit = ON(any_lane(m));
    must(fp8pipe_scaling_update(m->scaling, &update, NULL));
    adamw.submit = ON(any_lane(m));
    adamw.lr = 1e-2f;
    adamw.gradient_scale = m->clip;
    must(fp8pipe_optimizer_adamw(m->optimizer, &adamw, NULL));
}

/* What a run comes to: parameters, FP8 copies, and a last forward's output. */
static uint64_t train(struct model *m)
{
    uint64_t hash = 0;
    double *y = test_calloc(TOKENS * 20, sizeof(*y));

    for (int step = 0; step < STEPS; step++)
        train_step(m);
    forward(m, 1, forward(m, 0, 0, false), false);
    test_drain(m->pipe);
    test_matrix_get(&m->y[1], y);
    for (int i = 0; i < TOKENS * 20; i++)
        hash = hash * 31 + test_float_bits((float)y[i]);
    for (int i = 0; i < LAYERS; i++)
        hash = hash * 31 + parameter_hash(&m->parameters[i]);
    free(y);
    return hash;
}

static uint64_t train_on(struct fp8pipe *pipe, int32_t lanes, uint64_t seed)
{
    struct model m = model_make(pipe, lanes, seed);
    uint64_t hash = train(&m);

    model_free(&m);
    test_close(pipe);
    return hash;
}

static void test_order(enum fp8pipe_backend backend)
{
    uint64_t want = train_on(async_open(backend, FP8PIPE_INLINE, 1, 0, NULL), 1, 1);
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 4, 0, NULL);
    bool same = train_on(async_open(backend, FP8PIPE_INLINE, 3, 0, NULL), 3, 2) == want;

    for (uint64_t seed = 3; seed < (backend == FP8PIPE_BACKEND_HOST ? 23 : 7); seed++) {
        struct fp8pipe *pipe = chaos_open_pipe(backend, &options, 0);

        chaos_delays(seed, seed % 2 ? 300000 : 20000);
        same = train_on(pipe, 4, seed) == want && same;
        chaos_check("a training run");
    }
    ok(same, "%s: training on any lanes, delayed at random, comes to the same bits",
       test_backend_name(backend));
}

/* ---- What forwards kept -------------------------------------------------------------------- */

static void test_kept(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    struct model m = model_make(pipe, 2, 5);
    fp8pipe_ticket ticket;

    forward(&m, 1, forward(&m, 0, 0, true), true);
    is_int(try_dgrad(&m, 1, &ticket), FP8PIPE_OK, "%s: dgrad before the step", name);
    parameters_adamw(m.optimizer, ON(1), 1e-2f, NULL);
    ok(try_dgrad(&m, 1, &ticket) == FP8PIPE_EINVAL && strstr(fp8pipe_last_error(), "saved"),
       "%s: dgrad after it is refused", name);
    is_int(try_wgrad(&m, 1, 0, &ticket), FP8PIPE_OK, "%s: wgrad after it is not", name);
    must(fp8pipe_optimizer_destroy((test_drain(pipe), m.optimizer)));
    is_int(try_dgrad(&m, 1, &ticket), FP8PIPE_EINVAL, "%s: nor dgrad after its optimizer", name);
    m.optimizer = parameters_optimizer(pipe, m.parameters, LAYERS, &group, 1);
    is_int(try_dgrad(&m, 1, &ticket), FP8PIPE_EINVAL, "%s: nor after the next one", name);
    forward(&m, 1, forward(&m, 0, 0, true), true);
    is_int(try_dgrad(&m, 1, &ticket), FP8PIPE_OK, "%s: a new forward keeps the new weight", name);
    test_drain(pipe);
    model_free(&m);
    test_close(pipe);
}

/* ---- Who has what -------------------------------------------------------------------------- */

static enum fp8pipe_status create(struct fp8pipe *pipe, struct fp8pipe_parameter *parameters,
                                  uint32_t count, struct fp8pipe_optimizer **optimizer)
{
    struct fp8pipe_optimizer_options options = FP8PIPE_OPTIMIZER_OPTIONS_INIT;

    options.parameters = parameters;
    options.parameter_count = count;
    options.groups = &group;
    options.group_count = 1;
    return fp8pipe_optimizer_create(pipe, &options, optimizer);
}

static void test_ownership(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    struct model m = model_make(pipe, 2, 5);
    struct fp8pipe_linear *linear = m.parameters[0].view.linear;
    struct parameter other =
        parameter_make(pipe, NULL, &(struct parameter_config){.rows = 48, .cols = 32}, &m.lane_rng);
    struct fp8pipe_optimizer *second = NULL;
    struct gate gate = GATE_INIT;
    fp8pipe_ticket ticket;

    other.view.linear = linear;
    is_int(create(pipe, &other.view, 1, &second), FP8PIPE_EBUSY, "%s: a linear is in one optimizer",
           name);
    ok(second == NULL, "%s: of which nothing is left", name);
    is_int(fp8pipe_linear_destroy(linear), FP8PIPE_EBUSY, "%s: and is not destroyed", name);
    is_int(fp8pipe_linear_weight_changed(linear, NULL, 0), FP8PIPE_EBUSY,
           "%s: nor its weight changed", name);
    is_int(fp8pipe_scaling_destroy(m.scaling), FP8PIPE_EBUSY, "%s: nor its scaling destroyed",
           name);
    submit_host_call(pipe, ON(0), gate_work, &gate);
    ticket = parameters_adamw(m.optimizer, ON(0), 1e-2f, NULL);
    is_int(fp8pipe_optimizer_destroy(m.optimizer), FP8PIPE_EBUSY,
           "%s: an optimizer in use is not destroyed", name);
    gate_open(&gate);
    test_wait(pipe, ticket);
    must(fp8pipe_optimizer_destroy(m.optimizer));
    is_int(create(pipe, &other.view, 1, &second), FP8PIPE_EINVAL,
           "%s: a master that is not the weight", name);
    other.view.linear = NULL;
    is_int(fp8pipe_linear_weight_changed(linear, NULL, 0), FP8PIPE_OK,
           "%s: without its optimizer a linear is as before", name);
    {
        struct fp8pipe_parameter twice[2] = {m.parameters[0].view, other.view};

        twice[1].linear = linear;
        is_int(create(pipe, twice, 2, &second), FP8PIPE_EBUSY, "%s: a linear named twice", name);
    }
    m.optimizer = parameters_optimizer(pipe, m.parameters, LAYERS, &group, 1);
    ok(m.optimizer != NULL, "%s: which leaves it to others", name);
    parameter_free(&other);
    model_free(&m);
    test_close(pipe);
}

/* An op that writes the weight is done before an optimizer takes the linear. */
static void test_written(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    struct model m = model_make(pipe, 2, 5);
    struct gate gate = GATE_INIT;
    fp8pipe_ticket ticket;

    must(fp8pipe_optimizer_destroy(m.optimizer));
    m.optimizer = NULL;
    ticket = submit_host_call(pipe, ON(0), gate_work, &gate);
    must(fp8pipe_linear_weight_changed(m.parameters[0].view.linear, NULL, ticket));
    is_int(create(pipe, &m.parameters[0].view, 1, &m.optimizer), FP8PIPE_EBUSY,
           "%s: a weight that is being written", name);
    gate_open(&gate);
    test_wait(pipe, ticket);
    is_int(create(pipe, &m.parameters[0].view, 1, &m.optimizer), FP8PIPE_OK, "%s: and has been",
           name);
    model_free(&m);
    test_close(pipe);
}

static void test_close_first(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    struct model m = model_make(pipe, 2, 5);
    int64_t steps = -3;

    train_step(&m);
    test_drain(pipe);
    matrices_free(&m);
    test_close(pipe);
    is_int(fp8pipe_optimizer_steps_get(m.optimizer, &steps), FP8PIPE_ECLOSED,
           "%s: an optimizer of a closed pipe", name);
    ok(steps == -3, "%s: sets no output", name);
    for (int i = 0; i < LAYERS; i++) {
        is_int(fp8pipe_linear_destroy(m.parameters[i].view.linear), FP8PIPE_OK,
               "%s: its linears are destroyed before it", name);
        m.parameters[i].view.linear = NULL;
    }
    objects_free(&m);
    is_int(fp8pipe_optimizer_destroy(NULL), FP8PIPE_OK, "NULL is destroyed");
}

/* ---- Failures ------------------------------------------------------------------------------ */

static void test_failures(enum fp8pipe_mode mode)
{
    static const enum chaos_call calls[] = {CHAOS_ALLOC, CHAOS_QUANTIZE, CHAOS_COPY, CHAOS_FILL,
                                            CHAOS_ADAMW};
    struct fp8pipe_options options = async_options(mode, 2, 0, NULL);

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct fp8pipe *pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0);
        struct model m = model_make(pipe, 2, 5);
        struct test_rng rng = {5};
        bool failed, unchanged, stepped = true;
        fp8pipe_ticket ticket;
        int64_t steps = -1;

        for (int j = 0; j < LAYERS; j++)
            parameter_gradient(&m.parameters[j], 1e-2, &rng);
        chaos_fail(calls[i], NULL, 1, FP8PIPE_ENOMEM);
        ticket = parameters_adamw(m.optimizer, ON(0), 1e-2f, NULL);
        failed = fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS) == FP8PIPE_ENOMEM;
        unchanged = parameter_agrees(&m.parameters[0], "failed") &&
                    fp8pipe_optimizer_steps_get(m.optimizer, &steps) == FP8PIPE_OK && steps == 0;
        ok(failed && unchanged, "%s: a step whose call %u fails changes nothing", mode_name(mode),
           (unsigned)i);
        test_wait(pipe, parameters_adamw(m.optimizer, ON(1), 1e-2f, NULL));
        for (int j = 0; j < LAYERS; j++) {
            m.parameters[j].config.copy = false;
            parameter_step(&m.parameters[j], &group, 1e-2f, 1, 1, 1);
            stepped = parameter_agrees(&m.parameters[j], "next") &&
                      parameter_fp8_agrees(&m.parameters[j], m.scaling, "next") && stepped;
        }
        ok(stepped, "%s: the next one steps", mode_name(mode));
        model_free(&m);
        test_close(pipe);
        chaos_check("a failed step");
    }
}

/* A step whose ticket's op failed is cancelled; the one after it runs. */
static void test_cancelled(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = async_open(backend, FP8PIPE_ASYNC, 2, 0, NULL);
    struct model m = model_make(pipe, 2, 5);
    enum fp8pipe_status status = FP8PIPE_ECALL;
    fp8pipe_ticket cause = submit_call(pipe, ON(0), call_fails, &status);
    fp8pipe_ticket cancelled = parameters_adamw(m.optimizer, AFTER(1, cause), 1e-2f, NULL);
    fp8pipe_ticket next = parameters_adamw(m.optimizer, ON(FP8PIPE_LANE_AUTO), 1e-2f, NULL);
    int64_t steps = -1;

    ok(fp8pipe_wait(pipe, cancelled, FP8PIPE_DONE, TEST_TIMEOUT_NS) == FP8PIPE_ECALL &&
           state_of(pipe, cancelled).outcome == FP8PIPE_OUTCOME_CANCELLED,
       "%s: a step is cancelled by a ticket", test_backend_name(backend));
    test_wait(pipe, next);
    must(fp8pipe_optimizer_steps_get(m.optimizer, &steps));
    is_int(steps, 1, "%s: and does not cancel the next", test_backend_name(backend));
    model_free(&m);
    test_close(pipe);
}

static void cases(enum fp8pipe_backend backend)
{
    test_order(backend);
    test_kept(backend);
    test_ownership(backend);
    test_written(backend);
    test_close_first(backend);
    test_cancelled(backend);
}

int main(void)
{
    watchdog("tests of an optimizer's order", 280);
    test_each_backend(cases);
    test_failures(FP8PIPE_ASYNC);
    test_failures(FP8PIPE_INLINE);
    return done_testing();
}
