#include "ec.h"

#include <ck_pr.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A waker may have been preempted between its change and its wake-up for about this long. */
#define EC_GRACE_NS INT64_C(100000000)
#define EC_SECOND_NS INT64_C(1000000000)

static struct timespec timespec_from_ns(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / EC_SECOND_NS, .tv_nsec = ns % EC_SECOND_NS};
}

int64_t ec_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * EC_SECOND_NS + now.tv_nsec;
}

int64_t ec_deadline_ns(int64_t timeout_ns)
{
    int64_t now = ec_now_ns();

    return timeout_ns < 0 || timeout_ns > EC_FOREVER - now ? EC_FOREVER : now + timeout_ns;
}

static int ops_gettime(const struct ck_ec_ops *ops, struct timespec *out)
{
    (void)ops;
    return clock_gettime(CLOCK_MONOTONIC, out);
}

static void ops_wait32(const struct ck_ec_wait_state *state, const uint32_t *address,
                       uint32_t expected, const struct timespec *deadline)
{
    (void)state;
    syscall(SYS_futex, address, FUTEX_WAIT_BITSET_PRIVATE, expected, deadline, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

static void ops_wake32(const struct ck_ec_ops *ops, const uint32_t *address)
{
    (void)ops;
    syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, INT_MAX);
}

static const struct ck_ec_ops ec_ops = {
    .gettime = ops_gettime,
    .wait32 = ops_wait32,
    .wake32 = ops_wake32,
    .busy_loop_iter = 1, /* ec_await has spun already */
};

static const struct ck_ec_mode ec_mode = {.ops = &ec_ops, .single_producer = false};

/* ck_ec backs off in steps that may pass the deadline; each step ends there at the latest. */
static int clip_step(const struct ck_ec_wait_state *state, struct timespec *step)
{
    const struct timespec *end = state->data;

    if (step->tv_sec > end->tv_sec ||
        (step->tv_sec == end->tv_sec && step->tv_nsec > end->tv_nsec)) {
        *step = *end;
    }
    return 0;
}

uint32_t ec_value(const struct ec *ec)
{
    return ck_ec32_value(&ec->word);
}

bool ec_sleep(struct ec *ec, uint32_t value, int64_t deadline_ns)
{
    struct timespec end = timespec_from_ns(deadline_ns);

    return ck_ec32_wait_pred(&ec->word, &ec_mode, value, clip_step, &end, &end) == 0;
}

void ec_init(struct ec *ec)
{
    ck_ec32_init(&ec->word, 0);
}

void ec_wake(struct ec *ec)
{
    ck_ec32_inc(&ec->word, &ec_mode);
}

void ec_nap(struct ec *ec, int64_t deadline_ns)
{
    ec_sleep(ec, ck_ec32_value(&ec->word), deadline_ns);
}

bool ec_await(struct ec *ec, ec_ready_fn *ready, void *arg, int64_t spin_ns, int64_t deadline_ns,
              uint64_t *rescues)
{
    int64_t now;

    if (ready(arg)) {
        return true;
    }
    if (spin_ns > 0) {
        int64_t spin_end = ec_deadline_ns(spin_ns);

        if (spin_end > deadline_ns) {
            spin_end = deadline_ns;
        }
        do {
            for (int i = 0; i < 64; i++) {
                ck_pr_stall();
                if (ready(arg)) {
                    return true;
                }
            }
        } while (ec_now_ns() < spin_end);
    }
    for (;;) {
        uint32_t value = ck_ec32_value(&ec->word);
        int64_t limit;

        if (ready(arg)) {
            return true;
        }
        now = ec_now_ns();
        if (now >= deadline_ns) {
            return false;
        }
        limit = deadline_ns - now > EC_RECHECK_NS ? now + EC_RECHECK_NS : deadline_ns;
        if (ec_sleep(ec, value, limit) || limit == deadline_ns) {
            continue;
        }
        if (ready(arg)) {
            if (!ec_sleep(ec, value, limit + EC_GRACE_NS)) {
                ck_pr_inc_64(rescues);
            }
            return true;
        }
    }
}
