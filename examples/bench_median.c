#include "bench_median.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof(*values), ascending);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}
