/*
 * The table of pipes: which numbers are taken, where their ring positions go on, all handles ever
 * made, and how often this process was forked off. The only state that outlives every pipe.
 *
 * Under a lock of its own, which fork() finds free; the generation is written by the child of a
 * fork() alone, single-threaded then, and read by anyone.
 */
#ifndef LIB_TABLE_H
#define LIB_TABLE_H

#include <stdint.h>

#include "fp8pipe.h"

/* First member of a handle. */
struct table_entry {
    struct table_entry *before;
    uint32_t ordinal; /* of this process' handles, from 1 */
};

extern uint32_t table_fork_generation;

/* A free number, and the first position for its lanes' rings, >= 1. ENOMEM when all are taken. */
enum fp8pipe_status table_take(uint32_t *number, uint64_t *start);

/* The number is free again; its positions go on at `next`. */
void table_give_back(uint32_t number, uint64_t next);

/* Keeps a handle, which is never freed, in reach; sets its ordinal. */
void table_add(struct table_entry *entry);

#endif
