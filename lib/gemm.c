#include "gemm.h"

#include "tensor.h"

/* cuBLASLt wants 16-byte rows of D and of a bias in FP8 GEMMs. */
#define GEMM_ALIGN 16

static enum gemm_type gemm_type_of_dtype(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? GEMM_FP32 : dtype == FP8PIPE_BF16 ? GEMM_BF16 : GEMM_FP16;
}

enum gemm_type gemm_type_of_format(enum fp8pipe_format format)
{
    return format == FP8PIPE_E4M3 ? GEMM_E4M3 : GEMM_E5M2;
}

static size_t dtype_bytes(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? 4 : 2;
}

struct gemm_operand gemm_operand_of(const struct fp8pipe_matrix *matrix, bool transposed)
{
    return (struct gemm_operand){
        .data = matrix->data,
        .stride = matrix->stride,
        .type = gemm_type_of_dtype(matrix->dtype),
        .transposed = transposed,
    };
}

static bool is_fp8(enum gemm_type type)
{
    return type == GEMM_E4M3 || type == GEMM_E5M2;
}

static bool aligned(const void *data)
{
    return (uintptr_t)data % GEMM_ALIGN == 0;
}

static bool aligned_d(const struct fp8pipe_matrix *d)
{
    return d->cols % KERNEL_FP8_PAD == 0 && aligned(d->data) &&
           (size_t)d->stride * dtype_bytes(d->dtype) % GEMM_ALIGN == 0;
}

/*
 * Whether the GEMM can add bias and old D itself. With a 16-bit D cuBLASLt missed the error that
 * one rounding allows: by 4 % with a bias at odd shapes, by 13 % when adding to D. So float32 sums
 * first there.
 */
static bool takes_sum(const struct gemm_request *request)
{
    enum fp8pipe_dtype want = request->d.dtype;

    if (request->accumulate && want != FP8PIPE_FP32) {
        return false;
    }
    if (request->bias.data == NULL) {
        return true;
    }
    if (is_fp8(request->a.type) && want == FP8PIPE_FP32) {
        want = FP8PIPE_BF16;
    }
    return request->bias.dtype == want && aligned(request->bias.data) &&
           (want == FP8PIPE_FP32 || aligned_d(&request->d));
}

/* Whether the GEMM can write D itself. */
static bool takes_d(const struct gemm_request *request)
{
    const struct fp8pipe_matrix *d = &request->d;

    return is_fp8(request->a.type)
               ? aligned_d(d)
               : d->dtype == FP8PIPE_FP32 || gemm_type_of_dtype(d->dtype) == request->a.type;
}

enum fp8pipe_status gemm_run(struct issue *issue, const struct gemm_request *request)
{
    struct backend *backend = issue->backend;
    const struct fp8pipe_matrix *d = &request->d;
    struct kernel_store_args store = {
        .to = *d,
        .bias = request->bias,
        .accumulate = request->accumulate,
    };
    struct gemm_args args = {
        .m = d->rows,
        .n = d->cols,
        .k = is_fp8(request->a.type) ? fp8_round_up(request->k) : request->k,
        .a = request->a,
        .b = request->b,
        .d = d->data,
        .d_stride = d->stride,
        .d_dtype = d->dtype,
        .accumulate = request->accumulate,
        .fast = request->fast,
    };
    enum fp8pipe_status status;

    if (d->rows == 0 || d->cols == 0) {
        return FP8PIPE_OK;
    }
    if (request->k == 0) {
        if (request->accumulate && request->bias.data == NULL) {
            return FP8PIPE_OK;
        }
        return backend->ops->store(backend, issue->stream, &store);
    }
    if (takes_sum(request) && takes_d(request)) {
        args.bias = request->bias.data;
        args.bias_dtype = request->bias.dtype;
        return backend->ops->gemm(backend, issue->stream, &args);
    }
    /* The sum is finished in float32 where something is still to be added, so that it is rounded
     * to D's dtype once. */
    args.n = fp8_round_up(d->cols);
    args.d_stride = args.n;
    args.accumulate = false;
    if (request->accumulate || request->bias.data != NULL || !is_fp8(request->a.type)) {
        args.d_dtype = FP8PIPE_FP32;
    }
    if (!is_fp8(request->a.type)) {
        args.n = d->cols;
    }
    status = issue_alloc(issue, (size_t)d->rows * (size_t)args.d_stride * dtype_bytes(args.d_dtype),
                         &args.d);
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = backend->ops->gemm(backend, issue->stream, &args);
    if (status != FP8PIPE_OK) {
        return status;
    }
    store.from = *d;
    store.from.data = args.d;
    store.from.stride = args.d_stride;
    store.from.dtype = args.d_dtype;
    return backend->ops->store(backend, issue->stream, &store);
}
