#include "replay_table.h"

#include <assert.h>
#include <ck_pr.h>
#include <stdlib.h>
#include <string.h>

/* The counters are written by the stream's thread alone, read by any: no order is needed. */
struct replay_table {
    replay_drop_fn *drop;
    uint64_t clock;
    uint32_t sets_mask;
    struct backend_replay_stats stats;
    struct replay_place places[]; /* [sets][REPLAY_WAYS] */
};

static uint64_t key_hash(const struct replay_key *key)
{
    uint64_t words[sizeof(*key) / sizeof(uint64_t)], hash = 0;

    memcpy(words, key, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

static void count(uint64_t *counter, uint64_t more)
{
    ck_pr_store_64(counter, *counter + more);
}

struct replay_table *replay_table_create(uint32_t places, replay_drop_fn *drop)
{
    struct replay_table *table = calloc(1, sizeof(*table) + places * sizeof(struct replay_place));

    assert(places >= REPLAY_WAYS && (places & (places - 1)) == 0);
    if (table == NULL)
        return NULL;
    table->drop = drop;
    table->sets_mask = places / REPLAY_WAYS - 1;
    return table;
}

void replay_table_destroy(struct replay_table *table)
{
    if (table == NULL)
        return;
    for (size_t i = 0; i < (table->sets_mask + (size_t)1) * REPLAY_WAYS; i++)
        if (table->places[i].record != NULL)
            table->drop(table->places[i].record);
    free(table);
}

/* Whether a's place is to be taken rather than b's. */
static bool goes_first(const struct replay_place *a, const struct replay_place *b)
{
    if ((a->record == NULL) != (b->record == NULL))
        return a->record == NULL;
    return a->used < b->used;
}

static void forget_record(struct replay_table *table, struct replay_place *place)
{
    if (place->record == NULL)
        return;
    table->drop(place->record);
    place->record = NULL;
    count(&table->stats.kept, (uint64_t)-1);
}

struct replay_place *replay_table_look(struct replay_table *table, const struct replay_key *key)
{
    const uint64_t hash = key_hash(key);
    struct replay_place *set = &table->places[(hash & table->sets_mask) * REPLAY_WAYS];
    struct replay_place *place = &set[0];

    table->clock++;
    for (int i = 0; i < REPLAY_WAYS; i++) {
        if (set[i].hash == hash && set[i].sights > 0 &&
            memcmp(&set[i].key, key, sizeof(*key)) == 0) {
            place = &set[i];
            goto found;
        }
        /* One that is free was used at 0. */
        if (goes_first(&set[i], place))
            place = &set[i];
    }
    if (place->record != NULL)
        count(&table->stats.evicted, 1);
    forget_record(table, place);
    *place = (struct replay_place){.key = *key, .hash = hash};
found:
    place->used = table->clock;
    if (place->sights < REPLAY_SIGHTS)
        place->sights++;
    if (place->record != NULL)
        count(&table->stats.issued, 1);
    return place;
}

void replay_table_keep(struct replay_table *table, struct replay_place *place, void *record)
{
    assert(replay_place_due(place));
    place->record = record;
    count(&table->stats.kept, 1);
}

void replay_table_refuse(struct replay_table *table, struct replay_place *place)
{
    forget_record(table, place);
    place->refused = true;
}

void replay_table_stats(const struct replay_table *table, struct backend_replay_stats *stats)
{
    stats->kept = ck_pr_load_64(&table->stats.kept);
    stats->evicted = ck_pr_load_64(&table->stats.evicted);
    stats->issued = ck_pr_load_64(&table->stats.issued);
}
