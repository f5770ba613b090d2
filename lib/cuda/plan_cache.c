#include "plan_cache.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

/*
 * All fields but `used` are written under the cache's lock; hash, key and plan not after `built`,
 * so that a front, whose thread took the lock to get the entry, reads them without it. `used` is
 * only a hint to the clock: set by whoever hits, cleared by the hand, relaxed.
 */
struct plan_entry {
    struct plan_entry *next; /* in its bucket */
    uint64_t hash;
    uint32_t slot;
    uint32_t references; /* the table's, and one for each holder */
    bool built;
    atomic_bool used;
    enum fp8pipe_status status;
    void *plan;
    char *sentence; /* of a failed build */
    uint64_t key[];
};

struct plan_cache {
    struct plan_cache_options options;
    pthread_mutex_t lock;
    pthread_cond_t built; /* an entry was built, or failed to be */
    uint64_t buckets_mask;
    struct plan_entry **buckets;
    struct plan_entry **slots; /* [capacity], the clock's face */
    uint32_t hand;
    uint32_t count;
    uint64_t evicted;
};

static uint64_t key_hash(const void *key, size_t bytes)
{
    uint64_t hash = bytes;

    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, (const char *)key + i, sizeof(word));
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

static bool entry_matches(const struct plan_entry *entry, uint64_t hash, const void *key,
                          size_t key_bytes)
{
    return entry->hash == hash && memcmp(entry->key, key, key_bytes) == 0;
}

static void entry_touch(struct plan_entry *entry)
{
    /* Looked at first: most hits leave the line shared among the streams' threads. */
    if (!atomic_load_explicit(&entry->used, memory_order_relaxed))
        atomic_store_explicit(&entry->used, true, memory_order_relaxed);
}

/* ---- Under the lock ----------------------------------------------------------------------- */

static void entry_put(struct plan_cache *cache, struct plan_entry *entry)
{
    assert(entry->references > 0);
    if (--entry->references > 0)
        return;
    if (entry->plan != NULL)
        cache->options.destroy(cache->options.context, entry->plan);
    free(entry->sentence);
    free(entry);
}

static struct plan_entry **table_find(struct plan_cache *cache, uint64_t hash, const void *key)
{
    struct plan_entry **link = &cache->buckets[hash & cache->buckets_mask];

    while (*link != NULL && !entry_matches(*link, hash, key, cache->options.key_bytes))
        link = &(*link)->next;
    return link;
}

static void table_remove(struct plan_cache *cache, struct plan_entry *entry)
{
    struct plan_entry **link = table_find(cache, entry->hash, entry->key);

    assert(*link == entry && cache->slots[entry->slot] == entry);
    *link = entry->next;
    cache->slots[entry->slot] = NULL;
    cache->count--;
    entry_put(cache, entry);
}

/* Frees a slot and gives it; false if every entry is being built just now. */
static bool table_make_room(struct plan_cache *cache, uint32_t *slot)
{
    const uint32_t capacity = cache->options.capacity;

    /* Twice around: the first pass may only clear marks. */
    for (uint64_t i = 0; i < 2 * (uint64_t)capacity; i++) {
        struct plan_entry *entry = cache->slots[cache->hand];

        *slot = cache->hand;
        cache->hand = cache->hand + 1 == capacity ? 0 : cache->hand + 1;
        if (entry == NULL)
            return true;
        if (cache->count < capacity || !entry->built)
            continue;
        if (atomic_exchange_explicit(&entry->used, false, memory_order_relaxed))
            continue;
        table_remove(cache, entry);
        cache->evicted++;
        return true;
    }
    return false;
}

/* A new entry, being built, held by the table and the caller. NULL when memory runs out. */
static struct plan_entry *table_add(struct plan_cache *cache, uint32_t slot, uint64_t hash,
                                    const void *key)
{
    struct plan_entry *entry = calloc(1, sizeof(*entry) + cache->options.key_bytes);
    struct plan_entry **bucket = &cache->buckets[hash & cache->buckets_mask];

    if (entry == NULL)
        return NULL;
    entry->hash = hash;
    entry->slot = slot;
    entry->references = 2;
    memcpy(entry->key, key, cache->options.key_bytes);
    entry->next = *bucket;
    *bucket = entry;
    cache->slots[slot] = entry;
    cache->count++;
    return entry;
}

/* Builds the caller's new entry, the lock released meanwhile, and tells whoever waits. */
static void entry_build(struct plan_cache *cache, struct plan_entry *entry)
{
    enum fp8pipe_status status;
    void *plan = NULL;

    pthread_mutex_unlock(&cache->lock);
    status = cache->options.build(cache->options.context, entry->key, &plan);
    pthread_mutex_lock(&cache->lock);

    entry->built = true;
    entry->status = status;
    if (status == FP8PIPE_OK) {
        entry->plan = plan;
    } else {
        entry->sentence = strdup(status_sentence());
        table_remove(cache, entry);
    }
    pthread_cond_broadcast(&cache->built);
}

static enum fp8pipe_status cache_get_locked(struct plan_cache *cache, uint64_t hash,
                                            const void *key, struct plan_entry **out)
{
    struct plan_entry *entry;
    enum fp8pipe_status status;
    uint32_t slot;

    for (;;) {
        entry = *table_find(cache, hash, key);
        if (entry != NULL) {
            entry->references++;
            entry_touch(entry);
            while (!entry->built)
                pthread_cond_wait(&cache->built, &cache->lock);
            break;
        }
        if (table_make_room(cache, &slot)) {
            entry = table_add(cache, slot, hash, key);
            if (entry == NULL)
                return status_fail(FP8PIPE_ENOMEM, "plan cache: no host memory for an entry");
            entry_build(cache, entry);
            break;
        }
        pthread_cond_wait(&cache->built, &cache->lock);
    }
    status = entry->status;
    if (status != FP8PIPE_OK) {
        status_fail(status, "%s", entry->sentence != NULL ? entry->sentence : "");
        entry_put(cache, entry);
        return status;
    }
    *out = entry;
    return FP8PIPE_OK;
}

/* ---- The cache ---------------------------------------------------------------------------- */

struct plan_cache *plan_cache_create(const struct plan_cache_options *options)
{
    struct plan_cache *cache = calloc(1, sizeof(*cache));
    uint64_t buckets = 1;

    assert(options->key_bytes % sizeof(uint64_t) == 0 && options->capacity >= 1);
    if (cache == NULL)
        goto fail_cache;
    while (buckets < 2 * (uint64_t)options->capacity)
        buckets *= 2;
    cache->options = *options;
    cache->buckets_mask = buckets - 1;
    cache->buckets = calloc(buckets, sizeof(*cache->buckets));
    if (cache->buckets == NULL)
        goto fail_buckets;
    cache->slots = calloc(options->capacity, sizeof(struct plan_entry *));
    if (cache->slots == NULL)
        goto fail_slots;
    if (pthread_mutex_init(&cache->lock, NULL) != 0)
        goto fail_lock;
    if (pthread_cond_init(&cache->built, NULL) != 0)
        goto fail_built;
    return cache;

fail_built:
    pthread_mutex_destroy(&cache->lock);
fail_lock:
    free(cache->slots);
fail_slots:
    free(cache->buckets);
fail_buckets:
    free(cache);
fail_cache:
    return NULL;
}

void plan_cache_destroy(struct plan_cache *cache)
{
    if (cache == NULL)
        return;
    for (uint32_t i = 0; i < cache->options.capacity; i++)
        if (cache->slots[i] != NULL) {
            assert(cache->slots[i]->references == 1);
            table_remove(cache, cache->slots[i]);
        }
    pthread_cond_destroy(&cache->built);
    pthread_mutex_destroy(&cache->lock);
    free(cache->slots);
    free(cache->buckets);
    free(cache);
}

enum fp8pipe_status plan_cache_get(struct plan_cache *cache, const void *key,
                                   struct plan_entry **entry)
{
    const uint64_t hash = key_hash(key, cache->options.key_bytes);
    enum fp8pipe_status status;

    pthread_mutex_lock(&cache->lock);
    status = cache_get_locked(cache, hash, key, entry);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void plan_cache_put(struct plan_cache *cache, struct plan_entry *entry)
{
    pthread_mutex_lock(&cache->lock);
    entry_put(cache, entry);
    pthread_mutex_unlock(&cache->lock);
}

void *plan_entry_plan(const struct plan_entry *entry)
{
    return entry->plan;
}

void plan_cache_stats_get(struct plan_cache *cache, struct plan_cache_stats *stats)
{
    pthread_mutex_lock(&cache->lock);
    stats->cached = cache->count;
    stats->evicted = cache->evicted;
    pthread_mutex_unlock(&cache->lock);
}

/* ---- Fronts ------------------------------------------------------------------------------- */

enum fp8pipe_status plan_front_get(struct plan_front *front, struct plan_cache *cache,
                                   const void *key, void **plan)
{
    const uint64_t hash = key_hash(key, cache->options.key_bytes);
    struct plan_entry **slot = &front->slots[hash % PLAN_FRONT_SLOTS];
    struct plan_entry *entry = *slot;
    enum fp8pipe_status status;

    if (entry != NULL && entry_matches(entry, hash, key, cache->options.key_bytes)) {
        entry_touch(entry);
        *plan = entry->plan;
        return FP8PIPE_OK;
    }
    pthread_mutex_lock(&cache->lock);
    status = cache_get_locked(cache, hash, key, &entry);
    if (status == FP8PIPE_OK) {
        if (*slot != NULL)
            entry_put(cache, *slot);
        *slot = entry;
        *plan = entry->plan;
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void plan_front_clear(struct plan_front *front, struct plan_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    for (int i = 0; i < PLAN_FRONT_SLOTS; i++)
        if (front->slots[i] != NULL) {
            entry_put(cache, front->slots[i]);
            front->slots[i] = NULL;
        }
    pthread_mutex_unlock(&cache->lock);
}
