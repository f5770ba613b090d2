/*
 * Guards which GEMM calls a stream records: only ones that come again, each found by all that it
 * depends on and by nothing less, in a table that stays within its bounds and drops every record
 * once.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/replay_table.h"
#include "util.h"

#define PLACES 64

/* What stands for a record: counts how often it was dropped. */
static void drop(void *record)
{
    ++*(int *)record;
}

static const void *address(uint64_t number)
{
    return (const void *)(uintptr_t)(number * 256); /* NOLINT */
}

static struct replay_key key_of(uint64_t number)
{
    return (struct replay_key){
        .plan = 7,
        .a = address(number),
        .b = address(1),
        .c = address(2),
        .d = address(2),
        .a_scale = address(3),
        .b_scale = address(4),
    };
}

static struct replay_place *look(struct replay_table *table, uint64_t number)
{
    struct replay_key key = key_of(number);

    return replay_table_look(table, &key);
}

/* Looks until the call is due, and keeps `record`. */
static void record(struct replay_table *table, uint64_t number, int *record)
{
    struct replay_place *place;

    do {
        place = look(table, number);
    } while (!replay_place_due(place));
    replay_table_keep(table, place, record);
}

static struct backend_replay_stats table_stats(const struct replay_table *table)
{
    struct backend_replay_stats stats;

    replay_table_stats(table, &stats);
    return stats;
}

static void sights(void)
{
    struct replay_table *table = replay_table_create(PLACES, drop);
    int dropped = 0, early = 0;

    for (int i = 1; i < REPLAY_SIGHTS; i++)
        early += replay_place_due(look(table, 1));
    is_int(early, 0, "a call is not due before it has come again");
    record(table, 1, &dropped);
    ok(look(table, 1)->record == &dropped && !replay_place_due(look(table, 1)),
       "then its record is found, and it is not due again");
    is_int((long long)table_stats(table).kept, 1, "one record");
    is_int((long long)table_stats(table).issued, 2, "found twice");
    replay_table_refuse(table, look(table, 1));
    is_int(dropped, 1, "a call that is refused drops its record");
    early = 0;
    for (int i = 0; i < 10; i++)
        early += replay_place_due(look(table, 1)) || look(table, 1)->record != NULL;
    is_int(early, 0, "and is never due again");
    is_int((long long)table_stats(table).kept, 0, "no record is left");
    replay_table_destroy(table);
    is_int(dropped, 1, "nothing is dropped twice");
}

/* Each word of the key, changed alone. */
static void keys(void)
{
    struct replay_table *table = replay_table_create(4096, drop);
    int dropped = 0, mistaken = 0;

    record(table, 1, &dropped);
    for (size_t i = 0; i < sizeof(struct replay_key) / sizeof(uint64_t); i++) {
        struct replay_key key = key_of(1);
        uint64_t word;

        memcpy(&word, (char *)&key + i * sizeof(word), sizeof(word));
        word ^= 256;
        memcpy((char *)&key + i * sizeof(word), &word, sizeof(word));
        mistaken += replay_table_look(table, &key)->record != NULL;
    }
    is_int(mistaken, 0, "a call that differs in any word is another one");
    ok(look(table, 1)->record == &dropped, "the first is still there");
    replay_table_destroy(table);
    is_int(dropped, 1, "destroy drops what is left");
    replay_table_destroy(NULL);
}

/* More calls than places, all of them again and again. */
static void crowd(void)
{
    enum { CALLS = 10 * PLACES, ROUNDS = 3 * REPLAY_SIGHTS };
    static int dropped[CALLS];
    struct replay_table *table = replay_table_create(PLACES, drop);
    struct backend_replay_stats stats;
    int wrong = 0, kept[CALLS] = {0};

    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CALLS; i++) {
            /* Often enough in a row to be recorded. */
            for (int again = 0; again <= REPLAY_SIGHTS; again++) {
                struct replay_place *place = look(table, (uint64_t)i);

                wrong += place->record != NULL && place->record != &dropped[i];
                if (replay_place_due(place)) {
                    replay_table_keep(table, place, &dropped[i]);
                    kept[i]++;
                }
            }
        }
    is_int(wrong, 0, "no call is given another's record");
    stats = table_stats(table);
    ok(stats.kept <= PLACES, "%llu records in %d places", (unsigned long long)stats.kept, PLACES);
    ok(stats.evicted > 0, "others made room");
    replay_table_destroy(table);
    for (int i = 0; i < CALLS; i++)
        wrong += dropped[i] != kept[i];
    is_int(wrong, 0, "each record is dropped once");
}

/* A few calls that repeat among very many that do not. */
static void one_time_calls(void)
{
    enum { HOT = PLACES / REPLAY_WAYS };
    static int dropped[HOT];
    struct replay_table *table = replay_table_create(PLACES, drop);
    int found = 0, total = 0;

    for (uint64_t i = 0; i < HOT; i++)
        record(table, i, &dropped[i]);
    for (uint64_t round = 0; round < 100; round++) {
        for (uint64_t i = 0; i < HOT; i++) {
            struct replay_place *place = look(table, i);

            found += place->record != NULL;
            total++;
            if (replay_place_due(place))
                replay_table_keep(table, place, &dropped[i]);
        }
        for (uint64_t i = 0; i < 1000; i++)
            look(table, 1000000 + round * 1000 + i);
    }
    ok(found * 10 >= total * 9, "calls that never come again leave the records alone: %d of %d",
       found, total);
    replay_table_destroy(table);
}

int main(void)
{
    sights();
    keys();
    crowd();
    one_time_calls();
    return done_testing();
}
