/*
 * Recipes, amax history, scale update, save and restore.
 *
 * The device state of all slots is one block of arrays (struct scaling_state), initialised at
 * create and freed with the scaling or its pipe. On the device it is read and written in the stream
 * order that submits build: a writer (update, skip, save, load) after every user before it, a user
 * after the last writer.
 *
 *   writer, users   the last writer's ticket and each lane's last user since: under the word, at
 *                   submit.
 *   scaled          an update or a load was submitted, or the slots began with a scale: under the
 *                   word, at submit. What a GEMM quantizes itself is scaled by its slot from then
 *                   on, whatever is on the device by now.
 *   known           what the host knows of each slot: that its scale is set, so that no pass for a
 *                   tensor's own amax is launched; or that a quantize has asked for that and it was
 *                   not known. Under `lock`, by launchers; that a slot is seen is read without, for
 *                   only a load takes it back, which is issued after all users before it and before
 *                   all behind it.
 *   unseen          how many slots are asked for: as long as there are, updates copy the device's
 *                   flags. Slots that nothing quantizes, dY's in inference, are not waited for.
 */
#ifndef LIB_SCALING_H
#define LIB_SCALING_H

#include <pthread.h>

#include "fp8pipe_fused.h"
#include "issue.h"
#include "object.h"

/* Device arrays, all in one block at `data`. */
struct scaling_state {
    unsigned char *data;
    size_t bytes;
    size_t moving_bytes; /* in front: what loads write, up to the window */
    size_t image_bytes;  /* in front: what saves and slot_get read, extremes too */
    float *scale;        /* of slot i at i * KERNEL_SCALE_STRIDE */
    int32_t *has_scale;
    uint32_t *amax;
    uint32_t *window;
    uint32_t *cursor;
    int32_t *nonfinite;
    int32_t *any_nonfinite;
    uint64_t *extremes; /* [slots][2]: saturated, flushed; NULL: not counted */
    float *numerator;
    uint32_t *scratch;
};

enum scaling_known { SCALING_UNASKED, SCALING_ASKED, SCALING_SEEN };

/* The words of one slot, read without the others: `slot` is given, the rest is of the device. */
struct scaling_slot {
    uint32_t slot;
    float scale;
    int32_t has_scale;
    uint32_t amax;
    int32_t nonfinite;
    uint64_t extremes[2]; /* left alone where they are not counted */
};

struct fp8pipe_scaling {
    struct object object;
    /* The submits' alone: under the word. */
    fp8pipe_ticket writer;
    fp8pipe_ticket *users; /* [lanes] */
    fp8pipe_ticket own_users[OBJECT_OWN_LANES];
    uint32_t linears; /* that name it */
    bool scaled;
    /* Read-only: cache lines that submits and launchers share. */
    uint8_t *formats __attribute__((aligned(64))); /* [slots]: enum fp8pipe_format */
    uint32_t slots;
    uint32_t history;
    enum fp8pipe_recipe recipe;
    enum fp8pipe_amax algorithm;
    int32_t margin;
    bool count_extremes;
    struct scaling_state state;

    pthread_mutex_t lock __attribute__((aligned(64)));
    uint32_t unseen;
    uint8_t *known;               /* [slots]: enum scaling_known */
    int32_t *shadow;              /* pinned copy of has_scale, written in stream order */
    fp8pipe_ticket shadow_ticket; /* the op that copies it, 0: none since the last look */
};

/* The largest finite value of a format, times 2^-margin: what a scale is of amax. */
float scaling_numerator(enum fp8pipe_format format, int32_t margin);

/* Lays the arrays out in memory at `data` (NULL: only sizes). */
void scaling_layout(struct scaling_state *state, unsigned char *data,
                    const struct fp8pipe_scaling *scaling);

/* Whether the host knows that a slot has a scale. By launchers. */
bool scaling_slot_seen(struct fp8pipe_scaling *scaling, uint32_t slot, struct issue *issue);

/* How one quantize of a slot finds its scale, and what it reports: fills format, numerator, scale,
 * has_scale, extremes and, if `fold`, amax. own_amax is set, and the word zeroed, where the
 * tensor's own amax may be needed: the caller launches the pass for it. */
enum fp8pipe_status scaling_target(struct fp8pipe_scaling *scaling, uint32_t slot, bool fold,
                                   struct issue *issue, struct fp8pipe_quantize_target *target);

/* skip_if: NULL, or a device word that, if not 0, makes it a skip. */
enum fp8pipe_status scaling_update(struct fp8pipe_scaling *scaling, const int32_t *skip_if,
                                   struct issue *issue, fp8pipe_ticket ticket);
enum fp8pipe_status scaling_skip(struct fp8pipe_scaling *scaling, struct issue *issue);
/* Copies the device state to a pinned image of image_bytes, its first moving_bytes back. */
enum fp8pipe_status scaling_read(struct fp8pipe_scaling *scaling, void *image, struct issue *issue);
enum fp8pipe_status scaling_write(struct fp8pipe_scaling *scaling, const void *image,
                                  struct issue *issue);

/* Copies one slot's words to a pinned image. */
enum fp8pipe_status scaling_read_slot(struct fp8pipe_scaling *scaling, struct scaling_slot *image,
                                      struct issue *issue);

/* The saved form of a state, independent of the ring's cursor: size, writing from an image, and
 * reading into one (ESTATE; the image is then undefined). */
size_t scaling_saved_bytes(const struct fp8pipe_scaling *scaling);
void scaling_save_image(const struct fp8pipe_scaling *scaling, const void *image, void *buffer);
enum fp8pipe_status scaling_load_image(const struct fp8pipe_scaling *scaling, const void *buffer,
                                       size_t bytes, void *image);

#endif
