#include "object.h"

#include <ck_pr.h>
#include <sched.h>
#include <string.h>

/* Looks at a taken word before its holder is taken for preempted and the CPU is offered to it. */
#define OBJECT_SPINS 200

void object_init(struct object *object, enum object_kind kind, struct fp8pipe *pipe, uint64_t *uses,
                 uint32_t lanes)
{
    memset(object, 0, sizeof(*object));
    ck_spinlock_fas_init(&object->word);
    object->kind = kind;
    object->pipe = pipe;
    object->uses = uses;
    memset(uses, 0, lanes * sizeof(*uses));
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
