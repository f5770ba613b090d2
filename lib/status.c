#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char sentence[STATUS_SENTENCE_BYTES];

/* The C library prints a %p of NULL in its own way; a sentence says NULL wherever it means that. */
static void say_null(char *text)
{
    static const char theirs[] = "(nil)", ours[] = "NULL";

    for (char *at = strstr(text, theirs); at != NULL; at = strstr(at, theirs)) {
        memcpy(at, ours, sizeof(ours) - 1);
        at += sizeof(ours) - 1;
        memmove(at, at + 1, strlen(at + 1) + 1);
    }
}

enum fp8pipe_status status_fail(enum fp8pipe_status status, const char *format, ...)
{
    char text[STATUS_SENTENCE_BYTES]; /* the sentence so far may be part of the new one */
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    say_null(text);
    memcpy(sentence, text, strlen(text) + 1);
    return status;
}

bool status_known(enum fp8pipe_status status)
{
    switch (status) {
#define STATUS_CASE(name, code, sentence) case FP8PIPE_##name:
        FP8PIPE_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
        return true;
    }
    return false;
}

const char *status_sentence(void)
{
    return sentence;
}

const char *fp8pipe_last_error(void)
{
    return sentence;
}

const char *fp8pipe_strerror(enum fp8pipe_status status)
{
    switch (status) {
#define STATUS_CASE(name, code, sentence)                                                          \
    case FP8PIPE_##name:                                                                           \
        return sentence;
        FP8PIPE_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *fp8pipe_status_name(enum fp8pipe_status status)
{
    switch (status) {
#define STATUS_CASE(name, code, sentence)                                                          \
    case FP8PIPE_##name:                                                                           \
        return "FP8PIPE_" #name;
        FP8PIPE_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
    }
    return "FP8PIPE_UNKNOWN";
}

#define STATUS_STRING(x) #x
#define STATUS_VERSION(major, minor, patch)                                                        \
    STATUS_STRING(major) "." STATUS_STRING(minor) "." STATUS_STRING(patch)

const char *fp8pipe_version(void)
{
    return STATUS_VERSION(FP8PIPE_VERSION_MAJOR, FP8PIPE_VERSION_MINOR, FP8PIPE_VERSION_PATCH);
}
