/* Public entry point of tuning. */
#include "fp8pipe_tune.h"

#include <stdarg.h>
#include <stdio.h>

#include "check.h"
#include "ec.h"
#include "options.h"
#include "pipe.h"

#define TUNE_CANDIDATES 16
#define TUNE_CANDIDATES_MAX 64

static bool is_fp8(enum fp8pipe_gemm_type type)
{
    return type == FP8PIPE_GEMM_E4M3 || type == FP8PIPE_GEMM_E5M2;
}

/* EINVAL with the shape's number in front of the sentence. */
static enum fp8pipe_status refuse(size_t index, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum fp8pipe_status refuse(size_t index, const char *format, ...)
{
    char rule[STATUS_SENTENCE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(rule, sizeof(rule), format, args);
    va_end(args);
    return status_fail(FP8PIPE_EINVAL, "shapes[%zu].%s", index, rule);
}

static enum fp8pipe_status check_sizes(size_t index, const struct fp8pipe_tune_shape *shape)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"m", shape->m}, {"n", shape->n}, {"k", shape->k}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        /* Any two of them make a matrix. */
        int64_t other = sizes[(i + 1) % 3].value, elements;

        if (sizes[i].value < 1 || sizes[i].value > CHECK_ELEMENTS_MAX) {
            return refuse(index, "%s = %lld: it is 1 to %lld", sizes[i].name,
                          (long long)sizes[i].value, (long long)CHECK_ELEMENTS_MAX);
        }
        if (other >= 1 && (__builtin_mul_overflow(sizes[i].value, other, &elements) ||
                           elements > CHECK_ELEMENTS_MAX / 64)) {
            return refuse(index, "%s = %lld: with %s = %lld its matrix overflows", sizes[i].name,
                          (long long)sizes[i].value, sizes[(i + 1) % 3].name, (long long)other);
        }
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status check_types(size_t index, const struct fp8pipe_tune_shape *shape)
{
    const struct {
        const char *name;
        int value;
        int last;
    } values[] = {
        {"a", (int)shape->a, FP8PIPE_GEMM_E5M2},
        {"b", (int)shape->b, FP8PIPE_GEMM_E5M2},
        {"d", (int)shape->d, FP8PIPE_GEMM_E5M2},
        {"bias", shape->bias, 1},
        {"residual", shape->residual, 2},
        {"fast", shape->fast, 1},
        {"a_transposed", shape->a_transposed, 1},
        {"b_transposed", shape->b_transposed, 1},
        {"activation", (int)shape->activation, FP8PIPE_ACTIVATION_GELU_TANH},
    };

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (values[i].value < 0 || values[i].value > values[i].last) {
            return refuse(index, "%s = %d: it is 0 to %d", values[i].name, values[i].value,
                          values[i].last);
        }
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status check_shape(size_t index, const struct fp8pipe_tune_shape *shape)
{
    enum fp8pipe_status status = check_types(index, shape);

    if (status == FP8PIPE_OK) {
        status = check_sizes(index, shape);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (is_fp8(shape->a) != is_fp8(shape->b) || (!is_fp8(shape->a) && shape->a != shape->b)) {
        return refuse(index, "b = %d: a is %d; both are FP8, or both of one type", (int)shape->b,
                      (int)shape->a);
    }
    if (shape->a == FP8PIPE_GEMM_E5M2 && shape->b == FP8PIPE_GEMM_E5M2) {
        return refuse(index, "b = %d: not both operands are E5M2", (int)shape->b);
    }
    if (is_fp8(shape->a) && (shape->a_transposed || shape->b_transposed)) {
        return refuse(index,
                      "%s = 1: FP8 operands are not transposed, their transposed copies are "
                      "used",
                      shape->a_transposed ? "a_transposed" : "b_transposed");
    }
    if (is_fp8(shape->d) && !is_fp8(shape->a)) {
        return refuse(index, "d = %d: an FP8 result needs FP8 operands", (int)shape->d);
    }
    if (is_fp8(shape->d) && shape->residual != 0) {
        return refuse(index, "residual = %d: an FP8 result has none", shape->residual);
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status check_options(const struct fp8pipe_tune_options *options)
{
    enum fp8pipe_status status = FP8PIPE_OK;

    if (options->candidates < 0 || options->candidates > TUNE_CANDIDATES_MAX) {
        return status_fail(FP8PIPE_EINVAL, "candidates = %d: it is 1 to %d, or 0 for %d",
                           options->candidates, TUNE_CANDIDATES_MAX, TUNE_CANDIDATES);
    }
    if (options->reserved != 0) {
        return status_fail(FP8PIPE_EINVAL, "reserved = %d: it is 0", options->reserved);
    }
    if (options->shapes == NULL && options->shape_count != 0) {
        return status_fail(FP8PIPE_EINVAL, "shapes = NULL: there are shape_count = %zu of them",
                           options->shape_count);
    }
    if (options->file != NULL && options->file[0] == '\0') {
        return status_fail(FP8PIPE_EINVAL, "file = \"\": it is a path, or NULL");
    }
    for (size_t i = 0; i < options->shape_count && status == FP8PIPE_OK; i++) {
        status = check_shape(i, &options->shapes[i]);
    }
    return status;
}

enum fp8pipe_status fp8pipe_tune(struct fp8pipe *pipe, const struct fp8pipe_tune_options *options)
{
    static const struct fp8pipe_tune_options defaults = FP8PIPE_TUNE_OPTIONS_INIT;
    const struct fp8pipe_tune_options *read = &defaults;
    enum fp8pipe_status status = pipe_check_inside(true);
    struct fp8pipe_tune_options room;
    struct backend_scope scope;
    struct backend_tune tune;
    struct backend *backend;

    if (status == FP8PIPE_OK) {
        status = options_read("options", options, &defaults, sizeof(defaults),
                              offsetof(struct fp8pipe_tune_options, candidates), &room,
                              (const void **)&read);
    }
    if (status == FP8PIPE_OK) {
        status = check_options(read);
    }
    if (status == FP8PIPE_OK) {
        status = pipe_enter(pipe);
    }
    if (status != FP8PIPE_OK) {
        return status;
    }
    backend = pipe->crew->backend;
    if (backend->ops->tune == NULL) {
        status = status_fail(FP8PIPE_ENOTSUP, "pipe = %u: the %s backend has no GEMM plans to tune",
                             pipe->number, backend->ops->name);
        goto leave;
    }
    tune = (struct backend_tune){
        .shapes = read->shapes,
        .shape_count = read->shape_count,
        .file = read->file,
        .candidates = read->candidates == 0 ? TUNE_CANDIDATES : read->candidates,
        .deadline_ns = EC_FOREVER,
    };
    backend->ops->enter(backend, &scope);
    status = backend->ops->tune(backend, &tune);
    backend->ops->leave(backend, &scope);
leave:
    pipe_leave(pipe);
    return status;
}
