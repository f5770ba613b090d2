/*
 * fp8pipe_modulate and its backward against float64: every operand there or not, every norm, rows
 * by token, by group and one for all, shapes and alignments; the quantized result bit for bit; sums
 * over groups without tokens; no tokens at all; in place.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/fp8.h"
#include "modulate_reference.h"
#include "util.h"

#define EPSILON 1e-5

static struct test_rng rng = {7};

/* ---- One case ----------------------------------------------------------------------------- */

enum { Y = 1, GATE = 2, SCALE = 4, SHIFT = 8, WEIGHT = 16, BIAS = 32, X_OUT = 64, IN_PLACE = 128 };
#define ALL_GIVEN (Y | GATE | SCALE | SHIFT | WEIGHT | BIAS | X_OUT)

enum rows_kind { ROWS_ONE, ROWS_TOKEN, ROWS_GROUPS };

struct modulate_case {
    int64_t rows;
    int64_t cols;
    enum rows_kind kind;
    unsigned given;
    enum fp8pipe_norm norm;
    enum fp8pipe_dtype dtype; /* of x, y and x'; a round further for the rest */
    bool odd;                 /* strides and alignments that are no multiple of 16 bytes */
};

static void case_tell(const char *what, const struct modulate_case *c)
{
    diag("%s: %lld x %lld %s, rows %d, given %#x, norm %d, %s", what, (long long)c->rows,
         (long long)c->cols, test_dtype_name(c->dtype), c->kind, c->given, c->norm,
         c->odd ? "odd" : "aligned");
}

#define MATRICES 20

/* What both directions share: operands in the backend's memory and in float64. */
struct given {
    struct fp8pipe *pipe;
    const struct modulate_case *c;
    struct modulate_reference reference;
    int64_t *row;
    int32_t *rows_of; /* device, or NULL */
    struct test_matrix made[MATRICES];
    int count;
};

/* A matrix of random values, which the caller gets in *dense. */
static struct fp8pipe_matrix make(struct given *g, enum fp8pipe_dtype dtype, int64_t rows,
                                  int64_t cols, double deviation, double **dense)
{
    int64_t stride = g->c->odd ? cols + test_random_range(&rng, 1, 9) : (cols + 7) / 8 * 8;
    struct test_matrix *made = &g->made[g->count++];

    *made =
        test_matrix_random(g->pipe, dtype, rows, cols, stride,
                           g->c->odd ? test_random_range(&rng, 0, 7) : 0, deviation, &rng, dense);
    return made->view;
}

/* One to be written. */
static struct test_matrix *make_output(struct given *g, enum fp8pipe_dtype dtype, int64_t rows,
                                       int64_t cols)
{
    int64_t stride = g->c->odd ? cols + test_random_range(&rng, 1, 9) : (cols + 7) / 8 * 8;
    struct test_matrix *made = &g->made[g->count++];

    *made = test_matrix_make(g->pipe, dtype, rows, cols, stride,
                             g->c->odd ? test_random_range(&rng, 0, 7) : 0);
    return made;
}

/* A weight or a bias of random values, which the caller gets in *dense. */
static struct fp8pipe_vector make_vector(struct given *g, double **dense)
{
    struct fp8pipe_matrix m = make(g, FP8PIPE_FP32, 1, g->c->cols, 1, dense);

    return (struct fp8pipe_vector){m.data, m.cols, m.dtype, 0};
}

/* Groups of uneven length; some have no tokens. */
static void make_rows(struct given *g)
{
    const struct modulate_case *c = g->c;
    int32_t *rows_of = test_calloc((size_t)c->rows, sizeof(*rows_of));
    int32_t group = 1;

    g->row = test_calloc((size_t)c->rows, sizeof(*g->row));
    for (int64_t i = 0; i < c->rows; i++) {
        if (c->kind == ROWS_GROUPS && i > 0 && test_random(&rng) % 20 == 0)
            group += 1 + (int32_t)(test_random(&rng) % 2);
        g->row[i] = c->kind == ROWS_TOKEN ? i : c->kind == ROWS_ONE ? 0 : group;
        rows_of[i] = group;
    }
    g->reference.groups = c->kind == ROWS_TOKEN ? c->rows : c->kind == ROWS_ONE ? 1 : group + 2;
    if (c->kind == ROWS_GROUPS) {
        g->rows_of = test_alloc(g->pipe, (size_t)c->rows * sizeof(*rows_of) + 4, 0);
        must(fp8pipe_upload(g->pipe, g->rows_of, rows_of, (size_t)c->rows * sizeof(*rows_of)));
    }
    free(rows_of);
}

static void give_begin(struct given *g, struct fp8pipe *pipe, const struct modulate_case *c)
{
    memset(g, 0, sizeof(*g));
    g->pipe = pipe;
    g->c = c;
    make_rows(g);
    g->reference.rows = c->rows;
    g->reference.cols = c->cols;
    g->reference.row = g->row;
    g->reference.norm = c->norm;
    g->reference.epsilon = EPSILON;
}

static void give_end(struct given *g)
{
    for (int i = 0; i < g->count; i++)
        test_matrix_free(&g->made[i]);
    if (g->rows_of != NULL)
        must(fp8pipe_free(g->pipe, g->rows_of));
    free(g->row);
    free(g->reference.x), free(g->reference.y), free(g->reference.gate);
    free(g->reference.scale), free(g->reference.shift);
    free(g->reference.weight), free(g->reference.bias);
}

static double tolerance(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? 2e-5 : dtype == FP8PIPE_BF16 ? 4e-3 : 6e-4;
}

/* Whether a matrix holds what is wanted, and nothing around it is damaged. */
static bool holds(const char *what, const struct test_matrix *m, const double *wanted)
{
    int64_t count = m->view.rows * m->view.cols;
    double *got = test_calloc((size_t)count, sizeof(double)), error;

    test_matrix_get(m, got);
    error = test_relative_error(count, got, wanted);
    if (!(error <= tolerance(m->view.dtype)))
        diag("%s of %s, %lld x %lld: off by %g", what, test_dtype_name(m->view.dtype),
             (long long)m->view.rows, (long long)m->view.cols, error);
    if (test_matrix_damage(m) != 0)
        diag("%s: %lld bytes around it were written", what, (long long)test_matrix_damage(m));
    free(got);
    return error <= tolerance(m->view.dtype) && test_matrix_damage(m) == 0;
}

/* Both copies, by a scaling of one slot: E4M3, with or without a scale. */
static struct fp8pipe_quantized quantized_make(struct fp8pipe *pipe, float initial_scale)
{
    struct fp8pipe_quantized out = FP8PIPE_QUANTIZED_NONE;

    out.scaling = test_scaling(pipe, 1, initial_scale);
    out.copies = FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED;
    must(fp8pipe_tensor_create(pipe, &out.tensor));
    return out;
}

/* Whether the tensor holds the codes of `values` [rows, cols], a float32 matrix of the backend's;
 * gives tensor and scaling back. */
static bool quantized_holds(struct fp8pipe *pipe, const struct fp8pipe_quantized *out,
                            const struct test_matrix *values, float initial_scale)
{
    int64_t rows = values->view.rows, cols = values->view.cols, wrong = 0;
    float *dense = test_calloc((size_t)(rows * cols), sizeof(float)), amax = 0, scale;
    struct test_fp8 fp8 = test_tensor_read(pipe, out->tensor);
    struct fp8pipe_slot_state slot = test_slot(out->scaling, 0);

    test_matrix_get_raw(values, dense);
    for (int64_t i = 0; i < rows * cols; i++)
        amax = fmaxf(amax, fabsf(dense[i]));
    scale = initial_scale > 0 ? initial_scale : amax > 0 ? 448.0f / amax : 1.0f;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < cols; c++) {
            uint8_t code = fp8_from_float(dense[i * cols + c] * scale, FP8PIPE_E4M3);

            wrong += fp8.rowwise[i * cols + c] != code || fp8.transposed[c * rows + i] != code;
        }
    if (wrong != 0 || slot.amax != amax || fp8.scale_inv != 1 / scale)
        diag("%lld x %lld: %lld codes are wrong, amax %a for %a, scale_inv %a for %a",
             (long long)rows, (long long)cols, (long long)wrong, (double)slot.amax, (double)amax,
             (double)fp8.scale_inv, (double)(1 / scale));
    free(dense);
    wrong += slot.amax != amax || fp8.scale_inv != 1 / scale;
    test_fp8_free(&fp8);
    must(fp8pipe_tensor_destroy(out->tensor));
    must(fp8pipe_scaling_destroy(out->scaling));
    return wrong == 0;
}

/* ---- Forward ------------------------------------------------------------------------------ */

static bool forward_agrees(struct fp8pipe *pipe, const struct modulate_case *c, float initial_scale,
                           struct fp8pipe_submit submit)
{
    struct fp8pipe_modulate_op op = FP8PIPE_MODULATE_OP_INIT;
    enum fp8pipe_dtype other = (enum fp8pipe_dtype)((c->dtype + 1) % 3);
    size_t count = (size_t)(c->rows * c->cols);
    struct given g;
    struct modulate_reference *of = &g.reference;
    struct test_matrix *x_out = NULL, *z, *mean, *rstd, *sums;
    double *added, *mean_wanted, *rstd_wanted, *z_wanted, *sums_wanted;
    bool equal = true;

    give_begin(&g, pipe, c);
    op.submit = submit;
    op.x = make(&g, c->dtype, c->rows, c->cols, 2, &of->x);
    if (c->given & IN_PLACE)
        x_out = &g.made[0];
    if (c->given & Y)
        op.y = make(&g, c->dtype, c->rows, c->cols, 1, &of->y);
    if ((c->given & GATE) && (c->given & Y))
        op.gate = make(&g, other, of->groups, c->cols, 1, &of->gate);
    if (c->given & SCALE)
        op.scale = make(&g, other, of->groups, c->cols, 1, &of->scale);
    if (c->given & SHIFT)
        op.shift = make(&g, c->dtype, of->groups, c->cols, 1, &of->shift);
    if (c->given & WEIGHT)
        op.weight = make_vector(&g, &of->weight);
    if (c->given & BIAS)
        op.bias = make_vector(&g, &of->bias);
    if (x_out == NULL && (c->given & X_OUT))
        x_out = make_output(&g, c->dtype, c->rows, c->cols);
    z = make_output(&g, FP8PIPE_FP32, c->rows, c->cols);
    mean = make_output(&g, FP8PIPE_FP32, 1, c->rows);
    rstd = make_output(&g, FP8PIPE_FP32, 1, c->rows);
    sums = make_output(&g, FP8PIPE_FP32, 1, c->cols);
    op.rows_of = g.rows_of;
    op.norm = c->norm;
    op.epsilon = (float)EPSILON;
    op.z = z->view;
    if (x_out != NULL)
        op.x_out = x_out->view;
    op.mean = mean->view.data;
    op.rstd = rstd->view.data;
    op.out = quantized_make(pipe, initial_scale);
    op.out.column_sums = test_vector(sums);
    must(fp8pipe_modulate(pipe, &op, NULL));
    test_drain(pipe);

    added = test_calloc(count, sizeof(double));
    z_wanted = test_calloc(count, sizeof(double));
    mean_wanted = test_calloc((size_t)c->rows, sizeof(double));
    rstd_wanted = test_calloc((size_t)c->rows, sizeof(double));
    sums_wanted = test_calloc((size_t)c->cols, sizeof(double));
    reference_add(of, added);
    if (x_out != NULL) {
        equal &= holds("x_out", x_out, added);
        test_matrix_get(x_out, added); /* the rest is of what was stored */
    }
    reference_modulate(of, added, mean_wanted, rstd_wanted, z_wanted);
    for (size_t i = 0; i < count; i++)
        sums_wanted[i % (size_t)c->cols] += z_wanted[i];
    equal &= holds("z", z, z_wanted);
    if (c->norm != FP8PIPE_NORM_NONE) {
        if (c->norm == FP8PIPE_NORM_LAYER && c->cols > 1)
            equal &= holds("mean", mean, mean_wanted);
        equal &= holds("rstd", rstd, rstd_wanted);
    }
    equal &= holds("column_sums", sums, sums_wanted);
    equal &= quantized_holds(pipe, &op.out, z, initial_scale);
    free(added), free(z_wanted), free(mean_wanted), free(rstd_wanted), free(sums_wanted);
    give_end(&g);
    if (!equal)
        case_tell("forward", c);
    return equal;
}

/* ---- Backward ----------------------------------------------------------------------------- */

static bool backward_agrees(struct fp8pipe *pipe, const struct modulate_case *c, bool accumulate,
                            struct fp8pipe_submit submit)
{
    struct fp8pipe_modulate_backward_op op = FP8PIPE_MODULATE_BACKWARD_OP_INIT;
    enum fp8pipe_dtype other = (enum fp8pipe_dtype)((c->dtype + 1) % 3);
    size_t count = (size_t)(c->rows * c->cols);
    struct given g;
    struct modulate_reference *of = &g.reference;
    struct test_matrix *dx, *dy, *dgate = NULL, *dscale, *dshift, *dweight, *dbias, *mean, *rstd;
    double *dz = NULL, *dx_out = NULL, *stats[2], *z;
    struct reference_gradients to;
    bool equal = true;

    give_begin(&g, pipe, c);
    op.submit = submit;
    op.x_out = make(&g, c->dtype, c->rows, c->cols, 2, &of->x);
    op.dz = make(&g, other, c->rows, c->cols, 1, &dz);
    if (c->given & (X_OUT | IN_PLACE))
        op.dx_out = make(&g, FP8PIPE_FP32, c->rows, c->cols, 1, &dx_out);
    dx = c->given & IN_PLACE ? &g.made[g.count - 1]
                             : make_output(&g, FP8PIPE_FP32, c->rows, c->cols);
    if (c->given & Y)
        op.y = make(&g, c->dtype, c->rows, c->cols, 1, &of->y);
    if (c->given & GATE)
        op.gate = make(&g, other, of->groups, c->cols, 1, &of->gate);
    if (c->given & SCALE)
        op.scale = make(&g, c->dtype, of->groups, c->cols, 1, &of->scale);
    if (c->given & WEIGHT)
        op.weight = make_vector(&g, &of->weight);
    if (c->given & BIAS)
        op.bias = make_vector(&g, &of->bias);
    stats[0] = test_calloc((size_t)c->rows, sizeof(double));
    stats[1] = test_calloc((size_t)c->rows, sizeof(double));
    z = test_calloc(count, sizeof(double));
    reference_modulate(of, of->x, stats[0], stats[1], z);
    mean = make_output(&g, FP8PIPE_FP32, 1, c->rows);
    rstd = make_output(&g, FP8PIPE_FP32, 1, c->rows);
    test_matrix_set(mean, stats[0]);
    test_matrix_set(rstd, stats[1]);
    op.mean = mean->view.data;
    op.rstd = rstd->view.data;
    op.rows_of = g.rows_of;
    op.norm = c->norm;
    op.accumulate = accumulate;
    dy = make_output(&g, FP8PIPE_FP32, c->rows, c->cols);
    op.dx = dx->view;
    op.dy = dy->view;
    if (c->given & Y) {
        dgate = make_output(&g, other, of->groups, c->cols);
        op.dgate = dgate->view;
    }
    dscale = make_output(&g, c->dtype, of->groups, c->cols);
    dshift = make_output(&g, FP8PIPE_FP32, of->groups, c->cols);
    op.dscale = dscale->view;
    op.dshift = dshift->view;
    dweight = make_output(&g, FP8PIPE_FP32, 1, c->cols);
    dbias = make_output(&g, FP8PIPE_FP32, 1, c->cols);
    test_matrix_set(dweight, z);
    test_matrix_set(dbias, z);
    op.dweight = test_vector(dweight);
    op.dbias = test_vector(dbias);
    op.out = quantized_make(pipe, 0);
    must(fp8pipe_modulate_backward(pipe, &op, NULL));
    test_drain(pipe);

    to = (struct reference_gradients){
        test_calloc(count, sizeof(double)),
        test_calloc(count, sizeof(double)),
        test_calloc((size_t)(of->groups * c->cols), sizeof(double)),
        test_calloc((size_t)(of->groups * c->cols), sizeof(double)),
        test_calloc((size_t)(of->groups * c->cols), sizeof(double)),
        test_calloc((size_t)c->cols, sizeof(double)),
        test_calloc((size_t)c->cols, sizeof(double)),
    };
    reference_backward(of, of->x, dz, dx_out, &to);
    for (int64_t i = 0; accumulate && i < c->cols; i++) {
        to.dweight[i] += (double)(float)z[i];
        to.dbias[i] += (double)(float)z[i];
    }
    equal &= holds("dx", dx, to.dx);
    equal &= holds("dy", dy, to.dy);
    if (dgate != NULL)
        equal &= holds("dgate", dgate, to.dgate);
    equal &= holds("dscale", dscale, to.dscale);
    equal &= holds("dshift", dshift, to.dshift);
    equal &= holds("dweight", dweight, to.dweight);
    equal &= holds("dbias", dbias, to.dbias);
    equal &= quantized_holds(pipe, &op.out, c->given & Y ? dy : dx, 0);
    free(to.dx), free(to.dy), free(to.dgate), free(to.dscale), free(to.dshift), free(to.dweight);
    free(to.dbias), free(dz), free(dx_out), free(stats[0]), free(stats[1]), free(z);
    give_end(&g);
    if (!equal)
        case_tell("backward", c);
    return equal;
}

/* ---- Cases -------------------------------------------------------------------------------- */

/* Every operand there or not: all combinations of the ones that make a difference to each other. */
static void test_given(struct fp8pipe *pipe)
{
    static const char *const norms[] = {"no norm", "LAYER", "RMS"};

    for (int norm = 0; norm < 3; norm++) {
        bool forward = true, backward = true;

        for (unsigned given = 0; given < 128; given++) {
            struct modulate_case c = {70,
                                      24,
                                      (enum rows_kind)(given % 3),
                                      given,
                                      (enum fp8pipe_norm)norm,
                                      (enum fp8pipe_dtype)(given / 3 % 3),
                                      given % 2};

            forward &= forward_agrees(pipe, &c, given % 5 ? 3.0f : 0, test_submit(0, 0, 0, 0));
            backward &= backward_agrees(pipe, &c, given % 2, test_submit(0, 0, 0, 0));
        }
        ok(forward, "forward, %s: every set of operands", norms[norm]);
        ok(backward, "backward, %s: every set of operands", norms[norm]);
    }
}

static void test_shapes(struct fp8pipe *pipe)
{
    static const int64_t sizes[][2] = {{1, 1},   {2, 1},      {1, 2},    {3, 7},
                                       {64, 8},  {65, 513},   {63, 64},  {129, 512},
                                       {7, 520}, {200, 1000}, {130, 65}, {33, 4104}};
    bool forward = true, backward = true;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int kind = TEST_SANITIZED ? (int)i % 3 : 0; kind < 3; kind += TEST_SANITIZED ? 3 : 1) {
            struct modulate_case c = {sizes[i][0],
                                      sizes[i][1],
                                      (enum rows_kind)kind,
                                      ALL_GIVEN,
                                      i % 2 ? FP8PIPE_NORM_RMS : FP8PIPE_NORM_LAYER,
                                      (enum fp8pipe_dtype)((i + (size_t)kind) % 3),
                                      i % 3 == 0};

            /* The norm of a single feature is 0 whatever it is: its rounding is all there is. */
            c.norm = c.cols == 1 ? FP8PIPE_NORM_RMS : c.norm;
            forward &= forward_agrees(pipe, &c, 0, test_submit(0, 0, 0, 0));
            backward &= backward_agrees(pipe, &c, true, test_submit(0, 0, 0, 0));
        }
    ok(forward, "forward: sizes around those of units, tiles and segments");
    ok(backward, "backward: sizes around those of units, tiles and segments");
}

static void test_in_place(struct fp8pipe *pipe)
{
    bool forward = true, backward = true;

    for (int norm = 0; norm < 3; norm++)
        for (int odd = 0; odd < 2; odd++) {
            struct modulate_case c = {
                150,          72, ROWS_GROUPS, ALL_GIVEN | IN_PLACE, (enum fp8pipe_norm)norm,
                FP8PIPE_BF16, odd};

            forward &= forward_agrees(pipe, &c, 0, test_submit(0, 0, 0, 0));
            forward &= forward_agrees(pipe, &c, 2.0f, test_submit(0, 0, 0, 0));
            backward &= backward_agrees(pipe, &c, false, test_submit(0, 0, 0, 0));
        }
    ok(forward, "forward: x_out may be x");
    ok(backward, "backward: dx may be dx_out");
}

/* No tokens, or no features. */
static void test_empty(struct fp8pipe *pipe)
{
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 1, 1.0f);
    struct fp8pipe_tensor *tensor;
    struct test_matrix none = test_matrix_make(pipe, FP8PIPE_BF16, 0, 8, 8, 0);
    struct test_matrix sums[4];
    double ones[16], zeros[16] = {0}, got[16];
    struct fp8pipe_modulate_op op = FP8PIPE_MODULATE_OP_INIT;
    struct fp8pipe_modulate_backward_op back = FP8PIPE_MODULATE_BACKWARD_OP_INIT;
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    bool zero = true, kept = true;

    must(fp8pipe_tensor_create(pipe, &tensor));
    for (int i = 0; i < 16; i++)
        ones[i] = 1;
    for (int i = 0; i < 4; i++) {
        sums[i] = test_matrix_make(pipe, FP8PIPE_FP32, i < 2 ? 2 : 1, 8, 8, 0);
        test_matrix_set(&sums[i], ones);
    }
    op.x = none.view;
    op.out = (struct fp8pipe_quantized){tensor, scaling, 0, FP8PIPE_ROWWISE, test_vector(&sums[2]),
                                        0,      0};
    must(fp8pipe_modulate(pipe, &op, NULL));
    test_drain(pipe);
    must(fp8pipe_tensor_info_get(tensor, &info));
    test_matrix_get(&sums[2], got);
    ok(info.filled && info.rows == 0 && info.cols == 8 && memcmp(got, zeros, 8 * 8) == 0,
       "forward of no tokens fills the tensor, sums are 0");

    back.x_out = none.view;
    back.rows_of = sums[0].view.data; /* nothing is read of it */
    back.dscale = sums[0].view;
    back.dshift = sums[1].view;
    back.mean = back.rstd = NULL;
    back.dweight = test_vector(&sums[2]);
    back.dbias = test_vector(&sums[3]);
    back.rows_of = none.view.data;
    must(fp8pipe_modulate_backward(pipe, &back, NULL));
    test_drain(pipe);
    for (int i = 0; i < 4; i++) {
        test_matrix_get(&sums[i], got);
        zero &= memcmp(got, zeros, (i < 2 ? 16 : 8) * sizeof(double)) == 0;
        test_matrix_set(&sums[i], ones);
    }
    ok(zero, "backward of no tokens: gradients of groups and vectors are 0");
    back.accumulate = 1;
    must(fp8pipe_modulate_backward(pipe, &back, NULL));
    test_drain(pipe);
    for (int i = 2; i < 4; i++) {
        test_matrix_get(&sums[i], got);
        kept &= memcmp(got, ones, 8 * sizeof(double)) == 0;
    }
    ok(kept, "backward of no tokens leaves what it adds to alone");

    op.x = (struct fp8pipe_matrix){none.view.data, 5, 0, 0, FP8PIPE_BF16, 0};
    op.out.column_sums = (struct fp8pipe_vector)FP8PIPE_VECTOR_NONE;
    must(fp8pipe_modulate(pipe, &op, NULL));
    test_drain(pipe);
    must(fp8pipe_tensor_info_get(tensor, &info));
    ok(info.filled && info.rows == 5 && info.cols == 0, "forward of no features");
    is_int(test_slot(scaling, 0).amax == 0, 1, "none of them folds an amax");
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
    for (int i = 0; i < 4; i++)
        test_matrix_free(&sums[i]);
    test_matrix_free(&none);
}

/* The first filling is scaled by its own amax, with NO_AMAX nothing is folded. */
static void test_no_amax(struct fp8pipe *pipe)
{
    struct fp8pipe_scaling *scaling = test_scaling(pipe, 1, 1.0f);
    struct test_matrix x = test_matrix_random(pipe, FP8PIPE_BF16, 9, 40, 40, 0, 1, &rng, NULL);
    struct fp8pipe_modulate_op op = FP8PIPE_MODULATE_OP_INIT;

    op.x = x.view;
    op.submit.flags = FP8PIPE_NO_AMAX;
    op.out.scaling = scaling;
    must(fp8pipe_tensor_create(pipe, &op.out.tensor));
    must(fp8pipe_modulate(pipe, &op, NULL));
    test_drain(pipe);
    ok(test_slot(scaling, 0).amax == 0, "NO_AMAX: nothing is folded");
    op.submit.flags = 0;
    must(fp8pipe_modulate(pipe, &op, NULL));
    test_drain(pipe);
    ok(test_slot(scaling, 0).amax > 0, "without it, it is");
    must(fp8pipe_tensor_destroy(op.out.tensor));
    must(fp8pipe_scaling_destroy(scaling));
    test_matrix_free(&x);
}

static void cases(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = test_open_poisoned(backend);
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct modulate_case c = {100,          128,  ROWS_GROUPS, ALL_GIVEN, FP8PIPE_NORM_LAYER,
                              FP8PIPE_BF16, false};

    diag("%s", test_backend_name(backend));
    test_given(pipe);
    test_shapes(pipe);
    test_in_place(pipe);
    test_empty(pipe);
    test_no_amax(pipe);
    test_close(pipe);
    options.mode = FP8PIPE_INLINE;
    pipe = test_open(backend, &options);
    ok(forward_agrees(pipe, &c, 0, test_submit(FP8PIPE_LANE_AUTO, 0, 0, 0)) &&
           backward_agrees(pipe, &c, false, test_submit(FP8PIPE_LANE_AUTO, 0, 0, 0)),
       "INLINE: the same");
    test_close(pipe);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
