/*
 * Owns which GEMM calls of a stream come again: a bounded table from everything that a call depends
 * on to what was recorded of it. Includes nothing of CUDA's.
 *
 * A call that was seen REPLAY_SIGHTS times is due to be recorded. Calls share places in sets of
 * REPLAY_WAYS: a new one takes the place of the one of its set that was used longest ago, of those
 * that are not recorded if there are any, so that calls that never come again take at most one
 * record of a set.
 *
 * One thread at a time, the stream's; the counters are read by any.
 */
#ifndef LIB_CUDA_REPLAY_TABLE_H
#define LIB_CUDA_REPLAY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"

#define REPLAY_SIGHTS 3
#define REPLAY_WAYS 4

/* No padding, as comparisons need. The workspace is the stream's, alpha is 1. */
struct replay_key {
    uint64_t plan; /* its id: plans are freed, addresses come again */
    const void *a;
    const void *b;
    const void *c; /* the old D or the residual; NULL: none */
    const void *d;
    const void *bias;
    const void *a_scale;
    const void *b_scale;
    const void *d_scale;
    const void *d_amax;
    uint64_t adds; /* c: beta is 1 */
};
_Static_assert(sizeof(struct replay_key) == 11 * sizeof(uint64_t), "no padding");

struct replay_place {
    struct replay_key key;
    uint64_t hash;
    void *record;    /* NULL: none */
    uint64_t used;   /* the table's clock at the last look */
    uint32_t sights; /* 0: the place is free; up to REPLAY_SIGHTS */
    bool refused;    /* never due again */
};

struct replay_table;

/* What a record is given to when it loses its place. */
typedef void replay_drop_fn(void *record);

/* `places`: a power of two, at least REPLAY_WAYS. NULL when memory runs out. */
struct replay_table *replay_table_create(uint32_t places, replay_drop_fn *drop);
/* Drops every record. NULL is fine. */
void replay_table_destroy(struct replay_table *table);

/* The place of a call, counting the sight. Valid until the next look. */
struct replay_place *replay_table_look(struct replay_table *table, const struct replay_key *key);

/* Of a place just looked up. */
static inline bool replay_place_due(const struct replay_place *place)
{
    return place->record == NULL && !place->refused && place->sights >= REPLAY_SIGHTS;
}
/* Keeps the record of a call that is due. */
void replay_table_keep(struct replay_table *table, struct replay_place *place, void *record);
/* The call is not to be recorded; what there is of it is dropped. */
void replay_table_refuse(struct replay_table *table, struct replay_place *place);

/* Any thread. A look that finds a record counts as a call issued from it. */
void replay_table_stats(const struct replay_table *table, struct backend_replay_stats *stats);

#endif
