#include "layer_draft.h"

/* How the op structs of a linear start. */
struct layer_op {
    size_t size;
    struct fp8pipe_submit submit;
};

enum fp8pipe_status layer_begin(struct draft *draft, struct fp8pipe_linear *linear,
                                const struct layer_kind *kind, const void *op, void *room,
                                const void **given)
{
    enum fp8pipe_status status;

    if (linear == NULL) {
        return status_fail(FP8PIPE_EINVAL, "linear = NULL: it is needed");
    }
    status = options_read("op", op, kind->defaults, kind->bytes, DRAFT_LEAST, room, given);
    if (status == FP8PIPE_OK) {
        status = draft_begin(draft, linear->object.pipe, &((const struct layer_op *)*given)->submit,
                             kind->kind, kind->payload_bytes, kind->flags);
    }
    if (status == FP8PIPE_OK) {
        status = draft_object(draft, "linear", &linear->object);
    }
    return status != FP8PIPE_OK || linear->scaling == NULL
               ? status
               : draft_object(draft, "scaling", &linear->scaling->object);
}

enum fp8pipe_status layer_tensor_add(struct draft *draft, const char *field,
                                     struct fp8pipe_tensor *tensor)
{
    uint32_t count = draft->object_count;
    enum fp8pipe_status status;

    status = draft_object(draft, field, &tensor->object);
    if (status == FP8PIPE_OK && draft->object_count == count) {
        status = status_fail(FP8PIPE_EINVAL, "%s = %p: it is another tensor of the op too", field,
                             (void *)tensor);
    }
    return status;
}

enum fp8pipe_status layer_dtype(const char *field, const struct fp8pipe_matrix *matrix,
                                const struct fp8pipe_linear *linear)
{
    if (linear->scaling == NULL && matrix->dtype != linear->weight_dtype) {
        return status_fail(FP8PIPE_EINVAL,
                           "%s.dtype = %d: an unquantized linear's is its "
                           "weight's, %d",
                           field, (int)matrix->dtype, (int)linear->weight_dtype);
    }
    return FP8PIPE_OK;
}

/* Whether the op that was to quantize the version is known to have done so. */
static bool is_prepared(struct draft *draft, const struct version *version)
{
    fp8pipe_ticket ticket = version->prepared;
    struct port *port = &draft->pipe->ports[ticket_lane(ticket)];
    struct ticket_failure failure;

    return ticket != 0 && port_done(port) > ticket_position(ticket) &&
           !port_failure_find(port, ticket_position(ticket), &failure);
}

enum fp8pipe_status layer_apart_close(struct draft *draft, const char *field,
                                      const struct fp8pipe_matrix *matrix, struct version *version)
{
    /* The memory may be another matrix's by now. */
    return is_prepared(draft, version)
               ? FP8PIPE_OK
               : check_apart_close(field, matrix, "weight", &version->weight);
}

void layer_prepared(struct draft *draft, struct version *version, fp8pipe_ticket ticket)
{
    if (!is_prepared(draft, version)) {
        version->prepared = ticket;
    }
}

enum fp8pipe_status layer_bind_version(struct draft *draft, struct version *version)
{
    uint32_t named = draft->named_count;
    enum fp8pipe_status status = draft_after(draft, version->written);

    if (version->written != 0 && status == FP8PIPE_OK && draft->named_count == named) {
        version->written = 0; /* known to be done */
    }
    draft_use(draft, version->filling);
    return status;
}

void layer_bind(struct draft *draft, const struct fp8pipe_linear *linear)
{
    if (linear->scaling != NULL) {
        draft_use_scaling(draft, linear->scaling);
    }
    draft_may_end(draft, linear->retired != NULL);
}

void layer_commit(struct draft *draft, struct fp8pipe_linear *linear, fp8pipe_ticket ticket)
{
    if (linear->scaling != NULL) {
        draft_used_scaling(draft, linear->scaling, ticket);
    }
    if (linear->retired != NULL) {
        draft_end(draft, linear->retired);
        linear->retired = NULL;
    }
}

enum fp8pipe_status layer_bind_shared(struct draft *draft, const char *field,
                                      const struct fp8pipe_tensor *tensor, int64_t rows,
                                      int64_t cols, enum fp8pipe_format format, bool rowwise,
                                      bool transposed, struct filling **filling)
{
    struct filling *current = tensor->filling;

    if (current == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it is empty", field, (const void *)tensor);
    }
    if ((rows >= 0 && current->rows != rows) || current->cols != cols) {
        return status_fail(FP8PIPE_EINVAL, "%s: it has %lld x %lld entries, here are %lld x %lld",
                           field, (long long)current->rows, (long long)current->cols,
                           (long long)rows, (long long)cols);
    }
    if (current->format != format) {
        return status_fail(FP8PIPE_EINVAL, "%s: its format is %s, here it is %s", field,
                           current->format == FP8PIPE_E4M3 ? "E4M3" : "E5M2",
                           format == FP8PIPE_E4M3 ? "E4M3" : "E5M2");
    }
    if ((rowwise && !tensor_rowwise(tensor)) || (transposed && !current->transposed)) {
        return status_fail(FP8PIPE_EINVAL, "%s: it has no %s copy", field,
                           rowwise && !tensor_rowwise(tensor) ? "row-wise" : "transposed");
    }
    *filling = current;
    return draft_read_tensor(draft, tensor, rowwise);
}
