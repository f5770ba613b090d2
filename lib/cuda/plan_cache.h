/*
 * Owns plans by key: a bounded table shared by all streams of a backend, and for each stream a
 * small front, so that a hit takes no lock.
 *
 * Promises: a key is built by one thread at a time, the others that want it wait for that build; a
 * build that fails is not kept, and all who waited for it get its status and sentence; a full table
 * evicts an entry that was not hit since the clock's hand last passed it; an evicted entry lives
 * until its last holder lets it go. Entries never change once built.
 *
 * Knows nothing of what a plan is. Any thread may call it; a front is used by one thread at a time.
 */
#ifndef LIB_CUDA_PLAN_CACHE_H
#define LIB_CUDA_PLAN_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"

struct plan_cache;
struct plan_entry;

/* Makes the plan of a key. Runs without the cache's lock; records its failures (lib/status.h). */
typedef enum fp8pipe_status plan_build_fn(void *context, const void *key, void **plan);
/* Runs under the cache's lock: may not call the cache. */
typedef void plan_destroy_fn(void *context, void *plan);

struct plan_cache_options {
    size_t key_bytes;  /* a multiple of 8; keys are compared byte by byte */
    uint32_t capacity; /* entries in the table, >= 1 */
    plan_build_fn *build;
    plan_destroy_fn *destroy;
    void *context;
};

struct plan_cache_stats {
    uint64_t cached;  /* entries in the table, those being built too */
    uint64_t evicted; /* since create */
};

/* NULL when memory runs out. destroy takes NULL; all entries are put and all fronts cleared. */
struct plan_cache *plan_cache_create(const struct plan_cache_options *options);
void plan_cache_destroy(struct plan_cache *cache);

/* The entry of the key, held until it is put. Blocks while the plan is built. */
enum fp8pipe_status plan_cache_get(struct plan_cache *cache, const void *key,
                                   struct plan_entry **entry);
void plan_cache_put(struct plan_cache *cache, struct plan_entry *entry);
void *plan_entry_plan(const struct plan_entry *entry);

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
