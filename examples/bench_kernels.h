/*
 * What dit_bench's model does between its linear layers, and around them.
 *
 * bench_values_call is the function of a fp8pipe_tensor_call: the values of a few lines of
 * arithmetic, quantized on the way, on CUDA as functors over fp8pipe_quantize.cuh
 * (bench_kernels.cu) and on the host as functions of a row (bench_kernels_host.c). bench_call is
 * that of a fp8pipe_call: random numbers, loss, checks, marks. Both take their argument as a copy
 * (arg_bytes), so it needs to live only until the submit returns.
 *
 * CUDA and host compute the same, sums up to their order. Sums are made in a fixed order. All
 * matrices of one op have one dtype, BF16, or FP32 where nothing is quantized; H is the width of
 * the model, a multiple of 8.
 */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <fp8pipe_fused.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Values to quantize -------------------------------------------------------------------- */

enum bench_values_kind { BENCH_MODULATE, BENCH_ADD, BENCH_PAD, BENCH_MODULATE_BACKWARD };

/*
 * values = shift * u, u = x * r, v = shift * r, r = 1 / scale: that is shift * x / scale, and what
 * its backward needs of its operands. All [T, H]; out may be x; u and v NONE: not kept.
 */
struct bench_modulate_args {
    struct fp8pipe_matrix x;
    struct fp8pipe_matrix shift;
    struct fp8pipe_matrix scale;
    struct fp8pipe_matrix out;
    struct fp8pipe_matrix u;
    struct fp8pipe_matrix v;
};

/* values = x + y; all [T, H]; out may be x. */
struct bench_add_args {
    struct fp8pipe_matrix x;
    struct fp8pipe_matrix y;
    struct fp8pipe_matrix out;
};

/* values [T, cols] = [x | 0], x [T, H], H <= cols; out [T, cols] or NONE. */
struct bench_pad_args {
    struct fp8pipe_matrix x;
    struct fp8pipe_matrix out;
    int64_t cols;
};

/*
 * values [T, cols] = [g * u | -(g * u) * v | 0], cols >= 2 H: the gradient of the modulation, with
 * u and v as above; out [T, cols] or NONE. dx [T, H] = g * v, apart from the others.
 */
struct bench_modulate_backward_args {
    struct fp8pipe_matrix g;
    struct fp8pipe_matrix u;
    struct fp8pipe_matrix v;
    struct fp8pipe_matrix dx;
    struct fp8pipe_matrix out;
    int64_t cols;
};

struct bench_values {
    enum bench_values_kind kind;
    union {
        struct bench_modulate_args modulate;
        struct bench_add_args add;
        struct bench_pad_args pad;
        struct bench_modulate_backward_args modulate_backward;
    };
};

enum fp8pipe_status bench_values_call(struct fp8pipe_stream *stream,
                                      const struct fp8pipe_quantize_target *target, void *values);

/* ---- Everything else: its matrices are dense ------------------------------------------------ */

/* In how many parts a loss is summed, each in an order of its own. */
#define BENCH_LOSS_PARTS 1024

/* Points in a stream's time, so that iterations can be timed without anybody's waiting. */
struct bench_marks {
    enum fp8pipe_backend backend;
    int64_t count;
    void **events; /* CUDA */
    int64_t *ns;   /* host */
};

enum bench_kind { BENCH_FILL, BENCH_LOSS, BENCH_MAX, BENCH_MARK };

/* out[i, j] = low + span * uniform(key, i * cols + j), uniform in [0, 1): see bench_uniform. */
struct bench_fill_args {
    struct fp8pipe_matrix out;
    uint64_t key;
    float low;
    float span;
};

/*
 * *loss = mean((prediction - target)^2) in float64; grad (NONE, or as prediction, which it may be)
 * = 2 (prediction - target) / count. partials: BENCH_LOSS_PARTS numbers of scratch.
 */
struct bench_loss_args {
    struct fp8pipe_matrix prediction;
    struct fp8pipe_matrix target;
    struct fp8pipe_matrix grad;
    double *partials;
    double *loss;
};

/* *bits = max(*bits, the bits of max|x|): above 0x7F800000 a NaN, at it inf. */
struct bench_max_args {
    struct fp8pipe_matrix x;
    uint32_t *bits;
};

struct bench_mark_args {
    struct bench_marks *marks;
    int64_t index;
};

struct bench_op {
    enum bench_kind kind;
    union {
        struct bench_fill_args fill;
        struct bench_loss_args loss;
        struct bench_max_args max;
        struct bench_mark_args mark;
    };
};

enum fp8pipe_status bench_call(struct fp8pipe_stream *stream, void *op);

/* Marks are read once what recorded them is done. Returns 0, or -1 when memory is out. */
int bench_marks_create(struct bench_marks *marks, enum fp8pipe_backend backend, int64_t count);
void bench_marks_clear(struct bench_marks *marks);
double bench_marks_ms(const struct bench_marks *marks, int64_t from, int64_t to);

/* What a pipe of the backend runs on. */
struct bench_device {
    char name[128];
    int32_t driver;    /* CUDA's version of the driver, 13000; 0 on the host */
    double free_bytes; /* memory that could be allocated now */
    double total_bytes;
};
void bench_device_get(enum fp8pipe_backend backend, struct bench_device *device);

/* ---- Between the two files ----------------------------------------------------------------- */

/*
 * The counter-based random number i of a key, in [0, 1) with 24 bits: the same on host and device,
 * in any order.
 */
#ifdef __CUDACC__
#define BENCH_BOTH static __host__ __device__ inline
#else
#define BENCH_BOTH static inline
#endif
BENCH_BOTH float bench_uniform(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(z >> 40) * (1.0f / 16777216.0f);
}

struct CUstream_st;
/* Those that return int: 0 or a cudaError_t. */
int bench_launch_cuda(const struct bench_op *op, struct CUstream_st *stream);
enum fp8pipe_status bench_values_cuda(struct fp8pipe_stream *stream,
                                      const struct fp8pipe_quantize_target *target,
                                      const struct bench_values *values);
int bench_events_create_cuda(void **events, int64_t count);
void bench_events_destroy_cuda(void **events, int64_t count);
double bench_events_ms_cuda(void *from, void *to);
void bench_device_get_cuda(struct bench_device *device);

#ifdef __cplusplus
}
#endif

#endif
