#include "layer_draft.h"

enum fp8pipe_status layer_begin(struct draft *draft, struct fp8pipe_linear *linear,
                                const struct draft_kind *kind, const void *op, void *room,
                                const void **given)
{
    enum fp8pipe_status status;

    if (linear == NULL) {
        return status_fail(FP8PIPE_EINVAL, "linear = NULL: it is needed");
    }
    /* Else the loads behind the words' locked instructions would wait for it. */
    __builtin_prefetch(ck_pr_load_ptr(&linear->current));
    status = draft_open(draft, linear->object.pipe, kind, op, room, given);
    if (status == FP8PIPE_OK) {
        draft_objects(draft, &linear->object,
                      linear->scaling != NULL ? &linear->scaling->object : NULL);
    }
    return status;
}

enum fp8pipe_status layer_tensor_add(struct draft *draft, const char *field,
                                     struct fp8pipe_tensor *tensor)
{
    uint32_t count = draft->object_count;

    if (tensor->object.pipe != draft->pipe) {
        return draft_object_refuse(draft, field, &tensor->object);
    }
    assert(count < DRAFT_OBJECTS);
    draft->object_count = object_set_add(draft->objects, count, &tensor->object);
    return draft->object_count > count
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "%s = %p: it is another tensor of the op too", field,
                             (void *)tensor);
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

enum fp8pipe_status layer_after_written(struct draft *draft, struct version *version)
{
    uint32_t named = draft->entry.op.named;
    enum fp8pipe_status status = draft_after(draft, "written", version->written);

    if (status == FP8PIPE_OK && draft->entry.op.named == named) {
        version->written = 0; /* known to be done */
    }
    return status;
}

enum fp8pipe_status layer_shared_refuse(const struct fp8pipe_tensor *tensor,
                                        const struct layer_shared *shared)
{
    const struct filling *current = tensor->filling;
    const char *field = shared->field;

    if (current == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it is empty", field, (const void *)tensor);
    }
    if (!layer_shared_shape(current, shared)) {
        bool rows = !check_fits(shared->rows, current->rows);
        struct check_size size = rows ? shared->rows : shared->cols;

        return status_fail(FP8PIPE_EINVAL, "%s = %p: it has %lld %s, not %s = %lld", field,
                           (const void *)tensor, (long long)(rows ? current->rows : current->cols),
                           rows ? "rows" : "columns", size.of, (long long)size.is);
    }
    if (current->format != shared->format) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: its format is %s, here it is %s", field,
                           (const void *)tensor, current->format == FP8PIPE_E4M3 ? "E4M3" : "E5M2",
                           shared->format == FP8PIPE_E4M3 ? "E4M3" : "E5M2");
    }
    return status_fail(FP8PIPE_EINVAL, "%s = %p: it has no %s copy", field, (const void *)tensor,
                       shared->rowwise && !tensor_rowwise(tensor) ? "row-wise" : "transposed");
}
