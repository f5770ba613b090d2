#include "reference_scaling.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

struct reference_scaling reference_scaling_make(const struct fp8pipe_scaling_options *options)
{
    struct reference_scaling scaling = {.slots = options->slots,
                                        .history = options->history,
                                        .algorithm = options->amax,
                                        .margin = options->margin};

    scaling.slot = test_calloc(options->slots, sizeof(*scaling.slot));
    for (uint32_t i = 0; i < options->slots; i++) {
        struct reference_slot *slot = &scaling.slot[i];
        int role = options->roles ? options->roles[i] : (int)(i % 3);
        bool e5m2 = options->recipe == FP8PIPE_HYBRID && role == FP8PIPE_ROLE_DY;

        slot->format = e5m2 ? FP8PIPE_E5M2 : FP8PIPE_E4M3;
        slot->has_scale = options->initial_scale > 0;
        slot->scale = options->initial_scale;
        slot->history = test_calloc(options->history, sizeof(*slot->history));
    }
    return scaling;
}

struct reference_scaling reference_scaling_copy(const struct reference_scaling *scaling)
{
    struct reference_scaling copy = *scaling;

    copy.slot = test_calloc(copy.slots, sizeof(*copy.slot));
    for (uint32_t i = 0; i < copy.slots; i++) {
        copy.slot[i] = scaling->slot[i];
        copy.slot[i].history = test_calloc(copy.history, sizeof(*copy.slot[i].history));
        memcpy(copy.slot[i].history, scaling->slot[i].history,
               copy.history * sizeof(*copy.slot[i].history));
    }
    return copy;
}

void reference_scaling_free(struct reference_scaling *scaling)
{
    for (uint32_t i = 0; i < scaling->slots; i++)
        free(scaling->slot[i].history);
    free(scaling->slot);
    memset(scaling, 0, sizeof(*scaling));
}

/* (fp8_max * 2^-margin) / amax in float32. Both operands are floats already: the numerator is 7
 * bits times a power of two. */
static float quotient(const struct reference_scaling *scaling, const struct reference_slot *slot,
                      float amax)
{
    float numerator = (float)ldexp(test_fp8_max(slot->format), -scaling->margin);
    float scale = numerator / amax;

    return fminf(fmaxf(scale, FLT_MIN), FLT_MAX);
}

float reference_scaling_scale(const struct reference_scaling *scaling, uint32_t slot,
                              uint32_t own_amax_bits)
{
    const struct reference_slot *s = &scaling->slot[slot];
    float own_amax = test_float_from_bits(own_amax_bits);

    if (s->has_scale)
        return s->scale;
    if (own_amax == 0 || !isfinite(own_amax))
        return 1;
    return quotient(scaling, s, own_amax);
}

void reference_scaling_fold(struct reference_scaling *scaling, uint32_t slot, uint32_t amax_bits)
{
    uint32_t *current = &scaling->slot[slot].history[0];

    if (amax_bits > *current)
        *current = amax_bits;
}

static void update_slot(const struct reference_scaling *scaling, struct reference_slot *slot)
{
    float last = test_float_from_bits(slot->history[0]);
    float amax = last;

    slot->nonfinite = !isfinite(last);
    if (last == 0)
        return;
    if (!isfinite(last)) {
        slot->history[0] = 0;
        return;
    }
    if (scaling->algorithm == FP8PIPE_AMAX_MAX)
        for (uint32_t i = 1; i < scaling->history; i++)
            amax = fmaxf(amax, test_float_from_bits(slot->history[i]));
    slot->scale = quotient(scaling, slot, amax);
    slot->has_scale = true;
    for (uint32_t i = scaling->history - 1; i > 0; i--)
        slot->history[i] = slot->history[i - 1];
    slot->history[0] = 0;
}

void reference_scaling_update(struct reference_scaling *scaling)
{
    for (uint32_t i = 0; i < scaling->slots; i++)
        update_slot(scaling, &scaling->slot[i]);
}

void reference_scaling_skip(struct reference_scaling *scaling)
{
    for (uint32_t i = 0; i < scaling->slots; i++)
        scaling->slot[i].history[0] = 0;
}

bool reference_scaling_nonfinite(const struct reference_scaling *scaling)
{
    for (uint32_t i = 0; i < scaling->slots; i++)
        if (scaling->slot[i].nonfinite)
            return true;
    return false;
}
