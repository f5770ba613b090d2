/*
 * Owns the table of statuses and each thread's sentence of its last refused call.
 * Leaf: anything may call it, from any thread.
 */
#ifndef LIB_STATUS_H
#define LIB_STATUS_H

#include <stdbool.h>

#include "fp8pipe.h"

#define STATUS_SENTENCE_BYTES 256

/* Records the calling thread's sentence and returns `status`, so that a refusal is one line. */
enum fp8pipe_status status_fail(enum fp8pipe_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether a value is one of the statuses. */
bool status_known(enum fp8pipe_status status);

/* The calling thread's sentence as it stands; never NULL. */
const char *status_sentence(void);

#endif
