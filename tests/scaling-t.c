/*
 * Delayed scaling: the rules by hand-made numbers; saved states; updates that the device skips;
 * counts of saturated and flushed values.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scaling.h"
#include "util.h"

/* ---- Rules, one by one -------------------------------------------------------------------- */

/* Folds one value into a slot, by a quantize on `lane`. */
static void fold(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling, uint32_t slot, float value,
                 int32_t lane)
{
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 1, 1, 0, 0);
    struct fp8pipe_tensor *tensor;

    must(fp8pipe_tensor_create(pipe, &tensor));
    test_matrix_set_raw(&x, &value);
    test_wait(pipe, test_quantize(tensor, x.view, scaling, slot, FP8PIPE_ROWWISE,
                                  test_submit(lane, 0, 0, 0)));
    must(fp8pipe_tensor_destroy(tensor));
    test_matrix_free(&x);
}

static bool scale_is(struct fp8pipe_scaling *scaling, uint32_t slot, float want)
{
    struct fp8pipe_slot_state state = test_slot(scaling, slot);

    if (state.has_scale && state.scale == want && state.amax == 0)
        return true;
    diag("slot %u: has_scale %d, scale %a, amax %a", slot, state.has_scale, (double)state.scale,
         (double)state.amax);
    return false;
}

static void test_rules(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    static const uint8_t roles[3] = {FP8PIPE_ROLE_DY, FP8PIPE_ROLE_X, FP8PIPE_ROLE_W};
    struct fp8pipe_slot_state state;
    struct fp8pipe_scaling *scaling;

    options.slots = 3;
    options.history = 2;
    options.roles = roles;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    ok(test_slot(scaling, 0).format == FP8PIPE_E5M2 && test_slot(scaling, 1).format == FP8PIPE_E4M3,
       "%s: hybrid: a slot of role DY is E5M2, of X E4M3, whatever its number", backend);
    state = test_slot(scaling, 1);
    ok(!state.has_scale && state.scale == 1.0f && state.amax == 0 && !state.nonfinite,
       "%s: a new slot has no scale and an empty history", backend);

    fold(pipe, scaling, 0, -8.0f, 0);
    fold(pipe, scaling, 1, 8.0f, 0);
    fold(pipe, scaling, 1, 3.0f, 1);
    state = test_slot(scaling, 1);
    ok(state.amax == 8.0f && !state.has_scale,
       "%s: a step's amax is the largest of its folds and waits for the update", backend);
    test_update(scaling);
    ok(scale_is(scaling, 0, 7168.0f), "%s: E5M2: 57344 / 8", backend);
    ok(scale_is(scaling, 1, 56.0f), "%s: E4M3: 448 / 8", backend);
    ok(!test_slot(scaling, 2).has_scale, "%s: an untouched slot gets no scale", backend);

    fold(pipe, scaling, 1, 1.0f, 0);
    test_update(scaling);
    ok(scale_is(scaling, 1, 56.0f), "%s: history 2: the step before still counts", backend);
    test_update(scaling);
    ok(scale_is(scaling, 0, 7168.0f), "%s: updates without a fold move nothing", backend);
    fold(pipe, scaling, 1, 1.0f, 0);
    test_update(scaling);
    ok(scale_is(scaling, 1, 448.0f), "%s: history 2: the step before that one does not", backend);

    fold(pipe, scaling, 1, 2.0f, 0);
    fold(pipe, scaling, 1, -INFINITY, 0);
    fold(pipe, scaling, 2, NAN, 0);
    ok(test_float_bits(test_slot(scaling, 1).amax) == 0x7F800000,
       "%s: an infinite value is an infinite amax", backend);
    test_update(scaling);
    ok(scale_is(scaling, 1, 448.0f) && test_slot(scaling, 1).nonfinite,
       "%s: an infinite amax is dropped, flagged and leaves the scale", backend);
    ok(!test_slot(scaling, 2).has_scale && test_slot(scaling, 2).nonfinite &&
           !test_slot(scaling, 0).nonfinite,
       "%s: NaN too, in its slot only", backend);
    fold(pipe, scaling, 1, 2.0f, 0);
    test_update(scaling);
    ok(scale_is(scaling, 1, 224.0f) && !test_slot(scaling, 1).nonfinite,
       "%s: the next finite step clears the flag; the infinite one is not in the window", backend);

    fold(pipe, scaling, 1, 4.0f, 0);
    test_skip(scaling);
    ok(scale_is(scaling, 1, 224.0f), "%s: a skip drops the step's amax and nothing else", backend);
    fold(pipe, scaling, 2, 1e-40f, 0);
    test_update(scaling);
    ok(scale_is(scaling, 2, FLT_MAX), "%s: an infinite quotient becomes FLT_MAX", backend);
    must(fp8pipe_scaling_destroy(scaling));

    options.initial_scale = 2.5f;
    options.recipe = FP8PIPE_ALL_E4M3;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    ok(scale_is(scaling, 0, 2.5f) && scale_is(scaling, 2, 2.5f),
       "%s: initial_scale is every slot's first scale", backend);
    ok(test_slot(scaling, 0).format == FP8PIPE_E4M3, "%s: ALL_E4M3: DY too", backend);
    fold(pipe, scaling, 0, 0.0f, 0);
    test_update(scaling);
    ok(scale_is(scaling, 0, 2.5f), "%s: a step of zeros moves nothing", backend);
    must(fp8pipe_scaling_destroy(scaling));
}

/* ---- Saved states ------------------------------------------------------------------------- */

static struct fp8pipe_scaling *make(struct fp8pipe *pipe, uint32_t slots, uint32_t history,
                                    enum fp8pipe_recipe recipe)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *scaling;

    options.slots = slots;
    options.history = history;
    options.recipe = recipe;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    return scaling;
}

static void *save(struct fp8pipe_scaling *scaling, size_t *bytes)
{
    void *state;

    must(fp8pipe_scaling_state_bytes(scaling, bytes));
    state = test_calloc(1, *bytes);
    must(fp8pipe_scaling_save(scaling, state, *bytes));
    return state;
}

/* load answers ESTATE, and what a save then gives is what it gave before. */
static bool refused(struct fp8pipe_scaling *scaling, const void *state, size_t bytes)
{
    size_t own_bytes;
    void *before = save(scaling, &own_bytes), *after;
    enum fp8pipe_status status = fp8pipe_scaling_load(scaling, state, bytes);
    bool unchanged;

    after = save(scaling, &own_bytes);
    unchanged = memcmp(before, after, own_bytes) == 0;
    free(before);
    free(after);
    if (status != FP8PIPE_ESTATE || !unchanged)
        diag("%s, the state is %s", fp8pipe_status_name(status),
             unchanged ? "the same" : "changed");
    return status == FP8PIPE_ESTATE && unchanged;
}

static void test_refusals(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling *scaling = make(pipe, 3, 4, FP8PIPE_HYBRID), *other;
    struct {
        const char *what;
        uint32_t slots, history;
        enum fp8pipe_recipe recipe;
    } others[] = {{"number of slots", 4, 4, FP8PIPE_HYBRID},
                  {"history length", 3, 5, FP8PIPE_HYBRID},
                  {"format of a slot", 3, 4, FP8PIPE_ALL_E4M3}};
    uint8_t *state, *foreign;
    const int32_t *flag;
    int32_t nonfinite;
    size_t bytes, foreign_bytes;
    int64_t accepted = 0;

    fold(pipe, scaling, 0, 3.0f, 0);
    fold(pipe, scaling, 1, INFINITY, 0);
    test_update(scaling);
    fold(pipe, scaling, 2, 5.0f, 0);
    state = save(scaling, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        state[i] ^= (uint8_t)(1u << i % 8);
        accepted += !refused(scaling, state, bytes);
        state[i] ^= (uint8_t)(1u << i % 8);
    }
    is_int(accepted, 0, "%s: a state with any one bit changed is refused whole", backend);
    ok(refused(scaling, state, bytes - 1) && refused(scaling, state, bytes / 2) &&
           refused(scaling, state, 1),
       "%s: a truncated state is refused whole", backend);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        other = make(pipe, others[i].slots, others[i].history, others[i].recipe);
        foreign = save(other, &foreign_bytes);
        ok(refused(scaling, foreign, foreign_bytes), "%s: a state of another %s is refused whole",
           backend, others[i].what);
        free(foreign);
        must(fp8pipe_scaling_destroy(other));
    }
    is_int(fp8pipe_scaling_load(scaling, state, bytes), FP8PIPE_OK,
           "%s: the state itself is still taken", backend);
    ok(test_slot(scaling, 1).nonfinite && test_slot(scaling, 2).amax == 5.0f &&
           !test_slot(scaling, 2).has_scale,
       "%s: with the flags and the amax of the step that was under way", backend);
    other = make(pipe, 3, 4, FP8PIPE_HYBRID);
    must(fp8pipe_scaling_load(other, state, bytes));
    must(fp8pipe_scaling_nonfinite_get(other, &flag));
    must(fp8pipe_download(pipe, &nonfinite, flag, sizeof(nonfinite)));
    is_int(nonfinite, 1, "%s: and the device's flag of the update before", backend);
    must(fp8pipe_scaling_destroy(other));
    free(state);
    must(fp8pipe_scaling_destroy(scaling));
}

/* Scales that no update gives, in states that are sound otherwise: saved from the device. */
static void test_scale_range(struct fp8pipe *pipe, const char *backend)
{
    const struct {
        float scale;
        bool taken;
    } cases[] = {{FLT_MIN, true}, {FLT_MAX, true}, {1e-40f, false},   {FLT_MIN / 2, false},
                 {0, false},      {-1, false},     {INFINITY, false}, {NAN, false}};
    struct fp8pipe_scaling *scaling = make(pipe, 3, 4, FP8PIPE_HYBRID);
    struct fp8pipe_scaling *source = make(pipe, 3, 4, FP8PIPE_HYBRID);
    const int32_t has_scale = 1;

    must(fp8pipe_upload(pipe, &source->state.has_scale[1], &has_scale, sizeof(has_scale)));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t bytes;
        void *state;

        must(fp8pipe_upload(pipe, &source->state.scale[KERNEL_SCALE_STRIDE], &cases[i].scale,
                            sizeof(float)));
        state = save(source, &bytes);
        if (cases[i].taken)
            ok(fp8pipe_scaling_load(scaling, state, bytes) == FP8PIPE_OK &&
                   scale_is(scaling, 1, cases[i].scale),
               "%s: a saved scale of %g is taken", backend, (double)cases[i].scale);
        else
            ok(refused(scaling, state, bytes), "%s: a saved scale of %g is refused", backend,
               (double)cases[i].scale);
        free(state);
    }
    must(fp8pipe_scaling_destroy(source));
    must(fp8pipe_scaling_destroy(scaling));
}

/* Without any ticket or wait in between. */
static void test_save_order(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling *scaling = make(pipe, 1, 4, FP8PIPE_HYBRID);
    struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 1, 1, 0, 0);
    struct fp8pipe_tensor *tensor;
    const double values[2] = {4, 2};
    size_t bytes;
    void *state;

    must(fp8pipe_tensor_create(pipe, &tensor));
    test_matrix_set(&x, &values[0]);
    test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, test_submit(1, 0, 0, 0));
    test_update(scaling);
    state = save(scaling, &bytes);
    test_drain(pipe);
    test_matrix_set(&x, &values[1]);
    for (int i = 0; i < 4; i++) {
        test_quantize(tensor, x.view, scaling, 0, FP8PIPE_ROWWISE, test_submit(1, 0, 0, 0));
        test_update(scaling);
    }
    must(fp8pipe_scaling_load(scaling, state, bytes));
    ok(scale_is(scaling, 0, 112.0f),
       "%s: save and load order themselves after the updates of other lanes", backend);
    test_drain(pipe);
    must(fp8pipe_tensor_destroy(tensor));
    test_matrix_free(&x);
    free(state);
    must(fp8pipe_scaling_destroy(scaling));
}

/* ---- Skipping on the device, counting ----------------------------------------------------- */

static void update_if_not(struct fp8pipe_scaling *scaling, const int32_t *skip_if)
{
    struct fp8pipe_scaling_op op = FP8PIPE_SCALING_OP_INIT;
    fp8pipe_ticket ticket;

    op.submit = test_submit(0, 0, 0, 0);
    op.skip_if = skip_if;
    must(fp8pipe_scaling_update(scaling, &op, &ticket));
}

static void test_skip_if(struct fp8pipe *pipe, const char *backend)
{
    struct fp8pipe_scaling *scaling = make(pipe, 3, 4, FP8PIPE_HYBRID);
    int32_t *skip = test_alloc(pipe, sizeof(*skip), 0), on = 1, flag;
    const int32_t *nonfinite;

    fold(pipe, scaling, 0, 4.0f, 0);
    update_if_not(scaling, skip);
    ok(scale_is(scaling, 0, 112.0f), "%s: a skip_if of 0 skips nothing", backend);
    fold(pipe, scaling, 0, INFINITY, 0);
    update_if_not(scaling, skip);
    test_drain(pipe); /* an upload is not ordered with ops */
    must(fp8pipe_upload(pipe, skip, &on, sizeof(on)));
    fold(pipe, scaling, 0, 8.0f, 0);
    fold(pipe, scaling, 1, NAN, 0);
    update_if_not(scaling, skip);
    must(fp8pipe_scaling_nonfinite_get(scaling, &nonfinite));
    test_drain(pipe);
    must(fp8pipe_download(pipe, &flag, nonfinite, sizeof(flag)));
    ok(scale_is(scaling, 0, 112.0f) && test_slot(scaling, 1).amax == 0 &&
           !test_slot(scaling, 1).has_scale && test_slot(scaling, 0).nonfinite == 1 &&
           test_slot(scaling, 1).nonfinite == 0 && flag == 1,
       "%s: another drops the step's amax, moves nothing, leaves the flags", backend);
    /* The scaling's own flag, which is 1 from before: this update and all after it are skipped. */
    fold(pipe, scaling, 0, 2.0f, 0);
    update_if_not(scaling, nonfinite);
    ok(scale_is(scaling, 0, 112.0f), "%s: skip_if may be the scaling's own flag", backend);
    fold(pipe, scaling, 0, 2.0f, 0);
    update_if_not(scaling, NULL);
    fold(pipe, scaling, 0, 16.0f, 0);
    update_if_not(scaling, nonfinite);
    ok(scale_is(scaling, 0, 28.0f), "%s: which a finite update clears", backend);
    test_drain(pipe);
    must(fp8pipe_free(pipe, skip));
    must(fp8pipe_scaling_destroy(scaling));
}

static bool counted(struct fp8pipe_scaling *scaling, uint32_t slot, uint64_t saturated,
                    uint64_t flushed)
{
    struct fp8pipe_slot_state state = test_slot(scaling, slot);

    if (state.saturated == saturated && state.flushed == flushed)
        return true;
    diag("slot %u: %llu saturated, %llu flushed", slot, (unsigned long long)state.saturated,
         (unsigned long long)state.flushed);
    return false;
}

static void test_extremes(struct fp8pipe *pipe, const char *backend)
{
    /* E4M3 at a scale of 1: 448.1 and more saturate, 2^-10 and less round to 0. */
    const float values[] = {448.0f, 448.1f,   -449.0f,   INFINITY,    -INFINITY, NAN,  0.0f,
                            -0.0f,  0x1p-10f, -0x1p-11f, 0x1.01p-10f, 1e-40f,    1.0f, 3e38f};
    int count = sizeof(values) / sizeof(values[0]);
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *scaling;
    size_t bytes;
    void *state;

    options.slots = 3;
    options.history = 4;
    options.initial_scale = 1.0f;
    options.count_extremes = 1;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    state = save(scaling, &bytes);
    for (int i = 0; i < count; i++)
        fold(pipe, scaling, 0, values[i], 0);
    ok(counted(scaling, 0, 5, 3) && counted(scaling, 1, 0, 0),
       "%s: saturated and flushed values are counted, in their slot", backend);
    for (int i = 0; i < count; i++)
        fold(pipe, scaling, 2, values[i], 0);
    ok(counted(scaling, 2, 3, 1), "%s: by the format of the slot", backend);
    must(fp8pipe_scaling_load(scaling, state, bytes));
    ok(counted(scaling, 0, 5, 3) && test_slot(scaling, 0).amax == 0, "%s: a load leaves the counts",
       backend);
    free(state);
    must(fp8pipe_scaling_destroy(scaling));
    scaling = make(pipe, 3, 4, FP8PIPE_HYBRID);
    fold(pipe, scaling, 0, INFINITY, 0);
    ok(counted(scaling, 0, 0, 0), "%s: nothing is counted unless asked for", backend);
    must(fp8pipe_scaling_destroy(scaling));
}

static void cases(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = test_open_poisoned(backend);
    const char *name = test_backend_name(backend);

    test_rules(pipe, name);
    test_refusals(pipe, name);
    test_scale_range(pipe, name);
    test_save_order(pipe, name);
    test_skip_if(pipe, name);
    test_extremes(pipe, name);
    test_close(pipe);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
