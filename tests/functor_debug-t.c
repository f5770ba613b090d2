/*
 * With FP8PIPE_DEBUG a functor that reaches out of bounds stops, and says where: each fault in a
 * process of its own, for none can use the device afterwards.
 */
#include "twin.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "functors.h"

/* Runs this program again to make the fault. Returns its exit status; `output`: what it printed. */
static int child_run(enum functor_fault fault, char *output, size_t size)
{
    char number[16];
    int ends[2], status;
    size_t used = 0;
    pid_t child;

    snprintf(number, sizeof(number), "%d", (int)fault);
    if (pipe(ends) != 0)
        bail("pipe failed");
    child = fork();
    if (child < 0)
        bail("fork failed");
    if (child == 0) {
        if (dup2(ends[1], STDOUT_FILENO) < 0)
            _exit(99);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "functor_debug-t", number, (char *)NULL);
        _exit(99);
    }
    close(ends[1]);
    for (;;) {
        char rest[4096];
        bool room = used < size - 1;
        ssize_t got =
            read(ends[0], room ? output + used : rest, room ? size - 1 - used : sizeof(rest));

        if (got <= 0)
            break;
        used += room ? (size_t)got : 0;
    }
    output[used] = '\0';
    close(ends[0]);
    if (waitpid(child, &status, 0) != child)
        bail("waitpid failed");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_fault(enum functor_fault fault, const char *text, const char *what)
{
    static char output[65536];
    int status = child_run(fault, output, sizeof(output));

    is_int(status, 1, "%s: the kernel is stopped", what);
    if (!ok(strstr(output, text) != NULL, "%s: says so", what))
        diag("%s is not in: %.400s", text, output);
}

int main(int argc, char **argv)
{
    static char output[65536];

    if (argc == 2) {
        int error = functor_fault_run((enum functor_fault)atoi(argv[1]));

        fflush(stdout);
        return error == 0 ? 0 : 1;
    }
    device_require();
    is_int(child_run(FAULT_NONE, output, sizeof(output)), 0, "a functor within bounds runs");
    is_str(output, "", "it says nothing");
    test_fault(FAULT_ROW,
               "\"the input\" [99, 0 to 7] is out of bounds, it has 99 rows and 72 columns",
               "a row too many");
    test_fault(FAULT_COLUMN, "64 to 71] is out of bounds, it has 100 rows and 71 columns",
               "a column too many");
    test_fault(FAULT_ROWS_OF, "\"the table\" [100, ", "an entry of rows_of beyond the matrix");
    test_fault(FAULT_RESULT, "\"the output\" [", "a result that is too narrow");
    test_fault(FAULT_DTYPE, "\"the table\" is used as a matrix of another dtype than its own",
               "an operand of another dtype");
    return done_testing();
}
