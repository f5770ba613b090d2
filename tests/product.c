#include "product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/activation.h"
#include "kernels/fp8.h"

void world_open(struct world *w, struct fp8pipe *pipe, uint64_t seed)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    static const uint8_t roles[SLOTS] = {FP8PIPE_ROLE_X, FP8PIPE_ROLE_W, FP8PIPE_ROLE_DY,
                                         FP8PIPE_ROLE_X, FP8PIPE_ROLE_X, FP8PIPE_ROLE_DY};

    memset(w, 0, sizeof(*w));
    w->pipe = pipe;
    w->rng.state = seed;
    must(fp8pipe_backend_get(pipe, &w->backend));
    w->name = test_backend_name(w->backend);
    options.slots = SLOTS;
    options.roles = roles;
    must(fp8pipe_scaling_create(pipe, &options, &w->scaling));
    must(fp8pipe_tensor_create(pipe, &w->result));
}

void world_close(struct world *w)
{
    test_drain(w->pipe);
    must(fp8pipe_tensor_destroy(w->result));
    must(fp8pipe_scaling_destroy(w->scaling));
    test_close(w->pipe);
}

/* ---- One product --------------------------------------------------------------------------- */

struct test_matrix product_matrix(struct world *w, const struct config *c, enum fp8pipe_dtype dtype,
                                  int64_t rows, int64_t cols, double deviation, double **values)
{
    int64_t stride = cols + (c->ragged ? test_random_range(&w->rng, 0, 19) : 0);
    int64_t offset = c->ragged ? test_random_range(&w->rng, 0, 9) : 0;

    return test_matrix_random(w->pipe, dtype, rows, cols, stride, offset, deviation, &w->rng,
                              values);
}

struct fp8pipe_tensor *product_quantized(struct world *w, const struct test_matrix *x,
                                         uint32_t slot, double *seen)
{
    struct fp8pipe_submit submit = test_submit(0, FP8PIPE_NO_AMAX, 0, 0);
    struct fp8pipe_tensor *tensor;
    struct test_fp8 fp8;

    must(fp8pipe_tensor_create(w->pipe, &tensor));
    test_quantize(tensor, x->view, w->scaling, slot, FP8PIPE_ROWWISE, submit);
    fp8 = test_tensor_read(w->pipe, tensor);
    test_fp8_dequantize(&fp8, seen);
    test_fp8_free(&fp8);
    return tensor;
}

void product_make(struct world *w, struct product *p, const struct config *c)
{
    double deviation = sqrt((double)c->k) + 1;

    memset(p, 0, sizeof(*p));
    p->c = *c;
    p->a = product_matrix(w, c, c->in, c->m, c->k, 1, &p->a_seen);
    p->b = product_matrix(w, c, c->in, c->n, c->k, 1, &p->b_seen);
    p->bias = product_matrix(w, c, c->bias, 1, c->n, deviation, &p->bias_seen);
    p->d = product_matrix(w, c, c->out, c->m, c->n, deviation, NULL);
    p->pre = product_matrix(w, c, c->pre, c->m, c->n, 1, NULL);
    p->residual = product_matrix(w, c, c->out, c->m, c->n, deviation, &p->residual_seen);
    if (c->residual == RESIDUAL_D)
        test_matrix_set(&p->d, p->residual_seen);
    else
        test_matrix_poison(&p->d);
    if (c->fp8) {
        p->a_tensor = product_quantized(w, &p->a, 0, p->a_seen);
        p->b_tensor = product_quantized(w, &p->b, 1, p->b_seen);
    }
}

void product_free(struct product *p)
{
    struct test_matrix *matrices[] = {&p->a, &p->b, &p->bias, &p->d, &p->pre, &p->residual};
    double *dense[] = {p->a_seen, p->b_seen, p->bias_seen, p->residual_seen};

    must(fp8pipe_tensor_destroy(p->a_tensor));
    must(fp8pipe_tensor_destroy(p->b_tensor));
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
        test_matrix_free(matrices[i]);
    for (size_t i = 0; i < sizeof(dense) / sizeof(dense[0]); i++)
        free(dense[i]);
}

int64_t product_damage(const struct product *p)
{
    return test_matrix_damage(&p->a) + test_matrix_damage(&p->b) + test_matrix_damage(&p->bias) +
           test_matrix_damage(&p->d) + test_matrix_damage(&p->pre) +
           test_matrix_damage(&p->residual) + (p->c.has_pre ? 0 : 0);
}

struct fp8pipe_gemm_op product_op(const struct product *p)
{
    struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;

    op.submit = ON(0);
    if (p->c.fp8) {
        op.a_tensor = p->a_tensor;
        op.b_tensor = p->b_tensor;
    } else {
        op.a = p->a.view;
        op.b = p->b.view;
    }
    op.d = p->d.view;
    if (p->c.has_bias)
        op.bias = test_vector(&p->bias);
    op.epilogue.activation = p->c.activation;
    if (p->c.has_pre)
        op.epilogue.pre = p->pre.view;
    if (p->c.residual == RESIDUAL_APART)
        op.epilogue.residual = p->residual.view;
    if (p->c.residual == RESIDUAL_D)
        op.epilogue.residual = p->d.view;
    return op;
}

struct fp8pipe_gemm_op product_quantizing_op(const struct world *w, const struct product *p,
                                             uint32_t slot, uint32_t copies)
{
    static const struct fp8pipe_matrix none = FP8PIPE_MATRIX_NONE;
    struct fp8pipe_gemm_op op = product_op(p);

    op.d = none;
    op.epilogue.residual = none;
    op.epilogue.tensor = w->result;
    op.epilogue.scaling = w->scaling;
    op.epilogue.slot = slot;
    op.epilogue.copies = copies;
    return op;
}

void product_run(struct world *w, const struct fp8pipe_gemm_op *op)
{
    fp8pipe_ticket ticket;

    must(fp8pipe_gemm(w->pipe, op, &ticket));
    test_wait(w->pipe, ticket);
}

static double activated64(enum fp8pipe_activation activation, double x)
{
    switch (activation) {
    case FP8PIPE_ACTIVATION_GELU_TANH:
        return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case FP8PIPE_ACTIVATION_GELU_ERF:
        return x / 2 * (1 + erf(x / sqrt(2)));
    case FP8PIPE_ACTIVATION_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

float product_activated(enum fp8pipe_activation activation, float x)
{
    switch (activation) {
    case FP8PIPE_ACTIVATION_GELU_TANH:
        return activation_gelu_tanh(x);
    case FP8PIPE_ACTIVATION_GELU_ERF:
        return activation_gelu_erf(x);
    case FP8PIPE_ACTIVATION_SILU:
        return activation_silu(x);
    default:
        return x;
    }
}

void product_reference(const struct product *p, double *product, double *d, double *norm)
{
    const struct config *c = &p->c;
    double squares = 0;

    test_gemm64(c->m, c->n, c->k, (struct test_operand){p->a_seen, c->k, 1},
                (struct test_operand){p->b_seen, c->k, 1}, product);
    for (int64_t i = 0; i < c->m * c->n; i++) {
        double bias = c->has_bias ? p->bias_seen[i % c->n] : 0;
        double added = c->residual != RESIDUAL_NONE ? p->residual_seen[i] : 0;

        product[i] += bias;
        d[i] = activated64(c->activation, product[i]) + added;
        squares += product[i] * product[i] + added * added + bias * bias;
    }
    *norm = sqrt(squares) + sqrt((double)(c->m * c->n * c->k));
}

double product_distance(int64_t count, const double *got, const double *want)
{
    double squares = 0;

    for (int64_t i = 0; i < count; i++)
        squares += (got[i] - want[i]) * (got[i] - want[i]);
    return isfinite(squares) ? sqrt(squares) : INFINITY;
}

/* What a result may be off, as a part of the norm. On CUDA a 16-bit D may be rounded twice, and a
 * GELU of few digits. */
double product_allowed(const struct world *w, const struct config *c, enum fp8pipe_dtype out)
{
    bool cuda = w->backend == FP8PIPE_BACKEND_CUDA;
    double sum = !cuda ? 1e-5 : c->fp8 ? 3e-3 : c->in == FP8PIPE_FP32 ? 1e-5 : 5e-5;
    double rounding = out == FP8PIPE_BF16 ? 1.7e-3 : out == FP8PIPE_FP16 ? 2.1e-4 : 0;

    if (c->m * c->n < 64)
        rounding *= 2.4;
    if (c->has_pre)
        rounding += product_allowed(w, &(struct config){.m = c->m, .n = c->n}, c->pre);
    if (cuda && out == FP8PIPE_BF16 && c->activation == FP8PIPE_ACTIVATION_GELU_TANH)
        rounding += 1e-3;
    return 1.2 * (sum + rounding * (cuda && c->residual != RESIDUAL_NONE ? 1.5 : 1));
}

void product_say(const struct config *c)
{
    diag("m %lld, n %lld, k %lld, fp8 %d, ragged %d, in %s, out %s, bias %d %s, pre %d %s, "
         "activation %d, residual %d",
         (long long)c->m, (long long)c->n, (long long)c->k, c->fp8, c->ragged,
         test_dtype_name(c->in), test_dtype_name(c->out), c->has_bias, test_dtype_name(c->bias),
         c->has_pre, test_dtype_name(c->pre), (int)c->activation, (int)c->residual);
}

/* Places between two codes of one format. */
static int steps_between(uint8_t a, uint8_t b)
{
    int x = a & 0x80 ? -(a & 0x7f) : a, y = b & 0x80 ? -(b & 0x7f) : b;

    return abs(x - y);
}

/*
 * The tensor against float64: each code is at most one step from that of the exact value, and all
 * but few are that. Also how the two copies differ.
 */
bool product_tensor_is_right(struct world *w, const struct product *p, const struct test_fp8 *fp8,
                             float scale)
{
    const struct config *c = &p->c;
    int64_t count = c->m * c->n, far = 0, off = 0, turned = 0;
    double *product = test_calloc((size_t)count, sizeof(double));
    double *want = test_calloc((size_t)count, sizeof(double)), norm;
    bool cuda = w->backend == FP8PIPE_BACKEND_CUDA, right;

    product_reference(p, product, want, &norm);
    for (int64_t i = 0; i < count; i++) {
        uint8_t code = fp8_from_float((float)want[i] * scale, fp8->format);
        const uint8_t *got =
            fp8->rowwise ? &fp8->rowwise[i] : &fp8->transposed[i % c->n * c->m + i / c->n];
        double near = fabs(want[i]) + norm / sqrt((double)count) * 6e-3;

        /* Where terms cancel the sum's own error is many steps of what is left. */
        if (steps_between(code, *got) > 1 &&
            fabs(test_fp8_value(fp8->format, *got) / (double)scale - want[i]) > near * 0.13)
            far++;
        off += steps_between(code, *got) != 0;
        if (fp8->rowwise && fp8->transposed)
            turned += fp8->transposed[i % c->n * c->m + i / c->n] != fp8->rowwise[i];
    }
    right = fp8->rows == c->m && fp8->cols == c->n && far == 0 && turned == 0 &&
            off <= (cuda || c->has_pre ? count / 8 + 2 : count / 100 + 1) &&
            fp8->scale_inv == 1.0f / scale && fp8->damage == 0;
    if (!right) {
        diag("far %lld, off %lld of %lld, turned %lld, scale_inv %g for scale %g", (long long)far,
             (long long)off, (long long)count, (long long)turned, (double)fp8->scale_inv,
             (double)scale);
        product_say(c);
    }
    free(product);
    free(want);
    return right;
}

void product_give_scales(struct world *w)
{
    struct config c = {.m = 4, .n = 32, .k = 64, .in = FP8PIPE_FP32};
    struct product p;

    product_make(w, &p, &c);
    for (uint32_t slot = SLOT_RESULT; slot <= SLOT_GRADIENT; slot++) {
        struct fp8pipe_gemm_op op = product_quantizing_op(w, &p, slot, FP8PIPE_ROWWISE);

        if (slot == SLOT_ZEROS)
            op.submit.flags = FP8PIPE_NO_AMAX;
        product_run(w, &op);
    }
    product_free(&p);
    test_update(w->scaling);
}
