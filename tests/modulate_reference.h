/* fp8pipe_modulate and its backward in float64, by their definition in fp8pipe_fused.h. */
#ifndef TESTS_MODULATE_REFERENCE_H
#define TESTS_MODULATE_REFERENCE_H

#include <stdint.h>

#include "fp8pipe_fused.h"

/* All dense; NULL: absent, but x. row[i]: the row of gate, scale and shift that token i takes. */
struct modulate_reference {
    int64_t rows;
    int64_t cols;
    int64_t groups;
    const int64_t *row;
    enum fp8pipe_norm norm;
    double epsilon;
    double *x;
    double *y;
    double *gate;
    double *scale;
    double *shift;
    double *weight;
    double *bias;
};

/* x' */
void reference_add(const struct modulate_reference *of, double *added);

/* Of x' (which may be rounded): mean and rstd of each row, and z. */
void reference_modulate(const struct modulate_reference *of, const double *added, double *mean,
                        double *rstd, double *z);

/* All set, none added to. [rows, cols] each, but dgate, dscale and dshift [groups, cols], dweight
 * and dbias [cols]. dz, dx_out: NULL for 0. */
struct reference_gradients {
    double *dx;
    double *dy;
    double *dgate;
    double *dscale;
    double *dshift;
    double *dweight;
    double *dbias;
};
void reference_backward(const struct modulate_reference *of, const double *added, const double *dz,
                        const double *dx_out, const struct reference_gradients *to);

#endif
