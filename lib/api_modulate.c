/* Public entry points of fp8pipe_modulate and its backward. */
#include <math.h>

#include "fp8pipe_fused.h"
#include "out_draft.h"

/* ---- What is read and what is written ------------------------------------------------------ */

#define RANGES_MAX 12

/* Matrices, and vectors as matrices of one row, that are there. */
struct ranges {
    uint32_t count;
    struct range {
        const char *field;
        struct fp8pipe_matrix matrix;
    } of[RANGES_MAX];
};

static void ranges_add(struct ranges *ranges, const char *field,
                       const struct fp8pipe_matrix *matrix)
{
    if (matrix->data != NULL) {
        ranges->of[ranges->count++] = (struct range){field, *matrix};
    }
}

/* FP32, or int32, which is as long. */
static void ranges_add_vector(struct ranges *ranges, const char *field, const void *data,
                              int64_t count)
{
    if (data != NULL) {
        ranges->of[ranges->count++] = (struct range){
            field,
            {(void *)(uintptr_t)data, 1, count, count, FP8PIPE_FP32, 0},
        };
    }
}

static bool same_place(const struct fp8pipe_matrix *a, const struct fp8pipe_matrix *b)
{
    return a->data == b->data && a->stride == b->stride && a->dtype == b->dtype;
}

/* That no output overlaps anything else; the first may be the first input. */
static enum fp8pipe_status check_all_apart(const struct ranges *outputs,
                                           const struct ranges *inputs)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    for (uint32_t i = 0; status == FP8PIPE_OK && i < outputs->count; i++) {
        const struct range *output = &outputs->of[i];

        for (uint32_t j = 0; status == FP8PIPE_OK && j < inputs->count; j++) {
            const struct range *input = &inputs->of[j];
            bool in_place = i == 0 && j == 0 && same_place(&output->matrix, &input->matrix);

            status = in_place ? FP8PIPE_OK
                              : check_apart(output->field, &output->matrix, input->field,
                                            &input->matrix);
        }
        for (uint32_t j = 0; status == FP8PIPE_OK && j < i; j++) {
            status = check_apart(output->field, &output->matrix, outputs->of[j].field,
                                 &outputs->of[j].matrix);
        }
    }
    return status;
}

/* ---- The rules for operands ---------------------------------------------------------------- */

/* The tokens: how many, of how many features, and which rows of gate, scale and shift they take. */
struct tokens {
    int64_t rows;
    int64_t cols;
    const int32_t *rows_of;
    const char *rows_field; /* where the numbers are from */
    const char *cols_field;
};

static struct check_size token_rows(const struct tokens *tokens)
{
    return check_is(tokens->rows, tokens->rows_field);
}

static struct check_size token_cols(const struct tokens *tokens)
{
    return check_is(tokens->cols, tokens->cols_field);
}

/* A matrix of the tokens' shape, or absent. */
static enum fp8pipe_status check_by_token(const char *field, const struct fp8pipe_matrix *matrix,
                                          const struct tokens *tokens)
{
    return check_given(matrix)
               ? check_matrix_shape(field, matrix, token_rows(tokens), token_cols(tokens))
               : FP8PIPE_OK;
}

/* A matrix with rows that tokens take, or absent. */
static enum fp8pipe_status check_by_row(const char *field, const struct fp8pipe_matrix *matrix,
                                        const struct tokens *tokens)
{
    enum fp8pipe_status status;

    if (!check_given(matrix)) {
        return FP8PIPE_OK;
    }
    status = check_matrix_shape(field, matrix, check_any(), token_cols(tokens));
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (tokens->rows_of == NULL && matrix->rows != 1 && matrix->rows != tokens->rows) {
        return status_fail(FP8PIPE_EINVAL, "%s.rows = %lld: without rows_of it is 1, or %s = %lld",
                           field, (long long)matrix->rows, tokens->rows_field,
                           (long long)tokens->rows);
    }
    if (matrix->rows == 0 && tokens->rows > 0) {
        return status_fail(FP8PIPE_EINVAL, "%s.rows = 0: tokens take rows of it", field);
    }
    return FP8PIPE_OK;
}

/* A device pointer to 4-byte entries, or NULL. */
static enum fp8pipe_status check_entries(const char *field, const void *data)
{
    return (uintptr_t)data % sizeof(float) == 0
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "%s = %p: it is aligned to its 4 bytes", field, data);
}

static enum fp8pipe_status check_factors(const char *field, const struct fp8pipe_vector *vector,
                                         struct check_size count)
{
    enum fp8pipe_status status = check_vector(field, vector, count);

    if (status == FP8PIPE_OK && vector->data != NULL && vector->dtype != FP8PIPE_FP32) {
        status =
            status_fail(FP8PIPE_EINVAL, "%s.dtype = %d: it is FP32", field, (int)vector->dtype);
    }
    return status;
}

static enum fp8pipe_status check_norm(enum fp8pipe_norm norm)
{
    return check_enum("norm", (int)norm, FP8PIPE_NORM_RMS);
}

static struct kernel_view view_of(const struct fp8pipe_matrix *matrix)
{
    return (struct kernel_view){matrix->data, matrix->stride, matrix->dtype};
}

/* Of a matrix whose rows tokens take. */
static struct kernel_view row_view_of(const struct fp8pipe_matrix *matrix,
                                      const struct tokens *tokens)
{
    struct kernel_view view = view_of(matrix);

    if (tokens->rows_of == NULL && matrix->rows == 1) {
        view.stride = 0;
    }
    return view;
}

/* ---- Forward ------------------------------------------------------------------------------- */

static enum fp8pipe_status check_modulate(const struct fp8pipe_modulate_op *op,
                                          const struct tokens *tokens)
{
    struct {
        const char *field;
        const struct fp8pipe_matrix *matrix;
        bool by_row;
    } matrices[] = {
        {"y", &op->y, false},        {"gate", &op->gate, true},   {"x_out", &op->x_out, false},
        {"scale", &op->scale, true}, {"shift", &op->shift, true}, {"z", &op->z, false},
    };
    enum fp8pipe_status status = check_matrix("x", &op->x);

    for (size_t i = 0; status == FP8PIPE_OK && i < sizeof(matrices) / sizeof(*matrices); i++) {
        status = matrices[i].by_row ? check_by_row(matrices[i].field, matrices[i].matrix, tokens)
                                    : check_by_token(matrices[i].field, matrices[i].matrix, tokens);
    }
    if (status == FP8PIPE_OK && check_given(&op->gate) && !check_given(&op->y)) {
        status = status_fail(FP8PIPE_EINVAL, "gate.data = %p: there is no y for it", op->gate.data);
    }
    if (status == FP8PIPE_OK) {
        status = check_entries("rows_of", op->rows_of);
    }
    if (status == FP8PIPE_OK) {
        status = check_norm(op->norm);
    }
    if (status == FP8PIPE_OK && op->norm != FP8PIPE_NORM_NONE &&
        !(op->epsilon > 0.0f && isfinite(op->epsilon))) {
        status = status_fail(FP8PIPE_EINVAL, "epsilon = %g: with a norm it is > 0 and finite",
                             (double)op->epsilon);
    }
    if (status == FP8PIPE_OK) {
        status = check_factors("weight", &op->weight, token_cols(tokens));
    }
    if (status == FP8PIPE_OK) {
        status = check_factors("bias", &op->bias, token_cols(tokens));
    }
    if (status == FP8PIPE_OK) {
        status = check_entries("mean", op->mean);
    }
    return status != FP8PIPE_OK ? status : check_entries("rstd", op->rstd);
}

static enum fp8pipe_status check_modulate_apart(const struct fp8pipe_modulate_op *op,
                                                const struct tokens *tokens)
{
    struct ranges inputs = {0}, outputs = {0};

    ranges_add(&inputs, "x", &op->x);
    ranges_add(&inputs, "y", &op->y);
    ranges_add(&inputs, "gate", &op->gate);
    ranges_add(&inputs, "scale", &op->scale);
    ranges_add(&inputs, "shift", &op->shift);
    ranges_add_vector(&inputs, "rows_of", op->rows_of, tokens->rows);
    ranges_add_vector(&inputs, "weight", op->weight.data, tokens->cols);
    ranges_add_vector(&inputs, "bias", op->bias.data, tokens->cols);
    /* The first, which may be x; absent, an empty one in its place. */
    outputs.of[outputs.count++] = (struct range){"x_out", op->x_out};
    ranges_add(&outputs, "z", &op->z);
    ranges_add_vector(&outputs, "mean", op->mean, tokens->rows);
    ranges_add_vector(&outputs, "rstd", op->rstd, tokens->rows);
    if (op->out.tensor != NULL) {
        ranges_add_vector(&outputs, "out.column_sums", op->out.column_sums.data, tokens->cols);
    }
    return check_all_apart(&outputs, &inputs);
}

enum fp8pipe_status fp8pipe_modulate(struct fp8pipe *pipe, const struct fp8pipe_modulate_op *op,
                                     fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_modulate_op defaults = FP8PIPE_MODULATE_OP_INIT;
    static const struct draft_kind kind = {OP_MODULATE, FP8PIPE_NO_AMAX, sizeof(struct op_modulate),
                                           &defaults, sizeof(defaults)};
    struct fp8pipe_modulate_op room;
    struct tokens tokens;
    const void *given;
    struct draft draft;
    struct op_modulate *payload = &draft.entry.op.u.modulate;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    tokens = (struct tokens){op->x.rows, op->x.cols, op->rows_of, "x.rows", "x.cols"};
    status = check_modulate(op, &tokens);
    if (status == FP8PIPE_OK) {
        status = out_draft_check(&draft, &op->out, token_cols(&tokens));
    }
    if (status == FP8PIPE_OK) {
        status = check_modulate_apart(op, &tokens);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    payload->args = (struct kernel_modulate_args){
        .rows = tokens.rows,
        .cols = tokens.cols,
        .x = view_of(&op->x),
        .y = view_of(&op->y),
        .gate = row_view_of(&op->gate, &tokens),
        .x_out = view_of(&op->x_out),
        .scale = row_view_of(&op->scale, &tokens),
        .shift = row_view_of(&op->shift, &tokens),
        .z = view_of(&op->z),
        .rows_of = op->rows_of,
        .norm = op->norm,
        .epsilon = op->epsilon,
        .weight = op->weight.data,
        .bias = op->bias.data,
        .mean = op->mean,
        .rstd = op->rstd,
    };
    return out_draft_submit(&draft, &op->out, tokens.rows, tokens.cols, &payload->out, ticket);
}

/* ---- Backward ------------------------------------------------------------------------------ */

static enum fp8pipe_status check_backward(const struct fp8pipe_modulate_backward_op *op,
                                          const struct tokens *tokens)
{
    struct {
        const char *field;
        const struct fp8pipe_matrix *matrix;
        bool by_row;
    } matrices[] = {
        {"dz", &op->dz, false},        {"dx_out", &op->dx_out, false},
        {"y", &op->y, false},          {"gate", &op->gate, true},
        {"scale", &op->scale, true},   {"dx", &op->dx, false},
        {"dy", &op->dy, false},        {"dgate", &op->dgate, true},
        {"dscale", &op->dscale, true}, {"dshift", &op->dshift, true},
    };
    enum fp8pipe_status status = check_matrix("x_out", &op->x_out);

    for (size_t i = 0; status == FP8PIPE_OK && i < sizeof(matrices) / sizeof(*matrices); i++) {
        status = matrices[i].by_row ? check_by_row(matrices[i].field, matrices[i].matrix, tokens)
                                    : check_by_token(matrices[i].field, matrices[i].matrix, tokens);
    }
    if (status == FP8PIPE_OK && check_given(&op->dgate) && !check_given(&op->y)) {
        status = status_fail(FP8PIPE_EINVAL, "y.data = NULL: dgate is made of it");
    }
    return status;
}

/* The gradient of an operand that is there has its shape. */
static enum fp8pipe_status check_gradient(const char *field, const struct fp8pipe_matrix *gradient,
                                          const char *of_field, const struct fp8pipe_matrix *of)
{
    return !check_given(gradient) || !check_given(of) || gradient->rows == of->rows
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "%s.rows = %lld: it is %s.rows = %lld", field,
                             (long long)gradient->rows, of_field, (long long)of->rows);
}

static enum fp8pipe_status check_backward_rest(const struct fp8pipe_modulate_backward_op *op,
                                               const struct tokens *tokens)
{
    const struct {
        const char *field;
        const void *data;
    } entries[] = {{"rows_of", op->rows_of}, {"mean", op->mean}, {"rstd", op->rstd}};
    enum fp8pipe_status status = check_gradient("dgate", &op->dgate, "gate", &op->gate);

    if (status == FP8PIPE_OK) {
        status = check_gradient("dscale", &op->dscale, "scale", &op->scale);
    }
    for (size_t i = 0; status == FP8PIPE_OK && i < sizeof(entries) / sizeof(*entries); i++) {
        status = check_entries(entries[i].field, entries[i].data);
    }
    if (status == FP8PIPE_OK) {
        status = check_norm(op->norm);
    }
    if (status == FP8PIPE_OK && tokens->rows > 0 && op->norm == FP8PIPE_NORM_LAYER &&
        op->mean == NULL) {
        status = status_fail(FP8PIPE_EINVAL, "mean = NULL: LAYER needs the forward's");
    }
    if (status == FP8PIPE_OK && tokens->rows > 0 && op->norm != FP8PIPE_NORM_NONE &&
        op->rstd == NULL) {
        status = status_fail(FP8PIPE_EINVAL, "rstd = NULL: a norm needs the forward's");
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("accumulate", op->accumulate);
    }
    if (status == FP8PIPE_OK) {
        status = check_factors("weight", &op->weight, token_cols(tokens));
    }
    if (status == FP8PIPE_OK) {
        status = check_factors("bias", &op->bias, token_cols(tokens));
    }
    if (status == FP8PIPE_OK) {
        status = check_sums("dweight", &op->dweight, token_cols(tokens));
    }
    return status != FP8PIPE_OK ? status : check_sums("dbias", &op->dbias, token_cols(tokens));
}

static enum fp8pipe_status check_backward_apart(const struct fp8pipe_modulate_backward_op *op,
                                                const struct tokens *tokens)
{
    struct ranges inputs = {0}, outputs = {0};

    /* The first two, which may be one; absent, empty ones in their place. */
    inputs.of[inputs.count++] = (struct range){"dx_out", op->dx_out};
    outputs.of[outputs.count++] = (struct range){"dx", op->dx};
    ranges_add(&inputs, "dz", &op->dz);
    ranges_add(&inputs, "x_out", &op->x_out);
    ranges_add(&inputs, "y", &op->y);
    ranges_add(&inputs, "gate", &op->gate);
    ranges_add(&inputs, "scale", &op->scale);
    ranges_add_vector(&inputs, "rows_of", op->rows_of, tokens->rows);
    ranges_add_vector(&inputs, "weight", op->weight.data, tokens->cols);
    ranges_add_vector(&inputs, "bias", op->bias.data, tokens->cols);
    ranges_add_vector(&inputs, "mean", op->mean, tokens->rows);
    ranges_add_vector(&inputs, "rstd", op->rstd, tokens->rows);
    ranges_add(&outputs, "dy", &op->dy);
    ranges_add(&outputs, "dgate", &op->dgate);
    ranges_add(&outputs, "dscale", &op->dscale);
    ranges_add(&outputs, "dshift", &op->dshift);
    ranges_add_vector(&outputs, "dweight", op->dweight.data, tokens->cols);
    ranges_add_vector(&outputs, "dbias", op->dbias.data, tokens->cols);
    if (op->out.tensor != NULL) {
        ranges_add_vector(&outputs, "out.column_sums", op->out.column_sums.data, tokens->cols);
    }
    return check_all_apart(&outputs, &inputs);
}

/* An output with a row for each token has nothing to sum. */
static struct op_summed summed_of(const struct fp8pipe_matrix *matrix, const struct tokens *tokens)
{
    bool by_token = tokens->rows_of == NULL && matrix->rows == tokens->rows;

    return (struct op_summed){view_of(matrix), by_token ? 0 : matrix->rows};
}

enum fp8pipe_status fp8pipe_modulate_backward(struct fp8pipe *pipe,
                                              const struct fp8pipe_modulate_backward_op *op,
                                              fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_modulate_backward_op defaults = FP8PIPE_MODULATE_BACKWARD_OP_INIT;
    static const struct draft_kind kind = {OP_MODULATE_BACKWARD, FP8PIPE_NO_AMAX,
                                           sizeof(struct op_modulate_backward), &defaults,
                                           sizeof(defaults)};
    struct fp8pipe_modulate_backward_op room;
    struct tokens tokens;
    const void *given;
    struct draft draft;
    struct op_modulate_backward *payload = &draft.entry.op.u.modulate_backward;
    enum fp8pipe_status status = draft_open(&draft, pipe, &kind, op, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    tokens =
        (struct tokens){op->x_out.rows, op->x_out.cols, op->rows_of, "x_out.rows", "x_out.cols"};
    status = check_backward(op, &tokens);
    if (status == FP8PIPE_OK) {
        status = check_backward_rest(op, &tokens);
    }
    if (status == FP8PIPE_OK) {
        status = out_draft_check(&draft, &op->out, token_cols(&tokens));
    }
    if (status == FP8PIPE_OK) {
        status = check_backward_apart(op, &tokens);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    *payload = (struct op_modulate_backward){
        .rows = tokens.rows,
        .cols = tokens.cols,
        .dz = view_of(&op->dz),
        .dx_out = view_of(&op->dx_out),
        .x_out = view_of(&op->x_out),
        .y = view_of(&op->y),
        .gate = row_view_of(&op->gate, &tokens),
        .scale = row_view_of(&op->scale, &tokens),
        .rows_of = op->rows_of,
        .weight = op->weight.data,
        .bias = op->bias.data,
        .mean = op->mean,
        .rstd = op->rstd,
        .dx = view_of(&op->dx),
        .dy = view_of(&op->dy),
        .dgate = summed_of(&op->dgate, &tokens),
        .dscale = summed_of(&op->dscale, &tokens),
        .dshift = summed_of(&op->dshift, &tokens),
        .dweight = op->dweight.data,
        .dbias = op->dbias.data,
        .norm = op->norm,
    };
    draft.entry.op.flags |= (uint8_t)(op->accumulate ? OP_ACCUMULATE : 0u);
    return out_draft_submit(&draft, &op->out, tokens.rows, tokens.cols, &payload->out, ticket);
}
