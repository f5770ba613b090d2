/*
 * One function for each kind of op: what its launcher enqueues on the lane's stream.
 */
#ifndef LIB_EXEC_H
#define LIB_EXEC_H

#include "issue.h"
#include "op.h"

/* The op's predecessors are in the stream already. Fails having possibly launched a part. */
enum fp8pipe_status exec_op(struct issue *issue, const struct op *op, fp8pipe_ticket ticket);

#endif
