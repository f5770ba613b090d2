#include "scaling.h"

#include <assert.h>
#include <ck_pr.h>
#include <float.h>
#include <math.h>
#include <string.h>

#define SCALING_ALIGN 256

float scaling_numerator(enum fp8pipe_format format, int32_t margin)
{
    return ldexpf(format == FP8PIPE_E4M3 ? 448.0f : 57344.0f, -margin);
}

/* Reserves room for an array behind `*end`; its address, or NULL without a base. */
static void *place(unsigned char *base, size_t *end, size_t count, size_t size)
{
    size_t at = *end;

    *end += (count * size + SCALING_ALIGN - 1) / SCALING_ALIGN * SCALING_ALIGN;
    return base == NULL ? NULL : base + at;
}

void scaling_layout(struct scaling_state *state, unsigned char *data,
                    const struct fp8pipe_scaling *scaling)
{
    uint32_t slots = scaling->slots;
    size_t end = 0;

    state->data = data;
    state->scale = place(data, &end, slots, KERNEL_SCALE_STRIDE * sizeof(float));
    state->has_scale = place(data, &end, slots, sizeof(int32_t));
    state->amax = place(data, &end, slots, sizeof(uint32_t));
    state->cursor = place(data, &end, slots, sizeof(uint32_t));
    state->nonfinite = place(data, &end, slots, sizeof(int32_t));
    state->any_nonfinite = place(data, &end, 1, sizeof(int32_t));
    state->window = place(data, &end, (size_t)slots * (scaling->history - 1), sizeof(uint32_t));
    state->moving_bytes = end;
    state->extremes =
        scaling->count_extremes ? place(data, &end, 2 * (size_t)slots, sizeof(uint64_t)) : NULL;
    state->image_bytes = end;
    state->numerator = place(data, &end, slots, sizeof(float));
    state->scratch = place(data, &end, 2, sizeof(uint32_t));
    state->bytes = end;
}

/* Under the lock. */
static void know(struct fp8pipe_scaling *scaling, uint32_t slot, enum scaling_known known)
{
    uint32_t before = scaling->known[slot] == SCALING_ASKED, after = known == SCALING_ASKED;

    if (scaling->known[slot] != known) {
        ck_pr_store_8(&scaling->known[slot], (uint8_t)known);
        ck_pr_store_32(&scaling->unseen, scaling->unseen - before + after);
    }
}

/* Takes over what the last shadow copy says, once it has arrived. Under the lock. */
static void look_at_shadow(struct fp8pipe_scaling *scaling, struct issue *issue)
{
    struct event_ring *ring;
    uint64_t position;

    if (scaling->shadow_ticket == 0) {
        return;
    }
    ring = &issue->rings[ticket_lane(scaling->shadow_ticket)];
    position = ticket_position(scaling->shadow_ticket);
    if (ring_tail(&ring->port->ring) <= position) {
        return;
    }
    if (port_done(ring->port) <= position) {
        event_ring_reap(ring);
        if (port_done(ring->port) <= position) {
            return;
        }
    }
    for (uint32_t slot = 0; slot < scaling->slots; slot++) {
        if (scaling->shadow[slot] != 0) {
            know(scaling, slot, SCALING_SEEN);
        }
    }
    scaling->shadow_ticket = 0;
}

bool scaling_slot_seen(struct fp8pipe_scaling *scaling, uint32_t slot, struct issue *issue)
{
    bool seen;

    if (ck_pr_load_8(&scaling->known[slot]) == SCALING_SEEN) {
        return true;
    }
    pthread_mutex_lock(&scaling->lock);
    look_at_shadow(scaling, issue);
    seen = scaling->known[slot] == SCALING_SEEN;
    if (!seen) {
        know(scaling, slot, SCALING_ASKED);
    }
    pthread_mutex_unlock(&scaling->lock);
    return seen;
}

enum fp8pipe_status scaling_target(struct fp8pipe_scaling *scaling, uint32_t slot, bool fold,
                                   struct issue *issue, struct fp8pipe_quantize_target *target)
{
    const struct scaling_state *state = &scaling->state;
    struct backend *backend = issue->backend;

    target->format = scaling->formats[slot];
    target->scale_numerator = scaling_numerator(target->format, scaling->margin);
    target->scale = &state->scale[(size_t)slot * KERNEL_SCALE_STRIDE];
    target->has_scale = &state->has_scale[slot];
    target->own_amax = NULL;
    target->amax = fold ? &state->amax[slot] : NULL;
    target->extremes = state->extremes == NULL ? NULL : &state->extremes[2 * (size_t)slot];
    if (scaling_slot_seen(scaling, slot, issue)) {
        return FP8PIPE_OK;
    }
    target->own_amax = issue->own_amax;
    return backend->ops->fill(backend, issue->stream, issue->own_amax, 0, sizeof(uint32_t));
}

enum fp8pipe_status scaling_update(struct fp8pipe_scaling *scaling, const int32_t *skip_if,
                                   struct issue *issue, fp8pipe_ticket ticket)
{
    const struct scaling_state *state = &scaling->state;
    struct backend *backend = issue->backend;
    struct kernel_scale_update_args args = {
        .slots = scaling->slots,
        .history = scaling->history,
        .algorithm = scaling->algorithm,
        .numerator = state->numerator,
        .scale = state->scale,
        .has_scale = state->has_scale,
        .amax = state->amax,
        .window = state->window,
        .cursor = state->cursor,
        .nonfinite = state->nonfinite,
        .any_nonfinite = state->any_nonfinite,
        .scratch = state->scratch,
        .skip_if = skip_if,
    };
    enum fp8pipe_status status = backend->ops->scale_update(backend, issue->stream, &args);

    if (status != FP8PIPE_OK || ck_pr_load_32(&scaling->unseen) == 0) {
        return status;
    }
    /* A copy that cannot be made costs a pass over each tensor, not the update. */
    pthread_mutex_lock(&scaling->lock);
    look_at_shadow(scaling, issue);
    if (scaling->unseen != 0 && scaling->shadow_ticket == 0 &&
        backend->ops->copy(backend, issue->stream, scaling->shadow, state->has_scale,
                           scaling->slots * sizeof(int32_t)) == FP8PIPE_OK) {
        scaling->shadow_ticket = ticket;
    }
    pthread_mutex_unlock(&scaling->lock);
    return FP8PIPE_OK;
}

enum fp8pipe_status scaling_skip(struct fp8pipe_scaling *scaling, struct issue *issue)
{
    return issue->backend->ops->fill(issue->backend, issue->stream, scaling->state.amax, 0,
                                     scaling->slots * sizeof(uint32_t));
}

enum fp8pipe_status scaling_read(struct fp8pipe_scaling *scaling, void *image, struct issue *issue)
{
    return issue->backend->ops->copy(issue->backend, issue->stream, image, scaling->state.data,
                                     scaling->state.image_bytes);
}

enum fp8pipe_status scaling_read_slot(struct fp8pipe_scaling *scaling, struct scaling_slot *image,
                                      struct issue *issue)
{
    const struct scaling_state *state = &scaling->state;
    const struct {
        void *to;
        const void *from;
        size_t bytes;
    } words[] = {
        {&image->scale, &state->scale[(size_t)image->slot * KERNEL_SCALE_STRIDE],
         sizeof(image->scale)},
        {&image->has_scale, &state->has_scale[image->slot], sizeof(image->has_scale)},
        {&image->amax, &state->amax[image->slot], sizeof(image->amax)},
        {&image->nonfinite, &state->nonfinite[image->slot], sizeof(image->nonfinite)},
    };
    enum fp8pipe_status status = FP8PIPE_OK;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && status == FP8PIPE_OK; i++) {
        status = issue->backend->ops->copy(issue->backend, issue->stream, words[i].to,
                                           words[i].from, words[i].bytes);
    }
    if (status == FP8PIPE_OK && state->extremes != NULL) {
        status = issue->backend->ops->copy(issue->backend, issue->stream, image->extremes,
                                           &state->extremes[2 * (size_t)image->slot],
                                           sizeof(image->extremes));
    }
    return status;
}

enum fp8pipe_status scaling_write(struct fp8pipe_scaling *scaling, const void *image,
                                  struct issue *issue)
{
    enum fp8pipe_status status = issue->backend->ops->copy(
        issue->backend, issue->stream, scaling->state.data, image, scaling->state.moving_bytes);
    struct scaling_state host;

    if (status == FP8PIPE_OK) {
        scaling_layout(&host, (unsigned char *)(uintptr_t)image, scaling);
        pthread_mutex_lock(&scaling->lock);
        for (uint32_t slot = 0; slot < scaling->slots; slot++) {
            know(scaling, slot, host.has_scale[slot] != 0 ? SCALING_SEEN : SCALING_UNASKED);
        }
        /* What a copy on its way says is of the state before. */
        scaling->shadow_ticket = 0;
        pthread_mutex_unlock(&scaling->lock);
    }
    return status;
}

/* ---- The saved form: a head, then for each slot its scale, flags and history, oldest last ---- */

#define SAVED_MAGIC UINT32_C(0x53385046) /* "FP8S" in little-endian bytes */
#define SAVED_VERSION 1

struct saved_head {
    uint32_t magic;
    uint32_t version;
    uint32_t slots;
    uint32_t history;
    uint64_t bytes;
    uint64_t checksum; /* FNV-1a, 64 bits, of everything after the head */
};

struct saved_slot {
    uint32_t format;
    float scale;
    int32_t has_scale;
    int32_t nonfinite;
    uint32_t amax; /* history[0], then history - 1 words of window */
};

static size_t saved_slot_bytes(const struct fp8pipe_scaling *scaling)
{
    return sizeof(struct saved_slot) + (scaling->history - 1) * sizeof(uint32_t);
}

size_t scaling_saved_bytes(const struct fp8pipe_scaling *scaling)
{
    return sizeof(struct saved_head) + scaling->slots * saved_slot_bytes(scaling);
}

static uint64_t checksum(const unsigned char *data, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

void scaling_save_image(const struct fp8pipe_scaling *scaling, const void *image, void *buffer)
{
    size_t bytes = scaling_saved_bytes(scaling);
    uint32_t entries = scaling->history - 1;
    struct saved_head head = {SAVED_MAGIC,      SAVED_VERSION, scaling->slots,
                              scaling->history, bytes,         0};
    unsigned char *out = (unsigned char *)buffer + sizeof(head);
    struct scaling_state state;

    scaling_layout(&state, (unsigned char *)(uintptr_t)image, scaling);
    for (uint32_t slot = 0; slot < scaling->slots; slot++) {
        const uint32_t *window = state.window + (size_t)slot * entries;
        struct saved_slot saved = {(uint32_t)scaling->formats[slot],
                                   state.scale[(size_t)slot * KERNEL_SCALE_STRIDE],
                                   state.has_scale[slot], state.nonfinite[slot], state.amax[slot]};

        memcpy(out, &saved, sizeof(saved));
        out += sizeof(saved);
        /* The newest entry stands before the cursor. */
        for (uint32_t i = 1; i <= entries; i++) {
            memcpy(out, &window[(state.cursor[slot] + entries - i) % entries], sizeof(*window));
            out += sizeof(*window);
        }
    }
    head.checksum = checksum((unsigned char *)buffer + sizeof(head), bytes - sizeof(head));
    memcpy(buffer, &head, sizeof(head));
}

static enum fp8pipe_status check_head(const struct fp8pipe_scaling *scaling, const void *buffer,
                                      size_t bytes)
{
    size_t want = scaling_saved_bytes(scaling);
    struct saved_head head;

    if (bytes != want) {
        return status_fail(FP8PIPE_ESTATE, "bytes = %zu: the state of this scaling has %zu", bytes,
                           want);
    }
    memcpy(&head, buffer, sizeof(head));
    if (head.magic != SAVED_MAGIC || head.version != SAVED_VERSION) {
        return status_fail(FP8PIPE_ESTATE,
                           "magic = %#x, version = %u: a state starts with %#x, version %u",
                           head.magic, head.version, SAVED_MAGIC, SAVED_VERSION);
    }
    if (head.slots != scaling->slots || head.history != scaling->history || head.bytes != want) {
        return status_fail(FP8PIPE_ESTATE,
                           "slots = %u, history = %u, bytes = %llu: the scaling has %u, %u, %zu",
                           head.slots, head.history, (unsigned long long)head.bytes, scaling->slots,
                           scaling->history, want);
    }
    if (head.checksum !=
        checksum((const unsigned char *)buffer + sizeof(head), bytes - sizeof(head))) {
        return status_fail(FP8PIPE_ESTATE,
                           "checksum = %llx: it does not fit the state, which is "
                           "damaged",
                           (unsigned long long)head.checksum);
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status scaling_load_image(const struct fp8pipe_scaling *scaling, const void *buffer,
                                       size_t bytes, void *image)
{
    const unsigned char *in = (const unsigned char *)buffer + sizeof(struct saved_head);
    enum fp8pipe_status status = check_head(scaling, buffer, bytes);
    uint32_t entries = scaling->history - 1;
    struct scaling_state state;

    if (status != FP8PIPE_OK) {
        return status;
    }
    scaling_layout(&state, image, scaling);
    memset(image, 0, state.moving_bytes);
    for (uint32_t slot = 0; slot < scaling->slots; slot++) {
        uint32_t *window = state.window + (size_t)slot * entries;
        struct saved_slot saved;

        memcpy(&saved, in, sizeof(saved));
        in += sizeof(saved);
        if (saved.format != (uint32_t)scaling->formats[slot]) {
            return status_fail(FP8PIPE_ESTATE, "slot %u: format = %u: the scaling's slot has %u",
                               slot, saved.format, (unsigned)scaling->formats[slot]);
        }
        if (!(saved.scale >= FLT_MIN && saved.scale <= FLT_MAX) || (saved.has_scale & ~1) != 0 ||
            (saved.nonfinite & ~1) != 0) {
            return status_fail(FP8PIPE_ESTATE,
                               "slot %u: scale = %g, has_scale = %d, nonfinite = %d: a scale is %g "
                               "to %g, a flag 0 or 1",
                               slot, (double)saved.scale, saved.has_scale, saved.nonfinite,
                               (double)FLT_MIN, (double)FLT_MAX);
        }
        state.scale[(size_t)slot * KERNEL_SCALE_STRIDE] = saved.scale;
        state.has_scale[slot] = saved.has_scale;
        state.nonfinite[slot] = saved.nonfinite;
        *state.any_nonfinite |= saved.nonfinite;
        state.amax[slot] = saved.amax;
        /* Cursor 0: the oldest entry first. */
        for (uint32_t i = 1; i <= entries; i++) {
            memcpy(&window[entries - i], in, sizeof(*window));
            in += sizeof(*window);
        }
    }
    return FP8PIPE_OK;
}
