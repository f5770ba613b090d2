#include "bench_shapes.h"

#include <stdlib.h>

#include "bench_kernels.h"
#include "bench_median.h"

static const int64_t aspects[BENCH_SHAPES][2] = {{16, 16}, {12, 20}, {20, 12}, {14, 18},
                                                 {18, 14}, {10, 24}, {24, 10}, {11, 22},
                                                 {22, 11}, {13, 19}, {19, 13}, {15, 17}};

int64_t bench_shapes_rows(const struct bench_options *options, int64_t i)
{
    uint64_t key = (uint64_t)options->seed + (uint64_t)(i / BENCH_SHAPES) * 0x9E3779B97F4A7C15u;
    int64_t order[BENCH_SHAPES];

    if (!options->dynamic) {
        return options->batch * options->tokens;
    }
    for (int64_t k = 0; k < BENCH_SHAPES; k++) {
        int64_t at = (int64_t)(bench_uniform(key, (uint64_t)k) * (float)(k + 1));

        order[k] = order[at];
        order[at] = k;
    }
    return options->batch * aspects[order[i % BENCH_SHAPES]][0] *
           aspects[order[i % BENCH_SHAPES]][1];
}

static bool was_before(const int64_t *rows, int64_t i)
{
    int64_t before = i - 1;

    while (before >= 0 && rows[before] != rows[i]) {
        before--;
    }
    return before >= 0;
}

int bench_shapes_first(const int64_t *rows, const double *ms, int64_t count, int64_t warm,
                       struct bench_first *first)
{
    double *later = calloc((size_t)count, sizeof(*later));
    double firsts[BENCH_SHAPES];
    double ratios[BENCH_SHAPES];

    *first = (struct bench_first){.shapes = 0};
    if (!later) {
        return -1;
    }
    for (int64_t i = 0; i < count && first->shapes < BENCH_SHAPES; i++) {
        int64_t repeats = 0;
        double ratio;

        if (rows[i] == warm || was_before(rows, i)) {
            continue;
        }
        for (int64_t k = i + 1; k < count; k++) {
            if (rows[k] == rows[i]) {
                later[repeats++] = ms[k];
            }
        }
        if (repeats == 0) {
            continue;
        }
        ratio = ms[i] / bench_median(later, repeats);
        if (ratio > first->ratio_worst) {
            first->ratio_worst = ratio;
            first->rows_worst = rows[i];
        }
        firsts[first->shapes] = ms[i];
        ratios[first->shapes++] = ratio;
    }
    if (first->shapes > 0) {
        first->ms_median = bench_median(firsts, first->shapes);
        first->ratio_median = bench_median(ratios, first->shapes);
    }
    free(later);
    return 0;
}
