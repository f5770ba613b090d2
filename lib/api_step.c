/* Public entry points of an optimizer's ops. */
#include <math.h>

#include "move.h"
#include "optimizer.h"
#include "submit.h"

static enum fp8pipe_status check_optimizer(const struct fp8pipe_optimizer *optimizer)
{
    return optimizer != NULL ? FP8PIPE_OK
                             : status_fail(FP8PIPE_EINVAL, "optimizer = NULL: it is needed");
}

static enum fp8pipe_status check_word(const char *field, const void *word)
{
    return (uintptr_t)word % sizeof(uint32_t) == 0
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "%s = %p: it is aligned to 4 bytes", field, word);
}

static enum fp8pipe_status check_amount(const char *field, float value)
{
    return isfinite(value) && value >= 0.0f
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "%s = %g: it is finite and >= 0", field,
                             (double)value);
}

static enum fp8pipe_status check_reserved(int32_t reserved)
{
    return reserved == 0 ? FP8PIPE_OK
                         : status_fail(FP8PIPE_EINVAL, "reserved = %d: it is 0", reserved);
}

/* ---- The order of an optimizer's ops ------------------------------------------------------- */

static enum fp8pipe_status bind_op(struct draft *draft, void *arg)
{
    const struct fp8pipe_optimizer *optimizer = arg;

    draft_order(draft, optimizer->writer);
    return FP8PIPE_OK;
}

static void commit_op(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    struct fp8pipe_optimizer *optimizer = arg;

    (void)draft;
    optimizer->writer = ticket;
}

static enum fp8pipe_status bind_adamw(struct draft *draft, void *arg)
{
    const struct fp8pipe_optimizer *optimizer = arg;

    if (optimizer->scaling != NULL) {
        draft_write_scaling(draft, optimizer->scaling);
    }
    return bind_op(draft, arg);
}

static void commit_adamw(struct draft *draft, void *arg, fp8pipe_ticket ticket)
{
    struct fp8pipe_optimizer *optimizer = arg;

    if (optimizer->scaling != NULL) {
        draft_wrote_scaling(draft, optimizer->scaling, ticket);
    }
    optimizer->rewrites++;
    commit_op(draft, arg, ticket);
}

/* ---- adamw --------------------------------------------------------------------------------- */

static enum fp8pipe_status check_adamw(const struct fp8pipe_adamw_op *op)
{
    enum fp8pipe_status status = check_amount("lr", op->lr);

    if (status == FP8PIPE_OK) {
        status = check_reserved(op->reserved);
    }
    if (status == FP8PIPE_OK) {
        status = check_word("lr_device", op->lr_device);
    }
    if (status == FP8PIPE_OK) {
        status = check_word("gradient_scale", op->gradient_scale);
    }
    return status != FP8PIPE_OK ? status : check_word("skip_if", op->skip_if);
}

enum fp8pipe_status fp8pipe_optimizer_adamw(struct fp8pipe_optimizer *optimizer,
                                            const struct fp8pipe_adamw_op *op,
                                            fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_adamw_op defaults = FP8PIPE_ADAMW_OP_INIT;
    static const struct draft_kind kind = {OP_ADAMW, 0, sizeof(struct op_adamw), &defaults,
                                           sizeof(defaults)};
    static const struct draft_calls calls = {bind_adamw, commit_adamw};
    struct fp8pipe_adamw_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = check_optimizer(optimizer);

    if (status == FP8PIPE_OK) {
        status = draft_open(&draft, optimizer->object.pipe, &kind, op, &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = check_adamw(op);
    if (status == FP8PIPE_OK) {
        status = draft_object(&draft, "optimizer", &optimizer->object);
    }
    if (status == FP8PIPE_OK && optimizer->scaling != NULL) {
        status = draft_object(&draft, "scaling", &optimizer->scaling->object);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    draft.entry.op.u.adamw = (struct op_adamw){
        .optimizer = optimizer,
        .lr_device = op->lr_device,
        .gradient_scale = op->gradient_scale,
        .skip_if = op->skip_if,
        .lr = op->lr,
    };
    return draft_submit(&draft, &calls, optimizer, ticket);
}

/* ---- gradient_norm ------------------------------------------------------------------------- */

static enum fp8pipe_status check_gradient_norm(const struct fp8pipe_gradient_norm_op *op)
{
    enum fp8pipe_status status = check_amount("max_norm", op->max_norm);

    if (status == FP8PIPE_OK) {
        status = check_reserved(op->reserved);
    }
    if (status == FP8PIPE_OK) {
        status = check_word("gradient_scale", op->gradient_scale);
    }
    if (status == FP8PIPE_OK) {
        status = check_word("norm", op->norm);
    }
    if (status == FP8PIPE_OK) {
        status = check_word("clip", op->clip);
    }
    return status != FP8PIPE_OK ? status : check_word("nonfinite", op->nonfinite);
}

static const struct draft_calls op_calls = {bind_op, commit_op};

enum fp8pipe_status fp8pipe_optimizer_gradient_norm(struct fp8pipe_optimizer *optimizer,
                                                    const struct fp8pipe_gradient_norm_op *op,
                                                    fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_gradient_norm_op defaults = FP8PIPE_GRADIENT_NORM_OP_INIT;
    static const struct draft_kind kind = {OP_GRADIENT_NORM, 0, sizeof(struct op_gradient_norm),
                                           &defaults, sizeof(defaults)};
    struct fp8pipe_gradient_norm_op room;
    const void *given;
    struct draft draft;
    enum fp8pipe_status status = check_optimizer(optimizer);

    if (status == FP8PIPE_OK) {
        status = draft_open(&draft, optimizer->object.pipe, &kind, op, &room, &given);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    op = given;
    status = check_gradient_norm(op);
    if (status == FP8PIPE_OK) {
        status = draft_object(&draft, "optimizer", &optimizer->object);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    draft.entry.op.u.gradient_norm = (struct op_gradient_norm){
        .optimizer = optimizer,
        .gradient_scale = op->gradient_scale,
        .norm = op->norm,
        .clip = op->clip,
        .nonfinite = op->nonfinite,
        .max_norm = op->max_norm,
    };
    return draft_submit(&draft, &op_calls, optimizer, ticket);
}

/* ---- The count of steps, blocking ---------------------------------------------------------- */

struct steps_move {
    struct fp8pipe_optimizer *optimizer;
    enum op_kind kind;
    int64_t steps;
};

static enum fp8pipe_status submit_steps(void *arg, void *image, fp8pipe_ticket *ticket)
{
    static const struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;
    const struct steps_move *move = arg;
    struct fp8pipe_optimizer *optimizer = move->optimizer;
    struct draft draft;
    enum fp8pipe_status status = draft_begin(&draft, optimizer->object.pipe, &submit, move->kind,
                                             sizeof(struct op_steps), 0);

    if (status == FP8PIPE_OK) {
        status = draft_object(&draft, "optimizer", &optimizer->object);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    *(int64_t *)image = move->steps;
    draft.entry.op.u.steps = (struct op_steps){optimizer, image};
    return draft_submit(&draft, &op_calls, optimizer, ticket);
}

static void take_steps(void *arg, const void *image)
{
    ((struct steps_move *)arg)->steps = *(const int64_t *)image;
}

/* What a write took is what it wrote. */
static enum fp8pipe_status move_steps(struct steps_move *move)
{
    static const struct move steps = {sizeof(int64_t), submit_steps, take_steps};

    return move_run(move->optimizer->object.pipe, &steps, move);
}

enum fp8pipe_status fp8pipe_optimizer_steps_get(struct fp8pipe_optimizer *optimizer, int64_t *steps)
{
    enum fp8pipe_status status = check_optimizer(optimizer);
    struct steps_move move = {optimizer, OP_STEPS_READ, 0};

    if (status == FP8PIPE_OK && steps == NULL) {
        status = status_fail(FP8PIPE_EINVAL, "steps = NULL: it takes the count");
    }
    if (status == FP8PIPE_OK) {
        status = move_steps(&move);
    }
    if (status == FP8PIPE_OK) {
        *steps = move.steps;
    }
    return status;
}

/* What no training reaches, and no counting from there overflows. */
#define STEPS_MAX (INT64_C(1) << 53)

enum fp8pipe_status fp8pipe_optimizer_steps_set(struct fp8pipe_optimizer *optimizer, int64_t steps)
{
    struct steps_move move = {optimizer, OP_STEPS_WRITE, steps};
    enum fp8pipe_status status = check_optimizer(optimizer);

    if (status == FP8PIPE_OK && (steps < 0 || steps > STEPS_MAX)) {
        status = status_fail(FP8PIPE_EINVAL, "steps = %lld: it is 0 to 2^53", (long long)steps);
    }
    return status != FP8PIPE_OK ? status : move_steps(&move);
}
