/* Guards what optimizers refuse: each field, its value, the rule; and no effect. */
#include <math.h>
#include <stdint.h>

#include "badinput.h"
#include "fp8pipe_optimizer.h"

static struct fp8pipe *pipe;
static struct test_matrix spare; /* for what is of no parameter */

/* What parameters are made of. */
static struct test_matrix blocks[12];

static struct fp8pipe_matrix block(int i, enum fp8pipe_dtype dtype)
{
    struct fp8pipe_matrix matrix = blocks[i].view;

    matrix.dtype = dtype;
    return matrix;
}

static struct fp8pipe_parameter parameter(int first)
{
    struct fp8pipe_parameter made = FP8PIPE_PARAMETER_INIT;

    made.master = block(first, FP8PIPE_FP32);
    made.gradient = block(first + 1, FP8PIPE_BF16);
    made.first = block(first + 2, FP8PIPE_FP32);
    made.second = block(first + 3, FP8PIPE_FP32);
    made.average = block(first + 4, FP8PIPE_FP32);
    made.copy = block(first + 5, FP8PIPE_FP16);
    return made;
}

static const struct fp8pipe_parameter_group group = FP8PIPE_PARAMETER_GROUP_INIT;

/* One spoiled field of two parameters, or of two groups, of an optimizer that would be made. */
#define CREATE(change, field, value) CREATE_AS(FP8PIPE_EINVAL, change, field, value)
#define CREATE_AS(status, change, field, value)                                                    \
    do {                                                                                           \
        struct fp8pipe_parameter p[2] = {parameter(0), parameter(6)};                              \
        struct fp8pipe_parameter_group g[2] = {group, group};                                      \
        struct fp8pipe_optimizer_options options = FP8PIPE_OPTIMIZER_OPTIONS_INIT;                 \
        struct fp8pipe_optimizer *made = NULL;                                                     \
                                                                                                   \
        options.parameters = p;                                                                    \
        options.parameter_count = 2;                                                               \
        options.groups = g;                                                                        \
        options.group_count = 2;                                                                   \
        change;                                                                                    \
        REFUSED(status, fp8pipe_optimizer_create(pipe, &options, &made), field, value);            \
        ok(made == NULL, "nothing is made");                                                       \
    } while (0)

static fp8pipe_ticket ticket = TICKET_UNSET;

static void test_groups(void)
{
    CREATE(g[1].lr_factor = -1, "groups[1].lr_factor", "-1");
    CREATE(g[1].lr_factor = INFINITY, "groups[1].lr_factor", "inf");
    CREATE(g[0].beta1 = 1, "groups[0].beta1", "1");
    CREATE(g[0].beta1 = NAN, "groups[0].beta1", "nan");
    CREATE(g[1].beta2 = -0.5f, "groups[1].beta2", "-0.5");
    CREATE(g[1].beta2 = 1, "groups[1].beta2", "1");
    CREATE(g[0].epsilon = 0, "groups[0].epsilon", "0");
    CREATE(g[0].epsilon = INFINITY, "groups[0].epsilon", "inf");
    CREATE(g[1].weight_decay = -1, "groups[1].weight_decay", "-1");
    CREATE(g[1].weight_decay = NAN, "groups[1].weight_decay", "nan");
    CREATE(g[1].average_decay = 1.5f, "groups[1].average_decay", "1.5");
    CREATE(g[1].average_decay = NAN, "groups[1].average_decay", "nan");
}

static void test_parameters(void)
{
    CREATE(p[1].master.data = NULL, "parameters[1].master.data", "NULL");
    CREATE(p[1].master.dtype = FP8PIPE_BF16, "parameters[1].master.dtype", "FP32");
    CREATE(p[1].master.stride++, "parameters[1].master.stride", "17");
    CREATE(p[0].master.data = (char *)p[0].master.data + 4, "parameters[0].master.data", "16");
    CREATE(p[0].master.reserved = 3, "parameters[0].master.reserved", "3");
    CREATE(p[0].gradient.rows--, "parameters[0].gradient.rows", "20");
    CREATE(p[0].gradient.data = (char *)p[0].gradient.data + 8, "parameters[0].gradient", "16");
    CREATE(p[0].gradient.dtype = (enum fp8pipe_dtype)7, "parameters[0].gradient.dtype", "7");
    CREATE(p[1].gradient.stride = 20, "parameters[1].gradient.stride", "20");
    CREATE(p[1].first.cols--, "parameters[1].first.cols", "15");
    CREATE(p[1].first.dtype = FP8PIPE_FP16, "parameters[1].first.dtype", "FP32");
    CREATE(p[0].second.data = NULL, "parameters[0].second.data", "NULL");
    CREATE(p[0].second.dtype = FP8PIPE_BF16, "parameters[0].second.dtype", "FP32");
    CREATE(p[0].average.dtype = FP8PIPE_BF16, "parameters[0].average.dtype", "FP32");
    CREATE(p[0].average.rows--, "parameters[0].average.rows", "19");
    CREATE(p[1].copy.dtype = FP8PIPE_FP32, "parameters[1].copy.dtype", "BF16 or FP16");
    CREATE(p[1].copy.cols--, "parameters[1].copy.cols", "15");
    CREATE(p[1].group = 2, "parameters[1].group", "2");
    CREATE(p[0].reserved = 9, "parameters[0].reserved", "9");
    CREATE(p[1].master = p[0].master, "parameters[0], parameters[1]", "overlap");
    CREATE(p[1].first.data = p[1].second.data, "parameters[1], parameters[1]", "overlap");
    CREATE(p[1].gradient.data = p[0].copy.data, "parameters[0], parameters[1]", "overlap");
    CREATE(p[0].average = p[1].gradient;
           p[0].average.dtype = FP8PIPE_FP32, "parameters[", "overlap");
    CREATE(p[1].copy.data = (char *)p[0].master.data + 1264, "parameters[0], parameters[1]",
           "overlap");
}

static void test_options(void)
{
    CREATE(options.size = 3, "size", "3");
    CREATE(options.parameter_count = 0, "parameter_count", "0");
    CREATE(options.parameter_count = 1048577, "parameter_count", "1048577");
    CREATE(options.group_count = 0, "group_count", "0");
    CREATE(options.group_count = 257, "group_count", "257");
    CREATE(options.parameters = NULL, "parameters", "NULL");
    CREATE(options.groups = NULL, "groups", "NULL");
    {
        struct fp8pipe_optimizer_options options = FP8PIPE_OPTIMIZER_OPTIONS_INIT;

        REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_create(pipe, &options, NULL), "optimizer",
                "NULL");
        REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_create(pipe, NULL, NULL), "options", "NULL");
    }
}

static void test_linears(void)
{
    struct fp8pipe_scaling *scaling[2] = {NULL, NULL};
    struct fp8pipe_linear *plain, *one, *other, *small, *half, *far;
    struct fp8pipe *home = pipe, *elsewhere = test_open(FP8PIPE_BACKEND_HOST, NULL);
    struct fp8pipe_matrix few = spare.view, bf16 = block(0, FP8PIPE_BF16);

    few.rows = 7;
    scaling[0] = test_scaling(pipe, 3, 0);
    scaling[1] = test_scaling(pipe, 3, 0);
    plain = test_linear(pipe, block(0, FP8PIPE_FP32), NULL);
    one = test_linear(pipe, block(0, FP8PIPE_FP32), scaling[0]);
    other = test_linear(pipe, block(6, FP8PIPE_FP32), scaling[1]);
    small = test_linear(pipe, few, scaling[0]);
    half = test_linear(pipe, bf16, scaling[0]);
    pipe = elsewhere;
    far = test_linear(pipe, block(0, FP8PIPE_FP32), NULL);
    pipe = home;
    CREATE(p[0].linear = plain, "parameters[0].linear", "not quantized");
    CREATE(p[0].linear = far, "parameters[0].linear", "of pipe");
    CREATE(p[0].linear = one; p[1].linear = other, "parameters[1].linear", "scaling");
    CREATE(p[1].linear = small, "parameters[1].linear", "7 x 16");
    CREATE(p[1].linear = one, "parameters[1].linear", "not master");
    CREATE(p[0].linear = half, "parameters[0].linear", "not master");
    /* A refusal on the second linear lets go of the first one. */
    CREATE(p[0].linear = one; p[1].linear = half, "parameters[1].linear", "not master");
    must(fp8pipe_linear_weight_changed(one, NULL, 0));
    must(fp8pipe_linear_destroy(plain));
    must(fp8pipe_linear_destroy(one));
    must(fp8pipe_linear_destroy(other));
    must(fp8pipe_linear_destroy(small));
    must(fp8pipe_linear_destroy(half));
    must(fp8pipe_linear_destroy(far));
    must(fp8pipe_scaling_destroy(scaling[0]));
    must(fp8pipe_scaling_destroy(scaling[1]));
    test_close(elsewhere);
}

static void test_adamw(struct fp8pipe_optimizer *optimizer)
{
    struct fp8pipe_adamw_op good = FP8PIPE_ADAMW_OP_INIT, op;
    const struct fp8pipe_adamw_op *op_pointer = &op;
    char *odd = (char *)spare.view.data + 2;

    good.lr = 0.1f;
#define ADAMW fp8pipe_optimizer_adamw(optimizer, op_pointer, &ticket)
    SPOILED(good, op.lr = -1, ADAMW, "lr", "-1");
    SPOILED(good, op.lr = NAN, ADAMW, "lr", "nan");
    SPOILED(good, op.reserved = 4, ADAMW, "reserved", "4");
    SPOILED(good, op.lr_device = (void *)odd, ADAMW, "lr_device", "4 bytes");
    SPOILED(good, op.gradient_scale = (void *)odd, ADAMW, "gradient_scale", "4 bytes");
    SPOILED(good, op.skip_if = (void *)odd, ADAMW, "skip_if", "4 bytes");
    SPOILED(good, op.submit.lane = 9, ADAMW, "submit.lane", "9");
    SPOILED(good, op.submit.flags = FP8PIPE_NO_AMAX, ADAMW, "submit.flags", "takes");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_adamw(NULL, &good, &ticket), "optimizer", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_adamw(optimizer, NULL, &ticket), "op", "NULL");
    SIZES(fp8pipe_adamw_op, good, ADAMW, skip_if);
}

static void test_gradient_norm(struct fp8pipe_optimizer *optimizer)
{
    struct fp8pipe_gradient_norm_op good = FP8PIPE_GRADIENT_NORM_OP_INIT, op;
    const struct fp8pipe_gradient_norm_op *op_pointer = &op;
    char *odd = (char *)spare.view.data + 1;

#define NORM fp8pipe_optimizer_gradient_norm(optimizer, op_pointer, &ticket)
    SPOILED(good, op.max_norm = -2, NORM, "max_norm", "-2");
    SPOILED(good, op.max_norm = INFINITY, NORM, "max_norm", "inf");
    SPOILED(good, op.reserved = -1, NORM, "reserved", "-1");
    SPOILED(good, op.gradient_scale = (void *)odd, NORM, "gradient_scale", "4 bytes");
    SPOILED(good, op.norm = (void *)odd, NORM, "norm", "4 bytes");
    SPOILED(good, op.clip = (void *)odd, NORM, "clip", "4 bytes");
    SPOILED(good, op.nonfinite = (void *)odd, NORM, "nonfinite", "4 bytes");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_gradient_norm(NULL, &good, &ticket), "optimizer",
            "NULL");
    SIZES(fp8pipe_gradient_norm_op, good, NORM, nonfinite);
}

static void test_ops(void)
{
    struct fp8pipe_optimizer_options options = FP8PIPE_OPTIMIZER_OPTIONS_INIT;
    struct fp8pipe_parameter made = parameter(0);
    struct fp8pipe_optimizer *optimizer = NULL;
    int64_t steps = 5;

    options.parameters = &made;
    options.parameter_count = 1;
    options.groups = &group;
    options.group_count = 1;
    must(fp8pipe_optimizer_create(pipe, &options, &optimizer));
    test_adamw(optimizer);
    test_gradient_norm(optimizer);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_steps_set(optimizer, -1), "steps", "-1");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_steps_set(optimizer, INT64_MAX), "steps", "2^53");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_steps_set(NULL, 1), "optimizer", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_steps_get(optimizer, NULL), "steps", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_optimizer_steps_get(NULL, &steps), "optimizer", "NULL");
    test_drain(pipe);
    must(fp8pipe_optimizer_destroy(optimizer));
}

int main(void)
{
    pipe = test_open(FP8PIPE_BACKEND_HOST, NULL);
    spare = test_matrix_make(pipe, FP8PIPE_FP32, 20, 16, 0, 0);
    for (int i = 0; i < 12; i++)
        blocks[i] = test_matrix_make(pipe, FP8PIPE_FP32, 20, 16, 0, 0);
    test_options();
    test_groups();
    test_parameters();
    test_linears();
    test_ops();
    for (int i = 0; i < 12; i++)
        test_matrix_free(&blocks[i]);
    test_matrix_free(&spare);
    test_close(pipe);
    return done_testing();
}
