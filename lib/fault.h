/*
 * A pipe's failure as a whole: a device error after issue, or a close that timed out. Raised once,
 * logged once, never lowered; every op that was not done by then is reported as failed with it.
 *
 * Any thread raises and reads. `status` is written (release) after the sentence.
 */
#ifndef LIB_FAULT_H
#define LIB_FAULT_H

#include <pthread.h>
#include <stdint.h>

#include "log.h"
#include "ticket.h"

struct fault {
    uint32_t status; /* FP8PIPE_OK or FP8PIPE_EDEVICE */
    pthread_mutex_t lock;
    char sentence[160];
    const struct log *log;
    struct port *ports;
    uint32_t count;
    struct ec *also; /* NULL, or where else somebody may sleep */
};

void fault_init(struct fault *fault, const struct log *log, struct port *ports, uint32_t count);

/* Raises it, unless it is up already, and wakes everybody who waits on the ports. */
void fault_raise(struct fault *fault, const char *sentence);

enum fp8pipe_status fault_status(const struct fault *fault);

void fault_sentence(struct fault *fault, char *buffer, size_t bytes);

/* Records the sentence for the calling thread and returns EDEVICE. */
enum fp8pipe_status fault_refuse(struct fault *fault);

#endif
