/*
 * What a trace keeps: one record for each op that a launcher issued while it ran, in an array that
 * all launchers fill and that never grows. Ops that find it full are counted.
 *
 * Who writes, who reads, what orders them:
 *   state    start and stop, by compare and swap: one of them at a time owns the rest.
 *   until    a lane's (`lane.trace_until`): ops at positions below it are recorded. Start writes it
 *            after the array is there (release), the launcher reads it first (acquire), so that it
 *            sees no array but the running trace's. Stop sets it to the ring's head, then waits
 *            until every op below the head, read again behind a full barrier, is issued: no
 *            launcher then holds a record. Positions never come back, so it may stay.
 *   taken    launchers, by fetch and add: each record is written by the launcher that took it,
 *            before its op's issued mark.
 */
#ifndef LIB_TRACE_H
#define LIB_TRACE_H

#include <ck_pr.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "backend.h"
#include "op.h"
#include "ticket.h"

#define TRACE_OPS_DEFAULT 65536u

enum trace_state { TRACE_IDLE, TRACE_CHANGING, TRACE_RUNNING };

/* Times are of CLOCK_MONOTONIC. */
struct trace_record {
    fp8pipe_ticket ticket;
    int64_t enqueued_ns; /* 0: before the trace started */
    int64_t taken_ns;    /* by its launcher */
    int64_t ready_ns;    /* what it depends on is issued */
    int64_t issued_ns;
    struct backend_timer *start; /* NULL: nothing of it went to the device */
    struct backend_timer *end;
    int64_t start_ns; /* on the device, once resolved */
    int64_t end_ns;
    char name[FP8PIPE_NAME_MAX + 1];
    uint8_t outcome;
    uint8_t status;
    uint8_t resolved;
};

struct trace {
    uint32_t state;
    uint32_t room;  /* records */
    uint64_t taken; /* of them, and more: the ops that were dropped */
    struct trace_record *records;
    struct backend_timer *base; /* the device's clock at base_ns */
    int64_t base_ns;
    char *file; /* of the environment: where close writes it; NULL: nowhere */
};

/* Makes an empty trace of `ops` records. ENOMEM, or what the backend says. Inside `enter`. */
enum fp8pipe_status trace_make(struct trace *trace, struct backend *backend, uint32_t ops);
/* Frees records and timers, whose work is done. Inside `enter`. */
void trace_clear(struct trace *trace, struct backend *backend);

/* ---- By launchers ------------------------------------------------------------------------- */

/* The next record, or NULL: it is full. */
struct trace_record *trace_take(struct trace *trace, const struct op *op, fp8pipe_ticket ticket);

/* A record for the op, if it is to be traced; all that an op costs without a trace. */
static inline struct trace_record *trace_op(struct trace *trace, const uint64_t *until,
                                            const struct op *op, fp8pipe_ticket ticket)
{
    if (ticket_position(ticket) >= ck_pr_load_64(until)) {
        return NULL;
    }
    ck_pr_fence_acquire();
    return trace_take(trace, op, ticket);
}

/* Around what the op enqueues; NULL is allowed. A timer that cannot be had leaves out the span. */
void trace_start(struct trace_record *record, struct backend *backend,
                 struct fp8pipe_stream *stream);
void trace_end(struct trace_record *record, struct backend *backend, struct fp8pipe_stream *stream);

/* ---- Once no launcher holds a record ------------------------------------------------------ */

/* Reads the timers; the work of all ops is done. Inside `enter`. */
void trace_resolve(struct trace *trace, struct backend *backend, uint32_t lanes);

/* Writes Chrome trace JSON; false if the file could not take it. */
bool trace_write(const struct trace *trace, FILE *file, uint32_t pipe, uint32_t lanes,
                 const char *backend);

#endif
