/*
 * The plan cache with a builder that only counts: one build a key whoever asks, eviction while in
 * use, failures that are told to all and kept for none, plans that replace others.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "async.h"
#include "cuda/plan_cache.h"
#include "status.h"

struct key {
    uint64_t name;
    uint64_t more;
};

/* A plan is the name of its key. */
struct plan {
    uint64_t name;
    bool destroyed;
};

struct builder {
    atomic_int built;
    atomic_int destroyed;
    atomic_int failed;
    atomic_bool fail;
    atomic_int wait_ms;
};

static enum fp8pipe_status build(void *context, const void *key, void **out, bool *provisional)
{
    struct builder *builder = context;
    struct plan *plan;

    sleep_ns(builder->wait_ms * MS_NS);
    if (builder->fail) {
        builder->failed++;
        return status_fail(FP8PIPE_ENOTSUP, "no plan for %d", (int)((const struct key *)key)->name);
    }
    plan = calloc(1, sizeof(*plan));
    if (plan == NULL)
        bail("no memory");
    plan->name = ((const struct key *)key)->name;
    *provisional = false;
    builder->built++;
    *out = plan;
    return FP8PIPE_OK;
}

static void destroy(void *context, void *plan)
{
    struct builder *builder = context;

    builder->destroyed++;
    free(plan);
}

static struct plan_cache *cache_make(struct builder *builder, uint32_t capacity)
{
    struct plan_cache_options options = {
        .key_bytes = sizeof(struct key),
        .capacity = capacity,
        .build = build,
        .destroy = destroy,
        .context = builder,
    };
    struct plan_cache *cache = plan_cache_create(&options);

    if (cache == NULL)
        bail("plan_cache_create");
    return cache;
}

static struct plan_entry *get(struct plan_cache *cache, uint64_t name)
{
    struct key key = {name, ~name};
    struct plan_entry *entry = NULL;

    if (plan_cache_get(cache, &key, &entry) != FP8PIPE_OK)
        bail("plan_cache_get: %s", status_sentence());
    if (((struct plan *)plan_entry_plan(entry))->name != name)
        bail("asked for plan %d, got %d", (int)name,
             (int)((struct plan *)plan_entry_plan(entry))->name);
    return entry;
}

static void visit(struct plan_cache *cache, uint64_t name)
{
    plan_cache_put(cache, get(cache, name));
}

static void *front_get(struct plan_front *front, struct plan_cache *cache, uint64_t name)
{
    struct key key = {name, ~name};
    void *plan = NULL;

    if (plan_front_get(front, cache, &key, &plan) != FP8PIPE_OK)
        bail("plan_front_get: %s", status_sentence());
    if (((struct plan *)plan)->name != name)
        bail("asked the front for plan %d, got %d", (int)name, (int)((struct plan *)plan)->name);
    return plan;
}

static void test_table(void)
{
    struct builder builder = {0};
    struct plan_cache *cache = cache_make(&builder, 4);
    struct plan_entry *held, *again;
    struct plan_cache_stats stats;
    struct key near = {0, 0};
    int built;

    held = get(cache, 0);
    again = get(cache, 0);
    ok(held == again, "the same key, the same entry");
    is_int(builder.built, 1, "built once");
    plan_cache_put(cache, again);
    if (plan_cache_get(cache, &near, &again) != FP8PIPE_OK)
        bail("%s", status_sentence());
    ok(again != held, "every byte of the key counts");
    plan_cache_put(cache, again);

    for (uint64_t name = 1; name < 10; name++)
        visit(cache, name);
    plan_cache_stats_get(cache, &stats);
    is_int(stats.cached, 4, "the table is bounded");
    is_int(stats.evicted, 7, "and counts what it evicted");
    is_int(builder.destroyed, 6, "an evicted plan that is held lives on");
    is_int(((struct plan *)plan_entry_plan(held))->name, 0, "and is what it was");
    plan_cache_put(cache, held);
    is_int(builder.destroyed, 7, "until it is let go");

    visit(cache, 6);
    built = builder.built;
    visit(cache, 100);
    visit(cache, 101);
    visit(cache, 102);
    visit(cache, 6);
    is_int(builder.built, built + 3, "the plan that was hit outlives those that were not");
    plan_cache_destroy(cache);
    is_int(builder.destroyed, builder.built, "destroy leaves no plan behind");
    plan_cache_destroy(NULL);
}

static void test_front(void)
{
    struct builder builder = {0};
    struct plan_cache *cache = cache_make(&builder, 2);
    struct plan_front one = {{NULL}}, two = {{NULL}};
    struct plan_cache_stats stats;
    void *plan = front_get(&one, cache, 7);

    ok(front_get(&two, cache, 7) == plan, "two fronts share one plan");
    is_int(builder.built, 1, "built once");
    for (uint64_t name = 10; name < 20; name++)
        visit(cache, name);
    ok(front_get(&one, cache, 7) == plan, "a front keeps what the table evicted");
    for (uint64_t name = 0; name < 1000; name++)
        front_get(&one, cache, name);
    plan_cache_stats_get(cache, &stats);
    is_int(stats.cached, 2, "the table stays bounded");
    ok(builder.built - builder.destroyed <= PLAN_FRONT_SLOTS + 3, "so does the front");
    plan_front_clear(&one, cache);
    plan_front_clear(&two, cache);
    is_int(builder.built - builder.destroyed, 2, "a cleared front holds nothing");
    plan_cache_destroy(cache);
    is_int(builder.destroyed, builder.built, "destroy leaves no plan behind");
}

/* ---- Threads ------------------------------------------------------------------------------ */

#define THREADS 6

struct job {
    pthread_t thread;
    pthread_barrier_t *start;
    struct plan_cache *cache;
    uint64_t name;
    enum fp8pipe_status status;
    char sentence[STATUS_SENTENCE_BYTES];
    struct plan_entry *entry;
};

static void *job_get(void *arg)
{
    struct job *job = arg;
    struct key key = {job->name, ~job->name};

    pthread_barrier_wait(job->start);
    job->status = plan_cache_get(job->cache, &key, &job->entry);
    strcpy(job->sentence, status_sentence());
    return NULL;
}

/* At the same time, all for key 0, or each for a key of its own. */
static void jobs_run(struct job jobs[THREADS], struct plan_cache *cache, bool own_keys)
{
    pthread_barrier_t start;

    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.start = &start, .cache = cache, .name = own_keys ? (uint64_t)i : 0};
        if (pthread_create(&jobs[i].thread, NULL, job_get, &jobs[i]) != 0)
            bail("pthread_create");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(jobs[i].thread, NULL);
    pthread_barrier_destroy(&start);
}

static void test_single_flight(void)
{
    struct builder builder = {.wait_ms = 30};
    struct plan_cache *cache = cache_make(&builder, 16);
    struct job jobs[THREADS];
    bool same = true;

    jobs_run(jobs, cache, false);
    for (int i = 0; i < THREADS; i++) {
        same &= jobs[i].status == FP8PIPE_OK && jobs[i].entry == jobs[0].entry;
        plan_cache_put(cache, jobs[i].entry);
    }
    ok(same, "all threads get the one plan");
    is_int(builder.built, 1, "one of them builds, the others wait");
    plan_cache_destroy(cache);
}

static void test_failure(void)
{
    struct builder builder = {.wait_ms = 30, .fail = true};
    struct plan_cache *cache = cache_make(&builder, 16);
    struct plan_cache_stats stats;
    struct job jobs[THREADS];
    bool told = true;

    jobs_run(jobs, cache, false);
    for (int i = 0; i < THREADS; i++)
        told &= jobs[i].status == FP8PIPE_ENOTSUP && strcmp(jobs[i].sentence, "no plan for 0") == 0;
    ok(told, "a failed build is told to all who wait, with its sentence");
    plan_cache_stats_get(cache, &stats);
    is_int(stats.cached, 0, "and is not kept");
    is_int(stats.evicted, 0, "nor counted as evicted");
    builder.fail = false;
    visit(cache, 0);
    is_int(builder.built, 1, "the next to ask builds anew");
    plan_cache_destroy(cache);
}

static void test_full_of_builds(void)
{
    struct builder builder = {.wait_ms = 5};
    struct plan_cache *cache = cache_make(&builder, 1);
    struct job jobs[THREADS];
    bool all = true;

    jobs_run(jobs, cache, true);
    for (int i = 0; i < THREADS; i++) {
        all &= jobs[i].status == FP8PIPE_OK &&
               ((struct plan *)plan_entry_plan(jobs[i].entry))->name == (uint64_t)i;
        plan_cache_put(cache, jobs[i].entry);
    }
    ok(all, "a table full of builds makes others wait, not fail");
    plan_cache_destroy(cache);
    is_int(builder.destroyed, THREADS, "destroy leaves no plan behind");
}

struct walker {
    pthread_t thread;
    struct plan_cache *cache;
    uint64_t seed;
};

static void *walk(void *arg)
{
    struct walker *walker = arg;
    struct plan_front front = {{NULL}};

    for (int i = 0; i < 5000; i++) {
        walker->seed = walker->seed * UINT64_C(6364136223846793005) + 1;
        if (i % 2)
            front_get(&front, walker->cache, walker->seed >> 58);
        else
            visit(walker->cache, walker->seed >> 58);
    }
    plan_front_clear(&front, walker->cache);
    return NULL;
}

static void test_threads(void)
{
    struct builder builder = {0};
    struct plan_cache *cache = cache_make(&builder, 8);
    struct walker walkers[4];

    for (int i = 0; i < 4; i++) {
        walkers[i] = (struct walker){.cache = cache, .seed = (uint64_t)i};
        if (pthread_create(&walkers[i].thread, NULL, walk, &walkers[i]) != 0)
            bail("pthread_create");
    }
    for (int i = 0; i < 4; i++)
        pthread_join(walkers[i].thread, NULL);
    pass("threads that hit, miss and evict always got the plan of their key");
    plan_cache_destroy(cache);
    is_int(builder.destroyed, builder.built, "destroy leaves no plan behind");
}

/* ---- Replacement -------------------------------------------------------------------------- */

static struct plan *plan_new(uint64_t name)
{
    struct plan *plan = calloc(1, sizeof(*plan));

    if (plan == NULL)
        bail("no memory");
    plan->name = name;
    return plan;
}

static void set(struct plan_cache *cache, uint64_t name, struct plan *plan)
{
    struct key key = {name, ~name};

    if (plan_cache_set(cache, &key, plan) != FP8PIPE_OK)
        bail("plan_cache_set: %s", status_sentence());
}

static void test_replacement(void)
{
    struct builder builder = {0};
    struct plan_cache *cache = cache_make(&builder, 2);
    struct plan_front one = {{NULL}}, two = {{NULL}};
    struct key key = {7, ~UINT64_C(7)}, keys[4];
    struct plan_cache_stats stats;
    struct plan *old, *new = plan_new(7), *newest = plan_new(7);
    struct plan_entry *held;

    old = front_get(&one, cache, 7);
    held = get(cache, 7);
    set(cache, 7, new);
    ok(front_get(&one, cache, 7) == new, "a front comes to the plan that replaced its own");
    ok(front_get(&two, cache, 7) == new, "so does one that asks for the first time");
    ok(plan_entry_plan(held) == old && builder.destroyed == 0, "who holds the old plan keeps it");
    plan_cache_put(cache, held);
    is_int(builder.destroyed, 1, "it goes with its last holder");
    is_int(builder.built, 1, "and nothing was built again");
    ok(!plan_cache_is_provisional(cache, &key), "a plan that was set is final");
    ok(!plan_cache_refine(cache, &key, plan_new(7)), "and is not refined");
    is_int(builder.destroyed, 2, "the refinement that came too late is destroyed");
    set(cache, 7, newest);
    set(cache, 7, plan_new(7));
    is_int(builder.destroyed, 3, "a front keeps one plan of a key, however often it is replaced");
    ok(front_get(&one, cache, 7) != newest, "and gets the last one");
    set(cache, 8, plan_new(8));
    set(cache, 9, plan_new(9));
    plan_cache_stats_get(cache, &stats);
    is_int(stats.cached, 2, "a plan that is set where there was none counts for the bound");
    is_int(stats.evicted, 1, "and evicts");
    is_int(builder.built, 1, "without a build");
    is_int(plan_cache_keys(cache, keys, 4), 2, "the keys of the table");
    is_int(plan_cache_keys(cache, keys, 1), 1, "as many as there is room for");
    plan_front_clear(&one, cache);
    plan_front_clear(&two, cache);
    plan_cache_destroy(cache);
    is_int(builder.destroyed, builder.built + 6, "destroy leaves no plan behind");
}

int main(void)
{
    test_table();
    test_front();
    test_single_flight();
    test_failure();
    test_full_of_builds();
    test_threads();
    test_replacement();
    return done_testing();
}
