/*
 * fp8pipe_modulate and its backward at issue: temporary memory, kernels, sums over tokens. Called
 * by launchers.
 */
#ifndef LIB_MODULATE_H
#define LIB_MODULATE_H

#include "issue.h"
#include "op.h"

enum fp8pipe_status modulate_run(struct issue *issue, const struct op *op);
enum fp8pipe_status modulate_run_backward(struct issue *issue, const struct op *op);

#endif
