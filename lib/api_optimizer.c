/* Public entry points that make and destroy optimizers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optimizer.h"
#include "submit.h"

#define OPTIMIZER_PARAMETERS_MAX 1048576u
#define OPTIMIZER_GROUPS_MAX 256u
#define OPTIMIZER_ALIGNMENT 16

/* "parameters[12].master" */
struct field {
    char name[48];
};

static struct field field_of(uint32_t parameter, const char *name)
{
    struct field field;

    snprintf(field.name, sizeof(field.name), "parameters[%u].%s", parameter, name);
    return field;
}

/* ---- Groups and parameters ----------------------------------------------------------------- */

static enum fp8pipe_status check_factor(uint32_t group, const char *name, float value, bool holds,
                                        const char *rule)
{
    return holds ? FP8PIPE_OK
                 : status_fail(FP8PIPE_EINVAL, "groups[%u].%s = %g: it is %s", group, name,
                               (double)value, rule);
}

static enum fp8pipe_status check_group(uint32_t i, const struct fp8pipe_parameter_group *group)
{
    static const char not_negative[] = "finite and >= 0";
    static const char below_one[] = ">= 0 and < 1";
    enum fp8pipe_status status =
        check_factor(i, "lr_factor", group->lr_factor,
                     isfinite(group->lr_factor) && group->lr_factor >= 0.0f, not_negative);

    if (status == FP8PIPE_OK) {
        status = check_factor(i, "beta1", group->beta1, group->beta1 >= 0.0f && group->beta1 < 1.0f,
                              below_one);
    }
    if (status == FP8PIPE_OK) {
        status = check_factor(i, "beta2", group->beta2, group->beta2 >= 0.0f && group->beta2 < 1.0f,
                              below_one);
    }
    if (status == FP8PIPE_OK) {
        status = check_factor(i, "epsilon", group->epsilon,
                              isfinite(group->epsilon) && group->epsilon > 0.0f, "finite and > 0");
    }
    if (status == FP8PIPE_OK) {
        status = check_factor(i, "weight_decay", group->weight_decay,
                              isfinite(group->weight_decay) && group->weight_decay >= 0.0f,
                              not_negative);
    }
    if (status == FP8PIPE_OK) {
        status =
            check_factor(i, "average_decay", group->average_decay,
                         group->average_decay >= 0.0f && group->average_decay <= 1.0f, "0 to 1");
    }
    return status;
}

/* A matrix of the master's shape, dense and 16-byte aligned. */
static enum fp8pipe_status check_dense(uint32_t parameter, const char *name,
                                       const struct fp8pipe_matrix *matrix, int64_t rows,
                                       int64_t cols)
{
    struct field field = field_of(parameter, name);
    enum fp8pipe_status status = check_matrix_shape(
        field.name, matrix, check_is(rows, "master.rows"), check_is(cols, "master.cols"));

    if (status == FP8PIPE_OK && matrix->stride != matrix->cols) {
        status = status_fail(FP8PIPE_EINVAL, "%s.stride = %lld: it is cols = %lld, dense",
                             field.name, (long long)matrix->stride, (long long)matrix->cols);
    }
    if (status == FP8PIPE_OK && (uintptr_t)matrix->data % OPTIMIZER_ALIGNMENT != 0) {
        status = status_fail(FP8PIPE_EINVAL, "%s.data = %p: it is aligned to %d bytes", field.name,
                             matrix->data, OPTIMIZER_ALIGNMENT);
    }
    return status;
}

static enum fp8pipe_status check_fp32(uint32_t parameter, const char *name,
                                      const struct fp8pipe_matrix *matrix)
{
    return matrix->dtype == FP8PIPE_FP32
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "%s.dtype = %d: it is FP32",
                             field_of(parameter, name).name, (int)matrix->dtype);
}

static enum fp8pipe_status check_state(uint32_t parameter, const char *name,
                                       const struct fp8pipe_matrix *matrix, int64_t rows,
                                       int64_t cols)
{
    enum fp8pipe_status status = check_dense(parameter, name, matrix, rows, cols);

    return status != FP8PIPE_OK ? status : check_fp32(parameter, name, matrix);
}

static enum fp8pipe_status check_linear(const struct fp8pipe *pipe, uint32_t i,
                                        const struct fp8pipe_linear *linear,
                                        const struct fp8pipe_matrix *master,
                                        const struct fp8pipe_scaling *scaling)
{
    struct field field = field_of(i, "linear");

    if (linear->object.pipe != pipe) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it is of pipe %u, the optimizer of pipe %u",
                           field.name, (const void *)linear, linear->object.pipe->number,
                           pipe->number);
    }
    if (linear->scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: it is not quantized", field.name,
                           (const void *)linear);
    }
    if (scaling != NULL && linear->scaling != scaling) {
        return status_fail(FP8PIPE_EINVAL, "%s = %p: its scaling is not that of those before",
                           field.name, (const void *)linear);
    }
    if (master->rows != linear->out_features || master->cols != linear->in_features) {
        return status_fail(FP8PIPE_EINVAL, "%s: its weight is %lld x %lld, master %lld x %lld",
                           field.name, (long long)linear->out_features,
                           (long long)linear->in_features, (long long)master->rows,
                           (long long)master->cols);
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status check_parameter(const struct fp8pipe *pipe, uint32_t i,
                                           const struct fp8pipe_parameter *parameter,
                                           uint32_t groups, const struct fp8pipe_scaling *scaling)
{
    int64_t rows = parameter->master.rows, cols = parameter->master.cols;
    enum fp8pipe_status status = check_state(i, "master", &parameter->master, -1, -1);

    if (status == FP8PIPE_OK) {
        status = check_dense(i, "gradient", &parameter->gradient, rows, cols);
    }
    if (status == FP8PIPE_OK) {
        status = check_state(i, "first", &parameter->first, rows, cols);
    }
    if (status == FP8PIPE_OK) {
        status = check_state(i, "second", &parameter->second, rows, cols);
    }
    if (status == FP8PIPE_OK && check_given(&parameter->average)) {
        status = check_state(i, "average", &parameter->average, rows, cols);
    }
    if (status == FP8PIPE_OK && check_given(&parameter->copy)) {
        status = check_dense(i, "copy", &parameter->copy, rows, cols);
        if (status == FP8PIPE_OK && parameter->copy.dtype == FP8PIPE_FP32) {
            status = status_fail(FP8PIPE_EINVAL, "%s.dtype = %d: it is BF16 or FP16",
                                 field_of(i, "copy").name, (int)parameter->copy.dtype);
        }
    }
    if (status == FP8PIPE_OK && parameter->group >= groups) {
        status = status_fail(FP8PIPE_EINVAL, "%s = %u: there are %u groups",
                             field_of(i, "group").name, parameter->group, groups);
    }
    if (status == FP8PIPE_OK && parameter->reserved != 0) {
        status = status_fail(FP8PIPE_EINVAL, "%s = %u: it is 0", field_of(i, "reserved").name,
                             parameter->reserved);
    }
    if (status == FP8PIPE_OK && parameter->linear != NULL) {
        status = check_linear(pipe, i, parameter->linear, &parameter->master, scaling);
    }
    return status;
}

/* ---- Overlaps ------------------------------------------------------------------------------ */

/* Memory of one matrix of one parameter. */
struct range {
    uintptr_t begin;
    uintptr_t end;
    uint32_t parameter;
    bool written;
};

static uint32_t range_add(struct range *ranges, uint32_t count, uint32_t parameter, bool written,
                          const struct fp8pipe_matrix *matrix)
{
    uintptr_t begin = (uintptr_t)matrix->data;

    if (matrix->rows == 0 || matrix->cols == 0) {
        return count;
    }
    ranges[count] = (struct range){begin, check_matrix_bound(matrix), parameter, written};
    return count + 1;
}

static int range_compare(const void *a, const void *b)
{
    uintptr_t x = ((const struct range *)a)->begin, y = ((const struct range *)b)->begin;

    return (x > y) - (x < y);
}

/* Nothing that a step writes overlaps anything else: what is given twice would be stepped twice. */
static enum fp8pipe_status check_ranges(const struct fp8pipe_optimizer_options *options)
{
    struct range *ranges = calloc((size_t)options->parameter_count * 6, sizeof(*ranges));
    const struct range *written = NULL, *read = NULL; /* those that reach farthest so far */
    enum fp8pipe_status status = FP8PIPE_OK;
    uint32_t count = 0;

    if (ranges == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "parameter_count = %u: host memory is not to be had",
                           options->parameter_count);
    }
    for (uint32_t i = 0; i < options->parameter_count; i++) {
        const struct fp8pipe_parameter *parameter = &options->parameters[i];

        count = range_add(ranges, count, i, true, &parameter->master);
        count = range_add(ranges, count, i, false, &parameter->gradient);
        count = range_add(ranges, count, i, true, &parameter->first);
        count = range_add(ranges, count, i, true, &parameter->second);
        count = range_add(ranges, count, i, true, &parameter->average);
        count = range_add(ranges, count, i, true, &parameter->copy);
    }
    qsort(ranges, count, sizeof(*ranges), range_compare);
    for (uint32_t i = 0; i < count && status == FP8PIPE_OK; i++) {
        const struct range *range = &ranges[i], *other = NULL;

        if (written != NULL && range->begin < written->end) {
            other = written;
        } else if (range->written && read != NULL && range->begin < read->end) {
            other = read;
        }
        if (other != NULL) {
            status = status_fail(FP8PIPE_EINVAL,
                                 "parameters[%u], parameters[%u]: matrices overlap at %p, and one "
                                 "is written",
                                 other->parameter, range->parameter, (void *)range->begin);
        }
        if (range->written && (written == NULL || range->end > written->end)) {
            written = range;
        } else if (!range->written && (read == NULL || range->end > read->end)) {
            read = range;
        }
    }
    free(ranges);
    return status;
}

static enum fp8pipe_status check_options(const struct fp8pipe *pipe,
                                         const struct fp8pipe_optimizer_options *options)
{
    const struct fp8pipe_scaling *scaling = NULL;
    enum fp8pipe_status status = FP8PIPE_OK;

    if (options->parameter_count < 1 || options->parameter_count > OPTIMIZER_PARAMETERS_MAX) {
        return status_fail(FP8PIPE_EINVAL, "parameter_count = %u: there are 1 to %u",
                           options->parameter_count, OPTIMIZER_PARAMETERS_MAX);
    }
    if (options->group_count < 1 || options->group_count > OPTIMIZER_GROUPS_MAX) {
        return status_fail(FP8PIPE_EINVAL, "group_count = %u: there are 1 to %u",
                           options->group_count, OPTIMIZER_GROUPS_MAX);
    }
    if (options->parameters == NULL || options->groups == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed",
                           options->parameters == NULL ? "parameters" : "groups");
    }
    for (uint32_t i = 0; i < options->group_count && status == FP8PIPE_OK; i++) {
        status = check_group(i, &options->groups[i]);
    }
    for (uint32_t i = 0; i < options->parameter_count && status == FP8PIPE_OK; i++) {
        const struct fp8pipe_parameter *parameter = &options->parameters[i];

        status = check_parameter(pipe, i, parameter, options->group_count, scaling);
        if (status == FP8PIPE_OK && parameter->linear != NULL) {
            scaling = parameter->linear->scaling;
        }
    }
    return status != FP8PIPE_OK ? status : check_ranges(options);
}

/* ---- Attaching linears --------------------------------------------------------------------- */

/* Whether the op that writes a version's weight is known to have done so. */
static bool weight_written(struct fp8pipe *pipe, fp8pipe_ticket written)
{
    uint32_t lane = ticket_lane(written);
    struct port *port = &pipe->ports[lane];
    struct ticket_failure failure;

    if (written == 0) {
        return true;
    }
    event_ring_reap(&pipe->crew->rings[lane]);
    return port_done(port) > ticket_position(written) &&
           ticket_position(written) >= port_too_old(port) &&
           !port_failure_find(port, ticket_position(written), &failure);
}

static enum fp8pipe_status attach(struct fp8pipe_optimizer *optimizer, uint32_t parameter,
                                  struct fp8pipe_linear *linear, const void *master)
{
    struct field field = field_of(parameter, "linear");
    enum fp8pipe_status status = FP8PIPE_OK;

    object_lock(&linear->object);
    if (linear->rewrites != NULL) {
        status = status_fail(FP8PIPE_EBUSY, "%s = %p: %s has it", field.name, (void *)linear,
                             linear->rewrites == &optimizer->rewrites ? "a parameter before"
                                                                      : "another optimizer");
    } else if (linear->current->weight.data != master || linear->weight_dtype != FP8PIPE_FP32 ||
               linear->current->weight.stride != linear->in_features) {
        status = status_fail(FP8PIPE_EINVAL, "%s = %p: its weight, at %p, dtype %d, is not master",
                             field.name, (void *)linear, linear->current->weight.data,
                             (int)linear->weight_dtype);
    } else if (!weight_written(linear->object.pipe, linear->current->written)) {
        status = status_fail(FP8PIPE_EBUSY,
                             "%s = %p: the op that writes its weight is not done, or has failed",
                             field.name, (void *)linear);
    } else {
        linear->current->written = 0;
        linear->rewrites = &optimizer->rewrites;
    }
    object_unlock(&linear->object);
    return status;
}

static void detach(struct fp8pipe_optimizer *optimizer)
{
    while (optimizer->linear_count > 0) {
        struct fp8pipe_linear *linear = optimizer->linears[--optimizer->linear_count].linear;

        object_lock(&linear->object);
        linear->rewrites_before += optimizer->rewrites;
        linear->rewrites = NULL;
        object_unlock(&linear->object);
    }
}

static enum fp8pipe_status attach_all(struct fp8pipe_optimizer *optimizer,
                                      const struct fp8pipe_optimizer_options *options)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    for (uint32_t i = 0; i < options->parameter_count; i++) {
        struct fp8pipe_linear *linear = options->parameters[i].linear;

        if (linear == NULL) {
            continue;
        }
        status = attach(optimizer, i, linear, options->parameters[i].master.data);
        if (status != FP8PIPE_OK) {
            detach(optimizer);
            break;
        }
        optimizer->scaling = linear->scaling;
        optimizer->linears[optimizer->linear_count++] = (struct optimizer_linear){linear, i};
    }
    return status;
}

/* ---- Create and destroy -------------------------------------------------------------------- */

static void fill_table(struct kernel_parameter *table,
                       const struct fp8pipe_optimizer_options *options)
{
    for (uint32_t i = 0; i < options->parameter_count; i++) {
        const struct fp8pipe_parameter *parameter = &options->parameters[i];

        table[i] = (struct kernel_parameter){
            .master = parameter->master.data,
            .gradient = parameter->gradient.data,
            .first = parameter->first.data,
            .second = parameter->second.data,
            .average = parameter->average.data,
            .copy = parameter->copy.data,
            .rows = parameter->master.rows,
            .cols = parameter->master.cols,
            .gradient_dtype = (int32_t)parameter->gradient.dtype,
            .copy_dtype = (int32_t)parameter->copy.dtype,
            .group = parameter->group,
            .square = parameter->linear != NULL,
        };
    }
}

/* Writes the device's tables. */
static enum fp8pipe_status init_state(struct fp8pipe_optimizer *optimizer,
                                      const struct fp8pipe_optimizer_options *options)
{
    struct backend *backend = optimizer->object.pipe->crew->backend;
    struct optimizer_state image;
    struct kernel_tile *tile;
    enum fp8pipe_status status;
    void *data, *memory;

    optimizer_layout(optimizer, &image, NULL);
    memory = calloc(1, image.image_bytes);
    if (memory == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "parameter_count = %u: %zu bytes are not to be had",
                           options->parameter_count, image.image_bytes);
    }
    status = backend->ops->alloc(backend, NULL, image.bytes, &data);
    if (status != FP8PIPE_OK) {
        goto free_memory;
    }
    optimizer_layout(optimizer, &image, memory);
    memcpy(image.parameters, optimizer->table, optimizer->parameters * sizeof(*optimizer->table));
    memcpy(image.groups, options->groups, options->group_count * sizeof(*options->groups));
    tile = image.tiles;
    for (uint32_t i = 0; i < optimizer->parameters; i++) {
        int64_t tiles = optimizer_tiles(&optimizer->table[i]);

        for (int64_t index = 0; index < tiles; index++) {
            *tile++ = (struct kernel_tile){i, (uint32_t)index};
        }
    }
    status = backend->ops->memory_copy(backend, data, memory, image.image_bytes);
    optimizer_layout(optimizer, &optimizer->state, data);
    if (status != FP8PIPE_OK) {
        backend->ops->free(backend, NULL, data, image.bytes);
    }
free_memory:
    free(memory);
    return status;
}

static enum fp8pipe_status create(struct fp8pipe *pipe,
                                  const struct fp8pipe_optimizer_options *options,
                                  struct fp8pipe_optimizer **out)
{
    struct backend *backend = pipe->crew->backend;
    struct fp8pipe_optimizer *optimizer =
        object_new(OBJECT_OPTIMIZER, pipe, sizeof(*optimizer), pipe->lanes);
    enum fp8pipe_status status;

    if (optimizer == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "an optimizer's host memory is not to be had");
    }
    optimizer->parameters = options->parameter_count;
    optimizer->groups = options->group_count;
    optimizer->linears = calloc(options->parameter_count, sizeof(*optimizer->linears));
    if (optimizer->linears == NULL) {
        status = status_fail(FP8PIPE_ENOMEM, "parameter_count = %u: host memory is not to be had",
                             options->parameter_count);
        goto free_optimizer;
    }
    status = backend->ops->pinned_alloc(backend, optimizer->parameters * sizeof(*optimizer->table),
                                        (void **)&optimizer->table);
    if (status != FP8PIPE_OK) {
        goto free_linears;
    }
    fill_table(optimizer->table, options);
    for (uint32_t i = 0; i < optimizer->parameters; i++) {
        optimizer->tiles += optimizer_tiles(&optimizer->table[i]);
        if (optimizer->tiles > INT32_MAX) {
            status =
                status_fail(FP8PIPE_EINVAL, "parameters[%u]: all have more than 2^31 tiles", i);
            goto free_table;
        }
    }
    status = attach_all(optimizer, options);
    if (status != FP8PIPE_OK) {
        goto free_table;
    }
    status = init_state(optimizer, options);
    if (status != FP8PIPE_OK) {
        goto detach;
    }
    pipe_object_add(pipe, &optimizer->object);
    *out = optimizer;
    return FP8PIPE_OK;
detach:
    detach(optimizer);
free_table:
    backend->ops->pinned_free(backend, optimizer->table);
free_linears:
    free(optimizer->linears);
free_optimizer:
    free(optimizer);
    return status;
}

enum fp8pipe_status fp8pipe_optimizer_create(struct fp8pipe *pipe,
                                             const struct fp8pipe_optimizer_options *options,
                                             struct fp8pipe_optimizer **optimizer)
{
    static const struct fp8pipe_optimizer_options defaults = FP8PIPE_OPTIMIZER_OPTIONS_INIT;
    struct fp8pipe_optimizer_options room;
    const void *given;
    struct backend_scope scope;
    enum fp8pipe_status status =
        options_read("options", options, &defaults, sizeof(room), sizeof(room), &room, &given);

    if (status == FP8PIPE_OK) {
        status = pipe_enter_create(pipe, "optimizer", optimizer);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = check_options(pipe, given);
    if (status == FP8PIPE_OK) {
        pipe->crew->backend->ops->enter(pipe->crew->backend, &scope);
        status = create(pipe, given, optimizer);
        pipe->crew->backend->ops->leave(pipe->crew->backend, &scope);
    }
    pipe_leave(pipe);
    return status;
}

void optimizer_retire(struct object *object, struct backend *backend)
{
    struct fp8pipe_optimizer *optimizer = (struct fp8pipe_optimizer *)(void *)object;

    if (optimizer->state.data != NULL) {
        backend->ops->free(backend, NULL, optimizer->state.data, optimizer->state.bytes);
        backend->ops->pinned_free(backend, optimizer->table);
        optimizer->state.data = NULL;
    }
}

static void free_optimizer(struct object *object, bool closed)
{
    struct fp8pipe_optimizer *optimizer = (struct fp8pipe_optimizer *)(void *)object;

    /* On a closed pipe linears may have been destroyed, in any order. */
    if (!closed) {
        detach(optimizer);
        pipe_object_retire(object);
    }
    free(optimizer->linears);
    free(optimizer);
}

enum fp8pipe_status fp8pipe_optimizer_destroy(struct fp8pipe_optimizer *optimizer)
{
    static const struct pipe_ending ending = {"optimizer", NULL, free_optimizer};

    return pipe_object_destroy(optimizer != NULL ? &optimizer->object : NULL, &ending);
}
