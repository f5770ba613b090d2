#include "completion.h"

#include <ck_pr.h>
#include <stdlib.h>
#include <string.h>

#include "thread.h"

struct defer {
    struct defer *next;
    fp8pipe_ticket ticket;
    fp8pipe_defer_fn *fn;
    void *arg;
};

/* What fp8pipe_wait returns for an op that has been looked at. */
static enum fp8pipe_status status_of(const struct look *look)
{
    return look->failed ? look->failure.status : FP8PIPE_OK;
}

/* Backends call from threads of their own. */
static bool any_reached(struct completion *completion)
{
    struct backend *backend = completion->backend;
    struct backend_scope scope;
    bool reached = false;

    backend->ops->enter(backend, &scope);
    for (uint32_t i = 0; i < completion->lanes; i++) {
        reached = event_ring_reached(&completion->rings[i]) || reached;
    }
    backend->ops->leave(backend, &scope);
    return reached;
}

void completion_notify(void *arg)
{
    struct completion *completion = arg;

    ck_pr_fence_memory();
    if (ck_pr_load_64(&completion->interest) != 0 ||
        (ck_pr_load_64(&completion->waiters) != 0 && any_reached(completion))) {
        ec_wake(&completion->ec);
    }
}

struct done_wait {
    struct event_ring *ring;
    uint64_t position;
};

static bool done_ready(void *arg)
{
    struct done_wait *wait = arg;
    struct look look;

    event_ring_want(wait->ring, wait->position);
    event_ring_reap(wait->ring);
    event_ring_look(wait->ring, wait->position, &look);
    return look.done;
}

bool completion_await_done(struct completion *completion, struct event_ring *ring,
                           uint64_t position, int64_t deadline_ns)
{
    struct done_wait wait = {ring, position};
    bool done;

    ck_pr_inc_64(&completion->waiters);
    ck_pr_fence_memory();
    done = ec_await(&completion->ec, done_ready, &wait, 0, deadline_ns, &ring->port->ring.rescues);
    ck_pr_dec_64(&completion->waiters);
    return done;
}

static void interest_add(struct completion *completion)
{
    ck_pr_inc_64(&completion->interest);
    ck_pr_fence_memory();
}

static void interest_drop(struct completion *completion)
{
    ck_pr_dec_64(&completion->interest);
}

static bool defer_room(void *arg)
{
    struct completion *completion = arg;

    return ck_pr_load_32(&completion->outstanding) < completion->limit;
}

enum fp8pipe_status completion_defer(struct completion *completion, fp8pipe_ticket ticket,
                                     enum fp8pipe_mark mark, fp8pipe_defer_fn *fn, void *arg,
                                     bool nonblock)
{
    struct defer_list *list = mark == FP8PIPE_ISSUED ? &completion->issued : &completion->done;
    struct defer *defer = malloc(sizeof(*defer));

    if (defer == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "a defer: %zu bytes are not to be had", sizeof(*defer));
    }
    *defer = (struct defer){NULL, ticket, fn, arg};
    pthread_mutex_lock(&completion->lock);
    while (completion->outstanding >= completion->limit) {
        pthread_mutex_unlock(&completion->lock);
        if (nonblock) {
            free(defer);
            return status_fail(FP8PIPE_EAGAIN, "defer_limit = %u: as many defers are outstanding",
                               completion->limit);
        }
        ec_await(&completion->room, defer_room, completion, 0, EC_FOREVER, &completion->rescues);
        pthread_mutex_lock(&completion->lock);
    }
    ck_pr_store_32(&completion->outstanding, completion->outstanding + 1);
    interest_add(completion);
    *list->end = defer;
    list->end = &defer->next;
    pthread_mutex_unlock(&completion->lock);
    ec_wake(&completion->ec);
    return FP8PIPE_OK;
}

void completion_bury(struct completion *completion, struct filling *filling)
{
    ck_spinlock_fas_lock(&completion->dead_word);
    filling->next = completion->dead;
    completion->dead = filling;
    ck_spinlock_fas_unlock(&completion->dead_word);
    interest_add(completion);
    ec_wake(&completion->ec);
}

/* Releases the dead whose uses are all issued; the others stay. */
static void release_dead(struct completion *completion)
{
    struct issue issue = {
        .backend = completion->backend,
        .stream = completion->stream,
        .lane = ISSUE_NO_LANE,
        .lanes = completion->lanes,
        .rings = completion->rings,
    };
    struct filling **link = &completion->waiting, *filling;

    ck_spinlock_fas_lock(&completion->dead_word);
    filling = completion->dead;
    completion->dead = NULL;
    ck_spinlock_fas_unlock(&completion->dead_word);
    while (filling != NULL) {
        struct filling *next = filling->next;

        filling->next = completion->waiting;
        completion->waiting = filling;
        filling = next;
    }
    while ((filling = *link) != NULL) {
        if (filling_uses(filling, &issue) == FILLING_QUEUED) {
            link = &filling->next;
            continue;
        }
        *link = filling->next;
        filling_release(filling, &issue);
        interest_drop(completion);
    }
}

/* First position not past a mark, of every lane, as one round of defers sees it. */
struct marks {
    uint64_t issued[FP8PIPE_LANES_MAX];
    uint64_t done[FP8PIPE_LANES_MAX];
    bool failed;
};

static void read_marks(struct completion *completion, struct marks *marks)
{
    for (uint32_t i = 0; i < completion->lanes; i++) {
        marks->done[i] = port_done(completion->rings[i].port);
    }
    marks->failed = fault_status(completion->fault) != FP8PIPE_OK;
    for (uint32_t i = 0; i < completion->lanes; i++) {
        marks->issued[i] = ring_tail(&completion->rings[i].port->ring);
    }
}

/* Takes the defers whose mark is reached off the list, in order. */
static struct defer *take_ready(struct defer_list *list, const uint64_t *marks, bool all)
{
    struct defer *ready = NULL, **ready_end = &ready, **link = &list->first;

    while (*link != NULL) {
        struct defer *defer = *link;

        if (all || marks[ticket_lane(defer->ticket)] > ticket_position(defer->ticket)) {
            *link = defer->next;
            defer->next = NULL;
            *ready_end = defer;
            ready_end = &defer->next;
        } else {
            link = &defer->next;
        }
    }
    list->end = link;
    return ready;
}

static uint32_t run_defers(struct completion *completion, struct defer *defer)
{
    uint32_t count = 0;

    while (defer != NULL) {
        struct defer *next = defer->next;
        struct look look = {0};

        if (defer->ticket != 0) {
            event_ring_look(&completion->rings[ticket_lane(defer->ticket)],
                            ticket_position(defer->ticket), &look);
        }
        /* It may defer again in its own place. */
        pthread_mutex_lock(&completion->lock);
        ck_pr_store_32(&completion->outstanding, completion->outstanding - 1);
        pthread_mutex_unlock(&completion->lock);
        ec_wake(&completion->room);
        thread_inside_set(THREAD_DEFER);
        defer->fn(defer->arg, defer->ticket, status_of(&look));
        thread_inside_set(THREAD_OUTSIDE);
        free(defer);
        defer = next;
        count++;
        interest_drop(completion);
    }
    return count;
}

/* One round; returns how many defers ran. */
static uint32_t run_round(struct completion *completion)
{
    struct defer *issued, *done;
    struct marks marks;

    if (ck_pr_load_64(&completion->interest) == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < completion->lanes; i++) {
        event_ring_reap(&completion->rings[i]);
    }
    pthread_mutex_lock(&completion->lock);
    read_marks(completion, &marks);
    issued = take_ready(&completion->issued, marks.issued, marks.failed);
    done = take_ready(&completion->done, marks.done, marks.failed);
    pthread_mutex_unlock(&completion->lock);
    return run_defers(completion, issued) + run_defers(completion, done);
}

static void *completion_main(void *arg)
{
    struct completion *completion = arg;
    int64_t poll_ns = completion->backend->ops->poll_ns;
    bool rechecking = false;
    struct backend_scope scope;

    completion->backend->ops->enter(completion->backend, &scope);
    for (;;) {
        uint32_t value = ec_value(&completion->ec);
        bool polling;
        uint32_t ran;

        release_dead(completion);
        ran = run_round(completion);
        if (rechecking && ran > 0) {
            ck_pr_inc_64(&completion->rescues);
        }
        rechecking = false;
        if (ran > 0) {
            continue;
        }
        if (ck_pr_load_32(&completion->stop) != 0 && ck_pr_load_64(&completion->interest) == 0) {
            break;
        }
        polling = poll_ns > 0 && ck_pr_load_32(&completion->outstanding) != 0;
        if (!ec_sleep(&completion->ec, value, ec_deadline_ns(polling ? poll_ns : EC_RECHECK_NS))) {
            rechecking = !polling;
        }
    }
    completion->backend->ops->leave(completion->backend, &scope);
    return NULL;
}

enum fp8pipe_status completion_start(struct completion *completion, struct backend *backend,
                                     struct event_ring *rings, uint32_t lanes, struct fault *fault,
                                     uint32_t limit)
{
    enum fp8pipe_status status;
    char name[16] = "fp8pipe-done";

    memset(completion, 0, sizeof(*completion));
    completion->backend = backend;
    completion->rings = rings;
    completion->lanes = lanes;
    completion->fault = fault;
    completion->limit = limit;
    ec_init(&completion->ec);
    fault->also = &completion->ec;
    ec_init(&completion->room);
    pthread_mutex_init(&completion->lock, NULL);
    ck_spinlock_fas_init(&completion->dead_word);
    completion->issued.end = &completion->issued.first;
    completion->done.end = &completion->done.first;
    status = backend->ops->stream_create(backend, NULL, &completion->stream);
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = thread_start(&completion->thread, name, -1, completion_main, completion);
    if (status != FP8PIPE_OK) {
        backend->ops->stream_destroy(backend, completion->stream);
        completion->stream = NULL;
        return status;
    }
    completion->started = true;
    return FP8PIPE_OK;
}

bool completion_stop(struct completion *completion, int64_t deadline_ns)
{
    if (!completion->started) {
        return true;
    }
    ck_pr_store_32(&completion->stop, 1);
    ec_wake(&completion->ec);
    if (!thread_join(completion->thread, deadline_ns)) {
        return false;
    }
    completion->started = false;
    completion->backend->ops->stream_destroy(completion->backend, completion->stream);
    completion->stream = NULL;
    pthread_mutex_destroy(&completion->lock);
    return true;
}
