#include "modulate_reference.h"

#include <math.h>
#include <string.h>

void reference_add(const struct modulate_reference *of, double *added)
{
    for (int64_t i = 0; i < of->rows; i++)
        for (int64_t c = 0; c < of->cols; c++) {
            int64_t at = i * of->cols + c;
            double gate = of->gate ? of->gate[of->row[i] * of->cols + c] : 1;

            added[at] = of->x[at] + (of->y ? gate * of->y[at] : 0);
        }
}

static void stats(const struct modulate_reference *of, const double *row, double *mean,
                  double *rstd)
{
    double square = 0;

    *mean = 0;
    *rstd = 1;
    if (of->norm == FP8PIPE_NORM_NONE)
        return;
    for (int64_t c = 0; of->norm == FP8PIPE_NORM_LAYER && c < of->cols; c++)
        *mean += row[c] / (double)of->cols;
    for (int64_t c = 0; c < of->cols; c++)
        square += (row[c] - *mean) * (row[c] - *mean);
    *rstd = 1 / sqrt(square / (double)of->cols + of->epsilon);
}

void reference_modulate(const struct modulate_reference *of, const double *added, double *mean,
                        double *rstd, double *z)
{
    for (int64_t i = 0; i < of->rows; i++) {
        const double *row = added + i * of->cols;

        stats(of, row, &mean[i], &rstd[i]);
        for (int64_t c = 0; c < of->cols; c++) {
            int64_t r = of->row[i] * of->cols + c;
            double n = (row[c] - mean[i]) * rstd[i];

            n = n * (of->weight ? of->weight[c] : 1) + (of->bias ? of->bias[c] : 0);
            z[i * of->cols + c] =
                n * (1 + (of->scale ? of->scale[r] : 0)) + (of->shift ? of->shift[r] : 0);
        }
    }
}

void reference_backward(const struct modulate_reference *of, const double *added, const double *dz,
                        const double *dx_out, const struct reference_gradients *to)
{
    size_t grouped = (size_t)(of->groups * of->cols) * sizeof(double);
    size_t one = (size_t)of->cols * sizeof(double);

    memset(to->dgate, 0, grouped);
    memset(to->dscale, 0, grouped);
    memset(to->dshift, 0, grouped);
    memset(to->dweight, 0, one);
    memset(to->dbias, 0, one);
    for (int64_t i = 0; i < of->rows; i++) {
        double mean, rstd, dn_mean = 0, dnn_mean = 0;

        stats(of, added + i * of->cols, &mean, &rstd);
        /* Twice: the norm's backward needs the row's means first. */
        for (int pass = 0; pass < 2; pass++)
            for (int64_t c = 0; c < of->cols; c++) {
                int64_t at = i * of->cols + c, r = of->row[i] * of->cols + c;
                double n = (added[at] - mean) * rstd;
                double weight = of->weight ? of->weight[c] : 1;
                double after = n * weight + (of->bias ? of->bias[c] : 0);
                double g = (dz ? dz[at] : 0) * (1 + (of->scale ? of->scale[r] : 0));
                double dn = g * weight, d = dn;

                if (pass == 0) {
                    dn_mean += dn / (double)of->cols;
                    dnn_mean += dn * n / (double)of->cols;
                    continue;
                }
                if (of->norm == FP8PIPE_NORM_LAYER)
                    d = rstd * (dn - dn_mean - n * dnn_mean);
                else if (of->norm == FP8PIPE_NORM_RMS)
                    d = rstd * (dn - n * dnn_mean);
                d += dx_out ? dx_out[at] : 0;
                to->dx[at] = d;
                to->dy[at] = d * (of->gate ? of->gate[r] : 1);
                to->dgate[r] += of->y ? d * of->y[at] : 0;
                to->dscale[r] += (dz ? dz[at] : 0) * after;
                to->dshift[r] += dz ? dz[at] : 0;
                to->dweight[c] += g * n;
                to->dbias[c] += g;
            }
    }
}
