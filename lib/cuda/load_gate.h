/*
 * When a kernel may be loaded.
 *
 * cuBLASLt loads each of its kernels when a call first needs it, for 3 to 7 ms, under a lock that
 * every cublasLtMatmul takes: a launcher that calls it meanwhile stands still, whichever thread
 * loads, and with it the stream, once it has done what was enqueued. Launches do not take that lock,
 * recorded GEMMs among them. So the planner loads what is not urgent while no launcher of its pipe
 * calls: one kernel a pause, for the next call is as likely as not to come soon, more in a pause
 * that goes on, and one after too long without any.
 *
 * Includes nothing of CUDA's.
 */
#ifndef LIB_CUDA_LOAD_GATE_H
#define LIB_CUDA_LOAD_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* Without calls for so long there is a pause. */
#define LOAD_GATE_QUIET_NS INT64_C(300000)
/* A pause that has lasted so long will last. */
#define LOAD_GATE_LONG_NS INT64_C(20000000)
/* Who has waited for so long since the last load needs no pause. */
#define LOAD_GATE_LATEST_NS INT64_C(20000000)
/* What takes less was loaded before. */
#define LOAD_GATE_LOAD_NS INT64_C(1000000)

/* All zero: nothing was called, nothing loaded. */
struct load_gate {
    int64_t called_ns; /* the last call by a launcher; atomic, and nothing is ordered by it */
    int64_t loaded_ns; /* the end of the last load; the planner's */
};

/* Before a call that a load would hold up. Any thread. */
void load_gate_call(struct load_gate *gate, int64_t now_ns);

/* Whether to load now what was wanted since. By the planner. */
bool load_gate_is_open(const struct load_gate *gate, int64_t now_ns, int64_t since_ns);

/* After something that may have loaded a kernel. By the planner. */
void load_gate_loaded(struct load_gate *gate, int64_t from_ns, int64_t now_ns);

/* ---- All planners of the process ---------------------------------------------------------- */

/* Around what may load. False: not now, for somebody times kernels, or the process exits. */
bool load_gate_enter(void);
void load_gate_leave(void);

/* While kernels are timed: waits for the loads that are under way, and keeps others out. */
void load_gate_block(void);
void load_gate_unblock(void);

/*
 * From the first call on exit() keeps loads out, and waits for those under way, before it runs the
 * handlers that were there by then: those of the libraries that load. Not in a child of fork().
 */
void load_gate_watch_exit(void);

#endif
