/* Guards objects: a set of them is locked in one order without repetitions, and its locks
 * exclude. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "numbers.h"
#include "object.h"
#include "tap.h"

#define OBJECTS 6
#define THREADS 4
#define ROUNDS 20000
#define HANG_S 60

static void order(void)
{
    static struct object objects[OBJECTS];
    struct test_rng rng = {1};
    int unordered = 0, incomplete = 0;

    for (int round = 0; round < ROUNDS; round++) {
        int64_t tries = test_random_range(&rng, 0, 2 * OBJECTS);
        struct object *set[OBJECTS];
        bool in[OBJECTS] = {false};
        uint32_t count = 0, kept = 0;

        while (tries-- > 0) {
            int64_t which = test_random_range(&rng, 0, OBJECTS - 1);

            count = object_set_add(set, count, &objects[which]);
            in[which] = true;
        }
        for (uint32_t i = 0; i < count; i++) {
            unordered += i > 0 && (uintptr_t)set[i - 1] >= (uintptr_t)set[i];
            incomplete += !in[set[i] - objects];
        }
        for (int i = 0; i < OBJECTS; i++) {
            kept += in[i];
        }
        incomplete += count != kept;
    }
    is_int(incomplete, 0, "a set has what was put into it, each object once");
    is_int(unordered, 0, "in the order of their addresses");
}

static void made(void)
{
    uint64_t uses[OBJECT_OWN_LANES + 2];
    struct object object;
    int used = 0;

    memset(&object, 0xff, sizeof(object));
    memset(uses, 7, sizeof(uses));
    object_init(&object, OBJECT_TENSOR, NULL, uses, OBJECT_OWN_LANES + 1);
    ok(!object.closed && object.kind == OBJECT_TENSOR && object.uses == uses,
       "a new object is open");
    for (int i = 0; i <= OBJECT_OWN_LANES; i++) {
        used += uses[i] != 0;
    }
    is_int(used, 0, "and unused by every lane");
    ok(uses[OBJECT_OWN_LANES + 1] != 0, "and by no more lanes than there are");
    object_lock(&object);
    object_unlock(&object);
    pass("and free");
}

static void allocated(void)
{
    int wrong = 0;

    for (uint32_t lanes = 1; lanes <= 9; lanes++) {
        size_t bytes = sizeof(struct object) + 8 * lanes;
        struct object *object = object_new(OBJECT_LINEAR, NULL, bytes, lanes);
        char *end = (char *)object + bytes;

        if (object == NULL) {
            bail("object_new");
        }
        wrong += (uintptr_t)object % 64 != 0 || object->kind != OBJECT_LINEAR;
        for (char *byte = (char *)(object + 1); byte < end; byte++) {
            wrong += *byte != 0;
            *byte = 1;
        }
        for (uint32_t lane = 0; lane < lanes; lane++) {
            wrong += object->uses[lane] != 0;
            object->uses[lane] = lane + 1;
        }
        wrong += object->pipe != NULL || object->next != NULL || object->previous != NULL;
        for (char *byte = (char *)(object + 1); byte < end; byte++) {
            wrong += *byte != 1;
        }
        free(object);
    }
    is_int(wrong, 0, "one with memory behind it: zeroed, aligned, apart from its uses");
}

/* `count` is not atomic: the object's word alone protects it. */
struct counted {
    struct object object;
    uint64_t count;
};

static struct counted counted[OBJECTS];

struct counter {
    pthread_t thread;
    uint64_t seed;
    uint64_t added[OBJECTS];
};

static void *count_up(void *arg)
{
    struct counter *counter = arg;
    struct test_rng rng = {counter->seed};

    for (int round = 0; round < ROUNDS; round++) {
        struct object *set[3];
        uint32_t held = 0;

        for (int i = 0; i < 3; i++) {
            held =
                object_set_add(set, held, &counted[test_random_range(&rng, 0, OBJECTS - 1)].object);
        }
        for (uint32_t i = 0; i < held; i++) {
            object_lock(set[i]);
        }
        for (uint32_t i = 0; i < held; i++) {
            struct counted *one = (struct counted *)(void *)set[i];

            one->count++;
            counter->added[one - counted]++;
        }
        object_set_unlock(set, held);
    }
    return NULL;
}

static void exclude(void)
{
    static struct counter counters[THREADS];
    int wrong = 0;

    for (int i = 0; i < OBJECTS; i++) {
        object_init(&counted[i].object, OBJECT_SCALING, NULL, NULL, 1);
    }
    for (int i = 0; i < THREADS; i++) {
        counters[i].seed = (uint64_t)i;
        if (pthread_create(&counters[i].thread, NULL, count_up, &counters[i]) != 0) {
            bail("pthread_create");
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(counters[i].thread, NULL);
    }
    for (int i = 0; i < OBJECTS; i++) {
        uint64_t added = 0;

        for (int j = 0; j < THREADS; j++) {
            added += counters[j].added[i];
        }
        wrong += counted[i].count != added;
    }
    is_int(wrong, 0,
           "%d threads that lock sets of %d objects lose no update, and none waits for ever",
           THREADS, OBJECTS);
}

int main(void)
{
    alarm(HANG_S); /* whatever waits for ever ends the program */
    order();
    made();
    allocated();
    exclude();
    return done_testing();
}
