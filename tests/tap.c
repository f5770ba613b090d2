#include "tap.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 1024

/* One lock for numbers and output: a test's line and its diagnostics are not torn apart. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned planned; /* 0: no plan printed yet */
static unsigned run;
static unsigned failed;
static bool todo_on;
static char todo_reason[LINE_BYTES];

/* What a test's name may not contain: a '#' would start a directive, a newline another line. */
static void escape(char *out, size_t bytes, const char *in)
{
    size_t used = 0;

    for (; *in && used + 3 < bytes; in++) {
        if (*in == '#' || *in == '\\')
            out[used++] = '\\';
        out[used++] = *in == '\n' ? ' ' : *in;
    }
    out[used] = '\0';
}

/* Every line of `text` behind a "# ". Called under the lock. */
static void comment(FILE *stream, const char *text)
{
    fflush(stdout); /* stderr's line comes after the test's that it explains */
    while (*text) {
        size_t length = strcspn(text, "\n");

        fprintf(stream, "# %.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
    }
    fflush(stream);
}

TAP_PRINTF(2, 3) static void commentf(FILE *stream, const char *format, ...)
{
    char text[2 * LINE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    comment(stream, text);
}

/* Prints one test line and returns with the lock held, so that the caller may add to it. */
TAP_PRINTF(2, 0) static bool result(bool passed, const char *name, va_list args)
{
    char text[LINE_BYTES], escaped[LINE_BYTES];

    vsnprintf(text, sizeof(text), name, args);
    escape(escaped, sizeof(escaped), text);
    pthread_mutex_lock(&lock);
    run++;
    failed += !passed && !todo_on;
    printf("%sok %u - %s", passed ? "" : "not ", run, escaped);
    if (todo_on)
        printf(" # TODO %s", todo_reason);
    putchar('\n');
    fflush(stdout);
    return passed;
}

/* A failure that counts goes where it is seen, one that is expected into the log only. */
static FILE *where(void)
{
    return todo_on ? stdout : stderr;
}

bool tap_ok(const char *file, int line, const char *condition, bool passed, const char *name, ...)
{
    va_list args;

    va_start(args, name);
    if (!result(passed, name, args))
        commentf(where(), "failed at %s:%d: %s", file, line, condition);
    pthread_mutex_unlock(&lock);
    va_end(args);
    return passed;
}

bool tap_is_int(const char *file, int line, const char *expression, intmax_t got, intmax_t want,
                const char *name, ...)
{
    va_list args;

    va_start(args, name);
    if (!result(got == want, name, args))
        commentf(where(),
                 "failed at %s:%d: %s\n    got %" PRIdMAX " (0x%" PRIxMAX ")\n   want %" PRIdMAX
                 " (0x%" PRIxMAX ")",
                 file, line, expression, got, (uintmax_t)got, want, (uintmax_t)want);
    pthread_mutex_unlock(&lock);
    va_end(args);
    return got == want;
}

bool tap_is_str(const char *file, int line, const char *expression, const char *got,
                const char *want, const char *name, ...)
{
    bool same = got && want ? strcmp(got, want) == 0 : got == want;
    va_list args;

    va_start(args, name);
    if (!result(same, name, args))
        commentf(where(), "failed at %s:%d: %s\n    got %s\n   want %s", file, line, expression,
                 got ? got : "NULL", want ? want : "NULL");
    pthread_mutex_unlock(&lock);
    va_end(args);
    return same;
}

bool tap_is_mem(const char *file, int line, const char *expression, const void *got,
                const void *want, size_t bytes, const char *name, ...)
{
    const unsigned char *a = got, *b = want;
    size_t at = 0;
    va_list args;

    while (at < bytes && a[at] == b[at])
        at++;
    va_start(args, name);
    if (!result(at == bytes, name, args))
        commentf(where(), "failed at %s:%d: %s\n  byte %zu of %zu: got 0x%02x, want 0x%02x", file,
                 line, expression, at, bytes, a[at], b[at]);
    pthread_mutex_unlock(&lock);
    va_end(args);
    return at == bytes;
}

void tap_plan(unsigned tests)
{
    pthread_mutex_lock(&lock);
    planned = tests;
    printf("1..%u\n", tests);
    fflush(stdout);
    pthread_mutex_unlock(&lock);
}

int tap_done(void)
{
    int status;

    pthread_mutex_lock(&lock);
    if (!planned)
        printf("1..%u\n", planned = run);
    if (run == 0)
        commentf(stderr, "no test has run");
    else if (run != planned)
        commentf(stderr, "planned %u tests but ran %u", planned, run);
    if (failed)
        commentf(stderr, "failed %u of %u tests", failed, run);
    fflush(stdout);
    status = failed || run == 0 || run != planned;
    pthread_mutex_unlock(&lock);
    return status;
}

void tap_skip(unsigned tests, const char *reason, ...)
{
    char text[LINE_BYTES];
    va_list args;

    va_start(args, reason);
    vsnprintf(text, sizeof(text), reason, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    while (tests--)
        printf("ok %u # SKIP %s\n", ++run, text);
    fflush(stdout);
    pthread_mutex_unlock(&lock);
}

void tap_skip_all(const char *reason, ...)
{
    va_list args;

    va_start(args, reason);
    printf("1..0 # SKIP ");
    vprintf(reason, args);
    putchar('\n');
    va_end(args);
    exit(0);
}

void tap_todo(const char *reason, ...)
{
    va_list args;

    pthread_mutex_lock(&lock);
    va_start(args, reason);
    vsnprintf(todo_reason, sizeof(todo_reason), reason, args);
    va_end(args);
    todo_on = true;
    pthread_mutex_unlock(&lock);
}

void tap_todo_end(void)
{
    pthread_mutex_lock(&lock);
    todo_on = false;
    pthread_mutex_unlock(&lock);
}

void tap_bail(const char *reason, ...)
{
    char text[LINE_BYTES], escaped[LINE_BYTES];
    va_list args;

    va_start(args, reason);
    vsnprintf(text, sizeof(text), reason, args);
    va_end(args);
    escape(escaped, sizeof(escaped), text);
    pthread_mutex_lock(&lock);
    printf("Bail out!  %s\n", escaped);
    fflush(stdout);
    _exit(255); /* other threads may still run: no exit handlers under their feet */
}

#define TAP_COMMENT(stream)                                                                        \
    do {                                                                                           \
        char text[2 * LINE_BYTES];                                                                 \
        va_list args;                                                                              \
                                                                                                   \
        va_start(args, format);                                                                    \
        vsnprintf(text, sizeof(text), format, args);                                               \
        va_end(args);                                                                              \
        pthread_mutex_lock(&lock);                                                                 \
        comment(stream, text);                                                                     \
        pthread_mutex_unlock(&lock);                                                               \
    } while (0)

void tap_diag(const char *format, ...)
{
    TAP_COMMENT(stderr);
}

void tap_note(const char *format, ...)
{
    TAP_COMMENT(stdout);
}

bool test_environment_is_set(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && strcmp(value, "1") == 0;
}
