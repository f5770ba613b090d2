#include "outcome.h"

#include <stdio.h>

enum fp8pipe_status outcome_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket, char *sentence,
                                 size_t bytes)
{
    enum fp8pipe_status status = fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, -1);

    if (status == FP8PIPE_OK) {
        return status;
    }
    if (fp8pipe_error_get(pipe, ticket, sentence, bytes) != FP8PIPE_OK || sentence[0] == '\0') {
        snprintf(sentence, bytes, "%s", fp8pipe_strerror(status));
    }
    return status;
}
