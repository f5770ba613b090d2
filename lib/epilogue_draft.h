/*
 * A GEMM's epilogue at its submit: the rules for struct fp8pipe_epilogue, its objects in the draft,
 * the new filling of its tensor. Called by the entry points of fp8pipe_gemm and of a linear's ops;
 * lib/epilogue.h is the counterpart at issue.
 */
#ifndef LIB_EPILOGUE_DRAFT_H
#define LIB_EPILOGUE_DRAFT_H

#include "submit.h"

/* D, and what an output of the epilogue may not overlap; `in` ends with a NULL name. */
struct epilogue_shape {
    const char *d_field;
    const struct fp8pipe_matrix *d; /* not given where the epilogue has a tensor */
    struct check_size rows;         /* M and N; any: only known when the op is bound */
    struct check_size cols;
    const struct fp8pipe_vector *bias;
    struct {
        const char *field;
        const struct fp8pipe_matrix *matrix;
    } in[3];
};

/* Whether there is one at all: every submit of a GEMM looks. What goes with a tensor is not read
 * without. */
static inline bool epilogue_given(const struct fp8pipe_epilogue *epilogue)
{
    const struct fp8pipe_matrix *pre = &epilogue->pre, *residual = &epilogue->residual;

    return (((uint32_t)epilogue->activation | epilogue->reserved) | (uintptr_t)epilogue->tensor |
            (uintptr_t)pre->data | (uintptr_t)residual->data |
            (uint64_t)(pre->rows | pre->cols | pre->stride) |
            (uint64_t)(residual->rows | residual->cols | residual->stride)) != 0;
}

/* A residual: D itself, or of its shape and dtype and apart from it. */
enum fp8pipe_status epilogue_check_residual(const char *field,
                                            const struct fp8pipe_matrix *residual,
                                            const char *d_field, const struct fp8pipe_matrix *d);

/* Whether a given epilogue is a residual and nothing else. */
static inline bool epilogue_adds(const struct fp8pipe_epilogue *epilogue)
{
    return (((uint32_t)epilogue->activation | epilogue->reserved) | (uintptr_t)epilogue->tensor) ==
               0 &&
           !check_given(&epilogue->pre);
}

/* The rules of a given epilogue; its objects join the draft, after the op's other tensors. */
enum fp8pipe_status epilogue_check(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                   const struct epilogue_shape *shape);

/* Writes the payload of a checked epilogue, with a new filling where it has a tensor: given back
 * with filling_undo if the submit is refused. ENOMEM. */
enum fp8pipe_status epilogue_fill(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                  struct op_epilogue *payload);

/* Binding and commit; rows, cols: of D. Neither has anything to do for a residual. */
enum fp8pipe_status epilogue_bind(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                  struct op_epilogue *payload, int64_t rows, int64_t cols);
void epilogue_commit(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                     const struct op_epilogue *payload, fp8pipe_ticket ticket);

#endif
