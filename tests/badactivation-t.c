/* Guards against bad input to fp8pipe_activation and its backward. */
#include "badinput.h"
#include "fp8pipe_fused.h"

#define ROWS 4
#define COLS 8

static struct fp8pipe *pipe;
static fp8pipe_ticket ticket = TICKET_UNSET;
static struct fp8pipe_scaling *scaling;
static struct fp8pipe_tensor *tensor;
static struct test_matrix x, dy, result, bias;

#define COMMON_RULES(good, result, result_name)                                                    \
    do {                                                                                           \
        MATRIX_RULES(good, x, "x");                                                                \
        MATRIX_RULES(good, result, result_name);                                                   \
        SPOILED(good, op.result.cols--, SUBMIT, result_name ".cols", "");                          \
        SPOILED(good, op.activation = FP8PIPE_ACTIVATION_NONE, SUBMIT, "activation", "0");         \
        SPOILED(good, op.activation = (enum fp8pipe_activation)5, SUBMIT, "activation", "5");      \
        SPOILED(good, op.reserved = 7, SUBMIT, "reserved", "7");                                   \
        SPOILED(good, (op.bias = test_vector(&bias), op.bias.count--), SUBMIT, "bias.count", "");  \
        SPOILED(good, (op.bias = test_vector(&bias), op.bias.data = NULL), SUBMIT, "bias.data",    \
                "NULL");                                                                           \
        SPOILED(good, op.result = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, result_name, \
                "");                                                                               \
        SPOILED(good, (op.result = op.x, op.result.data = (uint16_t *)op.x.data + 1), SUBMIT,      \
                "overlap", "");                                                                    \
        SPOILED(good, (op.out.tensor = tensor), SUBMIT, "out.scaling", "NULL");                    \
        SPOILED(good, (op.out.tensor = tensor, op.out.scaling = scaling, op.out.slot = 9), SUBMIT, \
                "out.slot", "9");                                                                  \
        SPOILED(good, op.submit.flags = FP8PIPE_LAST_USE, SUBMIT, "flags", "");                    \
        op = good;                                                                                 \
        IS_ACCEPTED(SUBMIT);                                                                       \
    } while (0)

#define SUBMIT fp8pipe_activation(pipe, op_pointer, &ticket)

static void forward_part(void)
{
    struct fp8pipe_activation_op good = FP8PIPE_ACTIVATION_OP_INIT, op;
    const struct fp8pipe_activation_op *op_pointer = &op;

    good.submit = ON(0);
    good.activation = FP8PIPE_ACTIVATION_SILU;
    good.x = x.view;
    good.y = result.view;
    COMMON_RULES(good, y, "y");
    SPOILED(good, (op.activation = FP8PIPE_ACTIVATION_SWIGLU, op.x.cols = 7), SUBMIT, "x.cols",
            "7");
    SPOILED(good, (op.activation = FP8PIPE_ACTIVATION_SWIGLU, op.y = op.x, op.y.cols = 4), SUBMIT,
            "overlap", "");
    SPOILED(good, op.activation = FP8PIPE_ACTIVATION_SWIGLU, SUBMIT, "y.cols = 8",
            "x.cols / 2 = 4");
    SPOILED(good, (op.bias = test_vector(&bias), op.bias.data = op.y.data), SUBMIT, "y.data",
            "overlaps bias");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_activation(NULL, &good, &ticket), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_activation(pipe, NULL, &ticket), "op", "NULL");
}

#undef SUBMIT
#define SUBMIT fp8pipe_activation_backward(pipe, op_pointer, &ticket)

static void backward_part(void)
{
    struct fp8pipe_activation_backward_op good = FP8PIPE_ACTIVATION_BACKWARD_OP_INIT, op;
    const struct fp8pipe_activation_backward_op *op_pointer = &op;

    good.submit = ON(0);
    good.activation = FP8PIPE_ACTIVATION_SILU;
    good.x = x.view;
    good.dy = dy.view;
    good.dx = result.view;
    COMMON_RULES(good, dx, "dx");
    MATRIX_RULES(good, dy, "dy");
    SPOILED(good, op.dy.cols--, SUBMIT, "dy.cols = 7", "x.cols = 8");
    SPOILED(good,
            (op.out.tensor = tensor, op.out.scaling = scaling,
             op.out.column_sums = (struct fp8pipe_vector){op.dy.data, COLS, FP8PIPE_FP32, 0}),
            SUBMIT, "out.column_sums.data", "overlaps dy");
    SPOILED(good, (op.activation = FP8PIPE_ACTIVATION_SWIGLU, op.dx = op.x, op.dy.cols = 4), SUBMIT,
            "overlap", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_activation_backward(pipe, NULL, &ticket), "op", "NULL");
}

int main(void)
{

    watchdog("bad activations", 60);
    pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, NULL);
    scaling = test_scaling(pipe, 3, 0);
    must(fp8pipe_tensor_create(pipe, &tensor));
    x = test_matrix_make(pipe, FP8PIPE_BF16, ROWS, COLS, 0, 0);
    dy = test_matrix_make(pipe, FP8PIPE_BF16, ROWS, COLS, 0, 0);
    result = test_matrix_make(pipe, FP8PIPE_BF16, ROWS, COLS, 0, 0);
    bias = test_matrix_make(pipe, FP8PIPE_FP32, 1, COLS, 0, 0);
    forward_part();
    backward_part();
    test_drain(pipe);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_scaling_destroy(scaling));
    test_matrix_free(&x);
    test_matrix_free(&dy);
    test_matrix_free(&result);
    test_matrix_free(&bias);
    test_close(pipe);
    return done_testing();
}
