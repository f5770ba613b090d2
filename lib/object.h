/*
 * What scalings, linears, tensors and optimizers have in common: the pipe that they belong to, a
 * spin word that orders submits on them, and for each lane the last op that used them.
 *
 * The words are the only lock on the caller's path (but for a look at the failure records of a lane
 * that has any, for a ticket that is done). A submit takes those of all objects it touches
 * in address order, claims its ring position, changes the objects and publishes, then drops them;
 * it never holds one while it parks. Everything in an object that submits read or change is
 * protected by its word; so is `closed`, which close sets when it frees the object's device memory.
 */
#ifndef LIB_OBJECT_H
#define LIB_OBJECT_H

#include <ck_spinlock.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"

enum object_kind { OBJECT_SCALING, OBJECT_LINEAR, OBJECT_TENSOR, OBJECT_OPTIMIZER };

/* Lanes whose uses lie in the object itself. */
#define OBJECT_OWN_LANES 2

/* One cache line, which every submit on the object writes; launchers read what lies behind it. */
struct object {
    ck_spinlock_fas_t word;
    bool closed;
    uint8_t kind; /* enum object_kind */
    struct fp8pipe *pipe;
    uint64_t *uses; /* for each lane, position + 1 of the last op that used it; 0: none */
    uint64_t own_uses[OBJECT_OWN_LANES];
    struct object *previous; /* in the pipe's list, under its mutex */
    struct object *next;
} __attribute__((aligned(64)));

/* uses: lanes entries, zeroed here; not used, and may be NULL, where the object has its own. */
void object_init(struct object *object, enum object_kind kind, struct fp8pipe *pipe, uint64_t *uses,
                 uint32_t lanes);

/* Zeroed memory of `bytes`, which start with a struct object, initialised; freed with free(). NULL:
 * there is none. */
void *object_new(enum object_kind kind, struct fp8pipe *pipe, size_t bytes, uint32_t lanes);

void object_lock_contended(struct object *object);

static inline void object_lock(struct object *object)
{
    if (!ck_spinlock_fas_trylock(&object->word)) {
        object_lock_contended(object);
    }
}

static inline void object_unlock(struct object *object)
{
    ck_spinlock_fas_unlock(&object->word);
}

/* Puts an object into a set that is in address order, unless it is there; the new count. */
static inline uint32_t object_set_add(struct object **objects, uint32_t count,
                                      struct object *object)
{
    uint32_t at = count;

    while (at > 0 && (uintptr_t)objects[at - 1] > (uintptr_t)object) {
        at--;
    }
    if (at > 0 && objects[at - 1] == object) {
        return count;
    }
    for (uint32_t i = count; i > at; i--) {
        objects[i] = objects[i - 1];
    }
    objects[at] = object;
    return count + 1;
}

static inline void object_set_unlock(struct object **objects, uint32_t count)
{
    while (count > 0) {
        object_unlock(objects[--count]);
    }
}

#endif
