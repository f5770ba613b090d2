/* Guards against bad input to epilogues: of GEMMs, of forwards, and the residual of a dgrad. */
#include "badinput.h"

#define M 4
#define N 8
#define K 16
#define BOTH (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)

static struct fp8pipe *pipe, *other;
static fp8pipe_ticket ticket = TICKET_UNSET;
static struct fp8pipe_scaling *scaling, *other_scaling; /* slots: X, W, DY, X */
static struct fp8pipe_linear *linear, *plain;
static struct fp8pipe_tensor *x_row, *w_row, *result, *of_other;
static struct test_matrix x, w, y, pre, residual, dy, dx;

/* What nothing may be compared with before its shape is checked: from low addresses on, so much
 * that it meets all memory, or, where `rows_` is large, that its end is no number. */
#define LOW ((void *)64)
#define SPAN(rows_)                                                                                \
    ((struct fp8pipe_matrix){LOW, rows_, INT64_C(1) << 58, INT64_C(1) << 58, FP8PIPE_FP32, 0})

/* The rules that do not depend on whose epilogue it is. D is `d_`, of dtype FP32, an input is at
 * `in_`. */
#define EPILOGUE_RULES(good, d_, d_name, in_)                                                      \
    do {                                                                                           \
        SPOILED(good, op.epilogue.activation = FP8PIPE_ACTIVATION_SWIGLU, SUBMIT,                  \
                "epilogue.activation", "4");                                                       \
        SPOILED(good, op.epilogue.activation = (enum fp8pipe_activation) - 1, SUBMIT,              \
                "epilogue.activation", "-1");                                                      \
        SPOILED(good, op.epilogue.reserved = 3, SUBMIT, "epilogue.reserved", "3");                 \
        MATRIX_RULES(good, epilogue.pre, "epilogue.pre");                                          \
        MATRIX_RULES(good, epilogue.residual, "epilogue.residual");                                \
        SPOILED(good, op.epilogue.pre.rows--, SUBMIT, "epilogue.pre.rows", "3");                   \
        SPOILED(good, op.epilogue.pre.cols--, SUBMIT, "epilogue.pre.cols", "7");                   \
        SPOILED(good, op.epilogue.residual.rows--, SUBMIT, "epilogue.residual.rows = 3",           \
                "that of " d_name ", 4");                                                          \
        SPOILED(good, op.epilogue.residual.cols--, SUBMIT, "epilogue.residual.cols = 7",           \
                "that of " d_name ", 8");                                                          \
        SPOILED(good, op.epilogue.residual.dtype = FP8PIPE_BF16, SUBMIT,                           \
                "epilogue.residual.dtype", "1");                                                   \
        SPOILED(good, op.epilogue.residual.data = (float *)op.d_.data + 1, SUBMIT,                 \
                "epilogue.residual.data", "overlaps " d_name);                                     \
        SPOILED(good, (op.epilogue.residual = op.d_, op.epilogue.residual.stride++), SUBMIT,       \
                "epilogue.residual.data", "overlaps " d_name);                                     \
        SPOILED(good, op.epilogue.pre.data = op.d_.data, SUBMIT, "epilogue.pre.data",              \
                "overlaps " d_name);                                                               \
        SPOILED(good, op.epilogue.pre.data = op.epilogue.residual.data, SUBMIT,                    \
                "epilogue.pre.data", "overlaps epilogue.residual");                                \
        SPOILED(good, op.epilogue.pre.data = (in_), SUBMIT, "epilogue.pre.data", "overlaps");      \
    } while (0)

/* Those of one with a tensor; D is absent. */
#define TENSOR_RULES(good, d_, d_name)                                                             \
    do {                                                                                           \
        SPOILED(good, op.d_ = y.view, SUBMIT, d_name ".data", "epilogue.tensor");                  \
        SPOILED(good, op.d_.rows = 1, SUBMIT, d_name ".data = NULL", "epilogue.tensor");           \
        SPOILED(good, op.d_ = SPAN(1), SUBMIT, d_name ".data", "epilogue.tensor");                 \
        SPOILED(good, op.d_ = SPAN(INT64_MAX), SUBMIT, d_name ".data", "epilogue.tensor");         \
        SPOILED(good, op.epilogue.residual.rows = 1, SUBMIT, "epilogue.residual.data = NULL", ""); \
        SPOILED(good, op.epilogue.residual = residual.view, SUBMIT, "epilogue.residual.data", ""); \
        SPOILED(good, op.epilogue.scaling = NULL, SUBMIT, "epilogue.scaling", "NULL");             \
        SPOILED(good, op.epilogue.scaling = other_scaling, SUBMIT, "epilogue.scaling", "pipe");    \
        SPOILED(good, op.epilogue.slot = 4, SUBMIT, "epilogue.slot", "4");                         \
        SPOILED(good, op.epilogue.copies = 0, SUBMIT, "epilogue.copies", "0");                     \
        SPOILED(good, op.epilogue.copies = 5, SUBMIT, "epilogue.copies", "5");                     \
        SPOILED(good, op.epilogue.tensor = of_other, SUBMIT, "epilogue.tensor", "pipe");           \
        SPOILED(good, op.epilogue.pre.rows--, SUBMIT, "epilogue.pre.rows", "3");                   \
        SPOILED(good, op.epilogue.pre.cols--, SUBMIT, "epilogue.pre.cols", "7");                   \
    } while (0)

static struct fp8pipe_epilogue of_matrix(void)
{
    struct fp8pipe_epilogue epilogue = FP8PIPE_EPILOGUE_NONE;

    epilogue.activation = FP8PIPE_ACTIVATION_SILU;
    epilogue.pre = pre.view;
    epilogue.residual = residual.view;
    return epilogue;
}

static struct fp8pipe_epilogue of_tensor(void)
{
    struct fp8pipe_epilogue epilogue = FP8PIPE_EPILOGUE_NONE;

    epilogue.activation = FP8PIPE_ACTIVATION_GELU_ERF;
    epilogue.pre = pre.view;
    epilogue.tensor = result;
    epilogue.scaling = scaling;
    epilogue.slot = 3;
    epilogue.copies = BOTH;
    return epilogue;
}

static void gemm_part(void)
{
    struct fp8pipe_gemm_op good = FP8PIPE_GEMM_OP_INIT, quantizing, tensors, op;
    const struct fp8pipe_gemm_op *op_pointer = &op;

#define SUBMIT fp8pipe_gemm(pipe, op_pointer, &ticket)
    good.submit = ON(0);
    good.a = x.view;
    good.b = w.view;
    good.d = y.view;
    good.epilogue = of_matrix();
    EPILOGUE_RULES(good, d, "d", op.a.data);
    SPOILED(good, op.epilogue.pre.data = op.b.data, SUBMIT, "epilogue.pre.data", "overlaps b");
    SPOILED(good, op.bias = ((struct fp8pipe_vector){op.d.data, op.d.cols, FP8PIPE_FP32, 0}),
            SUBMIT, "d.data", "overlaps bias");
    SPOILED(good,
            op.bias = ((struct fp8pipe_vector){op.epilogue.pre.data, op.d.cols, FP8PIPE_FP32, 0}),
            SUBMIT, "epilogue.pre.data", "overlaps bias");
    SPOILED(good, op.accumulate = 1, SUBMIT, "accumulate", "1");
    SPOILED(good, op.submit.flags = FP8PIPE_NO_AMAX, SUBMIT, "submit.flags", "0x8");
    IS_ACCEPTED(fp8pipe_gemm(pipe, &good, &ticket));
    op = good;
    op.epilogue.residual = op.d;
    IS_ACCEPTED(SUBMIT);

    quantizing = good;
    quantizing.d = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    quantizing.epilogue = of_tensor();
    quantizing.submit.flags = FP8PIPE_NO_AMAX;
    TENSOR_RULES(quantizing, d, "d");
    SPOILED(quantizing, op.b.cols--, SUBMIT, "b.cols", "15");
    SPOILED(quantizing, op.a.rows = -1, SUBMIT, "a.rows", "-1");
    SPOILED(quantizing, op.accumulate = 1, SUBMIT, "accumulate", "1");
    SPOILED(quantizing, (op.bias.data = y.view.data, op.bias.count = 7), SUBMIT, "bias.count", "7");
    SPOILED(quantizing, (op.bias.data = LOW, op.bias.count = INT64_C(1) << 58), SUBMIT,
            "bias.count", "288230376151711744");
    SPOILED(quantizing, (op.bias.data = LOW, op.bias.count = INT64_MAX), SUBMIT, "bias.count",
            "9223372036854775807");
    IS_ACCEPTED(fp8pipe_gemm(pipe, &quantizing, &ticket));

    tensors = quantizing;
    tensors.a = tensors.b = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    tensors.a_tensor = x_row;
    tensors.b_tensor = w_row;
    TENSOR_RULES(tensors, d, "d");
    SPOILED(tensors, (op.bias.data = LOW, op.bias.count = INT64_MAX), SUBMIT,
            "bias.count = 9223372036854775807", "overflows");
    SPOILED(tensors, (op.bias.data = LOW, op.bias.count = -1), SUBMIT, "bias.count = -1", ">= 0");
    SPOILED(tensors, (op.bias.data = y.view.data, op.bias.count = 7), SUBMIT, "bias.count", "7");
    SPOILED(tensors, op.epilogue.tensor = x_row, SUBMIT, "epilogue.tensor", "another tensor");
    SPOILED(tensors, op.a_transposed = 1, SUBMIT, "a_tensor", "");
    IS_ACCEPTED(fp8pipe_gemm(pipe, &tensors, &ticket));
    SIZES(fp8pipe_gemm_op, good, SUBMIT, accumulation);
}

static void forward_part(void)
{
    struct fp8pipe_forward_op good = FP8PIPE_FORWARD_OP_INIT, quantizing, shared, op;
    const struct fp8pipe_forward_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_linear_forward(linear, op_pointer, &ticket)
    good.submit = ON(0);
    good.x = x.view;
    good.y = y.view;
    good.epilogue = of_matrix();
    EPILOGUE_RULES(good, y, "y", op.x.data);
    SPOILED(good, op.epilogue.pre.data = w.view.data, SUBMIT, "epilogue.pre.data",
            "overlaps weight");
    IS_ACCEPTED(fp8pipe_linear_forward(linear, &good, &ticket));
    IS_ACCEPTED(fp8pipe_linear_forward(plain, &good, &ticket));

    quantizing = good;
    quantizing.y = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    quantizing.epilogue = of_tensor();
    TENSOR_RULES(quantizing, y, "y");
    SPOILED(quantizing, op.x.cols--, SUBMIT, "x.cols", "15");
    SPOILED(quantizing, op.x.rows = -1, SUBMIT, "x.rows", "-1");
    SPOILED(quantizing, (op.keep = FP8PIPE_KEEP_ALL, op.saved = result), SUBMIT, "epilogue.tensor",
            "another tensor");
    IS_ACCEPTED(fp8pipe_linear_forward(linear, &quantizing, &ticket));
    IS_ACCEPTED(fp8pipe_linear_forward(plain, &quantizing, &ticket));

    shared = quantizing;
    shared.x = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    shared.x_tensor = x_row;
    TENSOR_RULES(shared, y, "y");
    SPOILED(shared, op.epilogue.tensor = x_row, SUBMIT, "epilogue.tensor", "another tensor");
    IS_ACCEPTED(fp8pipe_linear_forward(linear, &shared, &ticket));
    SIZES(fp8pipe_forward_op, good, SUBMIT, accumulation);
}

static void dgrad_part(void)
{
    struct fp8pipe_dgrad_op good = FP8PIPE_DGRAD_OP_INIT, op;
    const struct fp8pipe_dgrad_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_linear_dgrad(linear, op_pointer, &ticket)
    good.submit = ON(0);
    good.dy = dy.view;
    good.dx = dx.view;
    good.residual = x.view;
    MATRIX_RULES(good, residual, "residual");
    SPOILED(good, op.residual.rows--, SUBMIT, "residual.rows", "3");
    SPOILED(good, op.residual.cols--, SUBMIT, "residual.cols", "15");
    SPOILED(good, op.residual.dtype = FP8PIPE_FP16, SUBMIT, "residual.dtype", "2");
    SPOILED(good, op.residual.data = (float *)op.dx.data + 3, SUBMIT, "residual.data",
            "overlaps dx");
    IS_ACCEPTED(fp8pipe_linear_dgrad(linear, &good, &ticket));
    op = good;
    op.residual = op.dx;
    IS_ACCEPTED(SUBMIT);
    SIZES(fp8pipe_dgrad_op, good, SUBMIT, accumulation);
}

static struct test_matrix zeros(int64_t rows, int64_t cols)
{
    struct test_matrix made = test_matrix_make(pipe, FP8PIPE_FP32, rows, cols, 0, 0);
    double values[N * K] = {0};

    test_matrix_set(&made, values);
    return made;
}

int main(void)
{
    struct test_matrix *matrices[] = {&x, &w, &y, &pre, &residual, &dy, &dx};
    struct fp8pipe_tensor **tensors[] = {&x_row, &w_row, &result};

    watchdog("bad epilogues", 60);
    pipe = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 2, 0, NULL);
    other = async_open(FP8PIPE_BACKEND_HOST, FP8PIPE_ASYNC, 1, 0, NULL);
    scaling = test_scaling(pipe, 4, 0);
    other_scaling = test_scaling(other, 4, 0);
    for (int i = 0; i < 3; i++)
        must(fp8pipe_tensor_create(pipe, tensors[i]));
    must(fp8pipe_tensor_create(other, &of_other));
    x = zeros(M, K);
    w = zeros(N, K);
    y = zeros(M, N);
    pre = zeros(M, N);
    residual = zeros(M, N);
    dy = zeros(M, N);
    dx = zeros(M, K);
    test_quantize(x_row, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(0));
    test_quantize(w_row, w.view, scaling, 1, FP8PIPE_ROWWISE, ON(0));
    plain = test_linear(pipe, w.view, NULL);
    linear = test_linear(pipe, w.view, scaling);
    gemm_part();
    forward_part();
    dgrad_part();
    test_drain(pipe);
    must(fp8pipe_linear_destroy(plain));
    must(fp8pipe_linear_destroy(linear));
    for (int i = 0; i < 3; i++)
        must(fp8pipe_tensor_destroy(*tensors[i]));
    must(fp8pipe_tensor_destroy(of_other));
    must(fp8pipe_scaling_destroy(scaling));
    must(fp8pipe_scaling_destroy(other_scaling));
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
        test_matrix_free(matrices[i]);
    test_close(pipe);
    test_close(other);
    return done_testing();
}
