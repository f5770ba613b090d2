/* Guards opening and closing: options, environment, several pipes, stats, log, stale handles. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "async.h"

/* ---- Options ------------------------------------------------------------------------------ */

static void *some_alloc(void *arg, size_t bytes, void *stream)
{
    (void)arg, (void)bytes, (void)stream;
    return NULL;
}

static void some_free(void *arg, void *data, size_t bytes, void *stream)
{
    (void)arg, (void)data, (void)bytes, (void)stream;
}

static const int32_t bad_affinity[2] = {-1, -2};
static void *const some_streams[2] = {NULL, NULL};

#define RULES(X)                                                                                   \
    X("backend", "9", o.backend = (enum fp8pipe_backend)9)                                         \
    X("device", "-1", (o.backend = FP8PIPE_BACKEND_CUDA, o.device = -1))                           \
    X("mode", "7", o.mode = (enum fp8pipe_mode)7)                                                  \
    X("lanes", "-1", o.lanes = -1)                                                                 \
    X("lanes", "65", o.lanes = FP8PIPE_LANES_MAX + 1)                                              \
    X("ring_slots", "16", o.ring_slots = 16)                                                       \
    X("ring_slots", "48", o.ring_slots = 48)                                                       \
    X("ring_slots", "131072", o.ring_slots = 131072)                                               \
    X("spin_ns", "-2", o.spin_ns = -2)                                                             \
    X("spin_ns", "1000000001", o.spin_ns = 1000000001)                                             \
    X("affinity", "-2", (o.lanes = 2, o.affinity = bad_affinity))                                  \
    X("log_level", "6", o.log_level = (enum fp8pipe_log_level)6)                                   \
    X("replays", "2", o.replays = (enum fp8pipe_replays)2)                                         \
    X("plans", "2", o.plans = (enum fp8pipe_plans)2)                                               \
    X("measure_idle", "2", o.measure_idle = 2)                                                     \
    X("measure_idle", "-1", o.measure_idle = -1)                                                   \
    X("allocator", "", o.allocator.alloc = some_alloc)                                             \
    X("allocator", "", o.allocator.free = some_free)                                               \
    X("streams", "", (o.lanes = 2, o.mode = FP8PIPE_INLINE, o.streams = some_streams))             \
    X("size", "0", o.size = 0)                                                                     \
    X("size", "4", o.size = 4)

static struct fp8pipe *const untouched = (struct fp8pipe *)&some_streams;

static void refused(const struct fp8pipe_options *options, const char *field, const char *value)
{
    struct fp8pipe *pipe = untouched;

    is_int(fp8pipe_open(options, &pipe), FP8PIPE_EINVAL, "open refuses %s %s", field, value);
    if (!ok(strstr(fp8pipe_last_error(), field) && strstr(fp8pipe_last_error(), value) &&
                pipe == untouched,
            "and says which field and value, and sets nothing"))
        diag("%s", fp8pipe_last_error());
}

static void options_rules(void)
{
    struct fp8pipe_options o;
    struct {
        struct fp8pipe_options known;
        uint64_t tail[2];
    } longer;
    struct fp8pipe *pipe = untouched;
    int32_t lanes = 0;

#define REFUSED(field, value, change)                                                              \
    o = (struct fp8pipe_options)FP8PIPE_OPTIONS_INIT;                                              \
    o.backend = FP8PIPE_BACKEND_HOST;                                                              \
    change;                                                                                        \
    refused(&o, field, value);
    RULES(REFUSED)

    memset(&longer, 0, sizeof(longer));
    longer.known = (struct fp8pipe_options)FP8PIPE_OPTIONS_INIT;
    longer.known.backend = FP8PIPE_BACKEND_HOST;
    longer.known.size = sizeof(longer);
    longer.tail[1] = 1;
    refused(&longer.known, "size", "");
    longer.tail[1] = 0;
    is_int(fp8pipe_open(&longer.known, &pipe), FP8PIPE_OK,
           "a longer struct with a zero tail opens");
    test_close(pipe);

    /* an older header's struct ends before the log; what lies behind is not read */
    memset(&longer, 0xa5, sizeof(longer));
    o = (struct fp8pipe_options)FP8PIPE_OPTIONS_INIT;
    o.backend = FP8PIPE_BACKEND_HOST;
    o.lanes = 3;
    o.size = offsetof(struct fp8pipe_options, log);
    memcpy(&longer.known, &o, o.size);
    is_int(fp8pipe_open(&longer.known, &pipe), FP8PIPE_OK, "a shorter struct opens");
    is_int(fp8pipe_lanes_get(pipe, &lanes), FP8PIPE_OK, "and");
    is_int(lanes, 3, "its fields count");
    test_close(pipe);

    is_int(fp8pipe_open(&o, NULL), FP8PIPE_EINVAL, "open refuses a NULL for the pipe");
    is_int(fp8pipe_open(NULL, &pipe), FP8PIPE_OK, "open takes NULL options");
    is_int(fp8pipe_lanes_get(pipe, &lanes), FP8PIPE_OK, "and");
    is_int(lanes, 2, "makes the default number of lanes");
    test_close(pipe);
}

/* ---- Backend and environment -------------------------------------------------------------- */

static bool mapped(const char *library)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    bool found = false;

    while (maps && fgets(line, sizeof(line), maps))
        found |= strstr(line, library) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static enum fp8pipe_status open_as(enum fp8pipe_backend backend, enum fp8pipe_backend *got)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct fp8pipe *pipe;
    enum fp8pipe_status status;

    options.backend = backend;
    status = fp8pipe_open(&options, &pipe);
    if (status == FP8PIPE_OK) {
        must(fp8pipe_backend_get(pipe, got));
        test_close(pipe);
    }
    return status;
}

static void backend_choice(void)
{
    const char *kept = getenv("FP8PIPE_BACKEND");
    enum fp8pipe_backend got = FP8PIPE_BACKEND_AUTO;
    enum fp8pipe_status cuda;

    setenv("FP8PIPE_BACKEND", "cuda", 1);
    is_int(open_as(FP8PIPE_BACKEND_HOST, &got), FP8PIPE_OK, "HOST opens whatever the environment");
    is_int(got, FP8PIPE_BACKEND_HOST, "and is HOST");
    setenv("FP8PIPE_BACKEND", "host", 1);
    is_int(open_as(FP8PIPE_BACKEND_AUTO, &got), FP8PIPE_OK, "AUTO opens");
    is_int(got, FP8PIPE_BACKEND_HOST, "and takes the environment's host");
    ok(!mapped("libcuda.so") && !mapped("libcublasLt"), "host pipes load nothing of CUDA's");

    setenv("FP8PIPE_BACKEND", "abacus", 1);
    is_int(open_as(FP8PIPE_BACKEND_AUTO, &got), FP8PIPE_EINVAL, "AUTO refuses an unknown name");
    ok(strstr(fp8pipe_last_error(), "FP8PIPE_BACKEND") && strstr(fp8pipe_last_error(), "abacus"),
       "and says which variable and value");

    cuda = open_as(FP8PIPE_BACKEND_CUDA, &got);
    setenv("FP8PIPE_BACKEND", "cuda", 1);
    is_int(open_as(FP8PIPE_BACKEND_AUTO, &got), cuda, "AUTO with cuda of the environment is CUDA");
    ok(cuda == FP8PIPE_OK ? got == FP8PIPE_BACKEND_CUDA : cuda == FP8PIPE_ENODEV,
       "which opens, or is ENODEV");
    unsetenv("FP8PIPE_BACKEND");
    is_int(open_as(FP8PIPE_BACKEND_AUTO, &got), FP8PIPE_OK, "AUTO without environment opens");
    is_int(got, cuda == FP8PIPE_OK ? FP8PIPE_BACKEND_CUDA : FP8PIPE_BACKEND_HOST,
           "on CUDA if that opens, else on the host");
    if (kept)
        setenv("FP8PIPE_BACKEND", kept, 1);
}

/* ---- Log ---------------------------------------------------------------------------------- */

/* Lets an op named "the-culprit" fail and counts the log's lines. */
static int lines_at(enum fp8pipe_log_level level, struct log_lines *lines)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 1, 32, lines);
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    struct fp8pipe_submit submit = ON(0);
    struct fp8pipe *pipe;

    log_lines_clear(lines);
    options.log_level = level;
    submit.name = "the-culprit";
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    submit_call(pipe, submit, call_fails, &fails);
    test_drain(pipe);
    test_close(pipe);
    return log_lines_count(lines);
}

static void log_levels(void)
{
    static struct log_lines lines = LOG_LINES_INIT;
    const char *kept = getenv("FP8PIPE_LOG");
    int wrong = 0;

    is_int(lines_at(FP8PIPE_LOG_NONE, &lines), 0, "log level none: no line");
    is_int(lines_at(FP8PIPE_LOG_WARN, &lines), 1, "log level warn: one line for a failure");
    ok(log_lines_hold(&lines, "the-culprit"), "which names the op");
    ok(lines_at(FP8PIPE_LOG_DEBUG, &lines) >= 1, "log level debug: no fewer");
    lines_at(FP8PIPE_LOG_ERROR, &lines);
    for (int i = 0; i < lines.count; i++)
        wrong += lines.level[i] != FP8PIPE_LOG_ERROR;
    is_int(wrong, 0, "log level error: nothing else");

    setenv("FP8PIPE_LOG", "none", 1);
    is_int(lines_at(FP8PIPE_LOG_DEFAULT, &lines), 0, "FP8PIPE_LOG=none: no line by default");
    is_int(lines_at(FP8PIPE_LOG_WARN, &lines), 1, "but the option's level wins");
    setenv("FP8PIPE_LOG", "warn", 1);
    is_int(lines_at(FP8PIPE_LOG_DEFAULT, &lines), 1, "FP8PIPE_LOG=warn: one line");
    setenv("FP8PIPE_LOG", "verbose", 1);
    is_int(lines_at(FP8PIPE_LOG_DEFAULT, &lines), 2, "FP8PIPE_LOG=verbose: warn, and a line more");
    unsetenv("FP8PIPE_LOG");
    is_int(lines_at(FP8PIPE_LOG_DEFAULT, &lines), 1, "no environment: warn");
    if (kept)
        setenv("FP8PIPE_LOG", kept, 1);
}

static void log_to_stderr(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 1, 32, NULL);
    static enum fp8pipe_status fails = FP8PIPE_ECALL;
    struct fp8pipe_submit submit = ON(0);
    FILE *file = tmpfile();
    struct fp8pipe *pipe;
    char text[4096];
    size_t length;
    int kept = dup(STDERR_FILENO);

    if (!file || kept < 0)
        bail("no temporary file");
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    options.log_level = FP8PIPE_LOG_WARN;
    submit.name = "the-culprit";
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    submit_call(pipe, submit, call_fails, &fails);
    test_drain(pipe);
    test_close(pipe);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    fclose(file);
    ok(strstr(text, "the-culprit") && strchr(text, '\n') == text + length - 1,
       "without a function the log's one line goes to stderr");
}

/* ---- Pipes and tickets -------------------------------------------------------------------- */

#define GENERATIONS 64

static void stale_tickets(enum fp8pipe_mode mode)
{
    fp8pipe_ticket given[GENERATIONS];
    struct fp8pipe *pipes[GENERATIONS];
    int repeated = 0, forgiven = 0, wrong = 0;

    for (int i = 0; i < GENERATIONS; i++) {
        pipes[i] = async_open(FP8PIPE_BACKEND_HOST, mode, 1, 32, NULL);
        for (int j = 0; j < i; j++) {
            struct fp8pipe_state state = FP8PIPE_STATE_INIT;
            enum fp8pipe_status status = fp8pipe_state_get(pipes[i], given[j], &state);

            forgiven += status == FP8PIPE_OK || pipes[i] == pipes[j];
            wrong += fp8pipe_state_get(pipes[j], given[j], &state) != FP8PIPE_ECLOSED;
        }
        given[i] = submit_host_call(pipes[i], ON(0), work_nothing, NULL);
        for (int j = 0; j < i; j++) {
            struct fp8pipe_state state = FP8PIPE_STATE_INIT;
            enum fp8pipe_status status = fp8pipe_state_get(pipes[i], given[j], &state);
            bool same_number = given[j] >> 52 == given[i] >> 52;

            repeated += given[i] == given[j];
            wrong += status != (same_number ? FP8PIPE_ECLOSED : FP8PIPE_EINVAL);
        }
        test_close(pipes[i]);
    }
    is_int(repeated, 0, "%s: no ticket is given out twice over %d pipes", mode_name(mode),
           GENERATIONS);
    is_int(forgiven, 0, "%s: no handle and no ticket comes back to life", mode_name(mode));
    is_int(wrong, 0, "%s: stale tickets are ECLOSED, another pipe's EINVAL", mode_name(mode));
}

/* A number is 12 bits: numbers that are not given back would run out. */
static void many_opens(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_INLINE, 1, 32, NULL);
    const int opens = TEST_SANITIZED ? 200 : 4200; /* threads are slow to make there */
    int opened = 0;

    options.backend = FP8PIPE_BACKEND_HOST;
    for (int i = 0; i < opens; i++) {
        struct fp8pipe *pipe;

        if (fp8pipe_open(&options, &pipe) != FP8PIPE_OK)
            break;
        opened += fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS) == FP8PIPE_OK;
    }
    if (!is_int(opened, opens, "%d pipes can be opened one after another", opens))
        diag("%s", fp8pipe_last_error());
}

static void several(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipes[3];
    fp8pipe_ticket tickets[3][20];
    int counters[3] = {0, 0, 0}, crossed = 0, wrong = 0;

    for (int i = 0; i < 3; i++)
        pipes[i] = async_open(backend, i == 2 ? FP8PIPE_INLINE : FP8PIPE_ASYNC, i + 1, 0, NULL);
    for (int op = 0; op < 20; op++)
        for (int i = 0; i < 3; i++)
            tickets[i][op] = submit_host_call(pipes[i], ON(op % (i + 1)), work_count, &counters[i]);
    for (int i = 0; i < 3; i++) {
        struct fp8pipe_stats stats;
        struct fp8pipe_state state = FP8PIPE_STATE_INIT;
        uint64_t submitted = 0;

        test_drain(pipes[i]);
        crossed += fp8pipe_state_get(pipes[i], tickets[(i + 1) % 3][0], &state) != FP8PIPE_EINVAL;
        crossed +=
            fp8pipe_wait(pipes[i], tickets[(i + 1) % 3][19], FP8PIPE_DONE, 0) != FP8PIPE_EINVAL;
        for (int lane = 0; lane <= i; lane++)
            submitted += stats_of(pipes[i], lane).submitted;
        stats = stats_of(pipes[i], -1);
        wrong += counters[i] != 20 || submitted != 20 || stats.submitted != 20;
        wrong += stats.issued != 20 || stats.done != 20 || stats.failed || stats.cancelled;
        wrong += stats.queue_depth != 0 || stats.rescues != 0;
        test_close(pipes[i]);
    }
    is_int(crossed, 0, "%s: one pipe's tickets are EINVAL for another", test_backend_name(backend));
    is_int(wrong, 0, "%s: each of three pipes runs its own 20 ops, and its stats add up",
           test_backend_name(backend));
}

/* ---- Lanes and threads -------------------------------------------------------------------- */

struct place {
    cpu_set_t cpus;
    sigset_t blocked;
};

static enum fp8pipe_status look_around(struct fp8pipe_stream *stream, void *arg)
{
    struct place *place = arg;

    (void)stream;
    sched_getaffinity(0, sizeof(place->cpus), &place->cpus);
    pthread_sigmask(SIG_SETMASK, NULL, &place->blocked);
    return FP8PIPE_OK;
}

static void launchers(void)
{
    struct fp8pipe_options options = async_options(FP8PIPE_ASYNC, 2, 0, NULL);
    struct place places[2];
    struct fp8pipe *pipe;
    cpu_set_t allowed;
    int32_t affinity[2] = {-1, -1};

    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            affinity[1] = cpu;
    options.affinity = affinity;
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    for (int lane = 0; lane < 2; lane++)
        submit_call(pipe, ON(lane), look_around, &places[lane]);
    test_drain(pipe);
    test_close(pipe);
    ok(CPU_EQUAL(&places[0].cpus, &allowed), "affinity -1 leaves a launcher where it was");
    ok(CPU_COUNT(&places[1].cpus) == 1 && CPU_ISSET(affinity[1], &places[1].cpus),
       "a launcher runs on the CPU that was chosen for it");
    ok(sigismember(&places[0].blocked, SIGINT) && sigismember(&places[0].blocked, SIGTERM) &&
           sigismember(&places[0].blocked, SIGALRM) && sigismember(&places[0].blocked, SIGCHLD),
       "signals are blocked in launchers");
}

static void lane_numbers(enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, FP8PIPE_LANES_MAX, 32, NULL);
    struct fp8pipe_stats stats = FP8PIPE_STATS_INIT;
    struct fp8pipe *pipe;
    fp8pipe_ticket ticket = 0;
    int counter = 0, wrong = 0;

    options.spin_ns = 0;
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    for (int lap = 0; lap < 3; lap++)
        for (int lane = 0; lane < FP8PIPE_LANES_MAX; lane++)
            ticket = submit_host_call(pipe, AFTER(lane, ticket), work_count, &counter);
    test_wait(pipe, ticket);
    is_int(counter, 3 * FP8PIPE_LANES_MAX, "%s: a chain through 64 lanes, without spinning, ends",
           mode_name(mode));
    for (int lane = 0; lane < FP8PIPE_LANES_MAX; lane++)
        wrong += stats_of(pipe, lane).submitted != 3;
    is_int(wrong, 0, "each lane got what was submitted to it");
    is_int(fp8pipe_stats_get(pipe, FP8PIPE_LANES_MAX, &stats), FP8PIPE_EINVAL,
           "there is no lane 64");
    is_int(fp8pipe_stats_get(pipe, -2, &stats), FP8PIPE_EINVAL, "nor -2");
    is_int(stats_of(pipe, -1).rescues, 0, "no sleep had to be rescued");
    test_close(pipe);
}

int main(void)
{
    watchdog("backend choice", 60);
    backend_choice();
    watchdog("options", 60);
    options_rules();
    watchdog("log", 60);
    log_levels();
    log_to_stderr();
    watchdog("stale tickets", 60);
    stale_tickets(FP8PIPE_ASYNC);
    stale_tickets(FP8PIPE_INLINE);
    many_opens();
    watchdog("lanes", 60);
    launchers();
    lane_numbers(FP8PIPE_ASYNC);
    lane_numbers(FP8PIPE_INLINE);
    watchdog("several pipes", 60);
    test_each_backend(several);
    return done_testing();
}
