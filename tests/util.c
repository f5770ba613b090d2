#include "util.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Every dtype reads it as NaN, so that an element read from outside of a matrix shows in
 * results. */
#define POISON 0xFF
#define GUARD_BYTES 256

/* ---- Backends and pipes ------------------------------------------------------------------- */

void test_must(const char *file, int line, const char *call, enum fp8pipe_status status)
{
    if (status != FP8PIPE_OK)
        bail("%s:%d: %s: %s: %s", file, line, call, fp8pipe_status_name(status),
             fp8pipe_last_error());
}

static bool cuda_opens(void)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct fp8pipe *pipe;

    options.backend = FP8PIPE_BACKEND_CUDA;
    options.mode = FP8PIPE_INLINE;
    options.lanes = 1;
    options.log_level = FP8PIPE_LOG_NONE;
    if (fp8pipe_open(&options, &pipe) != FP8PIPE_OK)
        return false;
    test_close(pipe);
    return true;
}

const struct test_backends *test_backends(void)
{
    static struct test_backends backends;
    const char *wanted = getenv("FP8PIPE_TEST_BACKEND");

    if (backends.count > 0 || backends.cuda_missing)
        return &backends;
    if (wanted && *wanted && strcmp(wanted, "host") != 0 && strcmp(wanted, "cuda") != 0)
        bail("FP8PIPE_TEST_BACKEND is %s, not host or cuda", wanted);
    if (!wanted || strcmp(wanted, "cuda") != 0)
        backends.list[backends.count++] = FP8PIPE_BACKEND_HOST;
    if (wanted && strcmp(wanted, "host") == 0)
        return &backends;
    if (cuda_opens()) {
        backends.list[backends.count++] = FP8PIPE_BACKEND_CUDA;
        return &backends;
    }
    backends.cuda_missing = true;
    if (test_environment_is_set("FP8PIPE_TEST_REQUIRE_GPU"))
        bail("FP8PIPE_TEST_REQUIRE_GPU=1 and no cuda pipe opens: %s", fp8pipe_last_error());
    skip(1, "cuda: %s", fp8pipe_last_error());
    return &backends;
}

void test_each_backend(void (*cases)(enum fp8pipe_backend backend))
{
    const struct test_backends *backends = test_backends();

    for (int i = 0; i < backends->count; i++)
        cases(backends->list[i]);
}

const char *test_backend_name(enum fp8pipe_backend backend)
{
    return backend == FP8PIPE_BACKEND_CUDA ? "cuda" : "host";
}

struct fp8pipe *test_open(enum fp8pipe_backend backend, const struct fp8pipe_options *options)
{
    struct fp8pipe_options chosen = FP8PIPE_OPTIONS_INIT;
    struct fp8pipe *pipe;

    if (options)
        chosen = *options;
    chosen.backend = backend;
    must(fp8pipe_open(&chosen, &pipe));
    return pipe;
}

static void *poisoned_alloc(void *arg, size_t bytes, void *stream)
{
    void *data;

    (void)arg;
    (void)stream;
    if (posix_memalign(&data, 256, bytes) != 0)
        return NULL;
    return memset(data, POISON, bytes);
}

static void poisoned_free(void *arg, void *data, size_t bytes, void *stream)
{
    (void)arg;
    (void)bytes;
    (void)stream;
    free(data);
}

struct fp8pipe *test_open_poisoned(enum fp8pipe_backend backend)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;

    options.plans = FP8PIPE_PLANS_FIXED; /* the same op gives the same bits at any time */
    if (backend == FP8PIPE_BACKEND_HOST) {
        options.allocator.alloc = poisoned_alloc;
        options.allocator.free = poisoned_free;
    }
    return test_open(backend, &options);
}

void test_close(struct fp8pipe *pipe)
{
    must(fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS));
}

void test_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket)
{
    enum fp8pipe_status status = fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, TEST_TIMEOUT_NS);
    char sentence[256] = "";

    if (status == FP8PIPE_OK)
        return;
    (void)fp8pipe_error_get(pipe, ticket, sentence, sizeof(sentence));
    bail("wait for ticket %" PRIx64 ": %s: %s", ticket, fp8pipe_status_name(status), sentence);
}

void test_drain(struct fp8pipe *pipe)
{
    must(fp8pipe_drain(pipe, TEST_TIMEOUT_NS));
}

struct fp8pipe_submit test_submit(int32_t lane, uint32_t flags, fp8pipe_ticket after0,
                                  fp8pipe_ticket after1)
{
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;

    submit.lane = lane;
    submit.flags = flags;
    if (after0)
        submit.after[submit.after_count++] = after0;
    if (after1)
        submit.after[submit.after_count++] = after1;
    return submit;
}

void *test_alloc(struct fp8pipe *pipe, size_t bytes, int fill)
{
    void *data;

    must(fp8pipe_alloc(pipe, bytes, &data));
    must(fp8pipe_fill(pipe, data, fill, bytes));
    return data;
}

int64_t test_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- Matrices in the backend's memory ----------------------------------------------------- */

struct test_matrix test_matrix_make(struct fp8pipe *pipe, enum fp8pipe_dtype dtype, int64_t rows,
                                    int64_t cols, int64_t stride, int64_t offset)
{
    size_t element = test_dtype_bytes(dtype);
    struct test_matrix matrix = {.pipe = pipe};

    if (stride == 0)
        stride = cols;
    if (rows < 0 || cols < 0 || stride < cols || offset < 0)
        bail("a matrix of %" PRId64 " rows, %" PRId64 " cols, stride %" PRId64, rows, cols, stride);
    matrix.offset_bytes = GUARD_BYTES + (size_t)offset * element;
    matrix.block_bytes = matrix.offset_bytes + (size_t)(rows * stride) * element + GUARD_BYTES;
    must(fp8pipe_alloc(pipe, matrix.block_bytes, &matrix.block));
    matrix.view = (struct fp8pipe_matrix){.data = (char *)matrix.block + matrix.offset_bytes,
                                          .rows = rows,
                                          .cols = cols,
                                          .stride = stride,
                                          .dtype = dtype};
    test_matrix_poison(&matrix);
    return matrix;
}

void test_matrix_free(struct test_matrix *matrix)
{
    if (matrix->block)
        must(fp8pipe_free(matrix->pipe, matrix->block));
    memset(matrix, 0, sizeof(*matrix));
}

void test_matrix_poison(struct test_matrix *matrix)
{
    must(fp8pipe_fill(matrix->pipe, matrix->block, POISON, matrix->block_bytes));
}

static uint8_t *block_get(const struct test_matrix *matrix)
{
    uint8_t *copy = test_calloc(matrix->block_bytes, 1);

    must(fp8pipe_download(matrix->pipe, copy, matrix->block, matrix->block_bytes));
    return copy;
}

void test_matrix_set_raw(struct test_matrix *matrix, const void *dense)
{
    size_t element = test_dtype_bytes(matrix->view.dtype);
    size_t row_bytes = (size_t)matrix->view.cols * element;
    size_t stride_bytes = (size_t)matrix->view.stride * element;
    uint8_t *copy;

    if (matrix->view.rows == 0 || row_bytes == 0)
        return;
    copy = block_get(matrix);
    for (size_t row = 0; row < (size_t)matrix->view.rows; row++)
        memcpy(copy + matrix->offset_bytes + row * stride_bytes,
               (const uint8_t *)dense + row * row_bytes, row_bytes);
    must(fp8pipe_upload(matrix->pipe, matrix->block, copy, matrix->block_bytes));
    free(copy);
}

void test_matrix_get_raw(const struct test_matrix *matrix, void *dense)
{
    size_t element = test_dtype_bytes(matrix->view.dtype);
    size_t row_bytes = (size_t)matrix->view.cols * element;
    size_t stride_bytes = (size_t)matrix->view.stride * element;
    uint8_t *copy;

    if (matrix->view.rows == 0 || row_bytes == 0)
        return;
    copy = block_get(matrix);
    for (size_t row = 0; row < (size_t)matrix->view.rows; row++)
        memcpy((uint8_t *)dense + row * row_bytes, copy + matrix->offset_bytes + row * stride_bytes,
               row_bytes);
    free(copy);
}

void test_matrix_set(struct test_matrix *matrix, const double *dense)
{
    size_t count = (size_t)(matrix->view.rows * matrix->view.cols);
    size_t element = test_dtype_bytes(matrix->view.dtype);
    uint8_t *raw = test_calloc(count, element);

    for (size_t i = 0; i < count; i++)
        test_element_set(matrix->view.dtype, raw + i * element, dense[i]);
    test_matrix_set_raw(matrix, raw);
    free(raw);
}

void test_matrix_get(const struct test_matrix *matrix, double *dense)
{
    size_t count = (size_t)(matrix->view.rows * matrix->view.cols);
    size_t element = test_dtype_bytes(matrix->view.dtype);
    uint8_t *raw = test_calloc(count, element);

    test_matrix_get_raw(matrix, raw);
    for (size_t i = 0; i < count; i++)
        dense[i] = test_element_get(matrix->view.dtype, raw + i * element);
    free(raw);
}

/* How many bytes of the block, inside or outside of the elements, are not poison. */
static int64_t count_unpoisoned(const struct test_matrix *matrix, bool inside)
{
    size_t element = test_dtype_bytes(matrix->view.dtype);
    size_t row_bytes = (size_t)matrix->view.cols * element;
    size_t stride_bytes = (size_t)matrix->view.stride * element;
    size_t end = matrix->offset_bytes + (size_t)matrix->view.rows * stride_bytes;
    uint8_t *copy = block_get(matrix);
    int64_t count = 0;

    for (size_t i = 0; i < matrix->block_bytes; i++) {
        bool is_inside = i >= matrix->offset_bytes && i < end &&
                         (i - matrix->offset_bytes) % stride_bytes < row_bytes;

        count += is_inside == inside && copy[i] != POISON;
    }
    free(copy);
    return count;
}

int64_t test_matrix_damage(const struct test_matrix *matrix)
{
    return count_unpoisoned(matrix, false);
}

int64_t test_matrix_written(const struct test_matrix *matrix)
{
    return count_unpoisoned(matrix, true);
}

struct test_matrix test_matrix_random(struct fp8pipe *pipe, enum fp8pipe_dtype dtype, int64_t rows,
                                      int64_t cols, int64_t stride, int64_t offset,
                                      double deviation, struct test_rng *rng, double **dense)
{
    struct test_matrix matrix = test_matrix_make(pipe, dtype, rows, cols, stride, offset);
    double *values = test_calloc((size_t)(rows * cols), sizeof(*values));
    uint32_t element;

    for (int64_t i = 0; i < rows * cols; i++) {
        test_element_set(dtype, &element, deviation * test_random_normal(rng));
        values[i] = test_element_get(dtype, &element);
    }
    test_matrix_set(&matrix, values);
    if (dense)
        *dense = values;
    else
        free(values);
    return matrix;
}

struct fp8pipe_vector test_vector(const struct test_matrix *matrix)
{
    return (struct fp8pipe_vector){
        .data = matrix->view.data, .count = matrix->view.cols, .dtype = matrix->view.dtype};
}

/* ---- Quantized tensors -------------------------------------------------------------------- */

fp8pipe_ticket test_quantize(struct fp8pipe_tensor *tensor, struct fp8pipe_matrix x,
                             struct fp8pipe_scaling *scaling, uint32_t slot, uint32_t copies,
                             struct fp8pipe_submit submit)
{
    struct fp8pipe_quantize_op op = FP8PIPE_QUANTIZE_OP_INIT;
    fp8pipe_ticket ticket;

    op.submit = submit;
    op.x = x;
    op.scaling = scaling;
    op.slot = slot;
    op.copies = copies;
    must(fp8pipe_tensor_quantize(tensor, &op, &ticket));
    return ticket;
}

/* Guarded memory of the backend for `bytes` bytes, all poison. */
static uint8_t *guarded_alloc(struct fp8pipe *pipe, size_t bytes)
{
    return test_alloc(pipe, bytes + 2 * GUARD_BYTES, POISON);
}

/* Downloads what the guards enclose, frees the block; counts the guards' bytes that changed. */
static void guarded_take(struct fp8pipe *pipe, uint8_t *block, size_t bytes, void *to,
                         int64_t *damage)
{
    uint8_t *copy = test_calloc(bytes + 2 * GUARD_BYTES, 1);

    must(fp8pipe_download(pipe, copy, block, bytes + 2 * GUARD_BYTES));
    must(fp8pipe_free(pipe, block));
    for (size_t i = 0; i < GUARD_BYTES; i++)
        *damage += (copy[i] != POISON) + (copy[GUARD_BYTES + bytes + i] != POISON);
    memcpy(to, copy + GUARD_BYTES, bytes);
    free(copy);
}

struct test_fp8 test_tensor_read(struct fp8pipe *pipe, struct fp8pipe_tensor *tensor)
{
    struct fp8pipe_tensor_info info = FP8PIPE_TENSOR_INFO_INIT;
    struct fp8pipe_read_op op = FP8PIPE_READ_OP_INIT;
    struct test_fp8 fp8 = {0};
    uint8_t *rowwise = NULL, *transposed = NULL, *scale_inv;
    fp8pipe_ticket ticket;
    size_t bytes;

    must(fp8pipe_tensor_info_get(tensor, &info));
    if (!info.filled)
        bail("a tensor to be read is empty");
    fp8.rows = info.rows;
    fp8.cols = info.cols;
    fp8.format = info.format;
    bytes = (size_t)(info.rows * info.cols);
    if (info.rowwise) {
        rowwise = guarded_alloc(pipe, bytes);
        op.rowwise = rowwise + GUARD_BYTES;
    }
    if (info.transposed) {
        transposed = guarded_alloc(pipe, bytes);
        op.transposed = transposed + GUARD_BYTES;
    }
    scale_inv = guarded_alloc(pipe, sizeof(float));
    op.scale_inv = (void *)(scale_inv + GUARD_BYTES);
    must(fp8pipe_tensor_read(tensor, &op, &ticket));
    test_wait(pipe, ticket);
    if (rowwise) {
        fp8.rowwise = test_calloc(bytes, 1);
        guarded_take(pipe, rowwise, bytes, fp8.rowwise, &fp8.damage);
    }
    if (transposed) {
        fp8.transposed = test_calloc(bytes, 1);
        guarded_take(pipe, transposed, bytes, fp8.transposed, &fp8.damage);
    }
    guarded_take(pipe, scale_inv, sizeof(float), &fp8.scale_inv, &fp8.damage);
    return fp8;
}

void test_fp8_free(struct test_fp8 *fp8)
{
    free(fp8->rowwise);
    free(fp8->transposed);
    memset(fp8, 0, sizeof(*fp8));
}

void test_fp8_dequantize(const struct test_fp8 *fp8, double *values)
{
    double table[256];

    for (int byte = 0; byte < 256; byte++)
        table[byte] = test_fp8_value(fp8->format, (uint8_t)byte) * (double)fp8->scale_inv;
    for (int64_t row = 0; row < fp8->rows; row++)
        for (int64_t col = 0; col < fp8->cols; col++)
            values[row * fp8->cols + col] =
                table[fp8->rowwise ? fp8->rowwise[row * fp8->cols + col]
                                   : fp8->transposed[col * fp8->rows + row]];
}

/* ---- Scalings and linears ----------------------------------------------------------------- */

struct fp8pipe_scaling *test_scaling(struct fp8pipe *pipe, uint32_t slots, float initial_scale)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *scaling;

    options.slots = slots;
    options.initial_scale = initial_scale;
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    return scaling;
}

struct fp8pipe_linear *test_linear(struct fp8pipe *pipe, struct fp8pipe_matrix weight,
                                   struct fp8pipe_scaling *scaling)
{
    struct fp8pipe_linear_options options = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_linear *linear;

    options.in_features = weight.cols;
    options.out_features = weight.rows;
    options.weight = weight;
    options.scaling = scaling;
    must(fp8pipe_linear_create(pipe, &options, &linear));
    return linear;
}

struct fp8pipe_slot_state test_slot(struct fp8pipe_scaling *scaling, uint32_t slot)
{
    struct fp8pipe_slot_state state = FP8PIPE_SLOT_STATE_INIT;

    must(fp8pipe_scaling_slot_get(scaling, slot, &state));
    return state;
}

fp8pipe_ticket test_update(struct fp8pipe_scaling *scaling)
{
    struct fp8pipe_scaling_op op = FP8PIPE_SCALING_OP_INIT;
    fp8pipe_ticket ticket;

    op.submit.lane = 0;
    must(fp8pipe_scaling_update(scaling, &op, &ticket));
    return ticket;
}

fp8pipe_ticket test_skip(struct fp8pipe_scaling *scaling)
{
    struct fp8pipe_scaling_op op = FP8PIPE_SCALING_OP_INIT;
    fp8pipe_ticket ticket;

    op.submit.lane = 0;
    must(fp8pipe_scaling_skip(scaling, &op, &ticket));
    return ticket;
}
