/*
 * What the public entry points of a linear's ops share while they put a draft together.
 */
#ifndef LIB_LAYER_DRAFT_H
#define LIB_LAYER_DRAFT_H

#include "submit.h"

/* What the three have in common while they are put together. */
struct layer_draft {
    struct fp8pipe_linear *linear;
    union {
        const struct fp8pipe_forward_op *forward;
        const struct fp8pipe_dgrad_op *dgrad;
        const struct fp8pipe_wgrad_op *wgrad;
    } op;
    struct filling *kept; /* new, or NULL */
};

enum fp8pipe_status layer_check(const struct fp8pipe_linear *linear);

enum fp8pipe_status layer_object(struct draft *draft, struct fp8pipe_linear *linear);

/* A tensor, or NULL; none of an op's tensors is another one too. */
enum fp8pipe_status layer_tensor(struct draft *draft, const char *field,
                                 struct fp8pipe_tensor *tensor);

uint8_t layer_fast(enum fp8pipe_accumulation accumulation, bool fast_by_default);

/* X or dY of an unquantized layer is of its weight's dtype. */
enum fp8pipe_status layer_dtype(const char *field, const struct fp8pipe_matrix *matrix,
                                const struct fp8pipe_linear *linear);

/* The op uses a version: after its writer, holding it. */
enum fp8pipe_status layer_bind_version(struct draft *draft, struct version *version);

/* Every op on the linear sees to the version before the current one, if that was left to it. */
void layer_bind(struct draft *draft, const struct fp8pipe_linear *linear);

void layer_commit(struct draft *draft, struct fp8pipe_linear *linear, fp8pipe_ticket ticket);

/* A shared quantized operand of rows x cols. */
enum fp8pipe_status layer_bind_shared(struct draft *draft, const char *field,
                                      const struct fp8pipe_tensor *tensor, int64_t rows,
                                      int64_t cols, enum fp8pipe_format format, bool rowwise,
                                      bool transposed, struct filling **filling);

#endif
