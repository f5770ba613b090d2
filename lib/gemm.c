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

static bool aligned_rows(const struct fp8pipe_matrix *matrix)
{
    return aligned(matrix->data) &&
           (size_t)matrix->stride * dtype_bytes(matrix->dtype) % GEMM_ALIGN == 0;
}

static bool aligned_d(const struct fp8pipe_matrix *d)
{
    return d->cols % KERNEL_FP8_PAD == 0 && aligned_rows(d);
}

static bool residual_is_d(const struct gemm_request *request)
{
    return request->residual.data == request->d.data;
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

/*
 * Whether the GEMM can do the epilogue itself. A residual costs it nothing. A GELU costs half of what
 * a pass over a 16-bit D does, but is of few digits in cuBLASLt, as a bf16 D is.
 */
static bool takes_epilogue(const struct gemm_request *request)
{
    if (request->residual.data != NULL) {
        return request->activation == FP8PIPE_ACTIVATION_NONE &&
               (residual_is_d(request) || aligned_rows(&request->residual));
    }
    return request->activation == FP8PIPE_ACTIVATION_NONE ||
           (request->activation == FP8PIPE_ACTIVATION_GELU_TANH && !request->accumulate &&
            request->d.dtype == FP8PIPE_BF16);
}

/* The backend's arguments, but for D, bias and epilogue. k >= 1. */
static struct gemm_args args_of(const struct gemm_request *request)
{
    return (struct gemm_args){
        .m = request->d.rows,
        .n = request->d.cols,
        .k = is_fp8(request->a.type) ? fp8_round_up(request->k) : request->k,
        .a = request->a,
        .b = request->b,
        .fast = request->fast,
    };
}

/* All of it in the backend's GEMM. ENOTSUP: nothing was enqueued. */
static enum fp8pipe_status run_inside(struct issue *issue, const struct gemm_request *request)
{
    struct gemm_args args = args_of(request);

    args.d = request->d.data;
    args.d_stride = request->d.stride;
    args.d_dtype = request->d.dtype;
    args.bias = request->bias.data;
    args.bias_dtype = request->bias.dtype;
    args.accumulate = request->accumulate;
    args.activation = request->activation;
    if (request->residual.data != NULL && residual_is_d(request)) {
        args.accumulate = true;
    } else if (request->residual.data != NULL) {
        args.residual = request->residual.data;
        args.residual_stride = request->residual.stride;
    }
    return issue->backend->ops->gemm(issue->backend, issue->stream, &args);
}

static bool has_epilogue(const struct gemm_request *request)
{
    return request->residual.data != NULL || request->activation != FP8PIPE_ACTIVATION_NONE;
}

/* What comes after the product, of `from`, which holds it (data NULL: it is 0). */
static enum fp8pipe_status run_store(struct issue *issue, const struct gemm_request *request,
                                     const struct fp8pipe_matrix *from)
{
    struct kernel_store_args store = {
        .to = request->d,
        .from = *from,
        .bias = request->bias,
        .residual = request->residual,
        .accumulate = request->accumulate,
        .activation = request->activation,
    };

    return issue->backend->ops->store(issue->backend, issue->stream, &store);
}

/*
 * The product into temporary memory, then the store kernel: in float32 where something is still to
 * be done to it, so that it is rounded to D's dtype once.
 */
static enum fp8pipe_status run_outside(struct issue *issue, const struct gemm_request *request)
{
    struct fp8pipe_matrix product = request->d;
    struct gemm_args args = args_of(request);
    enum fp8pipe_status status;

    product.stride = fp8_round_up(request->d.cols);
    if (request->accumulate || request->bias.data != NULL || has_epilogue(request) ||
        !is_fp8(request->a.type)) {
        product.dtype = FP8PIPE_FP32;
    }
    status = issue_alloc(issue,
                         (size_t)product.rows * (size_t)product.stride * dtype_bytes(product.dtype),
                         &product.data);
    if (status != FP8PIPE_OK) {
        return status;
    }
    if (is_fp8(request->a.type)) {
        args.n = product.stride;
    }
    args.d = product.data;
    args.d_stride = product.stride;
    args.d_dtype = product.dtype;
    status = issue->backend->ops->gemm(issue->backend, issue->stream, &args);
    return status != FP8PIPE_OK ? status : run_store(issue, request, &product);
}

enum fp8pipe_status gemm_run(struct issue *issue, const struct gemm_request *request)
{
    static const struct fp8pipe_matrix none = FP8PIPE_MATRIX_NONE;
    const struct fp8pipe_matrix *d = &request->d;

    if (d->rows == 0 || d->cols == 0) {
        return FP8PIPE_OK;
    }
    if (request->k == 0) {
        return request->accumulate && request->bias.data == NULL ? FP8PIPE_OK
                                                                 : run_store(issue, request, &none);
    }
    if (takes_sum(request) && takes_d(request) && takes_epilogue(request)) {
        enum fp8pipe_status status = run_inside(issue, request);

        if (status != FP8PIPE_ENOTSUP || !has_epilogue(request)) {
            return status;
        }
    }
    return run_outside(issue, request);
}

enum fp8pipe_status gemm_run_fp8(struct issue *issue, const struct gemm_request *request,
                                 const struct gemm_fp8 *out)
{
    const struct fp8pipe_vector *bias = &request->bias;
    struct gemm_args args = args_of(request);

    if (request->d.rows == 0 || request->d.cols == 0 || request->k == 0 ||
        request->d.cols % KERNEL_FP8_PAD != 0 || !is_fp8(request->a.type) ||
        (bias->data != NULL && (bias->dtype != FP8PIPE_BF16 || !aligned(bias->data))) ||
        (request->activation != FP8PIPE_ACTIVATION_NONE &&
         request->activation != FP8PIPE_ACTIVATION_GELU_TANH)) {
        return FP8PIPE_ENOTSUP;
    }
    args.d = out->data;
    args.d_stride = request->d.cols;
    args.d_format = out->format;
    args.d_scale = out->scale;
    args.d_amax = out->amax;
    args.bias = bias->data;
    args.bias_dtype = bias->dtype;
    args.activation = request->activation;
    return issue->backend->ops->gemm(issue->backend, issue->stream, &args);
}
