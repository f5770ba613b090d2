/* What became of an op, in words. */
#ifndef OUTCOME_H
#define OUTCOME_H

#include <stddef.h>

#include <fp8pipe.h>

/* Waits until the op is done. Returns its status, and if that is not FP8PIPE_OK a sentence. */
enum fp8pipe_status outcome_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket, char *sentence,
                                 size_t bytes);

#endif
