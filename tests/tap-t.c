/*
 * The harness itself. Every scenario runs in a process of its own, this program again with the
 * scenario's name: what it prints and how it ends is what prove and automake's driver see.
 */
#include "tap.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES 65536
#define THREADS 4
#define TESTS_EACH 100

static int scenario_passes(void)
{
    plan(4);
    ok(1 + 1 == 2, "sum of %d", 2);
    is_int(UINT64_MAX, -1, "64 bits");
    is_str("a", "a", "same text");
    is_mem("abc", "abd", 2, "same bytes");
    return done_testing();
}

static int scenario_fails(void)
{
    is_int(3, 4, "three is four");
    is_str(NULL, "x", "no text");
    is_mem("abc", "abd", 3, "bytes");
    ok(2 < 1, "order");
    return done_testing();
}

static int scenario_stops_early(void)
{
    plan(3);
    pass("the only one");
    return done_testing();
}

static int scenario_runs_nothing(void)
{
    return done_testing();
}

static int scenario_odd_names(void)
{
    pass("50%% # TODO is no\ndirective \\");
    return done_testing();
}

static int scenario_skips(void)
{
    skip(2, "no %s here", "GPU");
    return done_testing();
}

static int scenario_skips_all(void)
{
    skip_all("no %s", "GPU");
}

static int scenario_known_failure(void)
{
    todo("not written");
    fail("later");
    todo_end();
    pass("now");
    return done_testing();
}

static int scenario_bails(void)
{
    bail("no %s", "memory");
}

static void *pass_often(void *unused)
{
    for (int i = 0; i < TESTS_EACH; i++)
        pass("from a thread");
    return unused;
}

static int scenario_threads(void)
{
    pthread_t threads[THREADS];

    plan(THREADS * TESTS_EACH);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, pass_often, NULL))
            bail("no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return done_testing();
}

static const struct scenario {
    const char *name;
    int (*run)(void);
} scenarios[] = {
    {"passes", scenario_passes},
    {"fails", scenario_fails},
    {"stops early", scenario_stops_early},
    {"runs nothing", scenario_runs_nothing},
    {"odd names", scenario_odd_names},
    {"skips", scenario_skips},
    {"skips all", scenario_skips_all},
    {"known failure", scenario_known_failure},
    {"bails", scenario_bails},
    {"threads", scenario_threads},
};

struct outcome {
    int status;
    char out[OUTPUT_BYTES]; /* stdout and stderr, in the order in which they were written */
};

static void run_scenario(const char *name, struct outcome *outcome)
{
    size_t used = 0;
    ssize_t got;
    int ends[2];
    pid_t child;

    if (pipe(ends) || (child = fork()) < 0)
        bail("no pipe or no process");
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "tap-t", name, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((got = read(ends[0], outcome->out + used, OUTPUT_BYTES - 1 - used)) > 0)
        used += (size_t)got;
    outcome->out[used] = '\0';
    close(ends[0]);
    waitpid(child, &outcome->status, 0);
    outcome->status = WIFEXITED(outcome->status) ? WEXITSTATUS(outcome->status) : -1;
}

/* The scenario ends with `status` and prints exactly `out`. */
static void prints(const char *name, int status, const char *out)
{
    static struct outcome outcome;

    run_scenario(name, &outcome);
    is_int(outcome.status, status, "'%s' exits with %d", name, status);
    is_str(outcome.out, out, "'%s' prints what it should", name);
}

/* The scenario ends with `status` and prints each of `parts`, up to a NULL, in this order. */
static void prints_parts(const char *name, int status, const char *const *parts)
{
    static struct outcome outcome;
    const char *at = outcome.out;

    run_scenario(name, &outcome);
    is_int(outcome.status, status, "'%s' exits with %d", name, status);
    for (; *parts; parts++) {
        const char *found = strstr(at, *parts);

        if (!ok(found, "'%s' prints '%s'", name, *parts))
            diag("in:\n%s", outcome.out);
        at = found ? found : at;
    }
}

/* Threads share one numbering: every number from 1 to the last once, each on a line of its own. */
static void threads_are_numbered(void)
{
    static struct outcome outcome;
    unsigned expected = 1;

    run_scenario("threads", &outcome);
    is_int(outcome.status, 0, "'threads' exits with 0");
    for (char *line = strtok(outcome.out, "\n"); line; line = strtok(NULL, "\n")) {
        char want[64];

        snprintf(want, sizeof(want), "ok %u - from a thread", expected);
        expected += strcmp(line, want) == 0;
    }
    is_int(expected - 1, THREADS * TESTS_EACH, "'threads' prints every number in turn");
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
            if (strcmp(argv[1], scenarios[i].name) == 0)
                return scenarios[i].run();
        return 126;
    }

    prints("passes", 0,
           "1..4\nok 1 - sum of 2\nok 2 - 64 bits\nok 3 - same text\nok 4 - same bytes\n");
    prints_parts("fails", 1,
                 (const char *const[]){"not ok 1 - three is four\n", "tap-t.c:", ": 3\n",
                                       "got 3 (0x3)", "want 4 (0x4)", "not ok 2 - no text\n",
                                       "got NULL", "want x", "not ok 3 - bytes\n",
                                       "byte 2 of 3: got 0x63, want 0x64", "not ok 4 - order\n",
                                       ": 2 < 1\n", "1..4\n", "# failed 4 of 4 tests\n", NULL});
    prints("stops early", 1, "1..3\nok 1 - the only one\n# planned 3 tests but ran 1\n");
    prints("runs nothing", 1, "1..0\n# no test has run\n");
    prints("odd names", 0, "ok 1 - 50% \\# TODO is no directive \\\\\n1..1\n");
    prints("skips", 0, "ok 1 # SKIP no GPU here\nok 2 # SKIP no GPU here\n1..2\n");
    prints("skips all", 0, "1..0 # SKIP no GPU\n");
    prints_parts("known failure", 0,
                 (const char *const[]){"not ok 1 - later # TODO not written\n", "# failed at ",
                                       "ok 2 - now\n", "1..2\n", NULL});
    prints("bails", 255, "Bail out!  no memory\n");
    threads_are_numbered();
    return done_testing();
}
