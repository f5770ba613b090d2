/*
 * What the layers below a lane need to issue one op: where to, and temporary memory that lives in
 * the lane's stream order until the op's kernels have run.
 *
 * Used by one launcher at a time (or by the completion thread, whose `lane` is ISSUE_NO_LANE).
 */
#ifndef LIB_ISSUE_H
#define LIB_ISSUE_H

#include "backend.h"
#include "event_ring.h"

#define ISSUE_TEMPORARIES 8
#define ISSUE_NO_LANE UINT32_MAX

struct issue {
    struct backend *backend;
    struct fp8pipe_stream *stream;
    uint32_t lane;
    uint32_t lanes;
    uint64_t position;        /* of the op */
    struct event_ring *rings; /* of all lanes */
    uint32_t *own_amax;       /* device word of this lane's */
    uint32_t *gemm_amax;      /* another, 0 between ops */
    uint32_t temporaries;
    struct {
        void *data;
        size_t bytes;
    } temporary[ISSUE_TEMPORARIES];
};

/* Stream-ordered memory until issue_end; at most ISSUE_TEMPORARIES. */
enum fp8pipe_status issue_alloc(struct issue *issue, size_t bytes, void **data);

/* Gives the temporaries back in stream order. */
void issue_end(struct issue *issue);

#endif
