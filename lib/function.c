#include "function.h"

#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "kernels/host/quantize.h"
#include "thread.h"

/* The function that the thread is inside of. */
struct inside {
    struct issue *issue;                          /* NULL: none */
    const struct fp8pipe_quantize_target *target; /* NULL: it is no tensor_call's */
    bool values_given;                            /* on the host: the target's are enqueued */
};

static _Thread_local struct inside inside;

static struct fault *fault_of(const struct issue *issue)
{
    return issue->rings[issue->lane].fault;
}

static enum fp8pipe_status check_inside(const struct fp8pipe_stream *stream)
{
    return inside.issue != NULL && inside.issue->stream == stream
               ? FP8PIPE_OK
               : status_fail(FP8PIPE_EINVAL, "stream = %p: this thread is not inside a call on it",
                             (const void *)stream);
}

/* ---- Work in stream order ------------------------------------------------------------------ */

struct host_work {
    struct fault *fault;
    fp8pipe_work_fn *fn;
    void *arg;
};

static void run_host_work(void *arg)
{
    struct host_work *work = arg;

    if (fault_status(work->fault) == FP8PIPE_OK) {
        enum thread_inside before = thread_inside_set(THREAD_FUNCTION);

        work->fn(work->arg);
        thread_inside_set(before);
    }
    free(work);
}

static enum fp8pipe_status enqueue_host_work(struct issue *issue, fp8pipe_work_fn *fn, void *arg)
{
    struct host_work *work = malloc(sizeof(*work));
    enum fp8pipe_status status;

    if (work == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "host work: %zu bytes are not to be had", sizeof(*work));
    }
    *work = (struct host_work){fault_of(issue), fn, arg};
    status = issue->backend->ops->host_call(issue->backend, issue->stream, run_host_work, work);
    if (status != FP8PIPE_OK) {
        free(work);
    }
    return status;
}

enum fp8pipe_status function_host_call(struct issue *issue, const struct op_host_call *call)
{
    return enqueue_host_work(issue, call->fn, call->arg);
}

enum fp8pipe_status function_host_enqueue(struct fp8pipe_stream *stream, fp8pipe_work_fn *fn,
                                          void *arg)
{
    enum fp8pipe_status status = check_inside(stream);

    return status != FP8PIPE_OK ? status : enqueue_host_work(inside.issue, fn, arg);
}

/* ---- Values in stream order ---------------------------------------------------------------- */

struct host_values {
    struct fault *fault;
    fp8pipe_values_fn *values;
    void *arg;
    struct fp8pipe_quantize_target target;
    /* Room for a tile's rows; for all rows where the own amax may be needed, so that values, which
     * may write results, are asked for once. */
    float *buffer;
    uint64_t copy[]; /* of what arg points to */
};

static void rows_values(const struct host_values *work, int64_t row, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        work->values(work->arg, row + i, work->buffer + i * work->target.cols);
    }
}

static struct fp8pipe_matrix rows_matrix(const struct host_values *work, int64_t rows)
{
    int64_t cols = work->target.cols;

    return (struct fp8pipe_matrix){work->buffer, rows, cols, cols, FP8PIPE_FP32, 0};
}

/* All values, then their amax, then the quantize. */
static void run_whole(const struct host_values *work)
{
    const struct fp8pipe_quantize_target *target = &work->target;
    struct fp8pipe_matrix x = rows_matrix(work, target->rows);
    struct kernel_amax_args amax = {x, target->has_scale, target->own_amax};
    struct kernel_quantize_args quantize = kernel_quantize_of(target, &x);

    rows_values(work, 0, target->rows);
    kernel_amax_host(&amax);
    kernel_quantize_host(&quantize);
}

static void run_tiles(const struct host_values *work)
{
    const struct fp8pipe_quantize_target *target = &work->target;
    struct quantize_pass pass;

    quantize_begin(&pass, target);
    for (int64_t row = 0; row < target->rows; row += KERNEL_SUM_ROWS) {
        int64_t left = target->rows - row;
        struct fp8pipe_matrix tile =
            rows_matrix(work, left < KERNEL_SUM_ROWS ? left : KERNEL_SUM_ROWS);

        rows_values(work, row, tile.rows);
        for (int64_t col = 0; col < target->cols; col += QUANTIZE_TILE_COLS) {
            left = target->cols - col;
            tile.data = work->buffer + col;
            tile.cols = left < QUANTIZE_TILE_COLS ? left : QUANTIZE_TILE_COLS;
            quantize_tile(&pass, &tile, row, col);
        }
    }
    quantize_end(&pass);
}

static void run_host_values(void *arg)
{
    struct host_values *work = arg;

    if (fault_status(work->fault) == FP8PIPE_OK) {
        enum thread_inside before = thread_inside_set(THREAD_FUNCTION);

        if (work->target.own_amax != NULL && *work->target.has_scale == 0) {
            run_whole(work);
        } else {
            run_tiles(work);
        }
        thread_inside_set(before);
    }
    free(work);
}

enum fp8pipe_status function_quantize_host(struct fp8pipe_stream *stream,
                                           const struct fp8pipe_quantize_target *target,
                                           fp8pipe_values_fn *values, void *arg, size_t arg_bytes)
{
    enum fp8pipe_status status = check_inside(stream);
    struct issue *issue = inside.issue;
    struct host_values *work;
    int64_t rows;

    if (status != FP8PIPE_OK) {
        return status;
    }
    if (target != inside.target) {
        return status_fail(FP8PIPE_EINVAL, "target = %p: it is not the one of this call",
                           (const void *)target);
    }
    if (inside.values_given) {
        return status_fail(FP8PIPE_EINVAL, "target = %p: its values were given already",
                           (const void *)target);
    }
    work = malloc(sizeof(*work) + arg_bytes);
    if (work == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "host work: %zu bytes are not to be had",
                           sizeof(*work) + arg_bytes);
    }
    *work = (struct host_values){
        .fault = fault_of(issue), .values = values, .arg = arg, .target = *target};
    if (arg_bytes > 0) {
        work->arg = memcpy(work->copy, arg, arg_bytes);
    }
    rows =
        target->own_amax != NULL || target->rows < KERNEL_SUM_ROWS ? target->rows : KERNEL_SUM_ROWS;
    status = issue_alloc(issue, (size_t)rows * (size_t)target->cols * sizeof(float),
                         (void **)&work->buffer);
    if (status == FP8PIPE_OK) {
        status = issue->backend->ops->host_call(issue->backend, stream, run_host_values, work);
    }
    if (status != FP8PIPE_OK) {
        free(work);
        return status;
    }
    inside.values_given = true;
    return FP8PIPE_OK;
}

/* ---- At issue ------------------------------------------------------------------------------ */

/* The state of a thread that runs a function of the caller's. */
struct entry {
    enum thread_inside before;
    struct backend_scope scope;
};

static void entry_begin(struct entry *entry, struct issue *issue,
                        const struct fp8pipe_quantize_target *target)
{
    entry->before = thread_inside_set(THREAD_FUNCTION);
    inside = (struct inside){issue, target, false};
    /* The function may make another device current. */
    issue->backend->ops->enter(issue->backend, &entry->scope);
}

static enum fp8pipe_status entry_end(struct entry *entry, enum fp8pipe_status status)
{
    struct backend *backend = inside.issue->backend;

    backend->ops->leave(backend, &entry->scope);
    inside.issue = NULL;
    thread_inside_set(entry->before);
    if (!status_known(status)) {
        return status_fail(FP8PIPE_ECALL, "the function of a call returned %d, which is no status",
                           (int)status);
    }
    if (status != FP8PIPE_OK) {
        status_fail(status, "the function of a call returned %s: %s", fp8pipe_status_name(status),
                    fp8pipe_strerror(status));
    }
    return status;
}

enum fp8pipe_status function_call(struct issue *issue, const struct op *op)
{
    const struct op_call *call = &op->u.call;
    enum fp8pipe_status status;
    struct entry entry;

    entry_begin(&entry, issue, NULL);
    status = call->fn(issue->stream, op_arg(op, sizeof(*call), call->arg, call->arg_bytes));
    return entry_end(&entry, status);
}

enum fp8pipe_status function_tensor_call(struct issue *issue, const struct op *op,
                                         const struct fp8pipe_quantize_target *target)
{
    const struct op_tensor_call *call = &op->u.tensor_call;
    enum fp8pipe_status status;
    struct entry entry;

    entry_begin(&entry, issue, target);
    status = call->fn(issue->stream, target, op_arg(op, sizeof(*call), call->arg, call->arg_bytes));
    status = entry_end(&entry, status);
    if (status == FP8PIPE_OK && issue->backend->ops->kind == FP8PIPE_BACKEND_HOST &&
        !inside.values_given) {
        status = status_fail(FP8PIPE_ECALL, "the function of a tensor_call returned FP8PIPE_OK "
                                            "without a fp8pipe_quantize_host of its target");
    }
    return status;
}
