/*
 * fp8pipe_gemm: D (+)= A . B^T + bias for matrices and quantized tensors, stored either way,
 * against float64 on the operands as they are stored.
 */
#include <math.h>
#include <stdlib.h>

#include "util.h"

struct gemm_case {
    int64_t m, n, k;
    bool fp8;
    bool a_transposed, b_transposed;
    bool has_bias, accumulate, ragged;
    enum fp8pipe_format a_format, b_format;
    enum fp8pipe_dtype in, out, bias;
    enum fp8pipe_accumulation accumulation;
};

struct operand {
    struct test_matrix matrix;     /* [rows, k], or [k, rows] if transposed */
    struct fp8pipe_tensor *tensor; /* NULL for a matrix */
    double *values;                /* dense, as the GEMM sees them */
    struct test_operand steps;
};

static struct test_matrix random_matrix(struct fp8pipe *pipe, const struct gemm_case *c,
                                        enum fp8pipe_dtype dtype, int64_t rows, int64_t cols,
                                        struct test_rng *rng, double deviation, double **values)
{
    int64_t stride = cols + (c->ragged ? test_random_range(rng, 0, 19) : 0);
    int64_t offset = c->ragged ? test_random_range(rng, 0, 9) : 0;

    return test_matrix_random(pipe, dtype, rows, cols, stride, offset, deviation, rng, values);
}

/* A tensor has only the copy that the GEMM is to read, so that it cannot read the other one. */
static struct operand operand_make(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling,
                                   const struct gemm_case *c, int64_t rows, bool transposed,
                                   enum fp8pipe_format format, struct test_rng *rng)
{
    int64_t stored_rows = transposed ? c->k : rows, stored_cols = transposed ? rows : c->k;
    struct operand operand = {.tensor = NULL};
    struct test_fp8 fp8;

    operand.matrix =
        random_matrix(pipe, c, c->in, stored_rows, stored_cols, rng, 1.0, &operand.values);
    operand.steps.data = operand.values;
    operand.steps.row_step = transposed ? 1 : c->k;
    operand.steps.k_step = transposed ? rows : 1;
    if (!c->fp8)
        return operand;
    must(fp8pipe_tensor_create(pipe, &operand.tensor));
    test_quantize(operand.tensor, operand.matrix.view, scaling, format == FP8PIPE_E5M2 ? 2 : 0,
                  transposed ? FP8PIPE_TRANSPOSED : FP8PIPE_ROWWISE, test_submit(0, 0, 0, 0));
    fp8 = test_tensor_read(pipe, operand.tensor);
    test_fp8_dequantize(&fp8, operand.values);
    test_fp8_free(&fp8);
    return operand;
}

static void operand_free(struct operand *operand)
{
    must(fp8pipe_tensor_destroy(operand->tensor));
    test_matrix_free(&operand->matrix);
    free(operand->values);
}

/* The error as a part of what is allowed; adds what was written outside to *damage. */
static double run_case(struct fp8pipe *pipe, enum fp8pipe_backend backend,
                       struct fp8pipe_scaling *scaling, const struct gemm_case *c,
                       struct test_rng *rng, int64_t *damage)
{
    struct operand a = operand_make(pipe, scaling, c, c->m, c->a_transposed, c->a_format, rng);
    struct operand b = operand_make(pipe, scaling, c, c->n, c->b_transposed, c->b_format, rng);
    double *before, *bias_values, *got = test_calloc((size_t)(c->m * c->n), sizeof(*got)), error;
    double deviation = sqrt((double)c->k) + 1;
    struct test_matrix d = random_matrix(pipe, c, c->out, c->m, c->n, rng, deviation, &before);
    struct test_matrix bias =
        random_matrix(pipe, c, c->bias, 1, c->n, rng, deviation, &bias_values);
    struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;
    struct test_precision precision = {
        .backend = backend,
        .fp8 = c->fp8,
        .in = c->in,
        .out = c->out,
        .fast = c->accumulation != FP8PIPE_ACCUMULATION_SPLIT,
    };
    fp8pipe_ticket ticket;

    if (!c->accumulate)
        test_matrix_poison(&d);
    if (c->fp8) {
        op.a_tensor = a.tensor;
        op.b_tensor = b.tensor;
    } else {
        op.a = a.matrix.view;
        op.b = b.matrix.view;
    }
    op.a_transposed = c->a_transposed;
    op.b_transposed = c->b_transposed;
    op.d = d.view;
    if (c->has_bias)
        op.bias = test_vector(&bias);
    op.accumulate = c->accumulate;
    op.accumulation = c->accumulation;
    must(fp8pipe_gemm(pipe, &op, &ticket));
    test_wait(pipe, ticket);

    test_matrix_get(&d, got);
    error = test_gemm_error(&precision, c->m, c->n, c->k, a.steps, b.steps,
                            c->has_bias ? bias_values : NULL, c->accumulate ? before : NULL, got);
    *damage += test_matrix_damage(&a.matrix) + test_matrix_damage(&b.matrix) +
               test_matrix_damage(&d) + test_matrix_damage(&bias);
    operand_free(&a);
    operand_free(&b);
    test_matrix_free(&d);
    test_matrix_free(&bias);
    free(before);
    free(bias_values);
    free(got);
    return error;
}

static struct gemm_case random_case(struct test_rng *rng, bool fp8, int64_t max_side,
                                    int64_t max_long)
{
    struct gemm_case c = {
        .m = test_random_range(rng, 1, max_side),
        .n = test_random_range(rng, 1, max_side),
        .k = test_random_range(rng, 1, max_side),
        .fp8 = fp8,
        .a_transposed = test_random(rng) & 1,
        .b_transposed = test_random(rng) & 1,
        .has_bias = test_random(rng) & 1,
        .accumulate = test_random(rng) & 1,
        .ragged = test_random(rng) & 1,
        .a_format = test_random(rng) & 1 ? FP8PIPE_E5M2 : FP8PIPE_E4M3,
        .in = (enum fp8pipe_dtype)test_random_range(rng, 0, 2),
        .out = (enum fp8pipe_dtype)test_random_range(rng, 0, 2),
        .bias = (enum fp8pipe_dtype)test_random_range(rng, 0, 2),
        .accumulation = (enum fp8pipe_accumulation)test_random_range(rng, 0, 2),
    };

    c.b_format = c.a_format == FP8PIPE_E4M3 && test_random(rng) & 1 ? FP8PIPE_E5M2 : FP8PIPE_E4M3;
    if (test_random_range(rng, 0, 9) == 0)
        c.k = test_random_range(rng, max_side, max_long);
    return c;
}

static void test_random_gemms(struct fp8pipe *pipe, enum fp8pipe_backend backend,
                              struct fp8pipe_scaling *scaling, bool fp8, int cases,
                              int64_t max_side, int64_t max_long)
{
    struct test_rng rng = {(uint64_t)(cases + fp8)};
    struct gemm_case worst_case = {0};
    int64_t damage = 0;
    double worst = 0;

    for (int i = 0; i < cases; i++) {
        struct gemm_case c = random_case(&rng, fp8, max_side, max_long);
        double error = run_case(pipe, backend, scaling, &c, &rng, &damage);

        if (error > worst) {
            worst = error;
            worst_case = c;
        }
    }
    if (!ok(worst <= 1,
            "%s: %d GEMMs of %s, sides up to %lld, stored either way, with and without bias and D: "
            "%.2f of the allowed error",
            test_backend_name(backend), cases, fp8 ? "quantized tensors" : "matrices",
            (long long)max_side, worst))
        diag("m %lld, n %lld, k %lld, transposed %d %d, formats %d %d, in %s, out %s, bias %d %s, "
             "accumulate %d, ragged %d, accumulation %d",
             (long long)worst_case.m, (long long)worst_case.n, (long long)worst_case.k,
             worst_case.a_transposed, worst_case.b_transposed, (int)worst_case.a_format,
             (int)worst_case.b_format, test_dtype_name(worst_case.in),
             test_dtype_name(worst_case.out), worst_case.has_bias, test_dtype_name(worst_case.bias),
             worst_case.accumulate, worst_case.ragged, (int)worst_case.accumulation);
    is_int(damage, 0, "%s: nothing is written outside of D", test_backend_name(backend));
}

/* Sides of 0 and 1: no terms leave the bias, or what was there; no elements leave nothing. */
static void test_small(struct fp8pipe *pipe, enum fp8pipe_backend backend,
                       struct fp8pipe_scaling *scaling, bool fp8)
{
    static const int64_t sides[] = {0, 1, 3, 16};
    struct test_rng rng = {5};
    int64_t damage = 0;
    double worst = 0;

    for (int i = 0; i < 4 * 4 * 4 * 4; i++) {
        struct gemm_case c = random_case(&rng, fp8, 1, 1);

        c.m = sides[i & 3];
        c.n = sides[i >> 2 & 3];
        c.k = sides[i >> 4 & 3];
        c.has_bias = i >> 6 & 1;
        c.accumulate = i >> 7;
        worst = fmax(worst, run_case(pipe, backend, scaling, &c, &rng, &damage));
    }
    ok(worst <= 1, "%s: sides of 0 and 1, %s: K = 0 gives the bias, or zeros, or D and the bias",
       test_backend_name(backend), fp8 ? "tensors" : "matrices");
    is_int(damage, 0, "%s: and nothing is written outside of D", test_backend_name(backend));
}

static void test_refusals(struct fp8pipe *pipe, const char *backend,
                          struct fp8pipe_scaling *scaling)
{
    struct test_rng rng = {6};
    struct gemm_case c = {.m = 4, .n = 4, .k = 4, .fp8 = true, .in = FP8PIPE_BF16};
    struct operand a = operand_make(pipe, scaling, &c, 4, false, FP8PIPE_E5M2, &rng);
    struct operand b = operand_make(pipe, scaling, &c, 4, false, FP8PIPE_E5M2, &rng);
    struct operand e4m3 = operand_make(pipe, scaling, &c, 4, false, FP8PIPE_E4M3, &rng);
    struct test_matrix d = test_matrix_make(pipe, FP8PIPE_FP32, 4, 4, 0, 0);
    struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;

    op.d = d.view;
    op.a_tensor = a.tensor;
    op.b_tensor = b.tensor;
    is_int(fp8pipe_gemm(pipe, &op, NULL), FP8PIPE_EINVAL, "%s: two E5M2 operands are refused",
           backend);
    op.b_tensor = e4m3.tensor;
    op.b_transposed = 1;
    is_int(fp8pipe_gemm(pipe, &op, NULL), FP8PIPE_EINVAL,
           "%s: a transposed operand without a transposed copy is refused", backend);
    op.b_tensor = NULL;
    op.b_transposed = 0;
    op.b = b.matrix.view;
    is_int(fp8pipe_gemm(pipe, &op, NULL), FP8PIPE_EINVAL, "%s: a tensor and a matrix are refused",
           backend);
    test_drain(pipe);
    is_int(test_matrix_written(&d), 0, "%s: with no effect", backend);
    operand_free(&a);
    operand_free(&b);
    operand_free(&e4m3);
    test_matrix_free(&d);
}

static void cases(enum fp8pipe_backend backend)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe *pipe = test_open_poisoned(backend);
    bool gpu = backend == FP8PIPE_BACKEND_CUDA;
    struct fp8pipe_scaling *scaling;

    options.slots = 3; /* each tensor by its own amax: nothing here updates */
    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    for (int fp8 = 0; fp8 <= 1; fp8++) {
        test_random_gemms(pipe, backend, scaling, fp8, TEST_CASES(200), 80, 900);
        test_random_gemms(pipe, backend, scaling, fp8, gpu ? 40 : 15, gpu ? 400 : 160,
                          gpu ? 8192 : 2000);
        test_small(pipe, backend, scaling, fp8);
    }
    test_refusals(pipe, test_backend_name(backend), scaling);
    must(fp8pipe_scaling_destroy(scaling));
    test_close(pipe);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
