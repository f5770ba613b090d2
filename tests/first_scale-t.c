/* Guards what a scale not known yet costs: the pass for a tensor's own amax and the update's copy
 * of flags end once every slot in use is seen, begin again with a slot that comes into use later,
 * and follow a load. */
#include <stdlib.h>

#include "async.h"
#include "chaos.h"

enum { X, W, DY, UNUSED, SLOTS };
enum { TOKENS = 16, FEATURES = 32 };

struct world {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *saved;
    float values[3 * TOKENS * FEATURES + FEATURES * FEATURES];
    struct fp8pipe_matrix x, y, dx, weight;
};

static struct fp8pipe_matrix matrix(float *data, int64_t rows, int64_t cols)
{
    return (struct fp8pipe_matrix){data, rows, cols, cols, FP8PIPE_FP32, 0};
}

static void world_open(struct world *w, enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 1, 64, NULL);
    struct fp8pipe_scaling_options scaling = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear_options linear = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct test_rng rng = {1};

    w->pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0);
    for (size_t i = 0; i < sizeof(w->values) / sizeof(*w->values); i++)
        w->values[i] = 0.01f * (float)test_random_range(&rng, 1, 200);
    w->x = matrix(w->values, TOKENS, FEATURES);
    w->y = matrix(w->values + TOKENS * FEATURES, TOKENS, FEATURES);
    w->dx = matrix(w->values + 2 * TOKENS * FEATURES, TOKENS, FEATURES);
    w->weight = matrix(w->values + 3 * TOKENS * FEATURES, FEATURES, FEATURES);
    scaling.slots = SLOTS;
    must(fp8pipe_scaling_create(w->pipe, &scaling, &w->scaling));
    linear.in_features = linear.out_features = FEATURES;
    linear.weight = w->weight;
    linear.scaling = w->scaling;
    linear.slot_x = X;
    linear.slot_w = W;
    linear.slot_dy = DY;
    must(fp8pipe_linear_create(w->pipe, &linear, &w->linear));
    must(fp8pipe_tensor_create(w->pipe, &w->saved));
}

static void world_close(struct world *w)
{
    must(fp8pipe_tensor_clear(w->saved));
    test_drain(w->pipe);
    must(fp8pipe_tensor_destroy(w->saved));
    must(fp8pipe_linear_destroy(w->linear));
    must(fp8pipe_scaling_destroy(w->scaling));
    must(fp8pipe_close(w->pipe, 0, -1));
}

/* What a round has cost. */
struct cost {
    int64_t passes; /* for a tensor's own amax */
    int64_t copies; /* of flags */
};

/* A forward, or with its dgrad, and an update; each done before the next. */
static struct cost round_of(struct world *w, bool backward)
{
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe_dgrad_op dgrad = FP8PIPE_DGRAD_OP_INIT;
    struct fp8pipe_scaling_op update = FP8PIPE_SCALING_OP_INIT;

    chaos_reset();
    forward.submit.lane = dgrad.submit.lane = update.submit.lane = 0;
    forward.x = w->x;
    forward.y = w->y;
    must(fp8pipe_linear_forward(w->linear, &forward, NULL));
    test_drain(w->pipe);
    if (backward) {
        dgrad.dy = w->y;
        dgrad.dx = w->dx;
        must(fp8pipe_linear_dgrad(w->linear, &dgrad, NULL));
        test_drain(w->pipe);
    }
    must(fp8pipe_scaling_update(w->scaling, &update, NULL));
    test_drain(w->pipe);
    return (struct cost){(int64_t)chaos_count(CHAOS_AMAX), (int64_t)chaos_count(CHAOS_COPY)};
}

static void rounds(enum fp8pipe_mode mode)
{
    const char *name = mode == FP8PIPE_INLINE ? "INLINE" : "ASYNC";
    static struct world w;
    struct cost cost;
    size_t bytes;
    void *state;

    watchdog("first scales", 60);
    world_open(&w, mode);
    cost = round_of(&w, false);
    is_int(cost.passes, 2, "%s: first X and the weight are scaled by their own amax", name);
    is_int(cost.copies, 1, "%s: and the update copies the flags", name);
    round_of(&w, false);
    cost = round_of(&w, false);
    is_int(cost.passes, 0, "%s: their scales are seen", name);
    is_int(cost.copies, 0, "%s: updates copy no flags for slots that nothing has used", name);

    must(fp8pipe_scaling_state_bytes(w.scaling, &bytes));
    state = malloc(bytes);
    if (state == NULL)
        bail("malloc");
    must(fp8pipe_scaling_save(w.scaling, state, bytes));

    cost = round_of(&w, true);
    is_int(cost.passes, 1, "%s: dY's slot comes into use: its own amax", name);
    is_int(cost.copies, 1, "%s: and flags are copied again", name);
    round_of(&w, true);
    cost = round_of(&w, true);
    is_int(cost.passes, 0, "%s: until it is seen", name);
    is_int(cost.copies, 0, "%s: too", name);

    must(fp8pipe_scaling_load(w.scaling, state, bytes));
    cost = round_of(&w, true);
    is_int(cost.passes, 1, "%s: a load without a scale for dY: its own amax", name);
    is_int(cost.copies, 1, "%s: and flags are copied", name);
    must(fp8pipe_scaling_save(w.scaling, state, bytes));
    must(fp8pipe_scaling_load(w.scaling, state, bytes));
    cost = round_of(&w, true);
    is_int(cost.passes, 0, "%s: a load with it: no pass", name);
    is_int(cost.copies, 0, "%s: no copy", name);
    free(state);
    world_close(&w);
}

int main(void)
{
    rounds(FP8PIPE_ASYNC);
    rounds(FP8PIPE_INLINE);
    return done_testing();
}
