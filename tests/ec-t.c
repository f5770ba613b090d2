/*
 * Guards parking: deadlines end when they should, every wake-up arrives, and one that never came is
 * counted, so that the suite sees it.
 */
#include <ck_pr.h>
#include <pthread.h>
#include <unistd.h>

#include "ec.h"
#include "tap.h"

#define MS INT64_C(1000000)
#define ROUNDS 2000
#define WAITERS 4
/* By then a sleeper looks by itself only after another 300 ms, at its re-check. */
#define LONG_ASLEEP_NS (200 * MS)
/* A busy machine is late by itself now and then; a fault of ours is late every time. */
#define TRIES 5
#define HANG_S 120

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static bool is_set(void *arg)
{
    return ck_pr_load_32(arg) != 0;
}

static void spawn(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    if (pthread_create(thread, NULL, fn, arg) != 0) {
        bail("pthread_create");
    }
}

/* ---- Deadlines ----------------------------------------------------------------------------- */

enum sleeper { AWAIT, AWAIT_SPINNING, SLEEP, NAP };

static int64_t sleep_ns(enum sleeper sleeper, int64_t timeout_ns, bool *right)
{
    int64_t start = ec_now_ns(), deadline = ec_deadline_ns(timeout_ns);
    uint64_t rescues = 0;
    struct ec ec;

    ec_init(&ec);
    switch (sleeper) {
    case AWAIT:
        *right = !ec_await(&ec, never, NULL, 0, deadline, &rescues);
        break;
    case AWAIT_SPINNING:
        *right = !ec_await(&ec, never, NULL, 1000 * MS, deadline, &rescues);
        break;
    case SLEEP:
        *right = !ec_sleep(&ec, ec_value(&ec), deadline);
        break;
    case NAP:
        ec_nap(&ec, deadline);
        *right = true;
        break;
    }
    *right = *right && rescues == 0;
    return ec_now_ns() - start;
}

static void deadline(enum sleeper sleeper, const char *name, int64_t timeout_ns, int64_t late_ns)
{
    int64_t shortest = INT64_MAX;
    bool right = true;

    for (int i = 0; i < TRIES && shortest > timeout_ns + late_ns; i++) {
        bool once;
        int64_t slept = sleep_ns(sleeper, timeout_ns, &once);

        right = right && once;
        shortest = slept < shortest ? slept : shortest;
    }
    ok(right && shortest >= timeout_ns, "%s of %d ms lasts until its deadline", name,
       (int)(timeout_ns / MS));
    ok(shortest <= timeout_ns + late_ns, "and not longer: %.2f ms", (double)shortest / 1e6);
}

static void deadlines(void)
{
    uint64_t rescues = 0;
    uint32_t set = 1;
    struct ec ec;

    ec_init(&ec);
    is_int(ec_deadline_ns(-1), EC_FOREVER, "a negative time-out has no deadline");
    is_int(ec_deadline_ns(INT64_MAX), EC_FOREVER, "nor has one beyond the end of time");
    ok(ec_deadline_ns(0) <= ec_now_ns(), "a time-out of 0 is over at once");
    ok(!ec_await(&ec, never, NULL, 0, ec_deadline_ns(0), &rescues), "and so is a wait with it");
    ok(ec_await(&ec, is_set, &set, 0, ec_deadline_ns(0), &rescues),
       "unless it has nothing to wait for");
    deadline(AWAIT, "a wait", 5 * MS, 10 * MS);
    deadline(AWAIT, "a wait", 150 * MS, 50 * MS);
    deadline(AWAIT, "a wait", EC_RECHECK_NS + 30 * MS, 50 * MS);
    deadline(AWAIT_SPINNING, "a spinning wait", 20 * MS, 20 * MS);
    deadline(SLEEP, "a sleep", 5 * MS, 10 * MS);
    deadline(SLEEP, "a sleep", 150 * MS, 50 * MS);
    deadline(NAP, "a nap", 5 * MS, 10 * MS);
}

/* ---- Wake-ups ------------------------------------------------------------------------------ */

/* Two threads that take turns, each parked until it is called. */
struct turns {
    struct ec ec;
    uint32_t turn;
    uint64_t rescues;
    int64_t spin_ns;
    int64_t timeout_ns;
    uint32_t late;
};

struct player {
    struct turns *turns;
    uint32_t first;
    uint32_t waited_for;
};

static bool my_turn(void *arg)
{
    struct player *player = arg;

    return ck_pr_load_32(&player->turns->turn) == player->waited_for;
}

static void *play(void *arg)
{
    struct player *player = arg;
    struct turns *turns = player->turns;

    for (player->waited_for = player->first; player->waited_for < ROUNDS; player->waited_for += 2) {
        if (!ec_await(&turns->ec, my_turn, player, turns->spin_ns,
                      ec_deadline_ns(turns->timeout_ns), &turns->rescues)) {
            ck_pr_inc_32(&turns->late);
            player->waited_for -= 2;
            continue;
        }
        ck_pr_store_32(&turns->turn, player->waited_for + 1);
        ec_wake(&turns->ec);
    }
    return NULL;
}

static void take_turns(int64_t spin_ns, int64_t timeout_ns)
{
    struct turns turns = {.spin_ns = spin_ns, .timeout_ns = timeout_ns};
    struct player odd = {&turns, 1, 0}, even = {&turns, 0, 0};
    pthread_t thread;

    ec_init(&turns.ec);
    spawn(&thread, play, &odd);
    play(&even);
    pthread_join(thread, NULL);
    is_int(turns.turn, ROUNDS, "%d turns, spinning for %d us, %s", ROUNDS, (int)(spin_ns / 1000),
           timeout_ns < 0 ? "without a deadline" : "with one");
    is_int(turns.rescues, 0, "every sleep is ended by its wake-up");
    is_int(turns.late, 0, "in time");
}

struct waiting {
    struct ec ec;
    uint32_t set;
    uint32_t ended;
    uint64_t rescues;
};

static void *wait_for_it(void *arg)
{
    struct waiting *waiting = arg;

    ec_await(&waiting->ec, is_set, &waiting->set, 0, EC_FOREVER, &waiting->rescues);
    ck_pr_inc_32(&waiting->ended);
    return NULL;
}

static void until_asleep(struct waiting *waiting)
{
    while (!ck_ec32_has_waiters(&waiting->ec.word)) {
        usleep(1000);
    }
}

/* How long after the wake-up the last of them is up. */
static int64_t wake_all(uint64_t *rescues)
{
    struct waiting waiting = {.set = 0};
    pthread_t threads[WAITERS];
    int64_t woken;

    ec_init(&waiting.ec);
    for (int i = 0; i < WAITERS; i++) {
        spawn(&threads[i], wait_for_it, &waiting);
    }
    until_asleep(&waiting);
    ec_wake(&waiting.ec);
    until_asleep(&waiting);
    if (ck_pr_load_32(&waiting.ended) != 0) {
        bail("a wake-up without the change has ended a wait");
    }
    usleep(LONG_ASLEEP_NS / 1000);
    woken = ec_now_ns();
    ck_pr_store_32(&waiting.set, 1);
    ec_wake(&waiting.ec);
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(threads[i], NULL);
    }
    *rescues += waiting.rescues;
    return ec_now_ns() - woken;
}

static void waking(void)
{
    int64_t shortest = INT64_MAX;
    uint64_t rescues = 0;

    for (int i = 0; i < TRIES && shortest > 50 * MS; i++) {
        int64_t took = wake_all(&rescues);

        shortest = took < shortest ? took : shortest;
    }
    ok(shortest <= 50 * MS, "one wake-up gets %d threads up at once: %.2f ms", WAITERS,
       (double)shortest / 1e6);
    is_int(rescues, 0, "none needed a rescue");
}

static void sleeping(void)
{
    struct ec ec;
    uint32_t value;

    ec_init(&ec);
    value = ec_value(&ec);
    ec_wake(&ec);
    ok(ec_value(&ec) != value, "a wake-up moves the count");
    ok(ec_sleep(&ec, value, EC_FOREVER), "so that a sleep that comes later ends at once");
}

/* ---- Lost wake-ups ------------------------------------------------------------------------- */

/* The change comes at once, the wake-up later or, after 0 ns, never. Returns the rescues. */
static int rescues_after(int64_t wake_ns, int64_t *waited_ns)
{
    struct waiting waiting = {.set = 0};
    int64_t start = ec_now_ns();
    pthread_t thread;

    ec_init(&waiting.ec);
    spawn(&thread, wait_for_it, &waiting);
    until_asleep(&waiting);
    ck_pr_store_32(&waiting.set, 1);
    if (wake_ns != 0) {
        while (ec_now_ns() < start + wake_ns) {
            usleep(1000);
        }
        ec_wake(&waiting.ec);
    }
    pthread_join(thread, NULL);
    *waited_ns = ec_now_ns() - start;
    return (int)waiting.rescues;
}

static void lost(void)
{
    int64_t waited_ns;
    int rescues = 1;

    is_int(rescues_after(0, &waited_ns), 1,
           "a change that nobody announces is counted as a rescue");
    ok(waited_ns >= EC_RECHECK_NS, "it is found by the slow re-check");
    /* The waker may be as slow as its machine is busy. */
    for (int i = 0; i < TRIES && rescues != 0; i++) {
        rescues = rescues_after(EC_RECHECK_NS + 20 * MS, &waited_ns);
    }
    is_int(rescues, 0, "one that is announced a little late is not");
}

int main(void)
{
    alarm(HANG_S); /* whatever waits for ever ends the program */
    deadlines();
    sleeping();
    take_turns(0, -1);
    take_turns(20000, -1);
    take_turns(0, 20000 * MS);
    waking();
    lost();
    return done_testing();
}
