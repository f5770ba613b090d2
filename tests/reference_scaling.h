/*
 * Delayed scaling once more, written from the text of its contract alone (doc/design.md), on the
 * host, one slot at a time and with a history that is an array shifted by hand. The tests compare
 * the library with it, bit for bit. Knows nothing of the library but its enums.
 */
#ifndef TESTS_REFERENCE_SCALING_H
#define TESTS_REFERENCE_SCALING_H

#include <stdbool.h>
#include <stdint.h>

#include "fp8pipe.h"

struct reference_slot {
    enum fp8pipe_format format;
    bool has_scale;
    bool nonfinite;    /* of the last update */
    float scale;       /* meaningful with has_scale */
    uint32_t *history; /* bits of |amax|; [0]: this step, [i]: i steps ago */
};

struct reference_scaling {
    uint32_t slots;
    uint32_t history;
    enum fp8pipe_amax algorithm;
    int32_t margin;
    struct reference_slot *slot;
};

/* roles as in fp8pipe_scaling_options: NULL: slot i has role i % 3. */
struct reference_scaling reference_scaling_make(const struct fp8pipe_scaling_options *options);
/* A copy of its own: a state saved. */
struct reference_scaling reference_scaling_copy(const struct reference_scaling *scaling);
void reference_scaling_free(struct reference_scaling *scaling);

/* The scale that a quantize of values whose amax has these bits would use now. */
float reference_scaling_scale(const struct reference_scaling *scaling, uint32_t slot,
                              uint32_t own_amax_bits);
/* Folds a tensor's amax. */
void reference_scaling_fold(struct reference_scaling *scaling, uint32_t slot, uint32_t amax_bits);
void reference_scaling_update(struct reference_scaling *scaling);
void reference_scaling_skip(struct reference_scaling *scaling);
/* Any slot's nonfinite. */
bool reference_scaling_nonfinite(const struct reference_scaling *scaling);

#endif
