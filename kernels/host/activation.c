#include "kernels/activation.h"

#include "kernels/host/convert.h"
#include "kernels/host/quantize.h"

/* What one piece of a row is made of. `gate` is SWIGLU's second half. */
struct piece {
    float x[QUANTIZE_TILE_COLS];
    float gate[QUANTIZE_TILE_COLS];
    float dy[QUANTIZE_TILE_COLS];
};

#define ALWAYS_INLINE inline __attribute__((always_inline))

#define EACH(body)                                                                                 \
    do {                                                                                           \
        for (int64_t i = 0; i < count; i++) {                                                      \
            body;                                                                                  \
        }                                                                                          \
    } while (0)

static ALWAYS_INLINE void forward(enum fp8pipe_activation activation,
                                  const struct piece *restrict in, float *restrict out,
                                  int64_t count)
{
    if (activation == FP8PIPE_ACTIVATION_GELU_TANH) {
        EACH(out[i] = activation_gelu_tanh(in->x[i]));
    } else if (activation == FP8PIPE_ACTIVATION_GELU_ERF) {
        EACH(out[i] = activation_gelu_erf(in->x[i]));
    } else if (activation == FP8PIPE_ACTIVATION_SILU) {
        EACH(out[i] = activation_silu(in->x[i]));
    } else {
        EACH(out[i] = activation_silu(in->x[i]) * in->gate[i]);
    }
}

/* by_gate: of SWIGLU, the derivative by the second half. */
static ALWAYS_INLINE void backward(enum fp8pipe_activation activation, int by_gate,
                                   const struct piece *restrict in, float *restrict out,
                                   int64_t count)
{
    if (activation == FP8PIPE_ACTIVATION_GELU_TANH) {
        EACH(out[i] = in->dy[i] * activation_gelu_tanh_slope(in->x[i]));
    } else if (activation == FP8PIPE_ACTIVATION_GELU_ERF) {
        EACH(out[i] = in->dy[i] * activation_gelu_erf_slope(in->x[i]));
    } else if (activation == FP8PIPE_ACTIVATION_SILU) {
        EACH(out[i] = in->dy[i] * activation_silu_slope(in->x[i]));
    } else if (by_gate) {
        EACH(out[i] = in->dy[i] * activation_silu(in->x[i]));
    } else {
        EACH(out[i] = in->dy[i] * in->gate[i] * activation_silu_slope(in->x[i]));
    }
}

struct work {
    const struct kernel_activation_args *args;
    void (*compute)(const struct kernel_activation_args *args, int by_gate,
                    const struct piece *restrict in, float *restrict out, int64_t count);
};

static ALWAYS_INLINE void compute(const struct kernel_activation_args *args, int by_gate,
                                  const struct piece *restrict in, float *restrict out,
                                  int64_t count)
{
    if (args->backward) {
        backward(args->activation, by_gate, in, out, count);
    } else {
        forward(args->activation, in, out, count);
    }
}

static void compute_any(const struct kernel_activation_args *args, int by_gate,
                        const struct piece *restrict in, float *restrict out, int64_t count)
{
    compute(args, by_gate, in, out, count);
}

/* Without instructions for them fused multiply-adds are calls. */
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) static void
compute_fma(const struct kernel_activation_args *args, int by_gate, const struct piece *restrict in,
            float *restrict out, int64_t count)
{
    compute(args, by_gate, in, out, count);
}
#endif

/* to = x[row, col ..] + bias */
static void load_x(const struct kernel_activation_args *args, int64_t row, int64_t col,
                   int64_t count, float *to)
{
    const struct fp8pipe_vector *bias = &args->bias;
    float terms[QUANTIZE_TILE_COLS];

    row_load(to, matrix_at(&args->x, row, col), args->x.dtype, count);
    if (bias->data != NULL) {
        row_load(terms, (const char *)bias->data + (size_t)col * dtype_bytes(bias->dtype),
                 bias->dtype, count);
        for (int64_t i = 0; i < count; i++) {
            to[i] += terms[i];
        }
    }
}

/* Columns that are all in the same half of SWIGLU's. */
static void run(const struct work *work, int64_t row, int64_t col, int64_t count, float *values)
{
    const struct kernel_activation_args *args = work->args;
    int gated = args->activation == FP8PIPE_ACTIVATION_SWIGLU;
    int64_t half = args->x.cols / 2;
    int by_gate = gated && args->backward && col >= half;
    int64_t first = by_gate ? col - half : col;
    struct piece in;

    load_x(args, row, first, count, in.x);
    if (gated && !by_gate) {
        load_x(args, row, half + first, count, in.gate);
    }
    if (args->backward) {
        row_load(in.dy, matrix_at(&args->dy, row, first), args->dy.dtype, count);
    }
    work->compute(args, by_gate, &in, values, count);
}

static void piece(void *arg, const struct quantize_place *at, float *values)
{
    const struct work *work = arg;
    const struct kernel_activation_args *args = work->args;
    int64_t half = args->x.cols / 2;
    int64_t count = at->count;

    if (args->activation == FP8PIPE_ACTIVATION_SWIGLU && args->backward && at->col < half &&
        at->col + count > half) {
        count = half - at->col;
        run(work, at->row, half, at->count - count, values + count);
    }
    run(work, at->row, at->col, count, values);
    if (at->writes && args->result.data != NULL) {
        row_store(matrix_at(&args->result, at->row, at->col), args->result.dtype, values,
                  at->count);
    }
}

void kernel_activation_host(const struct kernel_activation_args *args)
{
    struct work work = {args, compute_any};

#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        work.compute = compute_fma;
    }
#endif
    quantize_pieces(&args->target, piece, &work);
}
