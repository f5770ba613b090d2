#include "plan_cache.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

/*
 * All fields but `used` and `replaced` are written under the cache's lock; hash, key and plan not
 * after `built`, so that a front, whose thread took the lock to get the entry, reads them without
 * it. `used` is only a hint to the clock: set by whoever hits, cleared by the hand, relaxed.
 * `replaced` is set once, under the lock, when another entry has the key; a front that sees it
 * takes the lock, which orders the rest, and one that sees it late runs the older plan once more.
 */
struct plan_entry {
    struct plan_entry *next; /* in its bucket */
    struct plan_kin {
        struct plan_entry *next;
        struct plan_entry **link; /* what points here */
        uint64_t family;
    } kin[PLAN_FAMILIES];
    uint32_t slot;
    uint32_t references; /* the table's, and one for each holder */
    bool built;
    bool provisional;
    enum fp8pipe_status status;
    char *sentence; /* of a failed build */
    /* What a hit reads. */
    atomic_bool used;
    atomic_bool replaced;
    uint64_t hash;
    void *plan;
    uint64_t key[];
};

struct plan_cache {
    struct plan_cache_options options;
    pthread_mutex_t lock;
    pthread_cond_t built; /* an entry was built, or failed to be */
    uint64_t buckets_mask;
    struct plan_entry **buckets;
    struct plan_entry **families[PLAN_FAMILIES]; /* buckets too; newest first */
    struct plan_entry **slots;                   /* [capacity], the clock's face */
    uint32_t hand;
    struct plan_cache_stats stats;
};

/* Two words at a time, and no pair waits for another: the hash is part of every hit. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    const unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t key_hash(const void *key, size_t bytes)
{
    uint64_t hash = bytes;

    for (size_t i = 0; i < bytes; i += 2 * sizeof(uint64_t)) {
        uint64_t word[2];

        memcpy(word, (const char *)key + i, sizeof(word));
        /* Another odd number for each pair, or pairs could change places unseen. */
        hash += fold(word[0] ^ (UINT64_C(0x9e3779b97f4a7c15) + 2 * i),
                     word[1] ^ (UINT64_C(0xd6e8feb86659fd93) + 2 * i));
    }
    return fold(hash, UINT64_C(0xa0761d6478bd642f));
}

uint64_t plan_cache_hash(const void *key, size_t bytes)
{
    return key_hash(key, bytes);
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

static void family_add(struct plan_cache *cache, struct plan_entry *entry)
{
    for (int i = 0; cache->options.family != NULL && i < PLAN_FAMILIES; i++) {
        struct plan_kin *kin = &entry->kin[i];

        kin->family = cache->options.family(entry->key, i);
        kin->link = &cache->families[i][kin->family & cache->buckets_mask];
        kin->next = *kin->link;
        if (kin->next != NULL)
            kin->next->kin[i].link = &kin->next;
        *kin->link = entry;
    }
}

static void family_remove(struct plan_cache *cache, struct plan_entry *entry)
{
    for (int i = 0; cache->options.family != NULL && i < PLAN_FAMILIES; i++) {
        struct plan_kin *kin = &entry->kin[i];

        *kin->link = kin->next;
        if (kin->next != NULL)
            kin->next->kin[i].link = kin->link;
    }
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
    family_remove(cache, entry);
    cache->slots[entry->slot] = NULL;
    cache->stats.cached--;
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
        if (cache->stats.cached < capacity || !entry->built)
            continue;
        if (atomic_exchange_explicit(&entry->used, false, memory_order_relaxed))
            continue;
        table_remove(cache, entry);
        cache->stats.evicted++;
        return true;
    }
    return false;
}

/* A new entry, being built, held by the table. NULL when memory runs out. */
static struct plan_entry *table_add(struct plan_cache *cache, uint32_t slot, uint64_t hash,
                                    const void *key)
{
    struct plan_entry *entry = calloc(1, sizeof(*entry) + cache->options.key_bytes);
    struct plan_entry **bucket = &cache->buckets[hash & cache->buckets_mask];

    if (entry == NULL)
        return NULL;
    entry->hash = hash;
    entry->slot = slot;
    entry->references = 1;
    memcpy(entry->key, key, cache->options.key_bytes);
    entry->next = *bucket;
    *bucket = entry;
    family_add(cache, entry);
    cache->slots[slot] = entry;
    cache->stats.cached++;
    return entry;
}

/* The entry of the key, built, or NULL; waits while it is being built. */
static struct plan_entry *table_find_built(struct plan_cache *cache, uint64_t hash, const void *key)
{
    struct plan_entry *entry;

    while ((entry = *table_find(cache, hash, key)) != NULL && !entry->built)
        pthread_cond_wait(&cache->built, &cache->lock);
    return entry;
}

/* Puts a built plan into the table, in the place of the key's entry, if it has one. */
static bool table_replace(struct plan_cache *cache, struct plan_entry *before, uint32_t slot,
                          uint64_t hash, const void *key, void *plan)
{
    struct plan_entry *entry;

    if (before != NULL) {
        slot = before->slot;
        before->references++;
        table_remove(cache, before);
    }
    entry = table_add(cache, slot, hash, key);
    if (entry != NULL) {
        entry->built = true;
        entry->plan = plan;
    } else {
        cache->options.destroy(cache->options.context, plan);
    }
    if (before != NULL) {
        atomic_store_explicit(&before->replaced, true, memory_order_relaxed);
        entry_put(cache, before);
    }
    return entry != NULL;
}

/* Builds a new entry, the lock released meanwhile, and tells whoever waits. */
static void entry_build(struct plan_cache *cache, struct plan_entry *entry)
{
    enum fp8pipe_status status;
    bool provisional = false;
    void *plan = NULL;

    pthread_mutex_unlock(&cache->lock);
    status = cache->options.build(cache->options.context, entry->key, &plan, &provisional);
    pthread_mutex_lock(&cache->lock);

    entry->built = true;
    entry->status = status;
    if (status == FP8PIPE_OK) {
        entry->plan = plan;
        entry->provisional = provisional;
        cache->stats.borrowed += provisional;
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
            entry->references++;
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

    assert(options->key_bytes % (2 * sizeof(uint64_t)) == 0 && options->capacity >= 1);
    if (cache == NULL)
        goto fail_cache;
    while (buckets < 2 * (uint64_t)options->capacity)
        buckets *= 2;
    cache->options = *options;
    cache->buckets_mask = buckets - 1;
    cache->buckets = calloc(buckets, sizeof(*cache->buckets));
    if (cache->buckets == NULL)
        goto fail_buckets;
    for (int i = 0; options->family != NULL && i < PLAN_FAMILIES; i++) {
        cache->families[i] = calloc(buckets, sizeof(struct plan_entry *));
        if (cache->families[i] == NULL)
            goto fail_families;
    }
    cache->slots = calloc(options->capacity, sizeof(struct plan_entry *));
    if (cache->slots == NULL)
        goto fail_families;
    if (pthread_mutex_init(&cache->lock, NULL) != 0)
        goto fail_lock;
    if (pthread_cond_init(&cache->built, NULL) != 0)
        goto fail_built;
    return cache;

fail_built:
    pthread_mutex_destroy(&cache->lock);
fail_lock:
    free(cache->slots);
fail_families:
    for (int i = 0; i < PLAN_FAMILIES; i++)
        free(cache->families[i]);
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
    for (int i = 0; i < PLAN_FAMILIES; i++)
        free(cache->families[i]);
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

/* ---- Neighbours and replacement ----------------------------------------------------------- */

struct plan_entry *plan_cache_nearest(struct plan_cache *cache, const void *key)
{
    struct plan_entry *nearest = NULL;

    pthread_mutex_lock(&cache->lock);
    for (int i = 0; cache->options.family != NULL && i < PLAN_FAMILIES && nearest == NULL; i++) {
        const uint64_t family = cache->options.family(key, i);
        struct plan_entry *entry = cache->families[i][family & cache->buckets_mask];
        uint64_t least = UINT64_MAX;

        for (int seen = 0; entry != NULL && seen < PLAN_NEIGHBOURS_MAX;
             entry = entry->kin[i].next) {
            uint64_t distance;

            if (entry->kin[i].family != family || !entry->built)
                continue;
            seen++;
            distance = cache->options.distance(key, entry->key, entry->plan, i);
            if (distance < least) {
                least = distance;
                nearest = entry;
            }
        }
    }
    if (nearest != NULL)
        nearest->references++;
    pthread_mutex_unlock(&cache->lock);
    return nearest;
}

bool plan_cache_is_provisional(struct plan_cache *cache, const void *key)
{
    const uint64_t hash = key_hash(key, cache->options.key_bytes);
    const struct plan_entry *entry;
    bool provisional;

    pthread_mutex_lock(&cache->lock);
    entry = *table_find(cache, hash, key);
    provisional = entry != NULL && (!entry->built || entry->provisional);
    pthread_mutex_unlock(&cache->lock);
    return provisional;
}

bool plan_cache_refine(struct plan_cache *cache, const void *key, void *plan)
{
    const uint64_t hash = key_hash(key, cache->options.key_bytes);
    struct plan_entry *before;
    bool refined = false;

    pthread_mutex_lock(&cache->lock);
    before = table_find_built(cache, hash, key);
    if (before != NULL && before->provisional)
        refined = table_replace(cache, before, 0, hash, key, plan);
    else
        cache->options.destroy(cache->options.context, plan);
    cache->stats.refined += refined;
    pthread_mutex_unlock(&cache->lock);
    return refined;
}

enum fp8pipe_status plan_cache_set(struct plan_cache *cache, const void *key, void *plan)
{
    const uint64_t hash = key_hash(key, cache->options.key_bytes);
    struct plan_entry *before;
    uint32_t slot = 0;
    bool set;

    pthread_mutex_lock(&cache->lock);
    while ((before = table_find_built(cache, hash, key)) == NULL && !table_make_room(cache, &slot))
        pthread_cond_wait(&cache->built, &cache->lock);
    set = table_replace(cache, before, slot, hash, key, plan);
    pthread_mutex_unlock(&cache->lock);
    return set ? FP8PIPE_OK
               : status_fail(FP8PIPE_ENOMEM, "plan cache: no host memory for an entry");
}

uint32_t plan_cache_keys(struct plan_cache *cache, void *keys, uint32_t max)
{
    const size_t bytes = cache->options.key_bytes;
    uint32_t count = 0;

    pthread_mutex_lock(&cache->lock);
    for (uint32_t i = 0; i < cache->options.capacity && count < max; i++)
        if (cache->slots[i] != NULL && cache->slots[i]->built)
            memcpy((char *)keys + bytes * count++, cache->slots[i]->key, bytes);
    pthread_mutex_unlock(&cache->lock);
    return count;
}

void plan_cache_stats_get(struct plan_cache *cache, struct plan_cache_stats *stats)
{
    pthread_mutex_lock(&cache->lock);
    *stats = cache->stats;
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

    if (entry != NULL && entry_matches(entry, hash, key, cache->options.key_bytes) &&
        !atomic_load_explicit(&entry->replaced, memory_order_relaxed)) {
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
