/*
 * Owns tables of tuned GEMM plans in memory: for a key an algorithm, both opaque words, and what
 * card they hold for. Leaf; a table is used by one thread at a time.
 */
#ifndef LIB_TUNE_TABLE_H
#define LIB_TUNE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"

#define TUNE_KEY_WORDS 10
#define TUNE_ALGO_WORDS 8
#define TUNE_NAME_BYTES 96

/* What plans hold for. */
struct tune_card {
    uint64_t library;         /* cuBLASLt's version */
    uint32_t capability;      /* 10 * major + minor */
    uint32_t multiprocessors; /* in use */
    char name[TUNE_NAME_BYTES];
};

struct tune_entry {
    uint64_t key[TUNE_KEY_WORDS];
    uint64_t algo[TUNE_ALGO_WORDS];
};

/* Entries in the order of their keys. All zero: empty. */
struct tune_table {
    struct tune_entry *entries;
    size_t count;
    size_t room;
};

/* Of a section, and of a file; more are not kept. */
#define TUNE_ENTRIES_MAX 16384
#define TUNE_SECTIONS_MAX 256

/* A name that fits a section's line. */
void tune_card_name(struct tune_card *card, const char *name);

const struct tune_entry *tune_table_find(const struct tune_table *table,
                                         const uint64_t key[TUNE_KEY_WORDS]);
/* Adds an entry, or gives its key another algorithm. ENOMEM; EAGAIN at TUNE_ENTRIES_MAX. */
enum fp8pipe_status tune_table_put(struct tune_table *table, const struct tune_entry *entry);
/* A copy of all entries into an empty table. ENOMEM. */
enum fp8pipe_status tune_table_copy(struct tune_table *to, const struct tune_table *from);
void tune_table_free(struct tune_table *table);

/* Tables of several cards, as a file has them. All zero: none. */
struct tune_section {
    struct tune_card card;
    struct tune_table table;
};

struct tune_sections {
    struct tune_section *list;
    size_t count;
};

/* NULL: there is none for that card. */
struct tune_section *tune_sections_find(const struct tune_sections *sections,
                                        const struct tune_card *card);
/* An empty one; older pointers to sections end. ENOMEM; EAGAIN at TUNE_SECTIONS_MAX. */
enum fp8pipe_status tune_sections_add(struct tune_sections *sections, const struct tune_card *card,
                                      struct tune_section **added);
void tune_sections_free(struct tune_sections *sections);

#endif
