/* What examples/dit_bench tells of the first iteration at a shape. */
#include "examples/bench_shapes.h"
#include "util.h"

#define BATCH 8
#define ROUNDS 3
#define DYNAMIC_SHAPES 6

static void test_rows(void)
{
    struct bench_options options = {.batch = BATCH, .tokens = 256, .dynamic = true};
    int64_t seen[DYNAMIC_SHAPES];
    int64_t shapes = 0;
    bool same = true;

    for (int64_t round = 0; round < ROUNDS; round++) {
        int64_t sum = 0;

        for (int64_t i = 0; i < BENCH_SHAPES; i++) {
            int64_t rows = bench_shapes_rows(&options, round * BENCH_SHAPES + i);
            int64_t at = 0;

            while (at < shapes && seen[at] != rows) {
                at++;
            }
            if (at == shapes && shapes < DYNAMIC_SHAPES) {
                seen[shapes++] = rows;
            } else if (at == shapes) {
                same = false;
            }
            sum += rows;
        }
        /* 16 x 16, 15 x 17, four times 240, twice each of 252, 242 and 247 */
        same = same && sum == BATCH * (256 + 255 + 4 * 240 + 2 * (252 + 242 + 247));
    }
    ok(same && shapes == DYNAMIC_SHAPES,
       "every round has all aspect ratios; those of as many tokens are one shape");
    options.dynamic = false;
    ok(bench_shapes_rows(&options, 5) == (int64_t)BATCH * 256,
       "a fixed shape is the same for ever");
}

static void test_first(void)
{
    /* Shape 1 is warm, 2 takes 3 / 2, 3 comes once, 4 takes 4 / 1, 5 is faster at first. */
    const int64_t rows[] = {2, 1, 3, 2, 4, 5, 1, 2, 5, 4, 2};
    const double ms[] = {3.0, 9.0, 7.0, 2.0, 4.0, 1.0, 1.0, 5.0, 2.0, 1.0, 1.0};
    struct bench_first first;

    is_int(bench_shapes_first(rows, ms, 11, 1, &first), 0, "the first iterations of a run");
    is_int(first.shapes, 3, "shapes that are warm or come once are left out");
    ok(first.ms_median == 3.0, "the median of the first times");
    ok(first.ratio_median == 1.5, "and of first over the median of the later ones at each shape");
    ok(first.ratio_worst == 4.0 && first.rows_worst == 4, "the worst, and where");
    is_int(bench_shapes_first(rows, ms, 3, 1, &first), 0, "a run without repeats");
    ok(first.shapes == 0 && first.ratio_worst == 0.0, "tells nothing");
}

int main(void)
{
    test_rows();
    test_first();
    return done_testing();
}
