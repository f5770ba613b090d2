#include "object.h"

#include <ck_pr.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Looks at a taken word before its holder is taken for preempted and the CPU is offered to it. */
#define OBJECT_SPINS 200

void object_init(struct object *object, enum object_kind kind, struct fp8pipe *pipe, uint64_t *uses,
                 uint32_t lanes)
{
    memset(object, 0, sizeof(*object));
    ck_spinlock_fas_init(&object->word);
    object->kind = (uint8_t)kind;
    object->pipe = pipe;
    object->uses = object->own_uses;
    if (lanes > OBJECT_OWN_LANES) {
        object->uses = uses;
        memset(uses, 0, lanes * sizeof(*uses));
    }
}

void *object_new(enum object_kind kind, struct fp8pipe *pipe, size_t bytes, uint32_t lanes)
{
    size_t uses_at = (bytes + 63) / 64 * 64;
    size_t uses_bytes = lanes > OBJECT_OWN_LANES ? (lanes * sizeof(uint64_t) + 63) / 64 * 64 : 0;
    char *object = aligned_alloc(64, uses_at + uses_bytes);

    if (object != NULL) {
        memset(object, 0, uses_at);
        object_init((struct object *)(void *)object, kind, pipe,
                    (uint64_t *)(void *)(object + uses_at), lanes);
    }
    return object;
}

void object_lock_contended(struct object *object)
{
    uint32_t spins = 0;

    do {
        while (ck_spinlock_fas_locked(&object->word)) {
            ck_pr_stall();
            if (++spins == OBJECT_SPINS) {
                sched_yield();
                spins = 0;
            }
        }
    } while (!ck_spinlock_fas_trylock(&object->word));
}
