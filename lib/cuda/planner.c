#include "planner.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ec.h"
#include "status.h"
#include "thread.h"

/* All but what create sets is written and read under the lock. */
struct planner {
    pthread_mutex_t lock;
    pthread_cond_t pushed; /* or stop */
    pthread_t thread;
    planner_fn *fn;
    void *context;
    size_t key_bytes;
    uint32_t capacity;
    uint32_t first; /* in keys[], the oldest */
    uint32_t count;
    bool stop;
    char *current; /* the thread's copy of the key that it works on */
    char *keys;
    int64_t pushed_ns[]; /* of each key */
};

static void *planner_main(void *arg)
{
    struct planner *planner = arg;
    int64_t pushed_ns;

    pthread_mutex_lock(&planner->lock);
    for (;;) {
        while (planner->count == 0 && !planner->stop)
            pthread_cond_wait(&planner->pushed, &planner->lock);
        if (planner->stop)
            break;
        memcpy(planner->current, planner->keys + planner->first * planner->key_bytes,
               planner->key_bytes);
        pushed_ns = planner->pushed_ns[planner->first];
        planner->first = (planner->first + 1) % planner->capacity;
        planner->count--;
        pthread_mutex_unlock(&planner->lock);
        planner->fn(planner->context, planner->current, pushed_ns);
        pthread_mutex_lock(&planner->lock);
    }
    pthread_mutex_unlock(&planner->lock);
    return NULL;
}

enum fp8pipe_status planner_create(size_t key_bytes, uint32_t capacity, planner_fn *fn,
                                   void *context, struct planner **out)
{
    /* One more for `current`. */
    struct planner *planner = calloc(1, sizeof(*planner) + capacity * sizeof(int64_t) +
                                            key_bytes * (capacity + (size_t)1));
    enum fp8pipe_status status;

    if (planner == NULL)
        return status_fail(FP8PIPE_ENOMEM, "no host memory for the thread that refines plans");
    planner->fn = fn;
    planner->context = context;
    planner->key_bytes = key_bytes;
    planner->capacity = capacity;
    planner->keys = (char *)(planner->pushed_ns + capacity);
    planner->current = planner->keys + capacity * key_bytes;
    pthread_mutex_init(&planner->lock, NULL);
    pthread_cond_init(&planner->pushed, NULL);
    status = thread_start(&planner->thread, "fp8pipe-plan", -1, planner_main, planner);
    if (status == FP8PIPE_OK) {
        *out = planner;
        return FP8PIPE_OK;
    }
    pthread_cond_destroy(&planner->pushed);
    pthread_mutex_destroy(&planner->lock);
    free(planner);
    return status;
}

void planner_destroy(struct planner *planner)
{
    if (planner == NULL)
        return;
    pthread_mutex_lock(&planner->lock);
    planner->stop = true;
    pthread_cond_signal(&planner->pushed);
    pthread_mutex_unlock(&planner->lock);
    pthread_join(planner->thread, NULL);
    pthread_cond_destroy(&planner->pushed);
    pthread_mutex_destroy(&planner->lock);
    free(planner);
}

bool planner_push(struct planner *planner, const void *key)
{
    bool room;

    pthread_mutex_lock(&planner->lock);
    room = planner->count < planner->capacity;
    if (room) {
        const uint32_t last = (planner->first + planner->count) % planner->capacity;

        memcpy(planner->keys + last * planner->key_bytes, key, planner->key_bytes);
        planner->pushed_ns[last] = ec_now_ns();
        /* With more than one waiting the thread is awake. */
        if (planner->count++ == 0)
            pthread_cond_signal(&planner->pushed);
    }
    pthread_mutex_unlock(&planner->lock);
    return room;
}

bool planner_sleep(struct planner *planner, int64_t ns)
{
    const struct timespec nap = {.tv_nsec = (long)ns};
    bool stop;

    nanosleep(&nap, NULL);
    pthread_mutex_lock(&planner->lock);
    stop = planner->stop;
    pthread_mutex_unlock(&planner->lock);
    return !stop;
}
