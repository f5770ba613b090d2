/* Public entry point of fp8pipe_gemm. */
#include "epilogue_draft.h"

struct gemm_draft {
    const struct fp8pipe_gemm_op *op;
};

/* One quantized operand: [rows, k] as the product sees it. */
static enum fp8pipe_status bind_operand(struct draft *draft, const char *field,
                                        struct fp8pipe_tensor *tensor, int32_t transposed,
                                        struct check_size rows, struct filling **filling)
{
    struct filling *current = tensor->filling;

    if (current == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it is empty", field, (void *)tensor);
    }
    if (!(transposed ? current->transposed : tensor_rowwise(tensor))) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it has no %s copy", field, (void *)tensor,
                           transposed ? "transposed" : "row-wise");
    }
    if (!check_fits(rows, transposed ? current->cols : current->rows)) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it has %lld %s, not %s = %lld", field,
                           (void *)tensor, (long long)(transposed ? current->cols : current->rows),
                           transposed ? "columns" : "rows", rows.of, (long long)rows.is);
    }
    *filling = current;
    return draft_read_tensor(draft, field, tensor, !transposed);
}

static enum fp8pipe_status bind_operands(struct draft *draft, const struct fp8pipe_gemm_op *op)
{
    bool d_given = op->epilogue.tensor == NULL;
    struct op_gemm *gemm = &draft->entry.op.u.gemm;
    enum fp8pipe_status status;
    int64_t a_k, b_k;

    status = bind_operand(draft, "a_tensor", op->a_tensor, op->a_transposed,
                          d_given ? check_is(op->d.rows, "d.rows") : check_any(), &gemm->a_filling);
    if (status == FP8PIPE_OK) {
        status =
            bind_operand(draft, "b_tensor", op->b_tensor, op->b_transposed,
                         d_given ? check_is(op->d.cols, "d.cols") : check_any(), &gemm->b_filling);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    a_k = op->a_transposed ? gemm->a_filling->rows : gemm->a_filling->cols;
    b_k = op->b_transposed ? gemm->b_filling->rows : gemm->b_filling->cols;
    if (a_k != b_k) {
        return status_fail(FP8PIPE_EINVAL, "b_tensor = %p: its K is %lld, that of a_tensor %lld",
                           (void *)op->b_tensor, (long long)b_k, (long long)a_k);
    }
    if (gemm->a_filling->format == FP8PIPE_E5M2 && gemm->b_filling->format == FP8PIPE_E5M2) {
        return status_fail(FP8PIPE_EINVAL,
                           "b_tensor = %p: its format is E5M2, as that of a_tensor: one of them is "
                           "E4M3",
                           (void *)op->b_tensor);
    }
    gemm->d.rows = op->a_transposed ? gemm->a_filling->cols : gemm->a_filling->rows;
    gemm->d.cols = op->b_transposed ? gemm->b_filling->cols : gemm->b_filling->rows;
    if (draft->last_use) {
        tensor_may_end(draft, op->a_tensor);
        tensor_may_end(draft, op->b_tensor);
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status bind_gemm(struct draft *draft, void *arg)
{
    const struct fp8pipe_gemm_op *op = ((struct gemm_draft *)arg)->op;
    struct op_gemm *gemm = &draft->entry.op.u.gemm;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (op->a_tensor != NULL) {
        status = bind_operands(draft, op);
    }
    if (status == FP8PIPE_OK && (draft->entry.op.flags & OP_EPILOGUE) != 0) {
        /* That of matrices was checked when their shapes were. */
        if (op->a_tensor != NULL) {
            status = check_vector("bias", &op->bias, check_is(gemm->d.cols, "the result's cols"));
        }
        if (status == FP8PIPE_OK) {
            status =
                epilogue_bind(draft, &op->epilogue, &gemm->epilogue, gemm->d.rows, gemm->d.cols);
        }
    }
    return status;
}

static void commit_gemm(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    const struct fp8pipe_gemm_op *op = ((struct gemm_draft *)arg)->op;

    if (draft->last_use && op->a_tensor != NULL) {
        tensor_let_go(draft, op->a_tensor);
        tensor_let_go(draft, op->b_tensor);
    }
    if ((draft->entry.op.flags & OP_EPILOGUE) != 0) {
        epilogue_commit(draft, &op->epilogue, &draft->entry.op.u.gemm.epilogue, ticket);
    }
}

/* A and B as matrices, of D where it is given. */
static enum fp8pipe_status check_gemm_matrices(const struct fp8pipe_gemm_op *op, bool d_given)
{
    struct check_size rows = d_given ? check_is(op->d.rows, "d.rows") : check_any();
    struct check_size cols = d_given ? check_is(op->d.cols, "d.cols") : check_any();
    struct check_size k =
        op->a_transposed ? check_is(op->a.rows, "a.rows") : check_is(op->a.cols, "a.cols");
    enum fp8pipe_status status;

    status = op->a_transposed ? check_matrix_shape("a", &op->a, check_any(), rows)
                              : check_matrix_shape("a", &op->a, rows, check_any());
    if (status == FP8PIPE_OK) {
        status = op->b_transposed ? check_matrix_shape("b", &op->b, k, cols)
                                  : check_matrix_shape("b", &op->b, cols, k);
    }
    if (status == FP8PIPE_OK && op->a.dtype != op->b.dtype) {
        status = status_fail(FP8PIPE_EINVAL, "b.dtype = %d: it is a.dtype = %d", (int)op->b.dtype,
                             (int)op->a.dtype);
    }
    /* Of a result that is a tensor, D is not looked at yet. */
    if (status != FP8PIPE_OK || !d_given) {
        return status;
    }
    status = check_apart("d", &op->d, "a", &op->a);
    return status != FP8PIPE_OK ? status : check_apart("d", &op->d, "b", &op->b);
}

static enum fp8pipe_status check_gemm(const struct fp8pipe_gemm_op *op)
{
    bool d_given = op->epilogue.tensor == NULL;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (d_given) {
        status = check_matrix("d", &op->d);
        if (status == FP8PIPE_OK) {
            status = check_vector("bias", &op->bias, check_is(op->d.cols, "d.cols"));
        }
        if (status == FP8PIPE_OK) {
            status = check_apart_vector("d", &op->d, "bias", &op->bias);
        }
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("a_transposed", op->a_transposed);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("b_transposed", op->b_transposed);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("accumulate", op->accumulate);
    }
    if (status == FP8PIPE_OK) {
        status = check_enum("accumulation", (int)op->accumulation, FP8PIPE_ACCUMULATION_SPLIT);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if ((op->a_tensor == NULL) != (op->b_tensor == NULL)) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: both operands are quantized, or neither",
                           op->a_tensor == NULL ? "a_tensor" : "b_tensor");
    }
    if (op->a_tensor != NULL && (check_given(&op->a) || check_given(&op->b))) {
        return status_fail(FP8PIPE_EINVAL, "%s.data = %p: the operands are tensors",
                           check_given(&op->a) ? "a" : "b",
                           check_given(&op->a) ? op->a.data : op->b.data);
    }
    return op->a_tensor != NULL ? FP8PIPE_OK : check_gemm_matrices(op, d_given);
}

/* Checks a given epilogue and writes it into the payload, which is complete but for this. */
static enum fp8pipe_status draft_epilogue(struct draft *draft, const struct fp8pipe_gemm_op *op)
{
    struct op_gemm *gemm = &draft->entry.op.u.gemm;
    struct epilogue_shape shape = {
        .d_field = "d",
        .d = &op->d,
        .rows = check_is(op->d.rows, "d.rows"),
        .cols = check_is(op->d.cols, "d.cols"),
        .bias = &op->bias,
        .in = {{"a", &op->a}, {"b", &op->b}, {NULL, NULL}},
    };
    enum fp8pipe_status status;

    if (op->accumulate) {
        return status_fail(FP8PIPE_EINVAL, "accumulate = 1: there is an epilogue");
    }
    if (op->epilogue.tensor != NULL && op->a_tensor != NULL) {
        shape.rows = shape.cols = check_any();
    } else if (op->epilogue.tensor != NULL) {
        shape.rows =
            op->a_transposed ? check_is(op->a.cols, "a.cols") : check_is(op->a.rows, "a.rows");
        shape.cols =
            op->b_transposed ? check_is(op->b.cols, "b.cols") : check_is(op->b.rows, "b.rows");
    }
    status = check_vector("bias", &op->bias, shape.cols);
    if (status == FP8PIPE_OK) {
        status = epilogue_check(draft, &op->epilogue, &shape);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    gemm->d.rows = shape.rows.is;
    gemm->d.cols = shape.cols.is;
    draft_payload(draft, sizeof(*gemm));
    draft->entry.op.flags |= (uint8_t)OP_EPILOGUE;
    return epilogue_fill(draft, &op->epilogue, &gemm->epilogue);
}

enum fp8pipe_status fp8pipe_gemm(struct fp8pipe *pipe, const struct fp8pipe_gemm_op *op,
                                 fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_gemm_op defaults = FP8PIPE_GEMM_OP_INIT;
    static const struct draft_calls calls = {bind_gemm, commit_gemm};
    struct gemm_draft gemm;
    struct fp8pipe_gemm_op room;
    const void *given;
    struct draft draft;
    struct op_gemm *payload = &draft.entry.op.u.gemm;
    bool touches_objects;
    enum fp8pipe_status status =
        options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);

    if (status != FP8PIPE_OK) {
        return status;
    }
    gemm.op = op = given;
    status = draft_begin(&draft, pipe, &op->submit, OP_GEMM, offsetof(struct op_gemm, epilogue),
                         FP8PIPE_LAST_USE | (op->epilogue.tensor != NULL ? FP8PIPE_NO_AMAX : 0u));
    if (status == FP8PIPE_OK) {
        status = check_gemm(op);
    }
    if (status == FP8PIPE_OK && op->a_tensor != NULL) {
        status = draft_object(&draft, "a_tensor", &op->a_tensor->object);
        if (status == FP8PIPE_OK) {
            status = draft_object(&draft, "b_tensor", &op->b_tensor->object);
        }
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    payload->a = op->a;
    payload->b = op->b;
    payload->d = op->d;
    payload->bias = op->bias;
    payload->a_filling = NULL;
    payload->b_filling = NULL;
    payload->a_transposed = (uint8_t)op->a_transposed;
    payload->b_transposed = (uint8_t)op->b_transposed;
    draft.entry.op.flags |=
        (uint8_t)((op->accumulate ? OP_ACCUMULATE : 0u) |
                  (op->accumulation != FP8PIPE_ACCUMULATION_SPLIT ? OP_FAST : 0u));
    if (epilogue_given(&op->epilogue)) {
        status = draft_epilogue(&draft, op);
        if (status != FP8PIPE_OK) {
            return status;
        }
    }
    touches_objects = op->a_tensor != NULL || op->epilogue.tensor != NULL;
    status = draft_submit(&draft, touches_objects ? &calls : NULL, &gemm, ticket);
    if (status != FP8PIPE_OK && op->epilogue.tensor != NULL) {
        filling_undo(payload->epilogue.out.filling);
    }
    return status;
}
