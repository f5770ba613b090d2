/* Public entry points of scalings. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "move.h"
#include "submit.h"

#define SCALING_SLOTS_MAX 1048576u
#define SCALING_HISTORY_MAX 65536u
#define SCALING_MARGIN_MAX 64

static enum fp8pipe_status check_options(const struct fp8pipe_scaling_options *options)
{
    enum fp8pipe_status status;

    if (options->slots < 1 || options->slots > SCALING_SLOTS_MAX) {
        return status_fail(FP8PIPE_EINVAL, "slots = %u: there are 1 to %u", options->slots,
                           SCALING_SLOTS_MAX);
    }
    if (options->history < 1 || options->history > SCALING_HISTORY_MAX) {
        return status_fail(FP8PIPE_EINVAL, "history = %u: it has 1 to %u entries", options->history,
                           SCALING_HISTORY_MAX);
    }
    status = check_enum("recipe", (int)options->recipe, FP8PIPE_ALL_E4M3);
    if (status == FP8PIPE_OK) {
        status = check_enum("amax", (int)options->amax, FP8PIPE_AMAX_MOST_RECENT);
    }
    if (status == FP8PIPE_OK) {
        status = check_enum("granularity", (int)options->granularity, FP8PIPE_PER_TENSOR);
    }
    if (status == FP8PIPE_OK) {
        status = check_enum("source", (int)options->source, FP8PIPE_SCALE_DELAYED);
    }
    if (status == FP8PIPE_OK) {
        status = check_flag("count_extremes", options->count_extremes);
    }
    if (status == FP8PIPE_OK && options->reserved != 0) {
        status = status_fail(FP8PIPE_EINVAL, "reserved = %d: it is 0", options->reserved);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (options->margin < -SCALING_MARGIN_MAX || options->margin > SCALING_MARGIN_MAX) {
        return status_fail(FP8PIPE_EINVAL, "margin = %d: it is -%d to %d", options->margin,
                           SCALING_MARGIN_MAX, SCALING_MARGIN_MAX);
    }
    if (options->initial_scale != 0.0f &&
        !(options->initial_scale >= FLT_MIN && options->initial_scale <= FLT_MAX)) {
        return status_fail(FP8PIPE_EINVAL, "initial_scale = %g: it is %g to %g, or 0",
                           (double)options->initial_scale, (double)FLT_MIN, (double)FLT_MAX);
    }
    for (uint32_t i = 0; options->roles != NULL && i < options->slots; i++) {
        if (options->roles[i] > FP8PIPE_ROLE_DY) {
            return status_fail(FP8PIPE_EINVAL, "roles[%u] = %u: it is X, W or DY", i,
                               options->roles[i]);
        }
    }
    return FP8PIPE_OK;
}

/* Writes the device state of a new scaling. */
static enum fp8pipe_status init_state(struct fp8pipe_scaling *scaling, float initial_scale)
{
    struct backend *backend = scaling->object.pipe->crew->backend;
    struct scaling_state device, host;
    enum fp8pipe_status status;
    unsigned char *image;
    void *data;

    scaling_layout(&device, NULL, scaling);
    image = calloc(1, device.bytes);
    if (image == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "slots = %u, history = %u: %zu bytes are not to be had",
                           scaling->slots, scaling->history, device.bytes);
    }
    scaling_layout(&host, image, scaling);
    for (uint32_t i = 0; i < scaling->slots; i++) {
        host.numerator[i] = scaling_numerator(scaling->formats[i], scaling->margin);
        host.scale[(size_t)i * KERNEL_SCALE_STRIDE] = initial_scale > 0.0f ? initial_scale : 1.0f;
        host.has_scale[i] = initial_scale > 0.0f;
    }
    status = backend->ops->alloc(backend, NULL, device.bytes, &data);
    if (status == FP8PIPE_OK) {
        scaling_layout(&scaling->state, data, scaling);
        status = backend->ops->memory_copy(backend, data, image, device.bytes);
        if (status != FP8PIPE_OK) {
            backend->ops->free(backend, NULL, data, device.bytes);
        }
    }
    free(image);
    return status;
}

static void free_host(struct fp8pipe_scaling *scaling)
{
    free(scaling->formats);
    if (scaling->users != scaling->own_users) {
        free(scaling->users);
    }
    free(scaling->known);
    free(scaling);
}

static struct fp8pipe_scaling *alloc_host(struct fp8pipe *pipe, uint32_t slots)
{
    struct fp8pipe_scaling *scaling =
        object_new(OBJECT_SCALING, pipe, sizeof(*scaling), pipe->lanes);

    if (scaling == NULL) {
        return NULL;
    }
    scaling->formats = calloc(slots, sizeof(*scaling->formats));
    scaling->users = pipe->lanes <= OBJECT_OWN_LANES ? scaling->own_users
                                                     : calloc(pipe->lanes, sizeof(*scaling->users));
    scaling->known = calloc(slots, sizeof(*scaling->known));
    if (scaling->formats == NULL || scaling->users == NULL || scaling->known == NULL) {
        free_host(scaling);
        return NULL;
    }
    pthread_mutex_init(&scaling->lock, NULL);
    return scaling;
}

static enum fp8pipe_format format_of(enum fp8pipe_recipe recipe, uint32_t role)
{
    return recipe == FP8PIPE_HYBRID && role == FP8PIPE_ROLE_DY ? FP8PIPE_E5M2 : FP8PIPE_E4M3;
}

static enum fp8pipe_status create(struct fp8pipe *pipe,
                                  const struct fp8pipe_scaling_options *options,
                                  struct fp8pipe_scaling **out)
{
    struct backend *backend = pipe->crew->backend;
    struct fp8pipe_scaling *scaling = alloc_host(pipe, options->slots);
    enum fp8pipe_status status;

    if (scaling == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "slots = %u: host memory is not to be had",
                           options->slots);
    }
    scaling->slots = options->slots;
    scaling->history = options->history;
    scaling->recipe = options->recipe;
    scaling->algorithm = options->amax;
    scaling->margin = options->margin;
    scaling->count_extremes = options->count_extremes != 0;
    for (uint32_t i = 0; i < scaling->slots; i++) {
        uint32_t role = options->roles != NULL ? options->roles[i] : i % 3;

        scaling->formats[i] = (uint8_t)format_of(options->recipe, role);
        scaling->known[i] = options->initial_scale > 0.0f ? SCALING_SEEN : SCALING_UNASKED;
    }
    scaling->scaled = options->initial_scale > 0.0f;
    status = backend->ops->pinned_alloc(backend, scaling->slots * sizeof(*scaling->shadow),
                                        (void **)&scaling->shadow);
    if (status != FP8PIPE_OK) {
        goto free_host;
    }
    status = init_state(scaling, options->initial_scale);
    if (status != FP8PIPE_OK) {
        goto free_shadow;
    }
    pipe_object_add(pipe, &scaling->object);
    *out = scaling;
    return FP8PIPE_OK;
free_shadow:
    backend->ops->pinned_free(backend, scaling->shadow);
free_host:
    free_host(scaling);
    return status;
}

enum fp8pipe_status fp8pipe_scaling_create(struct fp8pipe *pipe,
                                           const struct fp8pipe_scaling_options *options,
                                           struct fp8pipe_scaling **scaling)
{
    static const struct fp8pipe_scaling_options defaults = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling_options room;
    const void *given;
    struct backend_scope scope;
    enum fp8pipe_status status =
        options_read("options", options, &defaults, sizeof(room),
                     offsetof(struct fp8pipe_scaling_options, recipe), &room, &given);

    if (status == FP8PIPE_OK) {
        status = pipe_enter_create(pipe, "scaling", scaling);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = check_options(given);
    if (status == FP8PIPE_OK) {
        pipe->crew->backend->ops->enter(pipe->crew->backend, &scope);
        status = create(pipe, given, scaling);
        pipe->crew->backend->ops->leave(pipe->crew->backend, &scope);
    }
    pipe_leave(pipe);
    return status;
}

void scaling_retire(struct object *object, struct backend *backend)
{
    struct fp8pipe_scaling *scaling = (struct fp8pipe_scaling *)(void *)object;

    if (scaling->state.data != NULL) {
        backend->ops->free(backend, NULL, scaling->state.data, scaling->state.bytes);
        backend->ops->pinned_free(backend, scaling->shadow);
        scaling->state.data = NULL;
    }
}

static enum fp8pipe_status refuse_end(struct object *object)
{
    const struct fp8pipe_scaling *scaling = (struct fp8pipe_scaling *)(void *)object;

    return scaling->linears == 0 ? FP8PIPE_OK
                                 : status_fail(FP8PIPE_EBUSY, "scaling = %p: %u linears use it",
                                               (const void *)scaling, scaling->linears);
}

static void free_scaling(struct object *object, bool closed)
{
    struct fp8pipe_scaling *scaling = (struct fp8pipe_scaling *)(void *)object;

    if (!closed) {
        pipe_object_retire(object);
    }
    pthread_mutex_destroy(&scaling->lock);
    free_host(scaling);
}

enum fp8pipe_status fp8pipe_scaling_destroy(struct fp8pipe_scaling *scaling)
{
    static const struct pipe_ending ending = {"scaling", refuse_end, free_scaling};

    return pipe_object_destroy(scaling != NULL ? &scaling->object : NULL, &ending);
}

/* ---- Writers ------------------------------------------------------------------------------- */

static enum fp8pipe_status bind_writer(struct draft *draft, void *arg)
{
    draft_write_scaling(draft, arg);
    return FP8PIPE_OK;
}

static void commit_writer(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    struct fp8pipe_scaling *scaling = arg;
    uint8_t kind = draft->entry.op.kind;

    draft_wrote_scaling(draft, scaling, ticket);
    scaling->scaled = scaling->scaled || kind == OP_UPDATE || kind == OP_STATE_WRITE;
}

static enum fp8pipe_status submit_writer(struct fp8pipe_scaling *scaling,
                                         const struct fp8pipe_submit *submit, enum op_kind kind,
                                         void *image, const int32_t *skip_if,
                                         fp8pipe_ticket *ticket)
{
    static const struct draft_calls calls = {bind_writer, commit_writer};
    struct draft draft;
    enum fp8pipe_status status =
        draft_begin(&draft, scaling->object.pipe, submit, kind, sizeof(struct op_scaling), 0);

    if (status == FP8PIPE_OK) {
        status = draft_object(&draft, "scaling", &scaling->object);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    draft.entry.op.u.scaling = (struct op_scaling){scaling, image, skip_if};
    return draft_submit(&draft, &calls, scaling, ticket);
}

static enum fp8pipe_status submit_op(struct fp8pipe_scaling *scaling,
                                     const struct fp8pipe_scaling_op *op, enum op_kind kind,
                                     fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_scaling_op defaults = FP8PIPE_SCALING_OP_INIT;
    struct fp8pipe_scaling_op room;
    const void *given;
    enum fp8pipe_status status;

    if (scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "scaling = NULL: it is needed");
    }
    status = options_read("op", op, &defaults, sizeof(room), DRAFT_LEAST, &room, &given);
    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    if (op->skip_if != NULL && kind != OP_UPDATE) {
        return status_fail(FP8PIPE_EINVAL, "skip_if = %p: only an update takes it",
                           (const void *)op->skip_if);
    }
    if ((uintptr_t)op->skip_if % sizeof(*op->skip_if) != 0) {
        return status_fail(FP8PIPE_EINVAL, "skip_if = %p: it is aligned to its 4 bytes",
                           (const void *)op->skip_if);
    }
    return submit_writer(scaling, &op->submit, kind, NULL, op->skip_if, ticket);
}

enum fp8pipe_status fp8pipe_scaling_update(struct fp8pipe_scaling *scaling,
                                           const struct fp8pipe_scaling_op *op,
                                           fp8pipe_ticket *ticket)
{
    return submit_op(scaling, op, OP_UPDATE, ticket);
}

enum fp8pipe_status fp8pipe_scaling_skip(struct fp8pipe_scaling *scaling,
                                         const struct fp8pipe_scaling_op *op,
                                         fp8pipe_ticket *ticket)
{
    return submit_op(scaling, op, OP_SKIP, ticket);
}

/* ---- Reading and writing the state, blocking ------------------------------------------------ */

static enum fp8pipe_status submit_move(struct fp8pipe_scaling *scaling, enum op_kind kind,
                                       void *image, fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;

    return submit_writer(scaling, &submit, kind, image, NULL, ticket);
}

struct slot_read {
    struct fp8pipe_scaling *scaling;
    uint32_t slot;
    struct fp8pipe_slot_state *state;
};

static enum fp8pipe_status submit_slot_read(void *arg, void *image, fp8pipe_ticket *ticket)
{
    const struct slot_read *read = arg;

    *(struct scaling_slot *)image = (struct scaling_slot){.slot = read->slot};
    return submit_move(read->scaling, OP_SLOT_READ, image, ticket);
}

static void take_slot(void *arg, const void *image)
{
    struct fp8pipe_slot_state filled = FP8PIPE_SLOT_STATE_INIT;
    const struct slot_read *read = arg;
    const struct scaling_slot *slot = image;

    filled.format = read->scaling->formats[read->slot];
    filled.has_scale = slot->has_scale;
    filled.scale = filled.has_scale ? slot->scale : 1.0f;
    memcpy(&filled.amax, &slot->amax, sizeof(filled.amax));
    filled.nonfinite = slot->nonfinite;
    filled.saturated = slot->extremes[0];
    filled.flushed = slot->extremes[1];
    options_write(read->state, &filled, sizeof(filled));
}

enum fp8pipe_status fp8pipe_scaling_slot_get(struct fp8pipe_scaling *scaling, uint32_t slot,
                                             struct fp8pipe_slot_state *state)
{
    static const struct move move = {sizeof(struct scaling_slot), submit_slot_read, take_slot};
    struct slot_read read = {scaling, slot, state};
    enum fp8pipe_status status;

    if (scaling == NULL) {
        return status_fail(FP8PIPE_EINVAL, "scaling = NULL: it is needed");
    }
    status = options_check_out("state", state, sizeof(*state));
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (slot >= scaling->slots) {
        return status_fail(FP8PIPE_EINVAL, "slot = %u: there are %u", slot, scaling->slots);
    }
    return move_run(scaling->object.pipe, &move, &read);
}

enum fp8pipe_status fp8pipe_scaling_nonfinite_get(struct fp8pipe_scaling *scaling,
                                                  const int32_t **flag)
{
    enum fp8pipe_status status;

    if (scaling == NULL || flag == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed",
                           scaling == NULL ? "scaling" : "flag");
    }
    status = pipe_check(scaling->object.pipe);
    if (status == FP8PIPE_OK) {
        *flag = scaling->state.any_nonfinite;
    }
    return status;
}

enum fp8pipe_status fp8pipe_scaling_state_bytes(struct fp8pipe_scaling *scaling, size_t *bytes)
{
    if (scaling == NULL || bytes == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed",
                           scaling == NULL ? "scaling" : "bytes");
    }
    *bytes = scaling_saved_bytes(scaling);
    return FP8PIPE_OK;
}

/* A saved state, to be written or loaded. */
struct saved {
    struct fp8pipe_scaling *scaling;
    void *buffer;
    const void *loaded;
    size_t bytes;
};

static enum fp8pipe_status submit_save(void *arg, void *image, fp8pipe_ticket *ticket)
{
    return submit_move(((struct saved *)arg)->scaling, OP_STATE_READ, image, ticket);
}

static void take_saved(void *arg, const void *image)
{
    const struct saved *saved = arg;

    scaling_save_image(saved->scaling, image, saved->buffer);
}

static enum fp8pipe_status submit_load(void *arg, void *image, fp8pipe_ticket *ticket)
{
    const struct saved *saved = arg;
    enum fp8pipe_status status =
        scaling_load_image(saved->scaling, saved->loaded, saved->bytes, image);

    return status != FP8PIPE_OK ? status
                                : submit_move(saved->scaling, OP_STATE_WRITE, image, ticket);
}

enum fp8pipe_status fp8pipe_scaling_save(struct fp8pipe_scaling *scaling, void *buffer,
                                         size_t bytes)
{
    struct saved saved = {.scaling = scaling, .buffer = buffer, .bytes = bytes};
    struct move move = {.submit = submit_save, .take = take_saved};

    if (scaling == NULL || buffer == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed",
                           scaling == NULL ? "scaling" : "buffer");
    }
    if (bytes != scaling_saved_bytes(scaling)) {
        return status_fail(FP8PIPE_EINVAL, "bytes = %zu: the state has %zu", bytes,
                           scaling_saved_bytes(scaling));
    }
    move.bytes = scaling->state.image_bytes;
    return move_run(scaling->object.pipe, &move, &saved);
}

enum fp8pipe_status fp8pipe_scaling_load(struct fp8pipe_scaling *scaling, const void *buffer,
                                         size_t bytes)
{
    struct saved saved = {.scaling = scaling, .loaded = buffer, .bytes = bytes};
    struct move move = {.submit = submit_load};

    if (scaling == NULL || buffer == NULL) {
        return status_fail(FP8PIPE_EINVAL, "%s = NULL: it is needed",
                           scaling == NULL ? "scaling" : "buffer");
    }
    move.bytes = scaling->state.image_bytes;
    return move_run(scaling->object.pipe, &move, &saved);
}
