#include "issue.h"

#include <assert.h>

enum fp8pipe_status issue_alloc(struct issue *issue, size_t bytes, void **data)
{
    enum fp8pipe_status status;

    assert(issue->temporaries < ISSUE_TEMPORARIES);
    status = issue->backend->ops->alloc(issue->backend, issue->stream, bytes, data);
    if (status == FP8PIPE_OK) {
        issue->temporary[issue->temporaries].data = *data;
        issue->temporary[issue->temporaries].bytes = bytes;
        issue->temporaries++;
    }
    return status;
}

void issue_end(struct issue *issue)
{
    while (issue->temporaries > 0) {
        issue->temporaries--;
        issue->backend->ops->free(issue->backend, issue->stream,
                                  issue->temporary[issue->temporaries].data,
                                  issue->temporary[issue->temporaries].bytes);
    }
}
