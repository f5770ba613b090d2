/*
 * Guards what the library owns and orders itself: scalings, weight versions, fillings of quantized
 * tensors. Every value is a power of two and every scale a format's largest value over one, so
 * casts are exact, or saturate to the amax that made the scale: a model of the contract gives each
 * result.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "chaos.h"

#define ROWS 2
#define SIDE 16 /* K = N */
#define VALUES 7
#define STEPS 500

static float value_of(int index)
{
    return ldexpf(1, index - VALUES / 2);
}

/* What the device has to hold in one slot; amax_of_scale 0: no scale yet. */
struct slot_model {
    float amax_of_scale;
    float folded;
};

/* What a cast makes of `value`, after dequantizing. */
static float model_cast(struct slot_model *slot, float value)
{
    float cast = slot->amax_of_scale > 0 ? fminf(value, slot->amax_of_scale) : value;

    slot->folded = fmaxf(slot->folded, value);
    return cast;
}

struct world {
    struct fp8pipe *pipe;
    int lanes;
    struct test_matrix values[VALUES]; /* [SIDE, SIDE], all of one value; X uses the first rows */
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *tensor, *saved;
};

static struct fp8pipe_matrix rows_of(struct world *w, int index)
{
    struct fp8pipe_matrix x = w->values[index].view;

    x.rows = ROWS;
    return x;
}

static void world_open(struct world *w, struct fp8pipe *pipe, int lanes)
{
    struct fp8pipe_scaling_options scaling = FP8PIPE_SCALING_OPTIONS_INIT;
    double dense[SIDE * SIDE];

    memset(w, 0, sizeof(*w));
    w->pipe = pipe;
    w->lanes = lanes;
    for (int i = 0; i < VALUES; i++) {
        w->values[i] = test_matrix_make(pipe, FP8PIPE_FP32, SIDE, SIDE, 0, 0);
        for (int j = 0; j < SIDE * SIDE; j++)
            dense[j] = value_of(i);
        test_matrix_set(&w->values[i], dense);
    }
    scaling.slots = 3;
    scaling.history = 1;
    must(fp8pipe_scaling_create(pipe, &scaling, &w->scaling));
    w->linear = test_linear(pipe, w->values[0].view, w->scaling);
    must(fp8pipe_tensor_create(pipe, &w->tensor));
    must(fp8pipe_tensor_create(pipe, &w->saved));
}

static void world_close(struct world *w)
{
    test_drain(w->pipe);
    for (int i = 0; i < VALUES; i++)
        test_matrix_free(&w->values[i]);
    must(fp8pipe_tensor_destroy(w->tensor));
    must(fp8pipe_tensor_destroy(w->saved));
    must(fp8pipe_linear_destroy(w->linear));
    must(fp8pipe_scaling_destroy(w->scaling));
    test_close(w->pipe);
}

static void forward(struct world *w, int32_t lane, uint32_t flags, int x,
                    struct fp8pipe_tensor *from, struct fp8pipe_matrix y,
                    struct fp8pipe_tensor *saved, enum fp8pipe_keep keep)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit = test_submit(lane, flags, 0, 0);
    if (from)
        op.x_tensor = from;
    else
        op.x = rows_of(w, x);
    op.y = y;
    op.saved = saved;
    op.keep = keep;
    must(fp8pipe_linear_forward(w->linear, &op, NULL));
}

static void dgrad(struct world *w, int32_t lane, uint32_t flags, int dy, struct fp8pipe_matrix dx)
{
    struct fp8pipe_dgrad_op op = FP8PIPE_DGRAD_OP_INIT;

    op.submit = test_submit(lane, flags, 0, 0);
    op.dy = rows_of(w, dy);
    op.saved = w->saved;
    op.dx = dx;
    must(fp8pipe_linear_dgrad(w->linear, &op, NULL));
}

static void read_to(struct fp8pipe_tensor *tensor, int32_t lane, uint32_t flags, float *scale_inv)
{
    struct fp8pipe_read_op op = FP8PIPE_READ_OP_INIT;

    op.submit = test_submit(lane, flags, 0, 0);
    op.scale_inv = scale_inv;
    must(fp8pipe_tensor_read(tensor, &op, NULL));
}

/* ---- Random submits against a model ------------------------------------------------------- */

struct model {
    struct world *world;
    pthread_mutex_t mutex; /* makes the order of the submits, so that the model knows it */
    bool locked;
    struct test_matrix out; /* [STEPS, ROWS * SIDE] */
    double want[STEPS];     /* 0: nothing to check */
    struct slot_model slots[3];
    float weight;      /* of the current version */
    float weight_cast; /* 0: not quantized yet */
    float saved_cast;  /* of the version in `saved`, 0: empty */
    float tensor_inv;  /* of the filling of `tensor`, 0: empty */
    int step;
};

struct author {
    struct model *model;
    uint64_t seed;
};

static void submit_update(struct model *m, int32_t lane, bool skip)
{
    struct fp8pipe_scaling_op op = FP8PIPE_SCALING_OP_INIT;

    op.submit = ON(lane);
    must(skip ? fp8pipe_scaling_skip(m->world->scaling, &op, NULL)
              : fp8pipe_scaling_update(m->world->scaling, &op, NULL));
    for (int i = 0; i < 3; i++) {
        if (!skip && m->slots[i].folded > 0)
            m->slots[i].amax_of_scale = m->slots[i].folded;
        m->slots[i].folded = 0;
    }
}

static float model_weight(struct model *m)
{
    if (m->weight_cast == 0)
        m->weight_cast = model_cast(&m->slots[1], m->weight);
    return m->weight_cast;
}

static void one_step(struct model *m, int step, struct test_rng *rng)
{
    struct world *w = m->world;
    int32_t lane = (int32_t)test_random_range(rng, -1, w->lanes - 1);
    int index = (int)test_random_range(rng, 0, VALUES - 1);
    struct fp8pipe_matrix out = m->out.view;

    out.data = (float *)out.data + step * out.stride;
    out.rows = ROWS;
    out.cols = out.stride = SIDE;
    switch (test_random_range(rng, 0, 9)) {
    case 0:
        must(fp8pipe_linear_weight_changed(w->linear, &w->values[index].view, 0));
        m->weight = value_of(index);
        m->weight_cast = 0;
        break;
    case 1:
        submit_update(m, lane, false);
        break;
    case 2:
        submit_update(m, lane, true);
        break;
    case 3:
    case 4:
        test_quantize(w->tensor, rows_of(w, index), w->scaling, 0, FP8PIPE_ROWWISE, ON(lane));
        m->tensor_inv =
            (m->slots[0].amax_of_scale > 0 ? m->slots[0].amax_of_scale : value_of(index)) / 448;
        model_cast(&m->slots[0], value_of(index));
        break;
    case 5:
        if (m->tensor_inv == 0)
            break;
        read_to(w->tensor, lane, 0, out.data);
        m->want[step] = (double)m->tensor_inv;
        break;
    case 6:
        if (m->saved_cast == 0)
            break;
        dgrad(w, lane, 0, index, out);
        m->want[step] = (double)(SIDE * m->saved_cast * model_cast(&m->slots[2], value_of(index)));
        break;
    case 7:
        forward(w, lane, 0, index, NULL, out, w->saved, FP8PIPE_KEEP_DGRAD);
        m->saved_cast = model_weight(m);
        m->want[step] = (double)(SIDE * m->saved_cast * model_cast(&m->slots[0], value_of(index)));
        break;
    default:
        forward(w, lane, 0, index, NULL, out, NULL, FP8PIPE_KEEP_NOTHING);
        m->want[step] =
            (double)(SIDE * model_weight(m) * model_cast(&m->slots[0], value_of(index)));
        break;
    }
}

static void *authors_steps(void *arg)
{
    struct author *author = arg;
    struct model *m = author->model;
    struct test_rng rng = {author->seed};
    int step = 0;

    while (step < STEPS) {
        pthread_mutex_lock(&m->mutex);
        step = m->step++;
        if (step < STEPS)
            one_step(m, step, &rng);
        pthread_mutex_unlock(&m->mutex);
    }
    return NULL;
}

static void against_model(struct fp8pipe *pipe, int lanes, int threads, uint64_t seed,
                          const char *what)
{
    struct world world;
    struct model *m = test_calloc(1, sizeof(*m));
    struct author authors[2];
    pthread_t running[2];
    double *got = test_calloc(STEPS * ROWS * SIDE, sizeof(double));
    int wrong = 0, checked = 0;

    watchdog(what, 60);
    world_open(&world, pipe, lanes);
    m->world = &world;
    pthread_mutex_init(&m->mutex, NULL);
    m->out = test_matrix_make(pipe, FP8PIPE_FP32, STEPS, ROWS * SIDE, 0, 0);
    m->weight = value_of(0);
    for (int i = 0; i < threads; i++) {
        authors[i] = (struct author){m, seed * 10 + (uint64_t)i};
        running[i] = test_thread(authors_steps, &authors[i]);
    }
    for (int i = 0; i < threads; i++)
        test_join(running[i]);
    test_drain(pipe);
    test_matrix_get(&m->out, got);
    for (int i = 0; i < STEPS; i++) {
        double first = got[i * ROWS * SIDE];

        checked += m->want[i] != 0;
        if (m->want[i] != 0 && !(fabs(first - m->want[i]) <= 1e-5 * m->want[i]) && wrong++ < 3)
            diag("step %d: got %.9g, want %.9g", i, first, m->want[i]);
    }
    ok(wrong == 0 && checked > STEPS / 4,
       "%s, %d lanes, %d threads: weight and scale are those of the submit (%d checked)", what,
       lanes, threads, checked);
    for (uint32_t i = 0; i < 3; i++) {
        struct fp8pipe_slot_state slot = test_slot(world.scaling, i);
        float max = i == 2 ? 57344.0f : 448.0f;

        wrong += slot.has_scale != (m->slots[i].amax_of_scale > 0);
        wrong += slot.has_scale && slot.scale != max / m->slots[i].amax_of_scale;
        wrong += slot.amax != m->slots[i].folded;
    }
    is_int(wrong, 0, "%s: and the slots end as the model says", what);
    is_int(stats_of(pipe, -1).rescues, 0, "no sleep had to be rescued");
    test_matrix_free(&m->out);
    world_close(&world);
    pthread_mutex_destroy(&m->mutex);
    free(got);
    free(m);
}

static void against_models(enum fp8pipe_backend backend)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++)
        for (int threads = 1; threads <= 2; threads++)
            against_model(async_open(backend, (enum fp8pipe_mode)mode, 2, 32, NULL), 2, threads,
                          (uint64_t)(mode * 2 + threads), mode_name((enum fp8pipe_mode)mode));
}

static void against_models_delayed(void)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct fp8pipe_options options =
            async_options(seed == 3 ? FP8PIPE_INLINE : FP8PIPE_ASYNC, 3, 32, NULL);
        struct fp8pipe *pipe =
            chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, seed % 2 ? MS_NS / 10 : 0);

        chaos_delays(seed + 1, MS_NS / 20);
        against_model(pipe, 3, 2, seed + 20, "with delays");
        chaos_check("with delays");
    }
}

/* ---- Free interleavings ------------------------------------------------------------------- */

struct free_author {
    struct world *world;
    struct test_matrix *out; /* one a lane, which orders them */
    uint64_t seed;
    int64_t end_ns;
    int submits;
};

static void *submits_freely(void *arg)
{
    struct free_author *self = arg;
    struct world *w = self->world;
    struct test_rng rng = {self->seed};
    struct fp8pipe_scaling_op op = FP8PIPE_SCALING_OP_INIT;

    while (test_now_ns() < self->end_ns) {
        int32_t lane = (int32_t)test_random_range(&rng, -1, w->lanes - 1);
        int32_t writer = lane < 0 ? 0 : lane;
        int index = (int)test_random_range(&rng, 0, VALUES - 1);

        op.submit = ON(lane);
        self->submits++;
        switch (test_random_range(&rng, 0, 7)) {
        case 0:
            must(fp8pipe_linear_weight_changed(w->linear, &w->values[index].view, 0));
            break;
        case 1:
            must(fp8pipe_scaling_update(w->scaling, &op, NULL));
            break;
        case 2:
            must(fp8pipe_scaling_skip(w->scaling, &op, NULL));
            break;
        case 3:
            test_quantize(w->tensor, rows_of(w, index), w->scaling, 0, FP8PIPE_ROWWISE, ON(lane));
            break;
        case 4:
            read_to(w->tensor, lane, 0, NULL);
            break;
        case 5:
            dgrad(w, writer, 0, index, self->out[writer].view);
            break;
        default:
            forward(w, writer, 0, index, index % 2 ? w->tensor : NULL, self->out[writer].view,
                    w->saved, FP8PIPE_KEEP_DGRAD);
            break;
        }
    }
    return NULL;
}

/* Nobody orders the submits: no cycle may come of it, whatever the interleaving. */
static void no_cycle(bool delayed, int lanes)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, lanes, 32, NULL);
    struct fp8pipe *pipe = chaos_open_pipe(FP8PIPE_BACKEND_HOST, &options, 0);
    struct free_author authors[3];
    struct test_matrix out[3][4];
    pthread_t threads[3];
    struct world world;
    uint64_t failed;
    int submits = 0;

    watchdog("free interleavings", 60);
    world_open(&world, pipe, lanes);
    test_quantize(world.tensor, rows_of(&world, 0), world.scaling, 0, FP8PIPE_ROWWISE, ON(0));
    for (int i = 0; i < 3 * 4; i++)
        out[i / 4][i % 4] = test_matrix_make(pipe, FP8PIPE_FP32, ROWS, SIDE, 0, 0);
    forward(&world, 0, 0, 0, NULL, out[0][0].view, world.saved, FP8PIPE_KEEP_DGRAD);
    chaos_delays(99, delayed ? MS_NS / 20 : 0);
    for (int i = 0; i < 3; i++) {
        authors[i] =
            (struct free_author){&world, out[i], 77 + (uint64_t)i, test_now_ns() + 1000 * MS_NS, 0};
        threads[i] = test_thread(submits_freely, &authors[i]);
    }
    for (int i = 0; i < 3; i++) {
        test_join(threads[i]);
        submits += authors[i].submits;
    }
    test_drain(pipe);
    failed = stats_of(pipe, -1).failed + stats_of(pipe, -1).cancelled;
    for (int i = 0; i < 3 * 4; i++)
        test_matrix_free(&out[i / 4][i % 4]);
    world_close(&world);
    is_int(failed, 0, "%d free submits on %d lanes%s all end well", submits, lanes,
           delayed ? " with delays" : "");
    chaos_check("free interleavings");
}

int main(void)
{
    test_each_backend(against_models);
    against_models_delayed();
    no_cycle(false, 2);
    no_cycle(true, 2);
    no_cycle(true, 4);
    return done_testing();
}
