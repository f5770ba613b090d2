#include "log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define LOG_LINE_BYTES 512

static const char *const level_names[] = {
    [FP8PIPE_LOG_NONE] = "none", [FP8PIPE_LOG_ERROR] = "error", [FP8PIPE_LOG_WARN] = "warn",
    [FP8PIPE_LOG_INFO] = "info", [FP8PIPE_LOG_DEBUG] = "debug",
};

/* *known: whether the environment names a level, or nothing. */
static enum fp8pipe_log_level level_of_environment(const char *name, bool *known)
{
    *known = true;

    for (int level = FP8PIPE_LOG_NONE; name != NULL && level <= FP8PIPE_LOG_DEBUG; level++) {
        if (strcasecmp(name, level_names[level]) == 0) {
            return (enum fp8pipe_log_level)level;
        }
    }
    *known = name == NULL || name[0] == '\0';
    return FP8PIPE_LOG_WARN;
}

void log_init(struct log *log, enum fp8pipe_log_level level, fp8pipe_log_fn *fn, void *arg)
{
    const char *name = getenv("FP8PIPE_LOG");
    bool known = true;

    log->level = level == FP8PIPE_LOG_DEFAULT ? level_of_environment(name, &known) : level;
    log->fn = fn;
    log->arg = arg;
    log->pipe = 0;
    if (!known) {
        log_line(log, FP8PIPE_LOG_WARN,
                 "FP8PIPE_LOG = \"%s\" in the environment: it is none, error, warn, info or debug",
                 name);
    }
}

void log_line(const struct log *log, enum fp8pipe_log_level level, const char *format, ...)
{
    char line[LOG_LINE_BYTES];
    int used;
    va_list args;

    if (level > log->level) {
        return;
    }
    used = snprintf(line, sizeof(line), "fp8pipe %u %s: ", log->pipe, level_names[level]);
    va_start(args, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
    va_end(args);
    if (log->fn != NULL) {
        log->fn(log->arg, level, line);
    } else {
        fprintf(stderr, "%s\n", line);
    }
}
