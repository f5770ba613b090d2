#include "host/gemm.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "kernels/fp8.h"
#include "kernels/host/activate.h"
#include "kernels/host/convert.h"
#include "status.h"

/* Columns of D finished at a time, in a buffer on the stack. */
#define PIECE_COLS 256

#define SCRATCH_ALIGN 64

/* Environment: the state of the one BLAS that the process has. Writers first, or exit would wait as
 * long as there is work. */
static pthread_rwlock_t blas_usable = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_error;

static void blas_close(void)
{
    pthread_rwlock_wrlock(&blas_usable);
}

static void blas_reopen(void)
{
    pthread_rwlock_unlock(&blas_usable);
}

/* Threads that waited for the lock count in it, and are not there in the child. */
static void blas_reset(void)
{
    static const pthread_rwlock_t fresh = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

    blas_usable = fresh;
}

/* Runs before the destructors of the libraries that this one needs. */
__attribute__((destructor)) static void blas_exit(void)
{
    blas_close();
}

/* Handlers run before those of earlier registrations: OpenBLAS's is made when it is loaded. */
static void fork_register(void)
{
    fork_error = pthread_atfork(blas_close, blas_reopen, blas_reset);
}

enum fp8pipe_status host_gemm_open(struct host_gemm_tables *tables)
{
    pthread_once(&fork_once, fork_register);
    if (fork_error != 0) {
        return status_fail(FP8PIPE_ENOMEM, "host backend: no memory for fork handlers");
    }
    for (int code = 0; code < 256; code++) {
        tables->e4m3[code] = fp8_e4m3_to_float((uint8_t)code);
        tables->e5m2[code] = fp8_e5m2_to_float((uint8_t)code);
    }
    return FP8PIPE_OK;
}

static bool is_fp8(enum gemm_type type)
{
    return type == GEMM_E4M3 || type == GEMM_E5M2;
}

/* The shape in which an operand of `rows` x `k` is stored. */
static int64_t stored_rows(const struct gemm_operand *operand, int64_t rows, int64_t k)
{
    return operand->transposed ? k : rows;
}

static int64_t stored_cols(const struct gemm_operand *operand, int64_t rows, int64_t k)
{
    return operand->transposed ? rows : k;
}

static enum fp8pipe_status check(const struct gemm_args *args)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {
        {"m", args->m},
        {"n", args->n},
        {"k", args->k},
        {"stride of A", args->a.stride},
        {"stride of B", args->b.stride},
        {"stride of D", args->d_stride},
    };

    assert(args->m >= 1 && args->n >= 1 && args->k >= 1);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].value > INT_MAX) {
            return status_fail(FP8PIPE_EINVAL,
                               "gemm: %s = %lld is above %d, the most that CBLAS takes",
                               sizes[i].name, (long long)sizes[i].value, INT_MAX);
        }
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status scratch_alloc(int64_t rows, int64_t cols, float **scratch)
{
    size_t bytes;
    void *made;

    if (__builtin_mul_overflow((size_t)rows * (size_t)cols, sizeof(float), &bytes) ||
        bytes > PTRDIFF_MAX || posix_memalign(&made, SCRATCH_ALIGN, bytes) != 0) {
        return status_fail(FP8PIPE_ENOMEM,
                           "gemm: no memory for a scratch of %lld x %lld x %zu bytes",
                           (long long)rows, (long long)cols, sizeof(float));
    }
    *scratch = made;
    return FP8PIPE_OK;
}

static enum fp8pipe_status operand_alloc(const struct gemm_operand *operand, int64_t rows,
                                         int64_t k, float **scratch)
{
    if (operand->type == GEMM_FP32) {
        return FP8PIPE_OK;
    }
    return scratch_alloc(stored_rows(operand, rows, k), stored_cols(operand, rows, k), scratch);
}

static void scratch_free(struct host_gemm_work *work)
{
    free(work->product);
    free(work->b);
    free(work->a);
}

enum fp8pipe_status host_gemm_prepare(const struct gemm_args *args,
                                      const struct host_gemm_tables *tables,
                                      struct host_gemm_work *work)
{
    enum fp8pipe_status status = check(args);

    if (status != FP8PIPE_OK) {
        return status;
    }
    *work = (struct host_gemm_work){.args = *args, .tables = tables};
    status = operand_alloc(&args->a, args->m, args->k, &work->a);
    if (status == FP8PIPE_OK) {
        status = operand_alloc(&args->b, args->n, args->k, &work->b);
    }
    if (status == FP8PIPE_OK &&
        (args->d_scale != NULL || args->d_dtype != FP8PIPE_FP32 || args->accumulate)) {
        status = scratch_alloc(args->m, args->n, &work->product);
    }
    if (status != FP8PIPE_OK) {
        scratch_free(work);
    }
    return status;
}

static enum fp8pipe_dtype dtype_of(enum gemm_type type)
{
    switch (type) {
    case GEMM_BF16:
        return FP8PIPE_BF16;
    case GEMM_FP16:
        return FP8PIPE_FP16;
    default:
        assert(type == GEMM_FP32);
        return FP8PIPE_FP32;
    }
}

static void widen(float *to, const struct gemm_operand *operand, int64_t rows, int64_t cols,
                  const struct host_gemm_tables *tables)
{
    if (is_fp8(operand->type)) {
        const float *table = operand->type == GEMM_E4M3 ? tables->e4m3 : tables->e5m2;

        for (int64_t row = 0; row < rows; row++) {
            const uint8_t *from = (const uint8_t *)operand->data + row * operand->stride;

            for (int64_t col = 0; col < cols; col++) {
                to[row * cols + col] = table[from[col]];
            }
        }
    } else {
        enum fp8pipe_dtype dtype = dtype_of(operand->type);
        size_t row_bytes = (size_t)operand->stride * dtype_bytes(dtype);

        for (int64_t row = 0; row < rows; row++) {
            row_load(to + row * cols, (const char *)operand->data + (size_t)row * row_bytes, dtype,
                     cols);
        }
    }
}

/* The operand as float32, as it is stored, and the distance between its rows. */
static const float *operand_load(const struct host_gemm_work *work,
                                 const struct gemm_operand *operand, int64_t rows, float *scratch,
                                 int *stride)
{
    int64_t k = work->args.k;
    int64_t cols = stored_cols(operand, rows, k);

    if (scratch == NULL) {
        *stride = (int)operand->stride;
        return operand->data;
    }
    widen(scratch, operand, stored_rows(operand, rows, k), cols, work->tables);
    *stride = (int)cols;
    return scratch;
}

/* The address of element [row, col] of an output of `bytes` an element. */
static void *element(void *data, int64_t stride, size_t bytes, int64_t row, int64_t col)
{
    return (char *)data + (size_t)(row * stride + col) * bytes;
}

/* values += from, whatever its dtype. */
static void add(float *values, const void *from, enum fp8pipe_dtype dtype, int64_t count)
{
    float terms[PIECE_COLS];

    row_load(terms, from, dtype, count);
    VECTOR_LOOP(i, count, values[i] += terms[i]);
}

/* The bytes of values times the scale; the largest bits of |value|, and `largest`. */
static uint32_t cast(uint8_t *to, enum fp8pipe_format format, float scale, const float *values,
                     int64_t count, uint32_t largest)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = float_bits(values[i]) & 0x7fffffffu;

        largest = bits > largest ? bits : largest;
        to[i] = fp8_from_float(values[i] * scale, format);
    }
    return largest;
}

/*
 * What args say of D, from the product. `scale` is the product of two float32, of which one may be
 * huge and the other tiny: in double neither they nor their use leave the range before the result
 * does.
 */
static void finish(const struct gemm_args *args, const float *product, int64_t product_stride,
                   double scale, bool scaled)
{
    size_t bytes = args->d_scale != NULL ? 1 : dtype_bytes(args->d_dtype);
    float values[PIECE_COLS];
    uint32_t largest = 0;

    for (int64_t row = 0; row < args->m; row++) {
        for (int64_t col = 0; col < args->n; col += PIECE_COLS) {
            int64_t count = args->n - col < PIECE_COLS ? args->n - col : PIECE_COLS;
            void *d = element(args->d, args->d_stride, bytes, row, col);

            row_load(values, product + row * product_stride + col, FP8PIPE_FP32, count);
            if (scaled) {
                VECTOR_LOOP(i, count, values[i] = (float)(values[i] * scale));
            }
            if (args->bias != NULL) {
                add(values, (const char *)args->bias + (size_t)col * dtype_bytes(args->bias_dtype),
                    args->bias_dtype, count);
            }
            if (args->accumulate) {
                add(values, d, args->d_dtype, count);
            }
            row_activate(values, args->activation, count);
            if (args->residual != NULL) {
                add(values, element((void *)args->residual, args->residual_stride, bytes, row, col),
                    args->d_dtype, count);
            }
            if (args->d_scale != NULL) {
                largest = cast(d, args->d_format, *args->d_scale, values, count, largest);
            } else {
                row_store(d, args->d_dtype, values, count);
            }
        }
    }
    if (args->d_scale != NULL && args->d_amax != NULL) {
        *args->d_amax = largest;
    }
}

void host_gemm_run(struct host_gemm_work *work)
{
    const struct gemm_args *args = &work->args;
    bool scaled = is_fp8(args->a.type);
    double scale = scaled ? (double)*args->a.scale_inv * (double)*args->b.scale_inv : 1.0;
    float *product = work->product != NULL ? work->product : args->d;
    int product_stride = work->product != NULL ? (int)args->n : (int)args->d_stride;
    int a_stride, b_stride;
    const float *a = operand_load(work, &args->a, args->m, work->a, &a_stride);
    const float *b = operand_load(work, &args->b, args->n, work->b, &b_stride);

    pthread_rwlock_rdlock(&blas_usable);
    /* B is stored [n, k], so the product takes it transposed. */
    cblas_sgemm(CblasRowMajor, args->a.transposed ? CblasTrans : CblasNoTrans,
                args->b.transposed ? CblasNoTrans : CblasTrans, (int)args->m, (int)args->n,
                (int)args->k, 1.0f, a, a_stride, b, b_stride, 0.0f, product, product_stride);
    pthread_rwlock_unlock(&blas_usable);
    if (product != args->d || scaled || args->bias != NULL || args->residual != NULL ||
        args->activation != FP8PIPE_ACTIVATION_NONE) {
        finish(args, product, product_stride, scale, scaled);
    }
    scratch_free(work);
}
