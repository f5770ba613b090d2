/*
 * Guards tickets and what a lane remembers of its failures: every position that failed is found,
 * with its root, none that did not, and what was forgotten is said to be too old.
 */
#include <ck_pr.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "numbers.h"
#include "tap.h"
#include "ticket.h"

#define START 1000
#define POSITIONS 6000
#define HANG_S 60

static void numbers(void)
{
    const uint32_t pipes[] = {0, 1, TICKET_PIPES / 2, TICKET_PIPES - 1};
    const uint32_t lanes[] = {0, 1, FP8PIPE_LANES_MAX - 1};
    const uint64_t positions[] = {1, 255, UINT64_C(1) << 32,
                                  (UINT64_C(1) << RING_POSITION_BITS) - 1};
    int wrong = 0;

    for (size_t i = 0; i < 4 * 3 * 4; i++) {
        uint32_t pipe = pipes[i % 4], lane = lanes[i / 4 % 3];
        uint64_t position = positions[i / 12];
        fp8pipe_ticket ticket = ticket_make(pipe, lane, position);

        wrong += ticket == 0 || ticket_pipe(ticket) != pipe || ticket_lane(ticket) != lane ||
                 ticket_position(ticket) != position;
    }
    is_int(wrong, 0, "a ticket gives back pipe, lane and position, smallest to largest");
    is_int(TICKET_PIPE_BITS + TICKET_LANE_BITS + RING_POSITION_BITS, 64, "and uses all its bits");
    ok(FP8PIPE_LANES_MAX <= 1 << TICKET_LANE_BITS, "as many lanes as there may be fit");
    ok(ticket_make(3, 2, 77) < ticket_make(3, 2, 78), "later tickets of a lane are larger");
}

static void port_make(struct port *port)
{
    memset(port, 0, sizeof(*port));
    if (port_init(port, 32, START, 0) != FP8PIPE_OK) {
        bail("port_init");
    }
}

static struct ticket_failure failed(uint64_t position)
{
    struct ticket_failure failure = {.outcome = FP8PIPE_OUTCOME_FAILED,
                                     .status = FP8PIPE_ECALL,
                                     .root = ticket_make(0, 0, position),
                                     .sentence = "it failed"};

    return failure;
}

static struct ticket_failure cancelled(uint64_t root, enum fp8pipe_status status)
{
    struct ticket_failure failure = {
        .outcome = FP8PIPE_OUTCOME_CANCELLED, .status = status, .root = ticket_make(0, 0, root)};

    return failure;
}

static void keep(struct port *port, uint64_t position, uint32_t slots,
                 struct ticket_failure failure)
{
    port_failure_keep(port, position, slots, &failure);
}

static void marks(void)
{
    struct port port;

    port_make(&port);
    is_int(port_done(&port), START, "a new port has nothing done");
    is_int(ring_tail(&port.ring), START, "nor issued");
    is_int(port_too_old(&port), 0, "and knows of all its tickets");
    port_done_set(&port, START + 5);
    is_int(port_done(&port), START + 5, "its done mark can be moved");
    port_retire(&port);
    is_int(port_done(&port), START + 5, "and is read from a retired port too");
}

static void ranges(void)
{
    struct ticket_failure found;
    struct port port;

    port_make(&port);
    ok(!port_failure_find(&port, START, &found), "nothing has failed at first");
    keep(&port, 1010, 3, failed(1010));
    ok(!port_failure_find(&port, 1009, &found) && !port_failure_find(&port, 1013, &found),
       "the positions around a failed op have not failed");
    ok(port_failure_find(&port, 1010, &found) && port_failure_find(&port, 1012, &found),
       "all of its slots have");
    is_int(found.outcome, FP8PIPE_OUTCOME_FAILED, "as failed,");
    is_int(found.status, FP8PIPE_ECALL, "with its status,");
    is_int(found.root, ticket_make(0, 0, 1010), "its root");
    is_str(found.sentence, "it failed", "and its sentence");
    keep(&port, 1013, 1, cancelled(1010, FP8PIPE_ECALL));
    is_int(port.failed, 2, "a cancelled op behind it is a range of its own");
    keep(&port, 1014, 2, cancelled(1010, FP8PIPE_ECALL));
    keep(&port, 1016, 1, cancelled(1010, FP8PIPE_ECALL));
    is_int(port.failed, 2, "which those behind it for the same reason join");
    ok(port_failure_find(&port, 1016, &found) && found.outcome == FP8PIPE_OUTCOME_CANCELLED,
       "and are found in");
    ok(!port_failure_find(&port, 1017, &found), "up to its end");
    keep(&port, 1018, 1, cancelled(1010, FP8PIPE_ECALL));
    is_int(port.failed, 3, "one after a gap does not join");
    keep(&port, 1019, 1, cancelled(1011, FP8PIPE_ECALL));
    is_int(port.failed, 4, "nor one with another root");
    keep(&port, 1020, 1, cancelled(1011, FP8PIPE_ECANCELED));
    is_int(port.failed, 5, "or another status");
    keep(&port, 1021, 1, failed(1021));
    keep(&port, 1022, 1, failed(1021));
    is_int(port.failed, 7, "nor one that failed by itself");
    ok(!port_failure_find(&port, 1017, &found), "the gap is still no failure");
    port_retire(&port);
}

/* A lane's life at random, beside a list of what became of each position. */
static void forgotten(void)
{
    static fp8pipe_ticket roots[POSITIONS]; /* 0: did not fail */
    uint64_t position = START, root = 0, begins[POSITIONS], ranges_made = 0, oldest = 0;
    struct test_rng rng = {1};
    struct port port;
    int wrong = 0;

    port_make(&port);
    while (position < START + POSITIONS - RING_ENTRY_SLOTS_MAX) {
        uint32_t slots = (uint32_t)test_random_range(&rng, 1, RING_ENTRY_SLOTS_MAX);
        int64_t fate = test_random_range(&rng, 0, 2); /* fails, is cancelled, is well */
        uint64_t before = port.failed;

        if (fate == 0 || (fate == 1 && root == 0)) {
            root = position;
            keep(&port, position, slots, failed(root));
        } else if (fate == 1) {
            keep(&port, position, slots, cancelled(root, FP8PIPE_ECALL));
        }
        if (port.failed != before) {
            begins[ranges_made++] = position;
        }
        for (uint32_t i = 0; i < slots; i++, position++) {
            roots[position - START] = fate == 2 ? 0 : ticket_make(0, 0, root);
        }
    }
    if (ranges_made <= TICKET_FAILURES) {
        bail("%d failures are too few to evict any", (int)ranges_made);
    }
    oldest = begins[ranges_made - TICKET_FAILURES];
    is_int(port_too_old(&port), oldest, "a lane remembers its last %d failed ranges",
           TICKET_FAILURES);
    for (uint64_t at = START; at < position; at++) {
        struct ticket_failure found = {0};
        bool is_failed = port_failure_find(&port, at, &found);

        if (at < oldest) {
            wrong += !is_failed || found.status != FP8PIPE_ETOOOLD || found.sentence[0] == '\0';
        } else {
            wrong += is_failed != (roots[at - START] != 0) || found.root != roots[at - START];
        }
    }
    is_int(wrong, 0, "%d positions: found with their roots, or not failed, or too old",
           (int)(position - START));
    port_retire(&port);
}

static void exactly_full(void)
{
    struct ticket_failure found;
    struct port port;

    port_make(&port);
    for (uint64_t i = 0; i < TICKET_FAILURES; i++) {
        keep(&port, START + 2 * i, 1, failed(START + 2 * i));
    }
    is_int(port_too_old(&port), 0, "%d failures are all remembered", TICKET_FAILURES);
    ok(port_failure_find(&port, START, &found) && found.status == FP8PIPE_ECALL, "the first too");
    ok(!port_failure_find(&port, START + 1, &found), "and what was well between them");
    keep(&port, START + 2 * TICKET_FAILURES, 1, failed(START + 2 * TICKET_FAILURES));
    is_int(port_too_old(&port), START + 2, "one more, and what is below the second is too old");
    ok(port_failure_find(&port, START + 1, &found) && found.status == FP8PIPE_ETOOOLD,
       "also what was well there");
    port_retire(&port);
}

struct reading {
    struct port port;
    uint64_t kept; /* every other position below it has failed */
    uint32_t wrong;
};

static void *read_failures(void *arg)
{
    struct reading *reading = arg;
    uint64_t kept = START;

    while (kept < START + POSITIONS) {
        kept = ck_pr_load_64(&reading->kept);
        ck_pr_fence_acquire();
        for (uint64_t at = START + kept % 2; at < kept; at += 97) {
            uint64_t even = at - at % 2;
            struct ticket_failure found;

            if (!port_failure_find(&reading->port, even, &found) ||
                (found.status != FP8PIPE_ETOOOLD &&
                 (found.status != FP8PIPE_ECALL || found.root != ticket_make(0, 0, even)))) {
                ck_pr_inc_32(&reading->wrong);
            }
        }
    }
    return NULL;
}

static void read_while_written(void)
{
    static struct reading reading;
    pthread_t threads[2];

    port_make(&reading.port);
    reading.kept = START;
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, read_failures, &reading) != 0) {
            bail("pthread_create");
        }
    }
    for (uint64_t at = START; at < START + POSITIONS; at += 2) {
        keep(&reading.port, at, 1, failed(at));
        ck_pr_fence_release();
        ck_pr_store_64(&reading.kept, at + 2);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    is_int(reading.wrong, 0,
           "who looks while the launcher writes finds each failure, or that it is "
           "too old");
    port_retire(&reading.port);
}

int main(void)
{
    alarm(HANG_S); /* whatever waits for ever ends the program */
    numbers();
    marks();
    ranges();
    forgotten();
    exactly_full();
    read_while_written();
    return done_testing();
}
