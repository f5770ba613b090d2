/*
 * Owns plans by key: a bounded table shared by all streams of a backend, and for each stream a
 * small front, so that a hit takes no lock.
 *
 * Promises: a key is built by one thread at a time, the others that want it wait for that build; a
 * build that fails is not kept, and all who waited for it get its status and sentence; a full table
 * evicts an entry that was not hit since the clock's hand last passed it; an evicted entry lives
 * until its last holder lets it go. Entries never change once built: a plan that takes the place of
 * another does so in an entry of its own, which the fronts come to at their next hit.
 *
 * Knows nothing of what a plan is. Any thread may call it; a front is used by one thread at a time.
 */
#ifndef LIB_CUDA_PLAN_CACHE_H
#define LIB_CUDA_PLAN_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"

struct plan_cache;
struct plan_entry;

/* The ways in which keys are alike: a key is in one family of each kind. */
#define PLAN_FAMILIES 2

/*
 * Makes the plan of a key. Runs without the cache's lock; records its failures (lib/status.h).
 * *provisional: whether plan_cache_refine may replace it; false unless set.
 */
typedef enum fp8pipe_status plan_build_fn(void *context, const void *key, void **plan,
                                          bool *provisional);
/* Runs under the cache's lock: may not call the cache. */
typedef void plan_destroy_fn(void *context, void *plan);
/* A number that all keys of a family have. */
typedef uint64_t plan_family_fn(const void *key, int family);
/* How far a key is from that of a built plan; UINT64_MAX: no neighbours, or not one to borrow. */
typedef uint64_t plan_distance_fn(const void *key, const void *other, const void *other_plan,
                                  int family);

struct plan_cache_options {
    size_t key_bytes;  /* a multiple of 16; keys are compared byte by byte */
    uint32_t capacity; /* entries in the table, >= 1 */
    plan_build_fn *build;
    plan_destroy_fn *destroy;
    void *context;
    plan_family_fn *family; /* NULL, and distance too: no neighbours */
    plan_distance_fn *distance;
};

struct plan_cache_stats {
    uint64_t cached;   /* entries in the table, those being built too */
    uint64_t evicted;  /* since create, as those that follow */
    uint64_t borrowed; /* built provisionally */
    uint64_t refined;  /* of those, replaced by plan_cache_refine */
};

/* NULL when memory runs out. destroy takes NULL; all entries are put and all fronts cleared. */
struct plan_cache *plan_cache_create(const struct plan_cache_options *options);
void plan_cache_destroy(struct plan_cache *cache);

/* Mixes the bytes of a key, or of what a family has in common; a multiple of 16. */
uint64_t plan_cache_hash(const void *key, size_t bytes);

/* The entry of the key, held until it is put. Blocks while the plan is built. */
enum fp8pipe_status plan_cache_get(struct plan_cache *cache, const void *key,
                                   struct plan_entry **entry);
void plan_cache_put(struct plan_cache *cache, struct plan_entry *entry);
void *plan_entry_plan(const struct plan_entry *entry);

/*
 * The nearest of the key's neighbours, of the first family that has one, held; NULL: there is none.
 * Looks at the newest PLAN_NEIGHBOURS_MAX of a family. May be called by a build.
 */
#define PLAN_NEIGHBOURS_MAX 256
struct plan_entry *plan_cache_nearest(struct plan_cache *cache, const void *key);

/* Whether the key has a provisional plan, being built or built. */
bool plan_cache_is_provisional(struct plan_cache *cache, const void *key);

/* Gives a key that has a provisional plan its own one; if it has none, or none any more, destroys
 * `plan` and returns false. Not from a build. */
bool plan_cache_refine(struct plan_cache *cache, const void *key, void *plan);

/* Gives a key a plan, whatever it has; destroys `plan` when memory runs out. Not from a build. */
enum fp8pipe_status plan_cache_set(struct plan_cache *cache, const void *key, void *plan);

/* Copies the keys of at most `max` built plans to `keys`; returns how many. */
uint32_t plan_cache_keys(struct plan_cache *cache, void *keys, uint32_t max);

void plan_cache_stats_get(struct plan_cache *cache, struct plan_cache_stats *stats);

/* Direct-mapped; holds the entries in it. All zero: empty. */
#define PLAN_FRONT_SLOTS 128
struct plan_front {
    struct plan_entry *slots[PLAN_FRONT_SLOTS];
};

/* The plan of the key, valid until the front's next call. */
enum fp8pipe_status plan_front_get(struct plan_front *front, struct plan_cache *cache,
                                   const void *key, void **plan);
void plan_front_clear(struct plan_front *front, struct plan_cache *cache);

#endif
