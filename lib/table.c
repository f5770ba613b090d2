#include "table.h"

#include <pthread.h>
#include <stdbool.h>

#include "status.h"
#include "thread.h"
#include "ticket.h"

/* Which numbers are taken, and where their positions go on. */
static struct {
    pthread_mutex_t lock;
    bool taken[TICKET_PIPES];
    uint64_t next[TICKET_PIPES];
    uint32_t last;
    struct table_entry *opened; /* all handles ever made: they are never freed */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint32_t table_fork_generation; /* written by the child of fork() alone, single-threaded then */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* The child gets the table whole, and its lock free. */
static void before_fork(void)
{
    pthread_mutex_lock(&table.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&table.lock);
}

static void count_fork(void)
{
    table_fork_generation++;
    thread_inside_set(THREAD_OUTSIDE); /* the function that forked is the parent's to finish */
    pthread_mutex_unlock(&table.lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, count_fork);
}

enum fp8pipe_status table_take(uint32_t *number, uint64_t *start)
{
    bool found = false;

    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&table.lock);
    for (uint32_t i = 0; i < TICKET_PIPES; i++) {
        uint32_t at = (table.last + i) % TICKET_PIPES;

        if (!table.taken[at]) {
            table.taken[at] = true;
            table.last = at + 1;
            *number = at;
            /* Position 0 would make ticket 0 of pipe 0 and lane 0. */
            *start = table.next[at] == 0 ? 1 : table.next[at];
            found = true;
            break;
        }
    }
    pthread_mutex_unlock(&table.lock);
    return found ? FP8PIPE_OK
                 : status_fail(FP8PIPE_ENOMEM, "%d pipes are open: no more fit into a ticket",
                               TICKET_PIPES);
}

void table_give_back(uint32_t number, uint64_t next)
{
    pthread_mutex_lock(&table.lock);
    table.taken[number] = false;
    table.next[number] = next;
    pthread_mutex_unlock(&table.lock);
}

void table_add(struct table_entry *entry)
{
    pthread_mutex_lock(&table.lock);
    entry->before = table.opened;
    entry->ordinal = entry->before == NULL ? 1 : entry->before->ordinal + 1;
    table.opened = entry;
    pthread_mutex_unlock(&table.lock);
}
