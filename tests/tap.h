/*
 * Test Anything Protocol, for the test programs.
 *
 * Owns the numbering of a program's tests and what it prints on stdout. Promises: one whole line a
 * test, flushed at once (so a crash loses none), diagnostics on stderr, and an exit status that is
 * not 0 if anything failed. Any thread may call any of these; none allocates.
 *
 *     int main(void)
 *     {
 *         plan(2);                                   optional: done_testing() prints a missing plan
 *         ok(ring_empty(&ring), "a new ring is empty");
 *         is_int(ring_used(&ring), 0, "%d slots used", 0);
 *         return done_testing();
 *     }
 *
 * Every name is a printf format with its arguments. ok(), is_int(), ... are true if the test
 * passed, so that `if (!ok(...)) diag(...)` says more about a failure.
 */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether this is the build of a sanitizer, which runs some ten times as long. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0
#endif

/* Of cases that differ by random numbers alone, how many to run: sanitizers look at what the code
 * does, not at its results. */
#define TEST_CASES(count) (TEST_SANITIZED ? ((count) + 7) / 8 : (count))

/* Whether the environment has NAME=1. */
bool test_environment_is_set(const char *name);

#define TAP_PRINTF(name, first) __attribute__((format(printf, name, first)))

/* The number of tests that will run, first of all. Without it done_testing() prints the count. */
#define plan(tests) tap_plan(tests)

/* Ends the tests. What main() returns: 0 if all passed and as many ran as were planned. */
#define done_testing() tap_done()

#define ok(condition, ...) tap_ok(__FILE__, __LINE__, #condition, !!(condition), __VA_ARGS__)
#define pass(...) ok(true, __VA_ARGS__)
#define fail(...) ok(false, __VA_ARGS__)

/* Integers and enums of any width up to 64 bits. Each argument is evaluated once. */
#define is_int(got, want, ...)                                                                     \
    tap_is_int(__FILE__, __LINE__, #got, (intmax_t)(got), (intmax_t)(want), __VA_ARGS__)

/* Strings; NULL equals NULL only. */
#define is_str(got, want, ...) tap_is_str(__FILE__, __LINE__, #got, got, want, __VA_ARGS__)

/* Bytes: the diagnostic names the first that differs. */
#define is_mem(got, want, bytes, ...)                                                              \
    tap_is_mem(__FILE__, __LINE__, #got, got, want, bytes, __VA_ARGS__)

/* Counts `tests` tests as skipped, for the reason given. */
#define skip(tests, ...) tap_skip(tests, __VA_ARGS__)

/* Skips the whole program and exits with 0. Before any test and any plan. */
#define skip_all(...) tap_skip_all(__VA_ARGS__)

/* The tests up to todo_end() are known to fail, for the reason given: a failure does not count. */
#define todo(...) tap_todo(__VA_ARGS__)
#define todo_end() tap_todo_end()

/* Stops the program at once with status 255: what the remaining tests need is not there. */
#define bail(...) tap_bail(__VA_ARGS__)

/* diag() is for whoever reads a failure (stderr), note() for whoever reads the log (stdout). */
#define diag(...) tap_diag(__VA_ARGS__)
#define note(...) tap_note(__VA_ARGS__)

void tap_plan(unsigned tests);
int tap_done(void);
bool tap_ok(const char *file, int line, const char *condition, bool passed, const char *name, ...)
    TAP_PRINTF(5, 6);
bool tap_is_int(const char *file, int line, const char *expression, intmax_t got, intmax_t want,
                const char *name, ...) TAP_PRINTF(6, 7);
bool tap_is_str(const char *file, int line, const char *expression, const char *got,
                const char *want, const char *name, ...) TAP_PRINTF(6, 7);
bool tap_is_mem(const char *file, int line, const char *expression, const void *got,
                const void *want, size_t bytes, const char *name, ...) TAP_PRINTF(7, 8);
void tap_skip(unsigned tests, const char *reason, ...) TAP_PRINTF(2, 3);
_Noreturn void tap_skip_all(const char *reason, ...) TAP_PRINTF(1, 2);
void tap_todo(const char *reason, ...) TAP_PRINTF(1, 2);
void tap_todo_end(void);
_Noreturn void tap_bail(const char *reason, ...) TAP_PRINTF(1, 2);
void tap_diag(const char *format, ...) TAP_PRINTF(1, 2);
void tap_note(const char *format, ...) TAP_PRINTF(1, 2);

#endif
