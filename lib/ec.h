/*
 * Parking, on ck_ec event counts: spin a while, then sleep on a futex until woken.
 *
 * A waker changes some shared state, then calls ec_wake(). A waiter calls ec_await() with a
 * predicate over that state; no wake-up is lost, because the waiter reads the event count before
 * the predicate and ec_wake() is a full barrier. Every wait is also re-checked slowly; a re-check
 * that finds the predicate true although nobody woke the waiter is counted as a rescue, which is a
 * fault of the library's.
 *
 * Any thread may call anything here. Deadlines are absolute, on CLOCK_MONOTONIC.
 */
#ifndef LIB_EC_H
#define LIB_EC_H

#include <ck_ec.h>
#include <stdbool.h>
#include <stdint.h>

#define EC_FOREVER INT64_MAX

struct ec {
    struct ck_ec32 word;
};

typedef bool ec_ready_fn(void *arg);

int64_t ec_now_ns(void);

/* now + timeout_ns, EC_FOREVER for a negative timeout. */
int64_t ec_deadline_ns(int64_t timeout_ns);

void ec_init(struct ec *ec);

/* Wakes all waiters. Without waiters: one locked increment. */
void ec_wake(struct ec *ec);

/* For loops of their own: the count before looking, and sleeping until it moves on from there
 * (true) or the deadline has passed (false). */
uint32_t ec_value(const struct ec *ec);
bool ec_sleep(struct ec *ec, uint32_t value, int64_t deadline_ns);

/* Sleeps at most until `deadline_ns` or a wake-up; may return early. For polling only. */
void ec_nap(struct ec *ec, int64_t deadline_ns);

/* How often waiters without a deadline look again by themselves. */
#define EC_RECHECK_NS INT64_C(500000000)

/*
 * Spins for spin_ns, then parks, until ready(arg). False when the deadline passed first.
 * rescues: counter to add to.
 */
bool ec_await(struct ec *ec, ec_ready_fn *ready, void *arg, int64_t spin_ns, int64_t deadline_ns,
              uint64_t *rescues);

#endif
