/*
 * A GEMM with its epilogue, at issue: decides what the GEMM does itself and what kernels after it
 * do. Called by launchers; lib/epilogue_draft.h is the counterpart at submit.
 */
#ifndef LIB_EPILOGUE_H
#define LIB_EPILOGUE_H

#include "gemm.h"
#include "op.h"

/*
 * The product of `request`, which has no epilogue of its own and does not accumulate, through an
 * op's epilogue; `flags` are the op's. Of request->d only the shape is read where the epilogue has a
 * filling, which is then made and written.
 */
enum fp8pipe_status epilogue_run(struct issue *issue, const struct gemm_request *request,
                                 const struct op_epilogue *epilogue, uint8_t flags);

#endif
