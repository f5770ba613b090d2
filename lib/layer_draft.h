/*
 * What the public entry points of a linear's ops share while they put a draft together.
 */
#ifndef LIB_LAYER_DRAFT_H
#define LIB_LAYER_DRAFT_H

#include "submit.h"

/* What they have in common while they are put together. */
struct layer_draft {
    struct fp8pipe_linear *linear;
    union {
        const struct fp8pipe_forward_op *forward;
        const struct fp8pipe_dgrad_op *dgrad;
        const struct fp8pipe_wgrad_op *wgrad;
    } op;
    struct filling *kept; /* new, or NULL */
};

/*
 * The opening of every op on a linear: the linear is given, the draft is opened, the linear and its
 * scaling are in it.
 */
enum fp8pipe_status layer_begin(struct draft *draft, struct fp8pipe_linear *linear,
                                const struct draft_kind *kind, const void *op, void *room,
                                const void **given);

/* layer_tensor of a tensor. */
enum fp8pipe_status layer_tensor_add(struct draft *draft, const char *field,
                                     struct fp8pipe_tensor *tensor);

/* A tensor, or NULL; none of an op's tensors is another one too. */
static inline enum fp8pipe_status layer_tensor(struct draft *draft, const char *field,
                                               struct fp8pipe_tensor *tensor)
{
    return tensor == NULL ? FP8PIPE_OK : layer_tensor_add(draft, field, tensor);
}

static inline uint8_t layer_fast(enum fp8pipe_accumulation accumulation, bool fast_by_default)
{
    return accumulation == FP8PIPE_ACCUMULATION_FAST ||
                   (accumulation == FP8PIPE_ACCUMULATION_DEFAULT && fast_by_default)
               ? OP_FAST
               : 0;
}

/* X or dY of an unquantized layer is of its weight's dtype. */
enum fp8pipe_status layer_dtype(const char *field, const struct fp8pipe_matrix *matrix,
                                const struct fp8pipe_linear *linear);

/* layer_apart of matrices whose memory may meet. */
enum fp8pipe_status layer_apart_close(struct draft *draft, const char *field,
                                      const struct fp8pipe_matrix *matrix, struct version *version);

/* That an output does not overlap the version's matrix, unless that is not read any more. Under the
 * linear's word. */
static inline enum fp8pipe_status layer_apart(struct draft *draft, const char *field,
                                              const struct fp8pipe_matrix *matrix,
                                              struct version *version)
{
    return check_may_meet(matrix, &version->weight)
               ? layer_apart_close(draft, field, matrix, version)
               : FP8PIPE_OK;
}

/* Commit: an op that quantizes the version, and does nothing else. */
void layer_prepared(struct draft *draft, struct version *version, fp8pipe_ticket ticket);

/* layer_bind_version of a version that is not known to be written. */
enum fp8pipe_status layer_after_written(struct draft *draft, struct version *version);

/* The op uses a version: after its writer, holding it. */
static inline enum fp8pipe_status layer_bind_version(struct draft *draft, struct version *version)
{
    draft_use(draft, version->filling);
    return version->written == 0 ? FP8PIPE_OK : layer_after_written(draft, version);
}

/* Every op on the linear sees to the version before the current one, if that was left to it. */
static inline void layer_bind(struct draft *draft, const struct fp8pipe_linear *linear)
{
    if (linear->scaling != NULL) {
        draft_use_scaling(draft, linear->scaling);
    }
    draft_may_end(draft, linear->retired != NULL);
}

static inline void layer_commit(struct draft *draft, struct fp8pipe_linear *linear,
                                fp8pipe_ticket ticket)
{
    if (linear->scaling != NULL) {
        draft_used_scaling(draft, linear->scaling, ticket);
    }
    if (linear->retired != NULL) {
        draft_end(draft, linear->retired);
        linear->retired = NULL;
    }
}

/* What a shared quantized operand has to be. */
struct layer_shared {
    const char *field;
    struct check_size rows;
    struct check_size cols;
    enum fp8pipe_format format;
    bool rowwise;
    bool transposed;
};

static inline bool layer_shared_shape(const struct filling *filling,
                                      const struct layer_shared *shared)
{
    return check_fits(shared->rows, filling->rows) && check_fits(shared->cols, filling->cols);
}

/* The refusal of a tensor that is something else. */
enum fp8pipe_status layer_shared_refuse(const struct fp8pipe_tensor *tensor,
                                        const struct layer_shared *shared);

/* Binds a shared quantized operand. */
static inline enum fp8pipe_status layer_bind_shared(struct draft *draft,
                                                    const struct fp8pipe_tensor *tensor,
                                                    const struct layer_shared *shared,
                                                    struct filling **filling)
{
    struct filling *current = tensor->filling;

    if (current == NULL || !layer_shared_shape(current, shared) ||
        current->format != shared->format || (shared->rowwise && !tensor_rowwise(tensor)) ||
        (shared->transposed && !current->transposed)) {
        return layer_shared_refuse(tensor, shared);
    }
    *filling = current;
    return draft_read_tensor(draft, shared->field, tensor, shared->rowwise);
}

#endif
