/*
 * Starts the library's threads, and knows for each thread which function of the caller's it is
 * running, if any. Leaf.
 */
#ifndef LIB_THREAD_H
#define LIB_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#include "fp8pipe.h"

/* What the calling thread is inside of. */
enum thread_inside {
    THREAD_OUTSIDE,
    THREAD_FUNCTION, /* call, host_call, host_enqueue's work */
    THREAD_DEFER
};

/*
 * Starts fn(arg) with all signals blocked, named `name` (15 bytes at most), on `cpu` (-1: any; a
 * CPU that is not there is EINVAL).
 */
enum fp8pipe_status thread_start(pthread_t *thread, const char *name, int cpu, void *(*fn)(void *),
                                 void *arg);

/* Joins until the absolute CLOCK_MONOTONIC deadline; false when it passed. */
bool thread_join(pthread_t thread, int64_t deadline_ns);

/* CPU time that a thread, not joined yet, has used; 0 if it has ended. */
uint64_t thread_cpu_ns(pthread_t thread);

/* Read by every submit: without the call that the default model makes in a shared library. */
extern _Thread_local enum thread_inside thread_inside_now
    __attribute__((tls_model("initial-exec")));

static inline enum thread_inside thread_inside(void)
{
    return thread_inside_now;
}

/* Sets what the thread is inside of and returns what it was inside of before, to be set again. */
enum thread_inside thread_inside_set(enum thread_inside inside);

#endif
