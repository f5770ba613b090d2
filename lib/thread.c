#include "thread.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "ec.h"
#include "status.h"

_Thread_local enum thread_inside thread_inside_now;

enum thread_inside thread_inside_set(enum thread_inside inside)
{
    enum thread_inside before = thread_inside_now;

    thread_inside_now = inside;
    return before;
}

enum fp8pipe_status thread_start(pthread_t *thread, const char *name, int cpu, void *(*fn)(void *),
                                 void *arg)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    pthread_attr_t attributes;
    sigset_t all, before;
    int error;

    error = pthread_attr_init(&attributes);
    if (error != 0) {
        return status_fail(FP8PIPE_ENOMEM, "thread %s: %s", name, strerror(error));
    }
    if (cpu >= 0) {
        cpu_set_t cpus;

        CPU_ZERO(&cpus);
        if (cpu < CPU_SETSIZE) {
            CPU_SET(cpu, &cpus);
        }
        error = pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error == 0) {
        error = pthread_create(thread, &attributes, fn, arg);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0 && cpu >= 0) {
        status = status_fail(FP8PIPE_EINVAL, "affinity = %d: thread %s cannot run on that CPU: %s",
                             cpu, name, strerror(error));
    } else if (error != 0) {
        status =
            status_fail(FP8PIPE_ENOMEM, "thread %s cannot be started: %s", name, strerror(error));
    } else {
        pthread_setname_np(*thread, name);
    }
    return status;
}

bool thread_join(pthread_t thread, int64_t deadline_ns)
{
    struct timespec deadline;

    if (deadline_ns == EC_FOREVER) {
        return pthread_join(thread, NULL) == 0;
    }
    deadline.tv_sec = deadline_ns / 1000000000;
    deadline.tv_nsec = deadline_ns % 1000000000;
    return pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &deadline) == 0;
}

uint64_t thread_cpu_ns(pthread_t thread)
{
    struct timespec used;
    clockid_t clock;

    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) != 0) {
        return 0;
    }
    return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}
