/* bench_kernels.h on the host, and what chooses between it and CUDA. */
#include "bench_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fp8pipe_cuda.h>

#include "clock.h"

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* To nearest even; a NaN stays one. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value)) {
        return 0x7FFF;
    }
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static float get(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col)
{
    int64_t at = row * matrix->stride + col;

    return matrix->dtype == FP8PIPE_BF16 ? from_bf16(((const uint16_t *)matrix->data)[at])
                                         : ((const float *)matrix->data)[at];
}

static void put(const struct fp8pipe_matrix *matrix, int64_t row, int64_t col, float value)
{
    int64_t at = row * matrix->stride + col;

    if (matrix->dtype == FP8PIPE_BF16) {
        ((uint16_t *)matrix->data)[at] = to_bf16(value);
    } else {
        ((float *)matrix->data)[at] = value;
    }
}

/* ---- Values to quantize, a row at a time ---------------------------------------------------- */

static void modulate(void *arg, int64_t row, float *out)
{
    const struct bench_modulate_args *a = &((const struct bench_values *)arg)->modulate;

    for (int64_t c = 0; c < a->x.cols; c++) {
        float shift = get(&a->shift, row, c);
        float reciprocal = 1.0f / get(&a->scale, row, c);
        float u = get(&a->x, row, c) * reciprocal;

        out[c] = shift * u;
        put(&a->out, row, c, out[c]);
        if (a->u.data) {
            put(&a->u, row, c, u);
            put(&a->v, row, c, shift * reciprocal);
        }
    }
}

static void add(void *arg, int64_t row, float *out)
{
    const struct bench_add_args *a = &((const struct bench_values *)arg)->add;

    for (int64_t c = 0; c < a->x.cols; c++) {
        out[c] = get(&a->x, row, c) + get(&a->y, row, c);
        put(&a->out, row, c, out[c]);
    }
}

static void pad(void *arg, int64_t row, float *out)
{
    const struct bench_pad_args *a = &((const struct bench_values *)arg)->pad;

    for (int64_t c = 0; c < a->cols; c++) {
        out[c] = c < a->x.cols ? get(&a->x, row, c) : 0.0f;
        if (a->out.data) {
            put(&a->out, row, c, out[c]);
        }
    }
}

static void modulate_backward(void *arg, int64_t row, float *out)
{
    const struct bench_modulate_backward_args *a =
        &((const struct bench_values *)arg)->modulate_backward;
    int64_t width = a->g.cols;

    for (int64_t c = 0; c < a->cols; c++) {
        out[c] = 0.0f;
        if (c < 2 * width) {
            int64_t at = c < width ? c : c - width;
            float g = get(&a->g, row, at);
            float u = get(&a->u, row, at);
            float v = get(&a->v, row, at);

            out[c] = c < width ? g * u : -(g * u) * v;
            if (c < width) {
                put(&a->dx, row, c, g * v);
            }
        }
        if (a->out.data) {
            put(&a->out, row, c, out[c]);
        }
    }
}

enum fp8pipe_status bench_values_call(struct fp8pipe_stream *stream,
                                      const struct fp8pipe_quantize_target *target, void *values)
{
    static fp8pipe_values_fn *const functions[] = {[BENCH_MODULATE] = modulate,
                                                   [BENCH_ADD] = add,
                                                   [BENCH_PAD] = pad,
                                                   [BENCH_MODULATE_BACKWARD] = modulate_backward};
    struct bench_values *args = values;

#ifdef HAVE_CUDA
    if (fp8pipe_stream_backend(stream) == FP8PIPE_BACKEND_CUDA) {
        return bench_values_cuda(stream, target, args);
    }
#endif
    return fp8pipe_quantize_host(stream, target, functions[args->kind], args, sizeof(*args));
}

/* ---- Everything else ----------------------------------------------------------------------- */

static void fill(const struct bench_fill_args *a)
{
    for (int64_t row = 0; row < a->out.rows; row++) {
        for (int64_t c = 0; c < a->out.cols; c++) {
            uint64_t i = (uint64_t)(row * a->out.cols + c);

            put(&a->out, row, c, a->low + a->span * bench_uniform(a->key, i));
        }
    }
}

static void loss(const struct bench_loss_args *a)
{
    int64_t count = a->prediction.rows * a->prediction.cols;
    double sum = 0.0;

    for (int64_t row = 0; row < a->prediction.rows; row++) {
        double part = 0.0;

        for (int64_t c = 0; c < a->prediction.cols; c++) {
            float difference = get(&a->prediction, row, c) - get(&a->target, row, c);

            part += (double)difference * (double)difference;
            if (a->grad.data) {
                put(&a->grad, row, c, 2.0f * difference / (float)count);
            }
        }
        sum += part;
    }
    *a->loss = sum / (double)count;
}

static void max(const struct bench_max_args *a)
{
    for (int64_t row = 0; row < a->x.rows; row++) {
        for (int64_t c = 0; c < a->x.cols; c++) {
            float value = fabsf(get(&a->x, row, c));
            uint32_t bits;

            memcpy(&bits, &value, sizeof(bits));
            *a->bits = bits > *a->bits ? bits : *a->bits;
        }
    }
}

static void mark(const struct bench_mark_args *a)
{
    a->marks->ns[a->index] = now_ns();
}

/* Ends the life of the copy that bench_call made. */
static void run_host(void *arg)
{
    struct bench_op *op = arg;

    switch (op->kind) {
    case BENCH_FILL:
        fill(&op->fill);
        break;
    case BENCH_LOSS:
        loss(&op->loss);
        break;
    case BENCH_MAX:
        max(&op->max);
        break;
    case BENCH_MARK:
        mark(&op->mark);
        break;
    }
    free(op);
}

enum fp8pipe_status bench_call(struct fp8pipe_stream *stream, void *op)
{
    struct bench_op *copy;
    enum fp8pipe_status status;

#ifdef HAVE_CUDA
    if (fp8pipe_stream_backend(stream) == FP8PIPE_BACKEND_CUDA) {
        return bench_launch_cuda(op, fp8pipe_stream_cuda(stream)) == 0 ? FP8PIPE_OK
                                                                       : FP8PIPE_ELAUNCH;
    }
#endif
    copy = malloc(sizeof(*copy));
    if (!copy) {
        return FP8PIPE_ENOMEM;
    }
    memcpy(copy, op, sizeof(*copy));
    status = fp8pipe_host_enqueue(stream, run_host, copy);
    if (status != FP8PIPE_OK) {
        free(copy);
    }
    return status;
}

/* ---- Marks and the machine ------------------------------------------------------------------ */

int bench_marks_create(struct bench_marks *marks, enum fp8pipe_backend backend, int64_t count)
{
    *marks = (struct bench_marks){.backend = backend, .count = count};
    if (backend == FP8PIPE_BACKEND_HOST) {
        marks->ns = calloc((size_t)count, sizeof(*marks->ns));
        return marks->ns ? 0 : -1;
    }
    marks->events = calloc((size_t)count, sizeof(*marks->events));
#ifdef HAVE_CUDA
    if (marks->events && bench_events_create_cuda(marks->events, count) == 0) {
        return 0;
    }
#endif
    bench_marks_clear(marks);
    return -1;
}

void bench_marks_clear(struct bench_marks *marks)
{
#ifdef HAVE_CUDA
    if (marks->events) {
        bench_events_destroy_cuda(marks->events, marks->count);
    }
#endif
    free(marks->events);
    free(marks->ns);
    *marks = (struct bench_marks){.backend = marks->backend};
}

double bench_marks_ms(const struct bench_marks *marks, int64_t from, int64_t to)
{
#ifdef HAVE_CUDA
    if (marks->events) {
        return bench_events_ms_cuda(marks->events[from], marks->events[to]);
    }
#endif
    return 1e-6 * (double)(marks->ns[to] - marks->ns[from]);
}

/* Linux's estimate of what can be allocated without swapping; without it, all there is. */
static double host_free_bytes(double total)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    double free_bytes = total;
    long long kilobytes;

    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemAvailable: %lld", &kilobytes) == 1) {
            free_bytes = 1024.0 * (double)kilobytes;
        }
    }
    if (file) {
        fclose(file);
    }
    return free_bytes;
}

void bench_device_get(enum fp8pipe_backend backend, struct bench_device *device)
{
    *device = (struct bench_device){.name = "host"};
#ifdef HAVE_CUDA
    if (backend == FP8PIPE_BACKEND_CUDA) {
        bench_device_get_cuda(device);
        return;
    }
#endif
    (void)backend;
    device->total_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    device->free_bytes = host_free_bytes(device->total_bytes);
}
