/*
 * Guards what an optimizer computes: AdamW bit for bit against a second implementation and close to
 * float64, FP8 copies and amax, skipped steps, the gradient norm, the count of steps.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parameters.h"

static struct test_rng rng = {7};

static struct fp8pipe_scaling *scaling_make(struct fp8pipe *pipe, uint32_t slots,
                                            float initial_scale)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    uint8_t *roles = test_calloc(slots, 1);
    struct fp8pipe_scaling *scaling = NULL;

    memset(roles, FP8PIPE_ROLE_W, slots);
    roles[0] = FP8PIPE_ROLE_X;
    roles[2] = FP8PIPE_ROLE_DY;
    options.slots = slots;
    options.initial_scale = initial_scale;
    options.roles = roles;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    free(roles);
    return scaling;
}

#define PLAIN .linear = false
#define LINEAR(slot) .linear = true, .slot_w = (slot)

/* Every kind of tile: whole and cut square ones, flat ones, rows of any alignment, empty. */
static const struct parameter_config zoo[] = {
    {5, 7, FP8PIPE_FP32, true, true, FP8PIPE_BF16, PLAIN, .group = 0},
    {1, 33, FP8PIPE_BF16, false, true, FP8PIPE_FP16, PLAIN, .group = 1},
    {3, 20000, FP8PIPE_FP16, true, false, FP8PIPE_FP32, PLAIN, .group = 0},
    {128, 256, FP8PIPE_FP32, true, true, FP8PIPE_BF16, LINEAR(1), .group = 0},
    {256, 128, FP8PIPE_BF16, false, false, FP8PIPE_FP32, LINEAR(3), .group = 1},
    {17, 33, FP8PIPE_BF16, false, true, FP8PIPE_FP16, LINEAR(4), .group = 1},
    {130, 260, FP8PIPE_FP16, true, true, FP8PIPE_BF16, LINEAR(5), .group = 0},
    {1, 1, FP8PIPE_FP32, false, false, FP8PIPE_FP32, LINEAR(6), .group = 0},
    {0, 4, FP8PIPE_FP32, false, false, FP8PIPE_FP32, PLAIN, .group = 0},
    {0, 16, FP8PIPE_FP32, false, false, FP8PIPE_FP32, LINEAR(7), .group = 1},
    {200, 3, FP8PIPE_FP32, false, false, FP8PIPE_FP32, LINEAR(8), .group = 0},
};
#define ZOO (sizeof(zoo) / sizeof(zoo[0]))
#define ZOO_SLOTS 9

static const struct fp8pipe_parameter_group zoo_groups[2] = {
    {1.0f, 0.9f, 0.999f, 1e-8f, 0.01f, 0.99f}, {0.5f, 0.8f, 0.95f, 1e-6f, 0.0f, 0.0f}};

struct scene {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct parameter parameters[ZOO];
    struct fp8pipe_optimizer *optimizer;
};

static struct scene scene_make(enum fp8pipe_backend backend, float initial_scale)
{
    struct scene s = {.pipe = test_open_poisoned(backend)};

    s.scaling = scaling_make(s.pipe, ZOO_SLOTS, initial_scale);
    for (size_t i = 0; i < ZOO; i++)
        s.parameters[i] = parameter_make(s.pipe, s.scaling, &zoo[i], &rng);
    s.optimizer = parameters_optimizer(s.pipe, s.parameters, ZOO, zoo_groups, 2);
    return s;
}

static void scene_free(struct scene *s)
{
    test_drain(s->pipe);
    must(fp8pipe_optimizer_destroy(s->optimizer));
    for (size_t i = 0; i < ZOO; i++)
        parameter_free(&s->parameters[i]);
    must(fp8pipe_scaling_destroy(s->scaling));
    test_close(s->pipe);
}

static void scene_gradients(struct scene *s, double deviation)
{
    for (size_t i = 0; i < ZOO; i++)
        parameter_gradient(&s->parameters[i], deviation, &rng);
}

static void scene_step(struct scene *s, float lr, float lr_device, float gradient_scale, int64_t t)
{
    for (size_t i = 0; i < ZOO; i++)
        parameter_step(&s->parameters[i], &zoo_groups[zoo[i].group], lr, lr_device, gradient_scale,
                       t);
}

static bool scene_agrees(const struct scene *s, const char *what)
{
    bool agree = true;

    for (size_t i = 0; i < ZOO; i++)
        agree = parameter_agrees(&s->parameters[i], what) && agree;
    return agree;
}

static bool scene_fp8_agrees(const struct scene *s, const char *what)
{
    bool agree = true;

    for (size_t i = 0; i < ZOO; i++)
        if (zoo[i].linear && s->parameters[i].elements > 0)
            agree = parameter_fp8_agrees(&s->parameters[i], s->scaling, what) && agree;
    return agree;
}

static uint64_t scene_hash(const struct scene *s)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < ZOO; i++)
        hash = hash * 31 + parameter_hash(&s->parameters[i]);
    return hash;
}

/* max|master| of parameter i, by the float32 step. */
static float largest_of(const struct scene *s, size_t i)
{
    float largest = 0;

    for (int64_t j = 0; j < s->parameters[i].elements; j++)
        largest = fmaxf(largest, fabsf(s->parameters[i].master32[j]));
    return largest;
}

static bool amax_is_of_master(const struct scene *s)
{
    bool agree = true;

    for (size_t i = 0; i < ZOO; i++) {
        struct fp8pipe_slot_state state;

        if (!zoo[i].linear)
            continue;
        state = test_slot(s->scaling, zoo[i].slot_w);
        if (state.amax != largest_of(s, i)) {
            diag("slot %u: amax is %a, not %a", zoo[i].slot_w, (double)state.amax,
                 (double)largest_of(s, i));
            agree = false;
        }
    }
    return agree;
}

/* ---- Steps --------------------------------------------------------------------------------- */

static void test_steps(enum fp8pipe_backend backend)
{
    struct scene s = scene_make(backend, 0);
    const char *name = test_backend_name(backend);
    bool bits = true, fp8 = true, amax = true;
    const int steps = TEST_SANITIZED ? 5 : 20; /* of each kind one */
    float *lr_device = test_alloc(s.pipe, sizeof(float), 0);
    float half = 0.5f;
    double distance = 0;

    must(fp8pipe_upload(s.pipe, lr_device, &half, sizeof(half)));
    for (int64_t t = 1; t <= steps; t++) {
        struct fp8pipe_adamw_op op = FP8PIPE_ADAMW_OP_INIT;
        bool device = t % 3 == 0;

        scene_gradients(&s, t % 4 == 0 ? 1e-6 : 0.1);
        op.lr = 1e-2f;
        op.lr_device = device ? lr_device : NULL;
        op.gradient_scale = t % 5 == 0 ? lr_device : NULL;
        must(fp8pipe_optimizer_adamw(s.optimizer, &op, NULL));
        test_drain(s.pipe);
        scene_step(&s, 1e-2f, device ? half : 1, t % 5 == 0 ? half : 1, t);
        bits = scene_agrees(&s, "step") && bits;
        /* Until the first update by their own amax, then by the scale from before the step. */
        fp8 = scene_fp8_agrees(&s, "FP8 copies") && fp8;
        if (t > 3)
            amax = amax_is_of_master(&s) && amax;
        if (t >= 3)
            test_update(s.scaling);
    }
    for (size_t i = 0; i < ZOO; i++)
        distance = fmax(distance, parameter_distance(&s.parameters[i], 1e-2));
    ok(bits, "%s: %d steps of AdamW are those of the header, bit for bit", name, steps);
    ok(distance < 1e-3, "%s: and those of float64, but for rounding", name);
    if (distance >= 1e-3)
        diag("off by %g steps", distance);
    ok(fp8, "%s: FP8 copies are a quantize of the new master", name);
    ok(amax, "%s: max|master| is folded into the slots", name);
    must(fp8pipe_free(s.pipe, lr_device));
    scene_free(&s);
}

static void test_given_scale(enum fp8pipe_backend backend)
{
    struct scene s = scene_make(backend, 24.0f);
    const char *name = test_backend_name(backend);

    scene_gradients(&s, 0.1);
    test_wait(s.pipe, parameters_adamw(s.optimizer, test_submit(0, 0, 0, 0), 1e-3f, NULL));
    scene_step(&s, 1e-3f, 1, 1, 1);
    ok(scene_agrees(&s, "step") && scene_fp8_agrees(&s, "FP8 copies"),
       "%s: a first step with scales that are given", name);
    scene_free(&s);
}

static void test_skipped(enum fp8pipe_backend backend, float initial_scale)
{
    struct scene s = scene_make(backend, initial_scale);
    const char *name = test_backend_name(backend);
    int32_t *skip = test_alloc(s.pipe, sizeof(*skip), 0);
    int32_t flag = -7;
    int64_t steps = -1;
    uint64_t before;

    must(fp8pipe_upload(s.pipe, skip, &flag, sizeof(flag)));
    scene_gradients(&s, 0.1);
    test_wait(s.pipe, parameters_adamw(s.optimizer, test_submit(0, 0, 0, 0), 1e-2f, skip));
    ok(scene_agrees(&s, "skipped"), "%s: a first step that is skipped changes no parameter", name);
    ok(scene_fp8_agrees(&s, "skipped"), "%s: and leaves the FP8 copies of the weights", name);
    flag = 0;
    must(fp8pipe_upload(s.pipe, skip, &flag, sizeof(flag)));
    test_wait(s.pipe, parameters_adamw(s.optimizer, test_submit(0, 0, 0, 0), 1e-2f, skip));
    scene_step(&s, 1e-2f, 1, 1, 1);
    ok(scene_agrees(&s, "step 1") && scene_fp8_agrees(&s, "step 1"),
       "%s: the step after it is the first", name);
    test_update(s.scaling);
    test_drain(s.pipe);
    before = scene_hash(&s);
    flag = 1;
    must(fp8pipe_upload(s.pipe, skip, &flag, sizeof(flag)));
    test_wait(s.pipe, parameters_adamw(s.optimizer, test_submit(0, 0, 0, 0), 1e-2f, skip));
    ok(scene_hash(&s) == before, "%s: a skipped step writes nothing", name);
    ok(test_slot(s.scaling, 1).amax == 0, "%s: nor folds an amax", name);
    must(fp8pipe_optimizer_steps_get(s.optimizer, &steps));
    is_int(steps, 1, "%s: nor counts", name);
    must(fp8pipe_free(s.pipe, skip));
    scene_free(&s);
}

static void test_edge_values(enum fp8pipe_backend backend)
{
    static const float edge[] = {0.0f,   -0.0f,    1e-45f,    -1e-42f, FLT_MIN, FLT_MAX, -FLT_MAX,
                                 1e-20f, INFINITY, -INFINITY, NAN,     3.0f,    -1e-30f, 1e30f};
    const size_t count = sizeof(edge) / sizeof(edge[0]);
    struct parameter_config config = {14,   14 * 14,      FP8PIPE_FP32, true,
                                      true, FP8PIPE_FP16, LINEAR(1),    .group = 0};
    struct fp8pipe *pipe = test_open_poisoned(backend);
    struct fp8pipe_scaling *scaling = scaling_make(pipe, 3, 2.0f);
    struct parameter p = parameter_make(pipe, scaling, &config, &rng);
    struct fp8pipe_optimizer *optimizer = parameters_optimizer(pipe, &p, 1, zoo_groups, 1);

    for (int64_t i = 0; i < p.elements; i++) {
        size_t at = (size_t)i;

        p.master32[i] = edge[at % count];
        p.gradient32[i] = edge[at / count % count];
        p.first32[i] = edge[at / count / count % count];
        p.second32[i] = fabsf(edge[(at * 5 + 3) % count]);
        p.average32[i] = edge[(at * 3 + 1) % count];
    }
    test_matrix_set_raw(&p.master, p.master32);
    test_matrix_set_raw(&p.gradient, p.gradient32);
    test_matrix_set_raw(&p.first, p.first32);
    test_matrix_set_raw(&p.second, p.second32);
    test_matrix_set_raw(&p.average, p.average32);
    test_wait(pipe, parameters_adamw(optimizer, test_submit(0, 0, 0, 0), 1e-2f, NULL));
    parameter_step(&p, &zoo_groups[0], 1e-2f, 1, 1, 1);
    ok(parameter_agrees(&p, "edges"), "%s: zeros, subnormals, inf and NaN",
       test_backend_name(backend));
    ok(parameter_fp8_agrees(&p, scaling, "edges"), "%s: and their FP8 copies",
       test_backend_name(backend));
    ok(isnan(test_slot(scaling, 1).amax), "%s: a NaN in the master shows in the slot's amax",
       test_backend_name(backend));
    must(fp8pipe_optimizer_destroy(optimizer));
    parameter_free(&p);
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
}

/* Shapes around the edges of tiles, all dtypes, with and without FP8 copies. */
static void test_shapes(enum fp8pipe_backend backend)
{
    static const int64_t side[] = {1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 131, 257};
    const size_t count = sizeof(side) / sizeof(side[0]);
    struct fp8pipe *pipe = test_open_poisoned(backend);
    struct fp8pipe_scaling *scaling = scaling_make(pipe, 3, 8.0f);
    bool agree = true;

    for (size_t i = 0; i < count; i++)
        for (size_t j = i % 2; j < count; j += 2) {
            struct parameter_config config = {.rows = side[i],
                                              .cols = side[j],
                                              .gradient_dtype = (enum fp8pipe_dtype)((i + j) % 3),
                                              .linear = (i + j) % 5 != 0,
                                              .slot_w = 1};
            struct parameter p = parameter_make(pipe, scaling, &config, &rng);
            struct fp8pipe_optimizer *optimizer = parameters_optimizer(pipe, &p, 1, zoo_groups, 1);

            parameter_gradient(&p, 0.3, &rng);
            test_wait(pipe, parameters_adamw(optimizer, test_submit(0, 0, 0, 0), 1e-2f, NULL));
            parameter_step(&p, &zoo_groups[0], 1e-2f, 1, 1, 1);
            agree = parameter_agrees(&p, "shape") &&
                    (!config.linear || parameter_fp8_agrees(&p, scaling, "shape")) && agree;
            must(fp8pipe_optimizer_destroy(optimizer));
            parameter_free(&p);
        }
    ok(agree, "%s: steps of every shape around a tile", test_backend_name(backend));
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
}

/* A step counts what it casts as a quantize does. */
static void test_extremes(enum fp8pipe_backend backend)
{
    struct parameter_config config = {.rows = 131, .cols = 140, .linear = true, .slot_w = 1};
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe *pipe = test_open_poisoned(backend);
    struct fp8pipe_scaling *scaling = NULL;
    struct fp8pipe_slot_state before, stepped, quantized;
    struct fp8pipe_optimizer *optimizer;
    struct parameter p;

    options.slots = 3;
    options.initial_scale = 3000.0f;
    options.count_extremes = 1;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    p = parameter_make(pipe, scaling, &config, &rng);
    for (int64_t i = 0; i < p.elements; i++)
        p.master32[i] *= i % 3 == 0 ? 1e-7f : 1;
    test_matrix_set_raw(&p.master, p.master32);
    parameter_gradient(&p, 0.1, &rng);
    optimizer = parameters_optimizer(pipe, &p, 1, zoo_groups, 1);
    /* The first one quantizes before it steps. */
    parameters_adamw(optimizer, test_submit(0, 0, 0, 0), 0, NULL);
    before = test_slot(scaling, 1);
    parameters_adamw(optimizer, test_submit(0, 0, 0, 0), 0, NULL);
    stepped = test_slot(scaling, 1);
    ok(parameter_fp8_agrees(&p, scaling, "extremes"), "%s: FP8 copies while they are counted",
       test_backend_name(backend));
    quantized = test_slot(scaling, 1);
    ok(stepped.saturated > before.saturated && stepped.flushed > before.flushed &&
           stepped.saturated - before.saturated == quantized.saturated - stepped.saturated &&
           stepped.flushed - before.flushed == quantized.flushed - stepped.flushed,
       "%s: a step counts what saturates and what is flushed to 0", test_backend_name(backend));
    test_drain(pipe);
    must(fp8pipe_optimizer_destroy(optimizer));
    parameter_free(&p);
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
}

/* ---- The gradient norm --------------------------------------------------------------------- */

struct outputs {
    float norm;
    float clip;
    int32_t nonfinite;
};

/* Through device memory; scale: NULL or a value. */
static struct outputs norm_of(struct scene *s, float max_norm, const float *scale, bool wanted)
{
    struct outputs out = {-1, -1, -1};
    struct outputs *device = test_alloc(s->pipe, sizeof(out) + sizeof(float), 0);
    float *device_scale = (float *)(device + 1);
    struct fp8pipe_gradient_norm_op op = FP8PIPE_GRADIENT_NORM_OP_INIT;

    must(fp8pipe_upload(s->pipe, device, &out, sizeof(out)));
    if (scale != NULL)
        must(fp8pipe_upload(s->pipe, device_scale, scale, sizeof(*scale)));
    op.max_norm = max_norm;
    op.gradient_scale = scale != NULL ? device_scale : NULL;
    op.norm = wanted ? &device->norm : NULL;
    op.clip = wanted ? &device->clip : NULL;
    op.nonfinite = wanted ? &device->nonfinite : NULL;
    must(fp8pipe_optimizer_gradient_norm(s->optimizer, &op, NULL));
    test_drain(s->pipe);
    must(fp8pipe_download(s->pipe, &out, device, sizeof(out)));
    must(fp8pipe_free(s->pipe, device));
    return out;
}

static double norm64(const struct scene *s)
{
    double sum = 0;

    for (size_t i = 0; i < ZOO; i++)
        for (int64_t j = 0; j < s->parameters[i].elements; j++)
            sum += (double)s->parameters[i].gradient32[j] * (double)s->parameters[i].gradient32[j];
    return sqrt(sum);
}

static bool close_to(double got, double want)
{
    return fabs(got - want) <= 2e-7 * want;
}

static void test_norm(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct scene s = scene_make(backend, 1.0f);
    float scale = -0.25f, values[4] = {INFINITY, 1, 2, 3};
    struct outputs out, again;
    float small;

    scene_gradients(&s, 0.1);
    out = norm_of(&s, 0, NULL, true);
    ok(close_to((double)out.norm, norm64(&s)), "%s: the norm of all gradients", name);
    ok(out.clip == 1.0f && out.nonfinite == 0, "%s: without a limit nothing is clipped", name);
    again = norm_of(&s, 0, NULL, true);
    ok(memcmp(&out, &again, sizeof(out)) == 0, "%s: the same bits again", name);
    out = norm_of(&s, 1.5f, &scale, true);
    ok(close_to((double)out.norm, 0.25 * norm64(&s)), "%s: the norm of scaled gradients", name);
    small = 1.5f / (out.norm + 1e-6f);
    ok(out.clip == scale * (small < 1 ? small : 1) && small < 1, "%s: the clip factor", name);
    out = norm_of(&s, 1e6f, &scale, true);
    ok(out.clip == scale, "%s: a norm below the limit is not clipped", name);
    out = norm_of(&s, 1.0f, NULL, false);
    ok(out.norm == -1 && out.clip == -1 && out.nonfinite == -1, "%s: no output is needed", name);
    scene_gradients(&s, 1e-30);
    out = norm_of(&s, 0, NULL, true);
    ok(close_to((double)out.norm, norm64(&s)) && out.nonfinite == 0,
       "%s: squares of small gradients do not vanish", name);
    scene_gradients(&s, 0.1);
    must(fp8pipe_upload(s.pipe, (float *)s.parameters[3].gradient.view.data + 1234, values,
                        sizeof(values)));
    out = norm_of(&s, 1.0f, NULL, true);
    ok(isinf(out.norm) && out.nonfinite == 1, "%s: one inf makes the norm inf", name);
    values[0] = NAN;
    must(fp8pipe_upload(s.pipe, (float *)s.parameters[3].gradient.view.data + 1234, values,
                        sizeof(values)));
    out = norm_of(&s, 1.0f, NULL, true);
    ok(isnan(out.norm) && out.nonfinite == 1, "%s: one NaN makes it NaN", name);
    scene_free(&s);
}

/* The usual step: the flag and the factor never leave the device. */
static void test_clip_and_skip(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct scene s = scene_make(backend, 1.0f);
    struct fp8pipe_gradient_norm_op norm = FP8PIPE_GRADIENT_NORM_OP_INIT;
    struct fp8pipe_adamw_op step = FP8PIPE_ADAMW_OP_INIT;
    struct outputs *device = test_alloc(s.pipe, sizeof(*device), 0x55);
    struct outputs out;
    float inf = INFINITY;
    int64_t steps = 0;
    uint64_t before;

    norm.max_norm = 0.5f;
    norm.norm = &device->norm;
    norm.clip = &device->clip;
    step.gradient_scale = &device->clip;
    norm.nonfinite = &device->nonfinite;
    step.skip_if = &device->nonfinite;
    step.lr = 1e-2f;
    scene_gradients(&s, 0.1);
    must(fp8pipe_optimizer_gradient_norm(s.optimizer, &norm, NULL));
    must(fp8pipe_optimizer_adamw(s.optimizer, &step, NULL));
    test_drain(s.pipe);
    must(fp8pipe_download(s.pipe, &out, device, sizeof(out)));
    scene_step(&s, 1e-2f, 1, out.clip, 1);
    ok(out.clip < 0.5f && scene_agrees(&s, "clipped"), "%s: a step with clipped gradients", name);
    before = scene_hash(&s);
    must(fp8pipe_upload(s.pipe, s.parameters[2].gradient.view.data, &inf, sizeof(inf)));
    must(fp8pipe_optimizer_gradient_norm(s.optimizer, &norm, NULL));
    must(fp8pipe_optimizer_adamw(s.optimizer, &step, NULL));
    must(fp8pipe_optimizer_steps_get(s.optimizer, &steps));
    ok(scene_hash(&s) == before && steps == 1, "%s: gradients that are not finite skip it", name);
    must(fp8pipe_free(s.pipe, device));
    scene_free(&s);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

static void test_checkpoint(enum fp8pipe_backend backend)
{
    const char *name = test_backend_name(backend);
    struct scene s = scene_make(backend, 1.0f);
    int64_t steps = -1;

    must(fp8pipe_optimizer_steps_get(s.optimizer, &steps));
    is_int(steps, 0, "%s: a new optimizer has taken no steps", name);
    for (int64_t t = 1; t <= 3; t++) {
        scene_gradients(&s, 0.1);
        parameters_adamw(s.optimizer, test_submit(FP8PIPE_LANE_AUTO, 0, 0, 0), 1e-2f, NULL);
        scene_step(&s, 1e-2f, 1, 1, t);
        must(fp8pipe_optimizer_steps_get(s.optimizer, &steps));
    }
    is_int(steps, 3, "%s: then as many as were submitted", name);
    must(fp8pipe_optimizer_destroy(s.optimizer));
    s.optimizer = parameters_optimizer(s.pipe, s.parameters, ZOO, zoo_groups, 2);
    must(fp8pipe_optimizer_steps_set(s.optimizer, 3));
    for (int64_t t = 4; t <= 6; t++) {
        scene_gradients(&s, 0.1);
        test_wait(s.pipe, parameters_adamw(s.optimizer, test_submit(0, 0, 0, 0), 1e-2f, NULL));
        scene_step(&s, 1e-2f, 1, 1, t);
    }
    ok(scene_agrees(&s, "resumed") && scene_fp8_agrees(&s, "resumed"),
       "%s: another optimizer goes on where the first one stopped", name);
    must(fp8pipe_optimizer_steps_set(s.optimizer, INT64_C(5000000000)));
    scene_gradients(&s, 0.1);
    test_wait(s.pipe, parameters_adamw(s.optimizer, test_submit(0, 0, 0, 0), 1e-2f, NULL));
    scene_step(&s, 1e-2f, 1, 1, INT64_C(5000000001));
    ok(scene_agrees(&s, "late"), "%s: a step after five thousand million", name);
    scene_free(&s);
}

static void cases(enum fp8pipe_backend backend)
{
    test_steps(backend);
    test_given_scale(backend);
    test_skipped(backend, 0);
    test_skipped(backend, 3.0f);
    test_edge_values(backend);
    test_shapes(backend);
    test_extremes(backend);
    test_norm(backend);
    test_clip_and_skip(backend);
    test_checkpoint(backend);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
