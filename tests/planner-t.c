/*
 * The plan cache with a builder that borrows from neighbours, and a planner that refines what was
 * borrowed.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "cuda/plan_cache.h"
#include "cuda/planner.h"
#include "ec.h"
#include "status.h"

struct key {
    uint64_t name;
    uint64_t more;
};

/*
 * A key's name is what it is alike in (the upper half), and where it lies (the lower). A plan
 * remembers where its algorithm comes from; plans of odd names are not to be lent.
 */
struct lender {
    struct plan_cache *cache;
    struct planner *planner;
    atomic_int built;
    atomic_int destroyed;
    atomic_bool hold;  /* the planner waits */
    int64_t pushed_ns; /* no key was, before */
    atomic_int early;  /* keys that came with another time */
    atomic_int ended;  /* waits that destroy has ended */
};

struct lent {
    uint64_t name;
    uint64_t from;
};

static enum fp8pipe_status lend(void *context, const void *key_bytes, void **out, bool *provisional)
{
    const struct key *key = key_bytes;
    struct lender *lender = context;
    struct plan_entry *near = plan_cache_nearest(lender->cache, key);
    struct lent *plan = calloc(1, sizeof(*plan));

    if (plan == NULL)
        bail("no memory");
    *plan = (struct lent){key->name, key->name};
    if (near != NULL) {
        if (planner_push(lender->planner, key)) {
            plan->from = ((struct lent *)plan_entry_plan(near))->from;
            *provisional = true;
        }
        plan_cache_put(lender->cache, near);
    }
    lender->built++;
    *out = plan;
    return FP8PIPE_OK;
}

static void lent_destroy(void *context, void *plan)
{
    struct lender *lender = context;

    lender->destroyed++;
    free(plan);
}

static uint64_t family(const void *key, int which)
{
    const uint64_t name = ((const struct key *)key)->name;

    return which == 0 ? name >> 32 : name >> 48;
}

static uint64_t distance(const void *key, const void *other, const void *plan, int which)
{
    const uint64_t a = ((const struct key *)key)->name, b = ((const struct key *)other)->name;

    if (((const struct lent *)plan)->name % 2 == 1 || family(key, which) != family(other, which))
        return UINT64_MAX;
    return a > b ? a - b : b - a;
}

static void refine(void *context, const void *key_bytes, int64_t pushed_ns)
{
    const struct key *key = key_bytes;
    struct lender *lender = context;
    struct lent *plan;

    lender->early += pushed_ns < lender->pushed_ns || pushed_ns > ec_now_ns();
    while (lender->hold)
        if (!planner_sleep(lender->planner, MS_NS)) {
            lender->ended++;
            return;
        }
    if (!plan_cache_is_provisional(lender->cache, key))
        return;
    plan = calloc(1, sizeof(*plan));
    if (plan == NULL)
        bail("no memory");
    *plan = (struct lent){key->name, key->name};
    lender->built++;
    plan_cache_refine(lender->cache, key, plan);
}

static void lender_make(struct lender *lender, uint32_t capacity, uint32_t queue)
{
    struct plan_cache_options options = {
        .key_bytes = sizeof(struct key),
        .capacity = capacity,
        .build = lend,
        .destroy = lent_destroy,
        .context = lender,
        .family = family,
        .distance = distance,
    };

    memset(lender, 0, sizeof(*lender));
    lender->pushed_ns = ec_now_ns();
    lender->cache = plan_cache_create(&options);
    if (lender->cache == NULL ||
        planner_create(sizeof(struct key), queue, refine, lender, &lender->planner) != FP8PIPE_OK)
        bail("no lender: %s", status_sentence());
}

static void lender_free(struct lender *lender)
{
    planner_destroy(lender->planner);
    plan_cache_destroy(lender->cache);
    is_int(lender->early, 0, "the planner is told when a key was pushed");
    is_int(lender->destroyed, lender->built, "destroy leaves no plan behind");
}

static uint64_t lent_from(struct lender *lender, struct plan_front *front, uint64_t name)
{
    struct key key = {name, ~name};
    void *plan;

    if (plan_front_get(front, lender->cache, &key, &plan) != FP8PIPE_OK)
        bail("plan_front_get: %s", status_sentence());
    if (((struct lent *)plan)->name != name)
        bail("asked for %llx, got %llx", (unsigned long long)name,
             (unsigned long long)((struct lent *)plan)->name);
    return ((struct lent *)plan)->from;
}

#define NAME(a, b, c) ((uint64_t)(a) << 48 | (uint64_t)(b) << 32 | (c))

static void await_refined(struct lender *lender, uint64_t count)
{
    struct plan_cache_stats stats;

    for (int i = 0; i < 5000; i++) {
        plan_cache_stats_get(lender->cache, &stats);
        if (stats.refined >= count)
            return;
        sleep_ns(MS_NS);
    }
}

static void test_borrowing(void)
{
    struct plan_front front = {{NULL}};
    struct plan_cache_stats stats;
    struct lender lender;

    lender_make(&lender, 16, 16);
    lender.hold = true;
    is_int(lent_from(&lender, &front, NAME(1, 1, 100)), NAME(1, 1, 100),
           "without a neighbour a key has a plan of its own");
    lent_from(&lender, &front, NAME(2, 1, 102));
    lent_from(&lender, &front, NAME(3, 1, 111));
    plan_cache_stats_get(lender.cache, &stats);
    is_int(stats.borrowed, 0, "keys of other families are no neighbours");
    is_int(lent_from(&lender, &front, NAME(3, 1, 112)), NAME(3, 1, 112),
           "nor is one whose plan is not to be lent");
    is_int(lent_from(&lender, &front, NAME(1, 1, 500)), NAME(1, 1, 100), "a neighbour lends");
    is_int(lent_from(&lender, &front, NAME(1, 2, 0)), NAME(1, 1, 100),
           "so does one of the second family where the first has none");
    is_int(lent_from(&lender, &front, NAME(1, 2, 300)), NAME(1, 1, 100),
           "what was borrowed is lent on");
    plan_cache_stats_get(lender.cache, &stats);
    is_int(stats.borrowed, 3, "borrowed plans are counted");
    is_int(stats.refined, 0, "and as long as the planner sleeps");
    is_int(lent_from(&lender, &front, NAME(1, 1, 500)), NAME(1, 1, 100), "they are what they were");
    lender.hold = false;
    await_refined(&lender, 3);
    is_int(lent_from(&lender, &front, NAME(1, 1, 500)), NAME(1, 1, 500), "then the front sees");
    is_int(lent_from(&lender, &front, NAME(1, 2, 0)), NAME(1, 2, 0), "that each has its own");
    is_int(lent_from(&lender, &front, NAME(1, 2, 300)), NAME(1, 2, 300), "at last");
    lender.hold = true;
    is_int(lent_from(&lender, &front, NAME(1, 1, 290)), NAME(1, 1, 100), "the nearest below");
    is_int(lent_from(&lender, &front, NAME(1, 1, 310)), NAME(1, 1, 100),
           "and, of plans equally far, any of them");
    is_int(lent_from(&lender, &front, NAME(1, 1, 460)), NAME(1, 1, 500), "the nearest above");
    lender.hold = false;
    await_refined(&lender, 6);
    plan_cache_stats_get(lender.cache, &stats);
    is_int(stats.refined, 6, "each borrowed plan is refined once");
    plan_front_clear(&front, lender.cache);
    lender_free(&lender);
}

static void test_planner_bounds(void)
{
    struct plan_front front = {{NULL}};
    struct plan_cache_stats stats;
    struct lender lender;
    struct key key;

    lender_make(&lender, 8, 2);
    lender.hold = true;
    lent_from(&lender, &front, NAME(1, 1, 0));
    for (uint64_t i = 1; i < 7; i++)
        lent_from(&lender, &front, NAME(1, 1, 2 * i));
    plan_cache_stats_get(lender.cache, &stats);
    ok(stats.borrowed == 2 || stats.borrowed == 3,
       "with a full queue keys get plans of their own: %d borrowed", (int)stats.borrowed);
    /* Evicts the borrowed ones, and sets one of them. */
    for (uint64_t i = 0; i < 16; i++)
        lent_from(&lender, &front, NAME(2 + i, 1, 1));
    key = (struct key){NAME(1, 1, 2), ~NAME(1, 1, 2)};
    ok(!plan_cache_is_provisional(lender.cache, &key), "what was evicted is not provisional");
    lender.hold = false;
    planner_destroy(lender.planner);
    plan_cache_stats_get(lender.cache, &stats);
    is_int(stats.refined, 0, "nor refined");
    plan_front_clear(&front, lender.cache);
    plan_cache_destroy(lender.cache);
    is_int(lender.destroyed, lender.built, "destroy leaves no plan behind");
    planner_destroy(NULL);
}

static void test_planner_stops(void)
{
    struct plan_front front = {{NULL}};
    struct lender lender;

    lender_make(&lender, 8, 8);
    lender.hold = true;
    lent_from(&lender, &front, NAME(1, 1, 0));
    lent_from(&lender, &front, NAME(1, 1, 2));
    sleep_ns(5 * MS_NS);
    planner_destroy(lender.planner);
    is_int(lender.ended, 1, "destroy ends a function that sleeps");
    lender.planner = NULL;
    plan_front_clear(&front, lender.cache);
    lender_free(&lender);
}

struct borrower {
    pthread_t thread;
    struct lender *lender;
    uint64_t seed;
};

static void *borrow_at_random(void *arg)
{
    struct borrower *borrower = arg;
    struct plan_front front = {{NULL}};

    for (int i = 0; i < 20000; i++) {
        uint64_t seed = borrower->seed = borrower->seed * UINT64_C(6364136223846793005) + 1;

        lent_from(borrower->lender, &front,
                  NAME(seed >> 63, seed >> 61 & 1, 2 * (seed >> 40 & 31)));
    }
    plan_front_clear(&front, borrower->lender->cache);
    return NULL;
}

static void test_borrowing_threads(void)
{
    struct borrower borrowers[4];
    struct plan_cache_stats stats;
    struct lender lender;

    lender_make(&lender, 48, 8);
    for (int i = 0; i < 4; i++) {
        borrowers[i] = (struct borrower){.lender = &lender, .seed = (uint64_t)i};
        if (pthread_create(&borrowers[i].thread, NULL, borrow_at_random, &borrowers[i]) != 0)
            bail("pthread_create");
    }
    for (int i = 0; i < 4; i++)
        pthread_join(borrowers[i].thread, NULL);
    plan_cache_stats_get(lender.cache, &stats);
    ok(stats.refined <= stats.borrowed && stats.borrowed > 0,
       "threads that borrow, evict and are refined got the plan of their key: %d borrowed, %d "
       "refined",
       (int)stats.borrowed, (int)stats.refined);
    ok(stats.cached <= 48, "and the table stays bounded");
    lender_free(&lender);
}

int main(void)
{
    test_borrowing();
    test_planner_bounds();
    test_planner_stops();
    test_borrowing_threads();
    return done_testing();
}
