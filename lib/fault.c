#include "fault.h"

#include <ck_pr.h>
#include <stdio.h>

void fault_init(struct fault *fault, const struct log *log, struct port *ports, uint32_t count)
{
    fault->status = FP8PIPE_OK;
    pthread_mutex_init(&fault->lock, NULL);
    fault->sentence[0] = '\0';
    fault->log = log;
    fault->ports = ports;
    fault->count = count;
    fault->also = NULL;
}

void fault_raise(struct fault *fault, const char *sentence)
{
    bool first;

    pthread_mutex_lock(&fault->lock);
    first = fault->status == FP8PIPE_OK;
    if (first) {
        snprintf(fault->sentence, sizeof(fault->sentence), "%s", sentence);
        ck_pr_fence_release();
        ck_pr_store_32(&fault->status, FP8PIPE_EDEVICE);
    }
    pthread_mutex_unlock(&fault->lock);
    if (!first) {
        return;
    }
    log_line(fault->log, FP8PIPE_LOG_ERROR, "the pipe has failed: %s", fault->sentence);
    for (uint32_t i = 0; i < fault->count; i++) {
        ec_wake(&fault->ports[i].ring.filled);
        ec_wake(&fault->ports[i].ring.consumed);
        ec_wake(&fault->ports[i].finished);
    }
    if (fault->also != NULL) {
        ec_wake(fault->also);
    }
}

enum fp8pipe_status fault_status(const struct fault *fault)
{
    enum fp8pipe_status status = (enum fp8pipe_status)ck_pr_load_32(&fault->status);

    ck_pr_fence_acquire();
    return status;
}

void fault_sentence(struct fault *fault, char *buffer, size_t bytes)
{
    pthread_mutex_lock(&fault->lock);
    snprintf(buffer, bytes, "%s", fault->sentence);
    pthread_mutex_unlock(&fault->lock);
}

enum fp8pipe_status fault_refuse(struct fault *fault)
{
    char sentence[sizeof(fault->sentence)];

    fault_sentence(fault, sentence, sizeof(sentence));
    return status_fail(FP8PIPE_EDEVICE, "the pipe has failed: %s", sentence);
}
