#include "load_gate.h"

#include <ck_pr.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* More than any load takes, less than anybody minds at an exit beside one that times kernels. */
#define EXIT_SECONDS 1

/* Environment: the one cuBLASLt of the process. Readers load; writers first, or they would wait as
 * long as there is something to load. */
static pthread_rwlock_t loading = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static pid_t exit_process;

void load_gate_call(struct load_gate *gate, int64_t now_ns)
{
    ck_pr_store_64((uint64_t *)&gate->called_ns, (uint64_t)now_ns);
}

bool load_gate_is_open(const struct load_gate *gate, int64_t now_ns, int64_t since_ns)
{
    const int64_t called_ns = (int64_t)ck_pr_load_64((const uint64_t *)&gate->called_ns);
    const int64_t waits_ns = gate->loaded_ns > since_ns ? gate->loaded_ns : since_ns;
    int64_t quiet_ns = LOAD_GATE_QUIET_NS;

    if (now_ns - waits_ns >= LOAD_GATE_LATEST_NS)
        return true;
    /* A pause in which something was loaded has to last twice as long before it is used again. */
    if (2 * (gate->loaded_ns - called_ns) > quiet_ns)
        quiet_ns = 2 * (gate->loaded_ns - called_ns);
    if (quiet_ns > LOAD_GATE_LONG_NS)
        quiet_ns = LOAD_GATE_LONG_NS;
    return now_ns - called_ns >= quiet_ns;
}

void load_gate_loaded(struct load_gate *gate, int64_t from_ns, int64_t now_ns)
{
    if (now_ns - from_ns >= LOAD_GATE_LOAD_NS)
        gate->loaded_ns = now_ns;
}

bool load_gate_enter(void)
{
    return pthread_rwlock_tryrdlock(&loading) == 0;
}

void load_gate_leave(void)
{
    pthread_rwlock_unlock(&loading);
}

void load_gate_block(void)
{
    pthread_rwlock_wrlock(&loading);
}

void load_gate_unblock(void)
{
    pthread_rwlock_unlock(&loading);
}

/* Never unlocked. A child has the parent's lock as it was, and nobody who loads. */
static void exit_blocks(void)
{
    struct timespec until;

    if (getpid() != exit_process)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_SECONDS;
    (void)pthread_rwlock_timedwrlock(&loading, &until);
}

static void exit_register(void)
{
    exit_process = getpid();
    (void)atexit(exit_blocks);
}

void load_gate_watch_exit(void)
{
    pthread_once(&exit_once, exit_register);
}
