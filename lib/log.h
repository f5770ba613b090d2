/*
 * One line a message, to stderr or to the function of the options; levels from the options or the
 * environment's FP8PIPE_LOG. Leaf; any thread.
 */
#ifndef LIB_LOG_H
#define LIB_LOG_H

#include "fp8pipe.h"

struct log {
    enum fp8pipe_log_level level;
    fp8pipe_log_fn *fn;
    void *arg;
    uint32_t pipe; /* shown in each line */
};

/* level DEFAULT: from the environment. */
void log_init(struct log *log, enum fp8pipe_log_level level, fp8pipe_log_fn *fn, void *arg);

void log_line(const struct log *log, enum fp8pipe_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
