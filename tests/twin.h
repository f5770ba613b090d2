/*
 * Twin memory for tests of CUDA kernels: the same bytes on the host and on the device, with guards
 * around them, so that a kernel and its host twin can be run on them and the results compared byte
 * for byte, what lies around the outputs included. Bails out on what is not the kernel's fault.
 */
#ifndef TESTS_TWIN_H
#define TESTS_TWIN_H

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"
#include "numbers.h"
#include "tap.h"

#define GUARD_BYTES 256
#define POISON 0xA5

/* ---- The device --------------------------------------------------------------------------- */

#define cuda_must(call)                                                                            \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess)                                                                 \
            bail("%s: %s", #call, cudaGetErrorString(error_));                                     \
    } while (0)

/* Skips the program where there is no device, or bails out where one must be. */
static inline void device_require(void)
{
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);

    if (error == cudaSuccess && devices > 0)
        return;
    if (test_environment_is_set("FP8PIPE_TEST_REQUIRE_GPU"))
        bail("no CUDA device: %s", cudaGetErrorString(error));
    skip_all("no CUDA device: %s", cudaGetErrorString(error));
}

/* ---- Twin memory -------------------------------------------------------------------------- */

/* The same bytes on the host and on the device, with guards around them. */
struct twin {
    size_t bytes; /* with guards */
    uint8_t *host;
    uint8_t *device;
};

static inline struct twin twin_make(size_t bytes)
{
    struct twin twin = {bytes + 2 * GUARD_BYTES, NULL, NULL};

    twin.host = test_calloc(twin.bytes, 1);
    memset(twin.host, POISON, twin.bytes);
    cuda_must(cudaMalloc((void **)&twin.device, twin.bytes));
    return twin;
}

static inline void twin_free(struct twin *twin)
{
    free(twin->host);
    cuda_must(cudaFree(twin->device));
}

/* Once the host's side is filled. */
static inline void twin_upload(const struct twin *twin)
{
    cuda_must(cudaMemcpy(twin->device, twin->host, twin->bytes, cudaMemcpyHostToDevice));
}

static inline void *twin_host(const struct twin *twin)
{
    return twin->host + GUARD_BYTES;
}

static inline void *twin_device(const struct twin *twin)
{
    return twin->device + GUARD_BYTES;
}

/* The device's bytes; free() them. */
static inline uint8_t *twin_download(const struct twin *twin)
{
    uint8_t *bytes = test_calloc(twin->bytes, 1);

    cuda_must(cudaMemcpy(bytes, twin->device, twin->bytes, cudaMemcpyDeviceToHost));
    return bytes;
}

static inline bool twin_equal(const struct twin *twin, const char *what)
{
    uint8_t *bytes = twin_download(twin);
    bool equal = memcmp(bytes, twin->host, twin->bytes) == 0;

    for (size_t i = 0; !equal && i < twin->bytes; i++)
        if (bytes[i] != twin->host[i]) {
            diag("%s: byte %lld of %zu: device %02x, host %02x", what, (long long)i - GUARD_BYTES,
                 twin->bytes - 2 * GUARD_BYTES, bytes[i], twin->host[i]);
            break;
        }
    free(bytes);
    return equal;
}

/* A matrix of which each side sees its own memory. `offset`: elements that it is misaligned by. */
struct twin_matrix {
    struct twin memory;
    struct fp8pipe_matrix host;
    struct fp8pipe_matrix device;
};

static inline struct twin_matrix twin_matrix_make(enum fp8pipe_dtype dtype, int64_t rows,
                                                  int64_t cols, int64_t stride, int64_t offset)
{
    size_t element = test_dtype_bytes(dtype);
    struct fp8pipe_matrix matrix = {NULL, rows, cols, stride, dtype, 0};
    struct twin_matrix twin = {twin_make(((size_t)(rows * stride) + (size_t)offset) * element),
                               matrix, matrix};

    twin.host.data = (uint8_t *)twin_host(&twin.memory) + (size_t)offset * element;
    twin.device.data = (uint8_t *)twin_device(&twin.memory) + (size_t)offset * element;
    return twin;
}

enum data { DATA_NORMAL, DATA_BITS, DATA_ZERO, DATA_KINDS };

/* NORMAL: values of one magnitude. BITS: any bits, so every exponent, inf and NaN. ZERO: -0 too. */
static inline void twin_matrix_fill(struct twin_matrix *twin, struct test_rng *rng, enum data data)
{
    size_t element = test_dtype_bytes(twin->host.dtype);
    double magnitude = exp2((double)test_random_range(rng, -12, 6));

    for (int64_t row = 0; row < twin->host.rows; row++)
        for (int64_t col = 0; col < twin->host.cols; col++) {
            uint8_t *at =
                (uint8_t *)twin->host.data + (size_t)(row * twin->host.stride + col) * element;
            uint64_t bits = test_random(rng);

            if (data == DATA_BITS)
                memcpy(at, &bits, element);
            else if (data == DATA_ZERO)
                test_element_set(twin->host.dtype, at, bits % 2 ? 0.0 : -0.0);
            else
                test_element_set(twin->host.dtype, at,
                                 ((double)(int64_t)bits * 0x1p-62 - 0.25) * magnitude);
        }
    twin_upload(&twin->memory);
}

/* A matrix of random layout: stride, alignment; a third of them with 16-byte aligned rows. */
static inline struct twin_matrix twin_matrix_random(struct test_rng *rng, enum fp8pipe_dtype dtype,
                                                    int64_t rows, int64_t cols, enum data data)
{
    bool aligned = test_random_range(rng, 0, 2) == 0;
    int64_t stride = cols + test_random_range(rng, 0, 9);
    struct twin_matrix twin;

    if (aligned)
        stride = (stride + 7) / 8 * 8;
    twin = twin_matrix_make(dtype, rows, cols, stride, aligned ? 0 : test_random_range(rng, 0, 8));
    twin_matrix_fill(&twin, rng, data);
    return twin;
}

static inline float *matrix_row(const struct fp8pipe_matrix *matrix, int64_t row)
{
    float *values = test_calloc((size_t)matrix->cols, sizeof(float));
    size_t element = test_dtype_bytes(matrix->dtype);

    for (int64_t col = 0; col < matrix->cols; col++)
        values[col] = (float)test_element_get(matrix->dtype,
                                              (const uint8_t *)matrix->data +
                                                  (size_t)(row * matrix->stride + col) * element);
    return values;
}

static inline void launched(int error, const char *kernel)
{
    if (error != 0)
        bail("%s: %s", kernel, cudaGetErrorString((cudaError_t)error));
    cuda_must(cudaDeviceSynchronize());
}

/* |device - host| within what 64 float32 additions may lose; columns that overflow are left out. */
static inline bool partials_agree(const struct fp8pipe_matrix *x, const struct twin *partials)
{
    int64_t parts = (x->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    uint8_t *bytes = twin_download(partials);
    const float *device = (const float *)(bytes + GUARD_BYTES);
    const float *host = twin_host(partials);
    double *size = test_calloc((size_t)x->cols, sizeof(double));
    bool agree = memcmp(bytes, partials->host, GUARD_BYTES) == 0 &&
                 memcmp(bytes + partials->bytes - GUARD_BYTES,
                        partials->host + partials->bytes - GUARD_BYTES, GUARD_BYTES) == 0;

    if (!agree)
        diag("partials: wrote outside");
    for (int64_t part = 0; part < parts; part++) {
        memset(size, 0, (size_t)x->cols * sizeof(double));
        for (int64_t row = part * KERNEL_SUM_ROWS;
             row < x->rows && row < (part + 1) * KERNEL_SUM_ROWS; row++) {
            float *values = matrix_row(x, row);

            for (int64_t col = 0; col < x->cols; col++)
                size[col] += fabs((double)values[col]);
            free(values);
        }
        for (int64_t col = 0; col < x->cols; col++) {
            double a = device[part * x->cols + col], b = host[part * x->cols + col];

            if (size[col] < FLT_MAX && !(fabs(a - b) <= 64 * FLT_EPSILON * size[col]) && agree) {
                diag("partials [%lld, %lld]: device %g, host %g", (long long)part, (long long)col,
                     a, b);
                agree = false;
            }
        }
    }
    free(size);
    free(bytes);
    return agree;
}

#endif
