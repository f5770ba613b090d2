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
    int64_t rows;                   /* M and N; -1: only known when the op is bound */
    int64_t cols;
    struct {
        const char *field;
        const struct fp8pipe_matrix *matrix;
    } in[3];
};

/* Whether there is one at all: fp8pipe_epilogue has no padding, and FP8PIPE_EPILOGUE_NONE is all
 * zeros. A look at whole words, for every submit of a GEMM makes it. */
static inline bool epilogue_given(const struct fp8pipe_epilogue *epilogue)
{
    uint64_t words[sizeof(*epilogue) / sizeof(uint64_t)], any = 0;

    memcpy(words, epilogue, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        any |= words[i];
    }
    return any != 0;
}

/* A residual: D itself, or of its shape and dtype and apart from it. */
enum fp8pipe_status epilogue_check_residual(const char *field,
                                            const struct fp8pipe_matrix *residual,
                                            const char *d_field, const struct fp8pipe_matrix *d);

/* The rules of a given epilogue; its objects join the draft, after the op's other tensors. */
enum fp8pipe_status epilogue_check(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                   const struct epilogue_shape *shape);

/* Writes the payload of a checked epilogue, with a new filling where it has a tensor: given back
 * with filling_put if the submit is refused. ENOMEM. */
enum fp8pipe_status epilogue_fill(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                  struct op_epilogue *payload);

/* Binding and commit; rows, cols: of D. */
enum fp8pipe_status epilogue_bind(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                                  struct op_epilogue *payload, int64_t rows, int64_t cols);
void epilogue_commit(struct draft *draft, const struct fp8pipe_epilogue *epilogue,
                     const struct op_epilogue *payload, fp8pipe_ticket ticket);

#endif
