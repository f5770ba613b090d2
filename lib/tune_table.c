#include "tune_table.h"

#include <stdlib.h>
#include <string.h>

#include "status.h"

#define KEY_BYTES (TUNE_KEY_WORDS * sizeof(uint64_t))

/* ---- Tables ------------------------------------------------------------------------------- */

void tune_card_name(struct tune_card *card, const char *name)
{
    size_t length = 0;

    for (; name[length] != '\0' && length < TUNE_NAME_BYTES - 1; length++) {
        card->name[length] = name[length] >= ' ' && name[length] <= '~' ? name[length] : '?';
    }
    card->name[length] = '\0';
}

/* The place of the key, or where it would stand. */
static size_t table_place(const struct tune_table *table, const uint64_t key[TUNE_KEY_WORDS])
{
    size_t low = 0, high = table->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (memcmp(table->entries[middle].key, key, KEY_BYTES) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct tune_entry *tune_table_find(const struct tune_table *table,
                                         const uint64_t key[TUNE_KEY_WORDS])
{
    size_t place = table_place(table, key);

    return place < table->count && memcmp(table->entries[place].key, key, KEY_BYTES) == 0
               ? &table->entries[place]
               : NULL;
}

enum fp8pipe_status tune_table_put(struct tune_table *table, const struct tune_entry *entry)
{
    size_t place = table_place(table, entry->key);

    if (place < table->count && memcmp(table->entries[place].key, entry->key, KEY_BYTES) == 0) {
        table->entries[place] = *entry;
        return FP8PIPE_OK;
    }
    if (table->count == TUNE_ENTRIES_MAX) {
        return status_fail(FP8PIPE_EAGAIN, "a tune file keeps %d plans for a card at most",
                           TUNE_ENTRIES_MAX);
    }
    if (table->count == table->room) {
        size_t room = table->room == 0 ? 64 : 2 * table->room;
        struct tune_entry *entries = realloc(table->entries, room * sizeof(*entries));

        if (entries == NULL) {
            return status_fail(FP8PIPE_ENOMEM, "no host memory for %zu tuned plans", room);
        }
        table->entries = entries;
        table->room = room;
    }
    memmove(&table->entries[place + 1], &table->entries[place],
            (table->count - place) * sizeof(*entry));
    table->entries[place] = *entry;
    table->count++;
    return FP8PIPE_OK;
}

enum fp8pipe_status tune_table_copy(struct tune_table *to, const struct tune_table *from)
{
    if (from->count == 0) {
        return FP8PIPE_OK;
    }
    to->entries = malloc(from->count * sizeof(*to->entries));
    if (to->entries == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "no host memory for %zu tuned plans", from->count);
    }
    memcpy(to->entries, from->entries, from->count * sizeof(*to->entries));
    to->count = from->count;
    to->room = from->count;
    return FP8PIPE_OK;
}

void tune_table_free(struct tune_table *table)
{
    free(table->entries);
    *table = (struct tune_table){NULL, 0, 0};
}

/* ---- Sections ----------------------------------------------------------------------------- */

void tune_sections_free(struct tune_sections *sections)
{
    for (size_t i = 0; i < sections->count; i++) {
        tune_table_free(&sections->list[i].table);
    }
    free(sections->list);
    *sections = (struct tune_sections){NULL, 0};
}

static bool card_equal(const struct tune_card *one, const struct tune_card *two)
{
    return one->library == two->library && one->capability == two->capability &&
           one->multiprocessors == two->multiprocessors && strcmp(one->name, two->name) == 0;
}

struct tune_section *tune_sections_find(const struct tune_sections *sections,
                                        const struct tune_card *card)
{
    for (size_t i = 0; i < sections->count; i++) {
        if (card_equal(&sections->list[i].card, card)) {
            return &sections->list[i];
        }
    }
    return NULL;
}

enum fp8pipe_status tune_sections_add(struct tune_sections *sections, const struct tune_card *card,
                                      struct tune_section **added)
{
    struct tune_section *list;

    if (sections->count == TUNE_SECTIONS_MAX) {
        return status_fail(FP8PIPE_EAGAIN, "a tune file is for %d cards and versions at most",
                           TUNE_SECTIONS_MAX);
    }
    list = realloc(sections->list, (sections->count + 1) * sizeof(*list));
    if (list == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "no host memory for a tune file's section");
    }
    sections->list = list;
    *added = &list[sections->count++];
    **added = (struct tune_section){.card = *card};
    return FP8PIPE_OK;
}
