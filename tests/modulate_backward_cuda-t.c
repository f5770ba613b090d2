/*
 * The CUDA kernels of modulate's backward and its sums by group against their host twins: the same
 * inputs, the same bits in every output and around it, but for a NaN's payload, twice.
 */
#include "modulate_twins.h"

#include "kernels/convert.h"

/* The outputs by row of gate, scale or shift: for each token, or partial sums and then sums. */
struct summed {
    struct kernel_group_sums_args args[2];
    bool wanted;
};

static void sum_later(struct side *s, const char *name, struct kernel_view by_token[2],
                      float *partials[2], struct summed *summed)
{
    const struct shape *shape = s->shape;
    struct kernel_view views[2];
    int64_t parts = (shape->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    float *room[2];

    summed->wanted = side_next(s);
    if (!summed->wanted)
        return;
    side_place(s, name, side_groups(s), false, false, views);
    if (shape->groups == 0) {
        by_token[0] = views[0];
        by_token[1] = views[1];
        summed->wanted = false;
        return;
    }
    side_floats(s, name, (parts + shape->groups) * shape->cols, false, room);
    for (int side = 0; side < 2; side++) {
        partials[side] = room[side];
        summed->args[side] = (struct kernel_group_sums_args){
            .partials = room[side],
            .rows = shape->rows,
            .groups = shape->groups,
            .cols = shape->cols,
            .out = views[side],
        };
    }
}

struct launch {
    struct kernel_modulate_backward_args args[2];
    struct summed summed[3];
};

static void on_device(void *arg)
{
    const struct launch *launch = arg;

    launched(kernel_modulate_backward_cuda(&launch->args[1], NULL), "modulate_backward");
    for (int i = 0; i < 3; i++)
        if (launch->summed[i].wanted)
            launched(kernel_group_sums_cuda(&launch->summed[i].args[1], NULL), "group_sums");
}

static void on_host(void *arg)
{
    const struct launch *launch = arg;

    kernel_modulate_backward_host(&launch->args[0]);
    for (int i = 0; i < 3; i++)
        if (launch->summed[i].wanted)
            kernel_group_sums_host(&launch->summed[i].args[0]);
}

static bool backward_agrees(const struct shape *shape)
{
    struct side s = {.shape = shape};
    struct launch launch;
    struct kernel_modulate_backward_args *const args = launch.args;
    struct summed *const summed = launch.summed;
    struct kernel_view views[2], by_token[2];
    const int64_t groups = side_groups(&s);
    int64_t parts = (shape->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    float *values[2];

    memset(&launch, 0, sizeof(launch));
    PLACE(x_out, "x_out", shape->rows, false, true);
    if (side_next(&s))
        PLACE(dz, "dz", shape->rows, false, true);
    if (side_next(&s)) {
        PLACE(dx_out, "dx_out", shape->rows, false, true);
        if (side_next(&s)) {
            args[0].dx = args[0].dx_out;
            args[1].dx = args[1].dx_out;
        }
    }
    if (args[0].dx.data == NULL && side_next(&s))
        PLACE(dx, "dx", shape->rows, false, false);
    if (side_next(&s))
        PLACE(dy, "dy", shape->rows, false, false);
    if (side_next(&s))
        PLACE(gate, "gate", groups, true, true);
    if (side_next(&s))
        PLACE(scale, "scale", groups, true, true);
#define SUM_LATER(token_field, partials_field, name, at)                                           \
    do {                                                                                           \
        memset(by_token, 0, sizeof(by_token));                                                     \
        values[0] = values[1] = NULL;                                                              \
        sum_later(&s, name, by_token, values, &summed[at]);                                        \
        args[0].token_field = by_token[0];                                                         \
        args[1].token_field = by_token[1];                                                         \
        args[0].partials_field = values[0];                                                        \
        args[1].partials_field = values[1];                                                        \
    } while (0)
    if (side_next(&s)) {
        PLACE(y, "y", shape->rows, false, true);
        SUM_LATER(dgate, gate_partials, "dgate", 0);
    }
    SUM_LATER(dscale, scale_partials, "dscale", 1);
    SUM_LATER(dshift, shift_partials, "dshift", 2);
    /* Both ways of the tiles: with weight and bias, and without. */
    if (side_next(&s)) {
        if (side_next(&s))
            FLOATS(weight, "weight", shape->cols, true);
        if (side_next(&s))
            FLOATS(bias, "bias", shape->cols, true);
        if (side_next(&s))
            FLOATS(weight_partials, "weight_partials", parts * shape->cols, false);
        if (side_next(&s))
            FLOATS(bias_partials, "bias_partials", parts * shape->cols, false);
    }
    FLOATS(mean, "mean", shape->rows, true);
    FLOATS(rstd, "rstd", shape->rows, true);
    if (shape->norm != FP8PIPE_NORM_NONE)
        FLOATS(row_means, "row means", 2 * shape->rows, false);
    AIM();
    for (int i = 0; i < 3; i++)
        for (int side = 0; side < 2; side++)
            summed[i].args[side].rows_of = s.rows_of[side];
    return side_agrees(&s, "modulate_backward", on_device, on_host, &launch);
}

/* Tiles that are whole, which have code of their own, and one more row or unit. */
static void test_whole_tiles(void)
{
    static const int64_t sizes[][2] = {{128, 64},  {128, 72},  {129, 64},  {256, 512},
                                       {257, 520}, {384, 192}, {512, 1032}};
    const int count = sizeof(sizes) / sizeof(*sizes);
    bool same = true;

    for (int i = 0; i < (shapes_are_small() ? count : 20 * count); i++) {
        struct shape shape = shape_random(true, sizes[i % count][0], sizes[i % count][1], i);

        same &= backward_agrees(&shape);
    }
    ok(same, "modulate_backward: whole tiles");
}

static void test_refused(void)
{
    struct kernel_modulate_backward_args back;
    struct kernel_group_sums_args sums;

    memset(&back, 0, sizeof(back));
    memset(&sums, 0, sizeof(sums));
    back.rows = back.cols = sums.groups = sums.cols = 8;
    is_int(kernel_modulate_backward_cuda(&back, NULL), cudaErrorInvalidValue,
           "modulate_backward without x_out: refused");
    is_int(kernel_group_sums_cuda(&sums, NULL), cudaErrorInvalidValue,
           "group_sums without an output: refused");
    is_int(cudaPeekAtLastError(), cudaSuccess, "a refusal leaves no error behind");
}

int main(void)
{
    device_require();
    shapes_test("modulate_backward", backward_agrees);
    test_whole_tiles();
    test_refused();
    return done_testing();
}
