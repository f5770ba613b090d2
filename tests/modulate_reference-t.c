/* Guards what modulate's tests compare with: its gradients are those of a loss of its own forward,
 * by finite differences. */
#include <math.h>
#include <stdlib.h>

#include "modulate_reference.h"
#include "util.h"

#define EPSILON 1e-5

static struct test_rng rng = {7};

static double *random_values(int64_t count, double deviation)
{
    double *values = test_calloc((size_t)count, sizeof(double));

    for (int64_t i = 0; i < count; i++)
        values[i] = test_random_normal(&rng) * deviation;
    return values;
}

static double loss(const struct modulate_reference *of, const double *dz, const double *dx_out)
{
    size_t count = (size_t)(of->rows * of->cols);
    double *added = test_calloc(count, sizeof(double)), *z = test_calloc(count, sizeof(double));
    double *mean = test_calloc((size_t)of->rows, sizeof(double));
    double *rstd = test_calloc((size_t)of->rows, sizeof(double));
    double sum = 0;

    reference_add(of, added);
    reference_modulate(of, added, mean, rstd, z);
    for (size_t i = 0; i < count; i++)
        sum += z[i] * dz[i] + added[i] * dx_out[i];
    free(added);
    free(z);
    free(mean);
    free(rstd);
    return sum;
}

/* The largest distance of a gradient from the loss's differences, over the gradient's size. */
static double differences(struct modulate_reference *of, double *values, int64_t count,
                          const double *gradient, const double *dz, const double *dx_out)
{
    double worst = 0, size = 1e-3;

    for (int64_t i = 0; i < count; i++) {
        double before = values[i], step = 1e-5, up, down;

        values[i] = before + step;
        up = loss(of, dz, dx_out);
        values[i] = before - step;
        down = loss(of, dz, dx_out);
        values[i] = before;
        worst = fmax(worst, fabs((up - down) / (2 * step) - gradient[i]));
        size = fmax(size, fabs(gradient[i]));
    }
    return worst / size;
}

int main(void)
{
    enum { ROWS = 5, COLS = 6, GROUPS = 3 };
    static const int64_t row[ROWS] = {0, 0, 2, 2, 2};

    for (int norm = 0; norm < 3; norm++) {
        struct modulate_reference of = {ROWS,
                                        COLS,
                                        GROUPS,
                                        row,
                                        (enum fp8pipe_norm)norm,
                                        EPSILON,
                                        random_values(ROWS * COLS, 1),
                                        random_values(ROWS * COLS, 1),
                                        random_values(GROUPS * COLS, 1),
                                        random_values(GROUPS * COLS, 1),
                                        random_values(GROUPS * COLS, 1),
                                        random_values(COLS, 1),
                                        random_values(COLS, 1)};
        double *dz = random_values(ROWS * COLS, 1), *dx_out = random_values(ROWS * COLS, 1);
        double *added = random_values(ROWS * COLS, 0);
        struct reference_gradients to = {
            random_values(ROWS * COLS, 0),   random_values(ROWS * COLS, 0),
            random_values(GROUPS * COLS, 0), random_values(GROUPS * COLS, 0),
            random_values(GROUPS * COLS, 0), random_values(COLS, 0),
            random_values(COLS, 0)};
        double worst = 0;

        reference_add(&of, added);
        reference_backward(&of, added, dz, dx_out, &to);
        worst = fmax(worst, differences(&of, of.x, ROWS * COLS, to.dx, dz, dx_out));
        worst = fmax(worst, differences(&of, of.y, ROWS * COLS, to.dy, dz, dx_out));
        worst = fmax(worst, differences(&of, of.gate, GROUPS * COLS, to.dgate, dz, dx_out));
        worst = fmax(worst, differences(&of, of.scale, GROUPS * COLS, to.dscale, dz, dx_out));
        worst = fmax(worst, differences(&of, of.shift, GROUPS * COLS, to.dshift, dz, dx_out));
        worst = fmax(worst, differences(&of, of.weight, COLS, to.dweight, dz, dx_out));
        worst = fmax(worst, differences(&of, of.bias, COLS, to.dbias, dz, dx_out));
        if (!ok(worst < 1e-6, "the gradients to compare with are the loss's, norm %d", norm))
            diag("off by %g", worst);
        free(of.x), free(of.y), free(of.gate), free(of.scale), free(of.shift), free(of.weight);
        free(of.bias), free(dz), free(dx_out), free(added), free(to.dx), free(to.dy);
        free(to.dgate), free(to.dscale), free(to.dshift), free(to.dweight), free(to.dbias);
    }
    return done_testing();
}
