/*
 * Time-outs on the monotonic clock, force-included in ThreadSanitizer builds after config.h.
 *
 * The sanitizer of gcc 12 does not know pthread_mutex_clocklock, and takes a thread joined by
 * pthread_clockjoin_np for one that still runs. Here both become the calls on the realtime clock,
 * which it knows; a clock that is set meanwhile makes them a little early or late.
 */
#ifndef BUILD_AUX_PTHREAD_TSAN_H
#define BUILD_AUX_PTHREAD_TSAN_H

#include <pthread.h>
#include <time.h>

#define PTHREAD_TSAN_SECOND 1000000000L

/* The moment on the realtime clock when `clock` will show `deadline`. */
static inline struct timespec pthread_tsan_realtime(clockid_t clock, struct timespec deadline)
{
    struct timespec then, now;

    clock_gettime(clock, &then);
    clock_gettime(CLOCK_REALTIME, &now);
    deadline.tv_sec += now.tv_sec - then.tv_sec;
    deadline.tv_nsec += now.tv_nsec - then.tv_nsec;
    if (deadline.tv_nsec < 0) {
        deadline.tv_nsec += PTHREAD_TSAN_SECOND;
        deadline.tv_sec--;
    } else if (deadline.tv_nsec >= PTHREAD_TSAN_SECOND) {
        deadline.tv_nsec -= PTHREAD_TSAN_SECOND;
        deadline.tv_sec++;
    }
    return deadline;
}

static inline int pthread_tsan_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                         const struct timespec *deadline)
{
    struct timespec realtime = pthread_tsan_realtime(clock, *deadline);

    return pthread_mutex_timedlock(mutex, &realtime);
}

static inline int pthread_tsan_clockjoin(pthread_t thread, void **result, clockid_t clock,
                                         const struct timespec *deadline)
{
    struct timespec realtime;

    if (!deadline)
        return pthread_join(thread, result);
    realtime = pthread_tsan_realtime(clock, *deadline);
    return pthread_timedjoin_np(thread, result, &realtime);
}

#define pthread_mutex_clocklock pthread_tsan_clocklock
#define pthread_clockjoin_np pthread_tsan_clockjoin

#endif
