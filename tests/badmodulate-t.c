/* Guards against bad input to fp8pipe_modulate and its backward. */
#include "badinput.h"

#include <math.h>

#include "fp8pipe_fused.h"

#define M 4
#define H 8
#define G 2

static struct fp8pipe *pipe, *other;
static fp8pipe_ticket ticket = TICKET_UNSET;
static struct fp8pipe_scaling *scaling, *other_scaling;
static struct fp8pipe_tensor *tensor, *of_other;
static struct test_matrix tokens[6], groups[6], one[6], rows_of;

/* Of the tokens' shape. */
#define TOKEN_RULES(good, f, name)                                                                 \
    do {                                                                                           \
        MATRIX_RULES(good, f, name);                                                               \
        SPOILED(good, op.f.rows = M - 1, SUBMIT, name ".rows = 3", ".rows = 4");                   \
        SPOILED(good, op.f.cols = H - 1, SUBMIT, name ".cols = 7", ".cols = 8");                   \
    } while (0)

/* With rows that tokens take. */
#define ROW_RULES(good, f, name)                                                                   \
    do {                                                                                           \
        MATRIX_RULES(good, f, name);                                                               \
        SPOILED(good, op.f.cols = H - 1, SUBMIT, name, "7");                                       \
        SPOILED(good, op.f.rows = 0, SUBMIT, name ".rows", "0");                                   \
        SPOILED(good, (op.rows_of = NULL), SUBMIT, "rows", "without rows_of");                     \
    } while (0)

#define VECTOR_RULES(good, f, name)                                                                \
    do {                                                                                           \
        SPOILED(good, op.f.count++, SUBMIT, name ".count", "9");                                   \
        SPOILED(good, op.f.dtype = (enum fp8pipe_dtype)4, SUBMIT, name ".dtype", "4");             \
        SPOILED(good, op.f.dtype = FP8PIPE_BF16, SUBMIT, name ".dtype", "1");                      \
        SPOILED(good, op.f.data = NULL, SUBMIT, name ".data", "NULL");                             \
        SPOILED(good, op.f.data = (char *)op.f.data + 2, SUBMIT, name ".data", "");                \
        SPOILED(good, op.f.reserved = 2, SUBMIT, name ".reserved", "2");                           \
    } while (0)

#define OUT_RULES(good)                                                                            \
    do {                                                                                           \
        SPOILED(good, op.out.scaling = NULL, SUBMIT, "out.scaling", "NULL");                       \
        SPOILED(good, op.out.slot = 77, SUBMIT, "out.slot", "77");                                 \
        SPOILED(good, op.out.copies = 0, SUBMIT, "out.copies", "0");                               \
        SPOILED(good, op.out.copies = 4, SUBMIT, "out.copies", "0x4");                             \
        SPOILED(good, op.out.reserved = 5, SUBMIT, "out.reserved", "5");                           \
        SPOILED(good, op.out.column_sums.count--, SUBMIT, "out.column_sums", "7");                 \
        SPOILED(good, op.out.column_sums_accumulate = 2, SUBMIT, "out.column_sums_accumulate",     \
                "2");                                                                              \
        SPOILED(good, op.out.tensor = of_other, SUBMIT, "out.tensor", "");                         \
        SPOILED(good, op.out.scaling = other_scaling, SUBMIT, "out.scaling", "");                  \
        SPOILED(good, op.submit.flags = FP8PIPE_LAST_USE, SUBMIT, "flags", "");                    \
    } while (0)

static struct fp8pipe_quantized good_out(void)
{
    struct fp8pipe_quantized out = FP8PIPE_QUANTIZED_NONE;

    out.tensor = tensor;
    out.scaling = scaling;
    out.column_sums = test_vector(&one[5]);
    return out;
}

#define SUBMIT fp8pipe_modulate(pipe, op_pointer, &ticket)

static void forward_part(void)
{
    struct fp8pipe_modulate_op good = FP8PIPE_MODULATE_OP_INIT, op;
    const struct fp8pipe_modulate_op *op_pointer = &op;

    good.submit = ON(0); /* what is accepted writes the same matrices every time */
    good.x = tokens[0].view;
    good.y = tokens[1].view;
    good.x_out = tokens[2].view;
    good.z = tokens[3].view;
    good.gate = groups[0].view;
    good.scale = groups[1].view;
    good.shift = groups[2].view;
    good.rows_of = rows_of.view.data;
    good.weight = test_vector(&one[0]);
    good.bias = test_vector(&one[1]);
    good.mean = one[2].view.data;
    good.rstd = one[3].view.data;
    good.out = good_out();
    op = good;
    IS_ACCEPTED(SUBMIT);
    SIZES(fp8pipe_modulate_op, good, SUBMIT, out);
    MATRIX_RULES(good, x, "x");
    TOKEN_RULES(good, y, "y");
    TOKEN_RULES(good, x_out, "x_out");
    TOKEN_RULES(good, z, "z");
    ROW_RULES(good, gate, "gate");
    ROW_RULES(good, scale, "scale");
    ROW_RULES(good, shift, "shift");
    VECTOR_RULES(good, weight, "weight");
    VECTOR_RULES(good, bias, "bias");
    OUT_RULES(good);
    SPOILED(good, op.x = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "y.rows = 4",
            "x.rows = 0");
    SPOILED(good, op.y = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "gate", "no y");
    SPOILED(good, (op.y = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, op.gate.data = NULL), SUBMIT,
            "gate.data = NULL", "");
    SPOILED(good, op.norm = (enum fp8pipe_norm)3, SUBMIT, "norm", "3");
    SPOILED(good, op.epsilon = 0, SUBMIT, "epsilon", "0");
    SPOILED(good, op.epsilon = -1, SUBMIT, "epsilon", "-1");
    SPOILED(good, op.epsilon = NAN, SUBMIT, "epsilon", "nan");
    SPOILED(good, op.epsilon = INFINITY, SUBMIT, "epsilon", "inf");
    SPOILED(good, op.rows_of = (int32_t *)(void *)((char *)rows_of.view.data + 2), SUBMIT,
            "rows_of", "");
    SPOILED(good, op.mean = (float *)(void *)((char *)op.mean + 1), SUBMIT, "mean", "");
    SPOILED(good, op.rstd = (float *)(void *)((char *)op.rstd + 1), SUBMIT, "rstd", "");
    SPOILED(good, op.x_out = op.y, SUBMIT, "x_out", "overlaps y");
    SPOILED(good, (op.x_out = op.x, op.x_out.stride++), SUBMIT, "x_out", "overlaps x");
    SPOILED(good, op.z = op.x, SUBMIT, "z", "overlaps x");
    SPOILED(good, op.z = op.x_out, SUBMIT, "z", "overlaps x_out");
    SPOILED(good, op.mean = op.rstd, SUBMIT, "rstd", "overlaps mean");
    SPOILED(good, op.mean = op.weight.data, SUBMIT, "mean", "overlaps weight");
    SPOILED(good, op.out.column_sums.data = op.bias.data, SUBMIT, "out.column_sums",
            "overlaps bias");
    op = good;
    op.x_out = op.x;
    IS_ACCEPTED(SUBMIT);
    op.norm = FP8PIPE_NORM_NONE;
    op.epsilon = 0;
    IS_ACCEPTED(SUBMIT);
}

#undef SUBMIT
#define SUBMIT fp8pipe_modulate_backward(pipe, op_pointer, &ticket)

static void backward_part(void)
{
    struct fp8pipe_modulate_backward_op good = FP8PIPE_MODULATE_BACKWARD_OP_INIT, op;
    const struct fp8pipe_modulate_backward_op *op_pointer = &op;

    good.submit = ON(0);
    good.x_out = tokens[0].view;
    good.dz = tokens[1].view;
    good.dx_out = tokens[2].view;
    good.y = tokens[3].view;
    good.dx = tokens[4].view;
    good.dy = tokens[5].view;
    good.gate = groups[0].view;
    good.scale = groups[1].view;
    good.dgate = groups[2].view;
    good.dscale = groups[3].view;
    good.dshift = groups[4].view;
    good.rows_of = rows_of.view.data;
    good.weight = test_vector(&one[0]);
    good.bias = test_vector(&one[1]);
    good.dweight = test_vector(&one[2]);
    good.dbias = test_vector(&one[3]);
    good.mean = one[4].view.data;
    good.rstd = one[4].view.data;
    good.out = good_out();
    op = good;
    IS_ACCEPTED(SUBMIT);
    SIZES(fp8pipe_modulate_backward_op, good, SUBMIT, out);
    MATRIX_RULES(good, x_out, "x_out");
    TOKEN_RULES(good, dz, "dz");
    TOKEN_RULES(good, dx_out, "dx_out");
    TOKEN_RULES(good, y, "y");
    TOKEN_RULES(good, dx, "dx");
    TOKEN_RULES(good, dy, "dy");
    ROW_RULES(good, gate, "gate");
    ROW_RULES(good, scale, "scale");
    ROW_RULES(good, dgate, "dgate");
    ROW_RULES(good, dscale, "dscale");
    ROW_RULES(good, dshift, "dshift");
    VECTOR_RULES(good, weight, "weight");
    VECTOR_RULES(good, bias, "bias");
    VECTOR_RULES(good, dweight, "dweight");
    VECTOR_RULES(good, dbias, "dbias");
    OUT_RULES(good);
    SPOILED(good, op.y = (struct fp8pipe_matrix)FP8PIPE_MATRIX_NONE, SUBMIT, "y.data", "dgate");
    SPOILED(good, op.dgate.rows = 1, SUBMIT, "dgate.rows = 1", "gate.rows = 2");
    SPOILED(good, op.dscale.rows = 1, SUBMIT, "dscale.rows = 1", "scale.rows = 2");
    SPOILED(good, op.norm = (enum fp8pipe_norm) - 1, SUBMIT, "norm", "-1");
    SPOILED(good, op.mean = NULL, SUBMIT, "mean", "NULL");
    SPOILED(good, op.rstd = NULL, SUBMIT, "rstd", "NULL");
    SPOILED(good, (op.rstd = NULL, op.norm = FP8PIPE_NORM_RMS), SUBMIT, "rstd", "NULL");
    SPOILED(good, op.accumulate = 2, SUBMIT, "accumulate", "2");
    SPOILED(good, op.rows_of = (int32_t *)(void *)((char *)rows_of.view.data + 1), SUBMIT,
            "rows_of", "");
    SPOILED(good, op.dx = op.dz, SUBMIT, "dx", "overlaps dz");
    SPOILED(good, op.dy = op.dx_out, SUBMIT, "dy", "overlaps dx_out");
    SPOILED(good, op.dy = op.dx, SUBMIT, "dy", "overlaps dx");
    SPOILED(good, op.dshift = op.dscale, SUBMIT, "dshift", "overlaps dscale");
    SPOILED(good, op.dscale = op.scale, SUBMIT, "dscale", "overlaps scale");
    SPOILED(good, op.dbias = op.dweight, SUBMIT, "dbias", "overlaps dweight");
    SPOILED(good, op.dweight = op.weight, SUBMIT, "dweight", "overlaps weight");
    op = good;
    op.dx = op.dx_out;
    IS_ACCEPTED(SUBMIT);
    op.mean = NULL;
    op.norm = FP8PIPE_NORM_RMS;
    IS_ACCEPTED(SUBMIT);
    op.rstd = NULL;
    op.norm = FP8PIPE_NORM_NONE;
    IS_ACCEPTED(SUBMIT);
}

int main(void)
{
    const int32_t taken[M] = {0, 0, 1, 1};
    struct fp8pipe_modulate_op op = FP8PIPE_MODULATE_OP_INIT;
    struct fp8pipe_modulate_backward_op back = FP8PIPE_MODULATE_BACKWARD_OP_INIT;

    pipe = test_open(FP8PIPE_BACKEND_HOST, NULL);
    other = test_open(FP8PIPE_BACKEND_HOST, NULL);
    scaling = test_scaling(pipe, 2, 0);
    other_scaling = test_scaling(other, 2, 0);
    must(fp8pipe_tensor_create(pipe, &tensor));
    must(fp8pipe_tensor_create(other, &of_other));
    for (int i = 0; i < 6; i++) {
        double zeros[M * H] = {0};

        tokens[i] = test_matrix_make(pipe, FP8PIPE_BF16, M, H, H, 0);
        groups[i] = test_matrix_make(pipe, FP8PIPE_FP32, G, H, H, 0);
        one[i] = test_matrix_make(pipe, FP8PIPE_FP32, 1, H, H, 0);
        test_matrix_set(&tokens[i], zeros);
        test_matrix_set(&groups[i], zeros);
        test_matrix_set(&one[i], zeros);
    }
    rows_of = test_matrix_make(pipe, FP8PIPE_FP32, 1, M, M, 0);
    test_matrix_set_raw(&rows_of, taken);
    REFUSED(FP8PIPE_EINVAL, fp8pipe_modulate(NULL, &op, &ticket), "", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_modulate(pipe, NULL, &ticket), "op", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_modulate_backward(NULL, &back, &ticket), "", "NULL");
    REFUSED(FP8PIPE_EINVAL, fp8pipe_modulate_backward(pipe, NULL, &ticket), "op", "NULL");
    forward_part();
    backward_part();
    test_drain(pipe);
    for (int i = 0; i < 6; i++) {
        test_matrix_free(&tokens[i]);
        test_matrix_free(&groups[i]);
        test_matrix_free(&one[i]);
    }
    test_matrix_free(&rows_of);
    must(fp8pipe_tensor_destroy(tensor));
    must(fp8pipe_tensor_destroy(of_other));
    must(fp8pipe_scaling_destroy(scaling));
    must(fp8pipe_scaling_destroy(other_scaling));
    test_close(pipe);
    test_close(other);
    return done_testing();
}
