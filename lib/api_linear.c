/* Public entry points that make, change and destroy linears. */
#include <ck_pr.h>
#include <stdlib.h>

#include "submit.h"

static enum fp8pipe_status check_slot(const char *field, const struct fp8pipe_scaling *scaling,
                                      uint32_t slot, enum fp8pipe_role role)
{
    enum fp8pipe_format format =
        scaling->recipe == FP8PIPE_HYBRID && role == FP8PIPE_ROLE_DY ? FP8PIPE_E5M2 : FP8PIPE_E4M3;

    if (slot >= scaling->slots) {
        return status_fail(FP8PIPE_EINVAL, "%s = %u: the scaling has %u slots", field, slot,
                           scaling->slots);
    }
    if (scaling->formats[slot] != format) {
        return status_fail(FP8PIPE_EINVAL, "%s = %u: the slot's format is %s, here it is %s", field,
                           slot, format == FP8PIPE_E4M3 ? "E5M2" : "E4M3",
                           format == FP8PIPE_E4M3 ? "E4M3" : "E5M2");
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status check_options(struct fp8pipe *pipe,
                                         const struct fp8pipe_linear_options *options)
{
    const struct fp8pipe_scaling *scaling = options->scaling;
    enum fp8pipe_status status;

    if (options->in_features < 0 || options->out_features < 0) {
        return status_fail(
            FP8PIPE_EINVAL, "%s = %lld: it is >= 0",
            options->in_features < 0 ? "in_features" : "out_features",
            (long long)(options->in_features < 0 ? options->in_features : options->out_features));
    }
    status = check_matrix_shape("weight", &options->weight,
                                check_is(options->out_features, "out_features"),
                                check_is(options->in_features, "in_features"));
    if (status == FP8PIPE_OK) {
        status =
            check_vector("bias", &options->bias, check_is(options->out_features, "out_features"));
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (options->reserved != 0) {
        return status_fail(FP8PIPE_EINVAL, "reserved = %u: it is 0", options->reserved);
    }
    if (scaling == NULL) {
        return FP8PIPE_OK;
    }
    if (scaling->object.pipe != pipe) {
        return status_fail(FP8PIPE_EINVAL, "scaling = %p: it is of pipe %u, the linear of pipe %u",
                           (const void *)scaling, scaling->object.pipe->number, pipe->number);
    }
    status = check_slot("slot_x", scaling, options->slot_x, FP8PIPE_ROLE_X);
    if (status == FP8PIPE_OK) {
        status = check_slot("slot_w", scaling, options->slot_w, FP8PIPE_ROLE_W);
    }
    return status != FP8PIPE_OK ? status
                                : check_slot("slot_dy", scaling, options->slot_dy, FP8PIPE_ROLE_DY);
}

static enum fp8pipe_status create(struct fp8pipe *pipe,
                                  const struct fp8pipe_linear_options *options,
                                  struct fp8pipe_linear **out)
{
    struct fp8pipe_linear *linear = object_new(OBJECT_LINEAR, pipe, sizeof(*linear), pipe->lanes);

    if (linear == NULL) {
        goto no_memory;
    }
    linear->in_features = options->in_features;
    linear->out_features = options->out_features;
    linear->weight_dtype = options->weight.dtype;
    linear->bias = options->bias;
    linear->scaling = options->scaling;
    linear->slot_x = options->slot_x;
    linear->slot_w = options->slot_w;
    linear->slot_dy = options->slot_dy;
    linear->current = version_new(&pipe->pool, &options->weight, 0);
    if (linear->current == NULL) {
        goto free_linear;
    }
    if (linear->scaling != NULL) {
        object_lock(&linear->scaling->object);
        linear->scaling->linears++;
        object_unlock(&linear->scaling->object);
    }
    pipe_object_add(pipe, &linear->object);
    *out = linear;
    return FP8PIPE_OK;
free_linear:
    free(linear);
no_memory:
    return status_fail(FP8PIPE_ENOMEM, "a linear's host memory is not to be had");
}

enum fp8pipe_status fp8pipe_linear_create(struct fp8pipe *pipe,
                                          const struct fp8pipe_linear_options *options,
                                          struct fp8pipe_linear **linear)
{
    static const struct fp8pipe_linear_options defaults = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_linear_options room;
    const void *given;
    enum fp8pipe_status status =
        options_read("options", options, &defaults, sizeof(room),
                     offsetof(struct fp8pipe_linear_options, bias), &room, &given);

    if (status == FP8PIPE_OK) {
        status = pipe_enter_create(pipe, "linear", linear);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = check_options(pipe, given);
    if (status == FP8PIPE_OK) {
        status = create(pipe, given, linear);
    }
    pipe_leave(pipe);
    return status;
}

void linear_retire(struct object *object, struct backend *backend)
{
    struct fp8pipe_linear *linear = (struct fp8pipe_linear *)(void *)object;
    struct issue issue = {.backend = backend, .lane = ISSUE_NO_LANE};

    if (linear->current != NULL && filling_drop(linear->current->filling)) {
        filling_release(linear->current->filling, &issue);
    }
    if (linear->retired != NULL) {
        filling_release(linear->retired, &issue);
    }
    ck_pr_store_ptr(&linear->current, NULL);
    linear->retired = NULL;
}

static enum fp8pipe_status refuse_end(struct object *object)
{
    struct fp8pipe_linear *linear = (struct fp8pipe_linear *)(void *)object;
    uint32_t kept = ck_pr_load_32(&linear->kept);

    if (linear->rewrites != NULL) {
        return status_fail(FP8PIPE_EBUSY, "linear = %p: an optimizer has it", (void *)linear);
    }
    return kept == 0 ? FP8PIPE_OK
                     : status_fail(FP8PIPE_EBUSY, "linear = %p: %u tensors keep its weight",
                                   (void *)linear, kept);
}

static void free_linear(struct object *object, bool closed)
{
    struct fp8pipe_linear *linear = (struct fp8pipe_linear *)(void *)object;
    struct fp8pipe *pipe = object->pipe;

    if (!closed) {
        pipe_filling_drop(pipe, linear->current->filling);
        if (linear->retired != NULL) {
            completion_bury(&pipe->crew->completion, linear->retired);
        }
        if (linear->scaling != NULL) {
            object_lock(&linear->scaling->object);
            linear->scaling->linears--;
            object_unlock(&linear->scaling->object);
        }
    }
    free(linear);
}

enum fp8pipe_status fp8pipe_linear_destroy(struct fp8pipe_linear *linear)
{
    static const struct pipe_ending ending = {"linear", refuse_end, free_linear};

    return pipe_object_destroy(linear != NULL ? &linear->object : NULL, &ending);
}

static enum fp8pipe_status change(struct fp8pipe_linear *linear,
                                  const struct fp8pipe_matrix *weight, fp8pipe_ticket written)
{
    struct fp8pipe *pipe = linear->object.pipe;
    struct version *version, *before;

    version = version_new(&pipe->pool, weight, written);
    if (version == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "a weight's version is not to be had");
    }
    object_lock(&linear->object);
    if (linear->rewrites != NULL) {
        object_unlock(&linear->object);
        pipe_filling_drop(pipe, version->filling);
        return status_fail(FP8PIPE_EBUSY, "linear = %p: an optimizer writes its weight",
                           (void *)linear);
    }
    before = linear->current;
    if (weight == NULL) {
        version->weight = before->weight;
    }
    ck_pr_store_ptr(&linear->current, version);
    /* Handing it to the completion thread would wake that for every layer of every step. */
    if (linear->retired == NULL && filling_drop(before->filling)) {
        linear->retired = before->filling;
        before = NULL;
    } else if (linear->retired == NULL) {
        before = NULL;
    }
    object_unlock(&linear->object);
    if (before != NULL) {
        pipe_filling_drop(pipe, before->filling);
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status fp8pipe_linear_weight_changed(struct fp8pipe_linear *linear,
                                                  const struct fp8pipe_matrix *weight,
                                                  fp8pipe_ticket written)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    struct fp8pipe *pipe;

    if (linear == NULL) {
        return status_fail(FP8PIPE_EINVAL, "linear = NULL: it is needed");
    }
    pipe = linear->object.pipe;
    status = pipe_check_inside(false);
    if (status == FP8PIPE_OK) {
        status = pipe_enter(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (weight != NULL) {
        status =
            check_matrix_shape("weight", weight, check_is(linear->out_features, "out_features"),
                               check_is(linear->in_features, "in_features"));
    }
    if (status == FP8PIPE_OK && weight != NULL && weight->dtype != linear->weight_dtype) {
        status = status_fail(FP8PIPE_EINVAL, "weight.dtype = %d: the linear's weight has %d",
                             (int)weight->dtype, (int)linear->weight_dtype);
    }
    if (status == FP8PIPE_OK && written != 0) {
        status = pipe_check_ticket(pipe, "written", written);
    }
    if (status == FP8PIPE_OK) {
        status = change(linear, weight, written);
    }
    pipe_leave(pipe);
    return status;
}
