/* Guards against bad input to ops on matrices, quantized tensors and linears. */
#include "badinput.h"

#include <stdlib.h>

#define M 4
#define N 8
#define K 16

static struct fp8pipe *pipe, *other;
static fp8pipe_ticket ticket = TICKET_UNSET;
static struct fp8pipe_scaling *scaling, *other_scaling; /* slots: X, W, DY, X, W, DY */
static struct fp8pipe_linear *linear, *second, *plain;
static struct fp8pipe_tensor *x_row, *x_turned, *dy_row; /* filled; x_turned transposed only */
static struct fp8pipe_tensor *empty, *for_dgrad, *for_all, *of_second, *of_other;
static struct test_matrix x, w, y, dy, dx, dw, sums;

#define BOTH (FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED)

/* Every rule of a vector of N entries. */
#define VECTOR_RULES(good, f, name)                                                                \
    do {                                                                                           \
        SPOILED(good, (op.f = test_vector(&sums), op.f.count++), SUBMIT, name ".count", "");       \
        SPOILED(good, (op.f = test_vector(&sums), op.f.count = -1), SUBMIT, name ".count", "-1");  \
        SPOILED(good, (op.f = test_vector(&sums), op.f.dtype = (enum fp8pipe_dtype)4), SUBMIT,     \
                name ".dtype", "4");                                                               \
        SPOILED(good, (op.f = test_vector(&sums), op.f.data = NULL), SUBMIT, name ".data",         \
                "NULL");                                                                           \
        SPOILED(good, (op.f = test_vector(&sums), op.f.data = (char *)op.f.data + 2), SUBMIT,      \
                name ".data", "");                                                                 \
        SPOILED(good, (op.f = test_vector(&sums), op.f.reserved = 2), SUBMIT, name ".reserved",    \
                "2");                                                                              \
    } while (0)

/* And of one that is written, which has to be FP32. */
#define SUMS_RULES(good, f, name)                                                                  \
    do {                                                                                           \
        VECTOR_RULES(good, f, name);                                                               \
        SPOILED(good, (op.f = test_vector(&sums), op.f.dtype = FP8PIPE_BF16), SUBMIT,              \
                name ".dtype", "");                                                                \
    } while (0)

static void quantize_part(void)
{
    struct fp8pipe_quantize_op good = FP8PIPE_QUANTIZE_OP_INIT, op;
    const struct fp8pipe_quantize_op *op_pointer = &op;

#define SUBMIT fp8pipe_tensor_quantize(empty, op_pointer, &ticket)
    good.submit = ON(0); /* as all that is accepted here: they share their outputs */
    good.x = dy.view;    /* N columns, as the vector of sums */
    good.scaling = scaling;
    MATRIX_RULES(good, x, "x");
    SUMS_RULES(good, column_sums, "column_sums");
    SPOILED(good, op.column_sums = ((struct fp8pipe_vector){op.x.data, N, FP8PIPE_FP32, 0}), SUBMIT,
            "column_sums.data", "overlaps x");
    SPOILED(good, op.scaling = NULL, SUBMIT, "scaling", "NULL");
    SPOILED(good, op.scaling = other_scaling, SUBMIT, "scaling", "");
    SPOILED(good, op.slot = 6, SUBMIT, "slot", "6");
    SPOILED(good, op.copies = 0, SUBMIT, "copies", "0");
    SPOILED(good, op.copies = 4, SUBMIT, "copies", "4");
    SPOILED(good, op.column_sums_accumulate = 2, SUBMIT, "column_sums_accumulate", "2");
    SPOILED(good, op.reserved = 3, SUBMIT, "reserved", "3");
    SPOILED(good, op.submit.after_count = 10, SUBMIT, "after_count", "10");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_quantize(NULL, &good, &ticket), "tensor", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_quantize(empty, NULL, &ticket), "op", "NULL");
    {
        struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;

        must(fp8pipe_tensor_info_get(empty, &info));
        ok(!info.filled, "no refused quantize has filled its tensor");
        REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_info_get(NULL, &info), "tensor", "NULL");
        REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_info_get(empty, NULL), "info", "NULL");
        info.size = 0;
        REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_info_get(empty, &info), "size", "0");
    }
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_create(NULL, &empty), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_create(pipe, NULL), "tensor", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_clear(NULL), "tensor", "NULL");
    SIZES(fp8pipe_quantize_op, good, SUBMIT, column_sums_accumulate);
    must(fp8pipe_tensor_clear(empty));
}

static void read_part(void)
{
    struct fp8pipe_read_op good = FP8PIPE_READ_OP_INIT, op;
    const struct fp8pipe_read_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_tensor_read(x_row, op_pointer, &ticket)
    SPOILED(good, op.transposed = dw.view.data, SUBMIT, "transposed", "");
    SPOILED(good, op.submit.lane = 9, SUBMIT, "lane", "9");
    op = good;
    op.rowwise = dw.view.data;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_read(x_turned, &op, &ticket), "rowwise", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_read(empty, &good, &ticket), "tensor", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_read(NULL, &good, &ticket), "tensor", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_tensor_read(x_row, NULL, &ticket), "op", "NULL");
    op = good;
    IS_ACCEPTED(SUBMIT);
}

static void gemm_part(void)
{
    struct fp8pipe_gemm_op good = FP8PIPE_GEMM_OP_INIT, quantized = FP8PIPE_GEMM_OP_INIT, op;
    const struct fp8pipe_gemm_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_gemm(pipe, op_pointer, &ticket)
    good.submit = quantized.submit = ON(0);
    good.a = x.view;
    good.b = w.view;
    good.d = y.view;
    MATRIX_RULES(good, a, "a");
    MATRIX_RULES(good, b, "b");
    MATRIX_RULES(good, d, "d");
    VECTOR_RULES(good, bias, "bias");
    SPOILED(good, op.a.cols--, SUBMIT, "b.cols = 16", "a.cols = 15");
    SPOILED(good, op.d.rows--, SUBMIT, "a.rows = 4", "d.rows = 3");
    SPOILED(good, op.d.cols--, SUBMIT, "b.rows = 8", "d.cols = 7");
    SPOILED(good, op.d = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "a.rows = 4",
            "d.rows = 0");
    SPOILED(good, op.b.dtype = FP8PIPE_BF16, SUBMIT, "b.dtype = 1", "a.dtype = 0");
    SPOILED(good, op.d.data = op.a.data, SUBMIT, "d.data", "overlaps a");
    SPOILED(good, op.bias = ((struct fp8pipe_vector){op.d.data, N, FP8PIPE_FP32, 0}), SUBMIT,
            "d.data", "overlaps bias");
    SPOILED(good, op.d.data = (float *)op.b.data + (N - 1) * K, SUBMIT, "overlap", "");
    SPOILED(good, op.a_tensor = x_row, SUBMIT, "_tensor", "");
    SPOILED(good, op.b_tensor = x_row, SUBMIT, "_tensor", "");
    SPOILED(good, op.a = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "a", "");
    SPOILED(good, op.a_transposed = 2, SUBMIT, "a_transposed", "2");
    SPOILED(good, op.b_transposed = -1, SUBMIT, "b_transposed", "-1");
    SPOILED(good, op.a_transposed = 1, SUBMIT, "a.cols = 16", "d.rows = 4");
    SPOILED(good, op.accumulate = 2, SUBMIT, "accumulate", "2");
    SPOILED(good, op.accumulation = (enum fp8pipe_accumulation)7, SUBMIT, "accumulation", "7");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_gemm(NULL, &good, &ticket), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_gemm(pipe, NULL, &ticket), "op", "NULL");

    quantized.a_tensor = x_row;
    quantized.b_tensor = x_row;
    quantized.d = y.view;
    quantized.d.cols = M;
    SPOILED(quantized, op.b_tensor = NULL, SUBMIT, "b", "");
    SPOILED(quantized, (op.b_tensor = NULL, op.b = x.view), SUBMIT, "tensor", "");
    SPOILED(quantized, (op.a_tensor = op.b_tensor = dy_row), SUBMIT, "E5M2", "");
    SPOILED(quantized, op.a_tensor = empty, SUBMIT, "a_tensor = 0x", "empty");
    SPOILED(quantized, op.a.rows = 1, SUBMIT, "a.data = NULL", "tensors");
    SPOILED(quantized, op.a_tensor = of_other, SUBMIT, "a_tensor", "");
    SPOILED(quantized, op.a_tensor = x_turned, SUBMIT, "a_tensor", "");
    SPOILED(quantized, op.a_transposed = 1, SUBMIT, "a_", "");
    SPOILED(quantized, op.d.rows = 3, SUBMIT, "a_tensor = 0x", "4 rows, not d.rows = 3");
    SPOILED(quantized, op.d.cols = 3, SUBMIT, "b_tensor = 0x", "4 rows, not d.cols = 3");
    SIZES(fp8pipe_gemm_op, good, SUBMIT, accumulation);
}

static void linear_part(void)
{
    struct fp8pipe_linear_options good = FP8PIPE_LINEAR_OPTIONS_INIT, op;
    const struct fp8pipe_linear_options *op_pointer = &op;
    struct fp8pipe_linear *const untouched = (struct fp8pipe_linear *)&good;
    struct fp8pipe_linear *made = untouched;
    struct fp8pipe_matrix weight;

#undef SUBMIT
#define SUBMIT fp8pipe_linear_create(pipe, op_pointer, &made)
    good.in_features = K;
    good.out_features = N;
    good.weight = w.view;
    good.scaling = scaling;
    MATRIX_RULES(good, weight, "weight");
    SPOILED(good, op.in_features = -1, SUBMIT, "in_features", "-1");
    SPOILED(good, op.out_features = -2, SUBMIT, "out_features", "-2");
    SPOILED(good, op.in_features = K + 1, SUBMIT, "weight.cols = 16", "in_features = 17");
    SPOILED(good, op.out_features = N + 1, SUBMIT, "weight.rows = 8", "out_features = 9");
    SPOILED(good, (op.bias = test_vector(&sums), op.bias.count--), SUBMIT, "bias.count", "7");
    SPOILED(good, (op.bias = test_vector(&sums), op.bias.data = NULL), SUBMIT, "bias.data", "");
    SPOILED(good, op.scaling = other_scaling, SUBMIT, "scaling", "");
    SPOILED(good, op.slot_x = 6, SUBMIT, "slot_x", "6");
    SPOILED(good, op.slot_w = 7, SUBMIT, "slot_w", "7");
    SPOILED(good, op.slot_dy = 8, SUBMIT, "slot_dy", "8");
    SPOILED(good, op.slot_x = 2, SUBMIT, "slot_x", "2");
    SPOILED(good, op.slot_w = 5, SUBMIT, "slot_w", "5");
    SPOILED(good, op.slot_dy = 0, SUBMIT, "slot_dy", "0");
    SPOILED(good, op.reserved = 4, SUBMIT, "reserved", "4");
    SPOILED(good, op.size = 0, SUBMIT, "size", "0");
    SPOILED(good, op.size = 4, SUBMIT, "size", "4");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_create(NULL, &good, &made), "pipe", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_create(pipe, NULL, &made), "options", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_create(pipe, &good, NULL), "linear", "NULL");
    ok(made == untouched, "no refused create has set its output");

#define CHANGED(change, field, value)                                                              \
    do {                                                                                           \
        weight = w.view;                                                                           \
        change;                                                                                    \
        REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_weight_changed(linear, &weight, 0), field, value);  \
    } while (0)
    CHANGED(weight.rows--, "weight.rows", "7");
    CHANGED(weight.cols--, "weight.cols", "15");
    CHANGED(weight.stride--, "weight.stride", "15");
    CHANGED(weight.dtype = FP8PIPE_BF16, "weight.dtype", "");
    CHANGED(weight.data = NULL, "weight.data", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_weight_changed(linear, NULL, ~(fp8pipe_ticket)0),
            "written", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_weight_changed(NULL, NULL, 0), "linear", "NULL");
}

static void forward_part(void)
{
    struct fp8pipe_forward_op good = FP8PIPE_FORWARD_OP_INIT, shared, op;
    const struct fp8pipe_forward_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_linear_forward(linear, op_pointer, &ticket)
    good.submit = ON(0);
    good.x = x.view;
    good.y = y.view;
    MATRIX_RULES(good, x, "x");
    MATRIX_RULES(good, y, "y");
    SPOILED(good, op.x.cols--, SUBMIT, "x.cols", "15");
    SPOILED(good, op.y.cols--, SUBMIT, "y.cols", "7");
    SPOILED(good, op.y.rows--, SUBMIT, "x.rows = 4", "y.rows = 3");
    SPOILED(good, op.y = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "y.cols = 0",
            "out_features = 8");
    SPOILED(good, op.y.data = op.x.data, SUBMIT, "overlap", "");
    SPOILED(good, op.y.data = w.view.data, SUBMIT, "overlaps weight", "");
    SPOILED(good, op.y.data = (float *)op.x.data + M * K - 1, SUBMIT, "overlap", "");
    SPOILED(good, op.x_tensor = x_row, SUBMIT, "x_tensor", "");
    SPOILED(good, op.x = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "x", "");
    SPOILED(good, op.keep = FP8PIPE_KEEP_DGRAD, SUBMIT, "saved = NULL", "needed");
    SPOILED(good, (op.keep = (enum fp8pipe_keep)5, op.saved = empty), SUBMIT, "keep", "5");
    SPOILED(good, (op.keep = FP8PIPE_KEEP_ALL, op.saved = of_other), SUBMIT, "saved", "");
    SPOILED(good, op.accumulation = (enum fp8pipe_accumulation)9, SUBMIT, "accumulation", "9");
    shared = good;
    shared.x = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    shared.x_tensor = x_row;
    SPOILED(shared, op.x_tensor = empty, SUBMIT, "x_tensor", "");
    SPOILED(shared, op.y.rows--, SUBMIT, "x_tensor = 0x", "4 rows, not y.rows = 3");
    SPOILED(shared, op.x.rows = 1, SUBMIT, "x.data = NULL", "x_tensor");
    SPOILED(shared, op.x_tensor = x_turned, SUBMIT, "x_tensor", "");
    SPOILED(shared, op.x_tensor = dy_row, SUBMIT, "x_tensor", "");
    SPOILED(shared, op.x_tensor = of_other, SUBMIT, "x_tensor", "");
    SPOILED(shared, (op.keep = FP8PIPE_KEEP_ALL, op.saved = empty), SUBMIT, "x_tensor", "");
    SPOILED(shared, (op.keep = FP8PIPE_KEEP_ALL, op.saved = x_row), SUBMIT, "saved", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_forward(NULL, &good, &ticket), "linear", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_forward(linear, NULL, &ticket), "op", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_forward(plain, &shared, &ticket), "x_tensor", "");
    op = good;
    op.x.dtype = FP8PIPE_BF16;
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_forward(plain, &op, &ticket), "x.dtype", "");
    SIZES(fp8pipe_forward_op, good, SUBMIT, keep);
}

static void dgrad_part(void)
{
    struct fp8pipe_dgrad_op good = FP8PIPE_DGRAD_OP_INIT, shared, op;
    const struct fp8pipe_dgrad_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_linear_dgrad(linear, op_pointer, &ticket)
    good.submit = ON(0);
    good.dy = dy.view;
    good.dx = dx.view;
    good.saved = for_dgrad;
    MATRIX_RULES(good, dy, "dy");
    MATRIX_RULES(good, dx, "dx");
    SUMS_RULES(good, bias_grad, "bias_grad");
    SPOILED(good, op.dy.cols--, SUBMIT, "dy.cols", "7");
    SPOILED(good, op.dx.cols--, SUBMIT, "dx.cols", "15");
    SPOILED(good, op.dx.rows--, SUBMIT, "dy.rows = 4", "dx.rows = 3");
    SPOILED(good, op.dx.data = op.dy.data, SUBMIT, "overlap", "");
    SPOILED(good, op.dx.data = w.view.data, SUBMIT, "overlaps weight", "");
    SPOILED(good, op.bias_grad = ((struct fp8pipe_vector){op.dx.data, N, FP8PIPE_FP32, 0}), SUBMIT,
            "overlaps dx", "");
    SPOILED(good, op.saved = empty, SUBMIT, "saved", "");
    SPOILED(good, op.saved = x_row, SUBMIT, "saved", "");
    SPOILED(good, op.saved = of_second, SUBMIT, "saved", "");
    SPOILED(good, op.saved = of_other, SUBMIT, "saved", "");
    SPOILED(good, op.dy_saved = of_other, SUBMIT, "dy_saved", "");
    SPOILED(good, op.dy_saved = for_dgrad, SUBMIT, "dy_saved", "");
    SPOILED(good, op.dy_tensor = dy_row, SUBMIT, "dy_tensor", "");
    SPOILED(good, op.dy = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "dy", "");
    SPOILED(good, op.bias_grad_accumulate = 3, SUBMIT, "bias_grad_accumulate", "3");
    SPOILED(good, op.accumulation = (enum fp8pipe_accumulation)9, SUBMIT, "accumulation", "9");
    shared = good;
    shared.dy = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    shared.dy_tensor = dy_row;
    SPOILED(shared, op.dy_tensor = empty, SUBMIT, "dy_tensor", "");
    SPOILED(shared, op.dy_tensor = x_row, SUBMIT, "dy_tensor", "");
    SPOILED(shared, op.dy_saved = empty, SUBMIT, "dy_saved", "");
    SPOILED(shared, op.bias_grad = test_vector(&sums), SUBMIT, "bias_grad", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_dgrad(NULL, &good, &ticket), "linear", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_dgrad(linear, NULL, &ticket), "op", "NULL");
    SIZES(fp8pipe_dgrad_op, good, SUBMIT, bias_grad_accumulate);
}

static void wgrad_part(void)
{
    struct fp8pipe_wgrad_op good = FP8PIPE_WGRAD_OP_INIT, unquantized, op;
    const struct fp8pipe_wgrad_op *op_pointer = &op;

#undef SUBMIT
#define SUBMIT fp8pipe_linear_wgrad(linear, op_pointer, &ticket)
    good.submit = ON(0);
    good.dy = dy.view;
    good.dw = dw.view;
    good.saved = for_all;
    MATRIX_RULES(good, dy, "dy");
    MATRIX_RULES(good, dw, "dw");
    SUMS_RULES(good, bias_grad, "bias_grad");
    SPOILED(good, op.dy.cols--, SUBMIT, "dy.cols", "7");
    SPOILED(good, op.dy.rows--, SUBMIT, "saved = 0x", "4 rows, not dy.rows = 3");
    SPOILED(good, op.dw.cols--, SUBMIT, "dw.cols", "15");
    SPOILED(good, op.dw.rows--, SUBMIT, "dw.rows", "7");
    SPOILED(good, op.dw.data = op.dy.data, SUBMIT, "overlap", "");
    SPOILED(good, op.dw.data = w.view.data, SUBMIT, "overlaps weight", "");
    SPOILED(good, op.bias_grad = ((struct fp8pipe_vector){op.dw.data, N, FP8PIPE_FP32, 0}), SUBMIT,
            "overlaps dw", "");
    SPOILED(good, op.saved = NULL, SUBMIT, "saved", "NULL");
    SPOILED(good, op.saved = empty, SUBMIT, "saved", "");
    SPOILED(good, op.saved = for_dgrad, SUBMIT, "saved", "");
    SPOILED(good, op.saved = of_other, SUBMIT, "saved", "");
    SPOILED(good, op.x = x.view, SUBMIT, "x", "");
    SPOILED(good, op.dy_tensor = dy_row, SUBMIT, "dy_tensor", "");
    SPOILED(good, op.dy = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "dy", "");
    SPOILED(good, op.accumulate = 2, SUBMIT, "accumulate", "2");
    SPOILED(good, op.bias_grad_accumulate = 3, SUBMIT, "bias_grad_accumulate", "3");
    SPOILED(good, op.accumulation = (enum fp8pipe_accumulation)9, SUBMIT, "accumulation", "9");
    SPOILED(good, op.reserved = 5, SUBMIT, "reserved", "5");
    op = good;
    op.dy = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE;
    op.dy_tensor = dy_row; /* lacks the transposed copy */
    REFUSED(FP8PIPE_EINVAL, SUBMIT, "dy_tensor", "");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_wgrad(NULL, &good, &ticket), "linear", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_linear_wgrad(linear, NULL, &ticket), "op", "NULL");
    SIZES(fp8pipe_wgrad_op, good, SUBMIT, reserved);

#undef SUBMIT
#define SUBMIT fp8pipe_linear_wgrad(plain, op_pointer, &ticket)
    unquantized = good;
    unquantized.saved = NULL;
    unquantized.x = x.view;
    MATRIX_RULES(unquantized, x, "x");
    SPOILED(unquantized, op.x = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "x", "");
    SPOILED(unquantized, op.x.rows--, SUBMIT, "x.rows = 3", "dy.rows = 4");
    SPOILED(unquantized, op.x.cols--, SUBMIT, "x.cols", "15");
    SPOILED(unquantized, op.dw.data = op.x.data, SUBMIT, "overlap", "");
    SPOILED(unquantized, op.dy.dtype = FP8PIPE_BF16, SUBMIT, "dtype", "");
}

/* X and Y as columns of one buffer: accepted, unless they have an element in common. */
static void columns_part(void)
{
    struct fp8pipe_forward_op good = FP8PIPE_FORWARD_OP_INIT, op;
    const struct fp8pipe_forward_op *op_pointer = &op;
    const int64_t width = K + N + 2;
    const double zeros[M * (K + N + 2)] = {0};
    struct test_matrix both = test_matrix_make(pipe, FP8PIPE_FP32, M, width, 0, 0);
    float *first = both.view.data;

#undef SUBMIT
#define SUBMIT fp8pipe_linear_forward(linear, op_pointer, &ticket)
#define COLUMNS(x_from, y_from)                                                                    \
    (op = good, op.x.data = first + (x_from), op.y.data = first + (y_from))
    test_matrix_set(&both, zeros);
    good.submit = ON(0);
    good.x = good.y = both.view;
    good.x.cols = K;
    good.y.cols = N;
    COLUMNS(0, K);
    IS_ACCEPTED(SUBMIT);
    COLUMNS(N, 0);
    IS_ACCEPTED(SUBMIT);
    COLUMNS(1, K + 2);
    IS_ACCEPTED(SUBMIT);
    COLUMNS(N + 2, 1);
    IS_ACCEPTED(SUBMIT);
    COLUMNS(0, width + K); /* Y a row below X */
    op.x.rows = op.y.rows = M - 1;
    IS_ACCEPTED(SUBMIT);
    SPOILED(good, COLUMNS(0, K - 1), SUBMIT, "overlap", "");
    SPOILED(good, COLUMNS(N - 1, 0), SUBMIT, "overlap", "");
    SPOILED(good, COLUMNS(0, 0), SUBMIT, "overlap", "");
    SPOILED(good, (COLUMNS(0, width + K - 1), op.x.rows = op.y.rows = M - 1), SUBMIT, "overlap",
            "");
    /* past the end of a row, into the next one's X */
    SPOILED(good, (COLUMNS(0, K + 3), op.x.rows = op.y.rows = M - 1), SUBMIT, "overlap", "");
    /* rows of different lengths meet sooner or later */
    SPOILED(good, (COLUMNS(0, K), op.y.stride--), SUBMIT, "overlap", "");
    test_drain(pipe);
    test_matrix_free(&both);
}

/* ---- Set-up ------------------------------------------------------------------------------- */

static void keep(struct fp8pipe_linear *of, struct fp8pipe_tensor *saved, enum fp8pipe_keep what)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;

    op.submit = ON(0);
    op.x = x.view;
    op.y = y.view;
    op.saved = saved;
    op.keep = what;
    must(fp8pipe_linear_forward(of, &op, NULL));
}

static void set_up(enum fp8pipe_backend backend, enum fp8pipe_mode mode)
{
    struct fp8pipe_tensor **tensors[] = {&x_row,   &x_turned, &dy_row,    &empty,
                                         &for_all, &of_other, &for_dgrad, &of_second};
    struct test_rng rng = {3};

    pipe = async_open(backend, mode, 2, 0, NULL);
    other = async_open(backend, mode, 2, 0, NULL);
    x = test_matrix_random(pipe, FP8PIPE_FP32, M, K, 0, 0, 1, &rng, NULL);
    w = test_matrix_random(pipe, FP8PIPE_FP32, N, K, 0, 0, 1, &rng, NULL);
    dy = test_matrix_random(pipe, FP8PIPE_FP32, M, N, 0, 0, 1, &rng, NULL);
    y = test_matrix_make(pipe, FP8PIPE_FP32, M, N, 0, 0);
    dx = test_matrix_make(pipe, FP8PIPE_FP32, M, K, 0, 0);
    dw = test_matrix_make(pipe, FP8PIPE_FP32, N, K, 0, 0);
    sums = test_matrix_make(pipe, FP8PIPE_FP32, 1, N, 0, 0);
    scaling = test_scaling(pipe, 6, 0);
    other_scaling = test_scaling(other, 6, 0);
    plain = test_linear(pipe, w.view, NULL);
    linear = test_linear(pipe, w.view, scaling);
    second = test_linear(pipe, w.view, scaling);
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        must(fp8pipe_tensor_create(tensors[i] == &of_other ? other : pipe, tensors[i]));
    test_quantize(x_row, x.view, scaling, 0, FP8PIPE_ROWWISE, ON(0));
    test_quantize(x_turned, x.view, scaling, 0, FP8PIPE_TRANSPOSED, ON(0));
    test_quantize(dy_row, dy.view, scaling, 2, FP8PIPE_ROWWISE, ON(0));
    test_quantize(of_other, x.view, other_scaling, 0, BOTH, ON(0));
    keep(linear, for_dgrad, FP8PIPE_KEEP_DGRAD);
    keep(linear, for_all, FP8PIPE_KEEP_ALL);
    keep(second, of_second, FP8PIPE_KEEP_ALL);
    test_drain(pipe);
    test_drain(other);
}

static void tear_down(void)
{
    struct fp8pipe_tensor *tensors[] = {x_row,   x_turned, dy_row,    empty,
                                        for_all, of_other, for_dgrad, of_second};

    test_drain(pipe);
    is_int(stats_of(pipe, -1).failed, 0, "no accepted op has failed");
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        must(fp8pipe_tensor_destroy(tensors[i]));
    must(fp8pipe_linear_destroy(linear));
    must(fp8pipe_linear_destroy(second));
    must(fp8pipe_linear_destroy(plain));
    must(fp8pipe_scaling_destroy(scaling));
    must(fp8pipe_scaling_destroy(other_scaling));
    test_matrix_free(&x);
    test_matrix_free(&w);
    test_matrix_free(&dy);
    test_matrix_free(&y);
    test_matrix_free(&dx);
    test_matrix_free(&dw);
    test_matrix_free(&sums);
    test_close(pipe);
    test_close(other);
}

static void cases(enum fp8pipe_backend backend)
{
    watchdog("bad matrices", 60);
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        set_up(backend, (enum fp8pipe_mode)mode);
        quantize_part();
        read_part();
        gemm_part();
        linear_part();
        forward_part();
        dgrad_part();
        wgrad_part();
        columns_part();
        tear_down();
    }
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
