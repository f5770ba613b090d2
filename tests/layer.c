#include "layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIVEN_SCALE 24.0f

/* ---- Making ------------------------------------------------------------------------------- */

static struct test_matrix matrix(struct layer *layer, enum fp8pipe_dtype dtype, int64_t rows,
                                 int64_t cols, struct test_rng *rng)
{
    bool ragged = layer->config.ragged;
    int64_t stride = ragged ? cols + test_random_range(rng, 0, 19) : cols;
    int64_t offset = ragged ? test_random_range(rng, 0, 9) : 0;

    return test_matrix_make(layer->pipe, dtype, rows, cols, stride, offset);
}

/* Sets the matrix to random values; returns them as rounded. */
static double *values(struct test_matrix *to, double deviation, struct test_rng *rng)
{
    int64_t count = to->view.rows * to->view.cols;
    double *dense = test_calloc((size_t)count, sizeof(*dense));
    uint32_t element = 0;

    for (int64_t i = 0; i < count; i++) {
        test_element_set(to->view.dtype, &element, deviation * test_random_normal(rng));
        dense[i] = test_element_get(to->view.dtype, &element);
    }
    test_matrix_set(to, dense);
    return dense;
}

static struct fp8pipe_scaling *scaling_for(struct layer *layer)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_scaling *scaling;

    options.slots = 3;
    options.recipe = layer->config.recipe;
    if (layer->config.first_scale == LAYER_SCALE_GIVEN)
        options.initial_scale = GIVEN_SCALE;
    if (layer->config.first_scale == LAYER_SCALE_DELAYED)
        options.margin = 1;
    must(fp8pipe_scaling_create(layer->pipe, &options, &scaling));
    return scaling;
}

/* The matrix as its FP8 bytes have it; as it is where there are none. `tensor` keeps the bytes. */
static double *seen(struct layer *layer, const struct test_matrix *of, const double *dense,
                    uint32_t slot, uint32_t flags, struct fp8pipe_tensor *tensor,
                    const struct test_matrix *sums)
{
    size_t count = (size_t)(of->view.rows * of->view.cols);
    double *result = test_calloc(count, sizeof(*result));
    struct fp8pipe_quantize_op op = FP8PIPE_QUANTIZE_OP_INIT;
    struct test_fp8 fp8;

    memcpy(result, dense, count * sizeof(*result));
    if (!layer->config.quantized)
        return result;
    op.submit.flags = flags;
    op.x = of->view;
    op.scaling = layer->scaling;
    op.slot = slot;
    op.copies = FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED;
    if (sums) {
        op.column_sums = test_vector(sums);
        op.column_sums_accumulate = layer->config.accumulate;
    }
    must(fp8pipe_tensor_quantize(tensor, &op, NULL));
    fp8 = test_tensor_read(layer->pipe, tensor);
    test_fp8_dequantize(&fp8, result);
    test_fp8_free(&fp8);
    return result;
}

static void make_operands(struct layer *layer, struct test_rng *rng)
{
    const struct layer_config *config = &layer->config;
    enum fp8pipe_dtype only = config->w_dtype;
    double bias_deviation = sqrt((double)config->k) + 1;

    layer->x = matrix(layer, config->quantized ? config->x_dtype : only, config->m, config->k, rng);
    layer->w = matrix(layer, config->w_dtype, config->n, config->k, rng);
    layer->dy =
        matrix(layer, config->quantized ? config->dy_dtype : only, config->m, config->n, rng);
    layer->bias = test_matrix_make(layer->pipe, config->bias_dtype, 1, config->n, 0,
                                   config->ragged ? test_random_range(rng, 0, 9) : 0);
    layer->x_values = values(&layer->x, 1.0, rng);
    layer->w_values = values(&layer->w, 1.0, rng);
    layer->dy_values = values(&layer->dy, config->dy_deviation, rng);
    layer->bias_values = values(&layer->bias, bias_deviation, rng);

    layer->y = matrix(layer, config->y_dtype, config->m, config->n, rng);
    layer->dx = matrix(layer, config->dx_dtype, config->m, config->k, rng);
    layer->dw = matrix(layer, config->dw_dtype, config->n, config->k, rng);
    layer->db = test_matrix_make(layer->pipe, FP8PIPE_FP32, 1, config->n, 0,
                                 config->ragged ? test_random_range(rng, 0, 9) : 0);
    if (config->accumulate) {
        double deviation = config->dy_deviation * sqrt((double)config->m + 1);

        layer->dw_before = values(&layer->dw, deviation, rng);
        layer->db_before = values(&layer->db, deviation, rng);
    } else {
        layer->dw_before = test_calloc((size_t)(config->n * config->k), sizeof(double));
        layer->db_before = test_calloc((size_t)config->n, sizeof(double));
    }
}

struct layer layer_make(struct fp8pipe *pipe, const struct layer_config *config,
                        struct test_rng *rng)
{
    struct layer layer = {.pipe = pipe, .config = *config};
    struct fp8pipe_linear_options options = FP8PIPE_LINEAR_OPTIONS_INIT;
    uint32_t flags = config->first_scale == LAYER_SCALE_DELAYED ? 0 : FP8PIPE_NO_AMAX;
    struct fp8pipe_tensor *w_tensor;

    must(fp8pipe_backend_get(pipe, &layer.backend));
    must(fp8pipe_tensor_create(pipe, &layer.saved));
    must(fp8pipe_tensor_create(pipe, &layer.dy_saved));
    must(fp8pipe_tensor_create(pipe, &layer.x_tensor));
    must(fp8pipe_tensor_create(pipe, &layer.dy_tensor));
    must(fp8pipe_tensor_create(pipe, &w_tensor));
    make_operands(&layer, rng);
    if (config->quantized)
        layer.scaling = scaling_for(&layer);
    if (config->quantized && config->first_scale == LAYER_SCALE_DELAYED) {
        struct fp8pipe_submit submit = test_submit(0, 0, 0, 0);

        test_quantize(w_tensor, layer.x.view, layer.scaling, 0, FP8PIPE_ROWWISE, submit);
        test_quantize(w_tensor, layer.w.view, layer.scaling, 1, FP8PIPE_ROWWISE, submit);
        test_quantize(w_tensor, layer.dy.view, layer.scaling, 2, FP8PIPE_ROWWISE, submit);
        test_update(layer.scaling);
    }
    layer.x_seen = seen(&layer, &layer.x, layer.x_values, 0, flags, layer.x_tensor, NULL);
    layer.w_seen = seen(&layer, &layer.w, layer.w_values, 1, flags, w_tensor, NULL);
    layer.dy_seen = seen(&layer, &layer.dy, layer.dy_values, 2, flags, layer.dy_tensor,
                         config->gradient == LAYER_DY_QUANTIZED ? &layer.db : NULL);
    must(fp8pipe_tensor_destroy(w_tensor));

    options.in_features = config->k;
    options.out_features = config->n;
    options.weight = layer.w.view;
    if (config->has_bias)
        options.bias = test_vector(&layer.bias);
    options.scaling = layer.scaling;
    must(fp8pipe_linear_create(pipe, &options, &layer.linear));
    return layer;
}

void layer_free(struct layer *layer)
{
    struct test_matrix *matrices[] = {&layer->x, &layer->w,  &layer->bias, &layer->dy,
                                      &layer->y, &layer->dx, &layer->dw,   &layer->db};
    double *dense[] = {layer->x_values,  layer->w_values,  layer->bias_values,
                       layer->dy_values, layer->x_seen,    layer->w_seen,
                       layer->dy_seen,   layer->dw_before, layer->db_before};

    test_drain(layer->pipe);
    must(fp8pipe_tensor_destroy(layer->saved));
    must(fp8pipe_tensor_destroy(layer->dy_saved));
    must(fp8pipe_tensor_destroy(layer->x_tensor));
    must(fp8pipe_tensor_destroy(layer->dy_tensor));
    must(fp8pipe_linear_destroy(layer->linear));
    must(fp8pipe_scaling_destroy(layer->scaling));
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
        test_matrix_free(matrices[i]);
    for (size_t i = 0; i < sizeof(dense) / sizeof(dense[0]); i++)
        free(dense[i]);
    memset(layer, 0, sizeof(*layer));
}

/* ---- Ops ---------------------------------------------------------------------------------- */

fp8pipe_ticket layer_forward(struct layer *layer, enum fp8pipe_keep keep,
                             struct fp8pipe_submit submit)
{
    struct fp8pipe_forward_op op = FP8PIPE_FORWARD_OP_INIT;
    fp8pipe_ticket ticket;

    op.submit = submit;
    if (layer->config.quantized && layer->config.x_quantized)
        op.x_tensor = layer->x_tensor;
    else
        op.x = layer->x.view;
    op.y = layer->y.view;
    op.keep = keep;
    if (keep != FP8PIPE_KEEP_NOTHING)
        op.saved = layer->saved;
    op.accumulation = layer->config.accumulation;
    must(fp8pipe_linear_forward(layer->linear, &op, &ticket));
    return ticket;
}

fp8pipe_ticket layer_dgrad(struct layer *layer, struct fp8pipe_submit submit)
{
    struct fp8pipe_dgrad_op op = FP8PIPE_DGRAD_OP_INIT;
    bool quantized = layer->config.quantized;
    fp8pipe_ticket ticket;

    op.submit = submit;
    if (quantized && layer->config.gradient == LAYER_DY_QUANTIZED)
        op.dy_tensor = layer->dy_tensor;
    else
        op.dy = layer->dy.view;
    op.saved = layer->saved;
    op.dx = layer->dx.view;
    if (layer->config.gradient == LAYER_DY_OF_DGRAD) {
        op.dy_saved = quantized ? layer->dy_saved : NULL;
        op.bias_grad = test_vector(&layer->db);
        op.bias_grad_accumulate = layer->config.accumulate;
    }
    op.accumulation = layer->config.accumulation;
    must(fp8pipe_linear_dgrad(layer->linear, &op, &ticket));
    return ticket;
}

fp8pipe_ticket layer_wgrad(struct layer *layer, struct fp8pipe_submit submit)
{
    struct fp8pipe_wgrad_op op = FP8PIPE_WGRAD_OP_INIT;
    bool quantized = layer->config.quantized;
    enum layer_gradient gradient = layer->config.gradient;
    fp8pipe_ticket ticket;

    op.submit = submit;
    if (quantized && gradient == LAYER_DY_OF_DGRAD)
        op.dy_tensor = layer->dy_saved;
    else if (quantized && gradient == LAYER_DY_QUANTIZED)
        op.dy_tensor = layer->dy_tensor;
    else
        op.dy = layer->dy.view;
    if (quantized)
        op.saved = layer->saved;
    else
        op.x = layer->x.view;
    op.dw = layer->dw.view;
    op.accumulate = layer->config.accumulate;
    if (gradient == LAYER_DY_TWICE || (!quantized && gradient == LAYER_DY_QUANTIZED)) {
        op.bias_grad = test_vector(&layer->db);
        op.bias_grad_accumulate = layer->config.accumulate;
    }
    op.accumulation = layer->config.accumulation;
    must(fp8pipe_linear_wgrad(layer->linear, &op, &ticket));
    return ticket;
}

/* ---- Errors ------------------------------------------------------------------------------- */

static double gemm_error(const struct layer *layer, const struct test_matrix *d, bool gradient,
                         int64_t k, struct test_operand a, struct test_operand b,
                         const double *bias, const double *before)
{
    enum fp8pipe_accumulation accumulation = layer->config.accumulation;
    int64_t m = d->view.rows, n = d->view.cols;
    double *got = test_calloc((size_t)(m * n), sizeof(*got)), error;
    struct test_precision precision = {
        .backend = layer->backend,
        .fp8 = layer->config.quantized,
        .in = layer->config.w_dtype,
        .out = d->view.dtype,
        .fast = accumulation == FP8PIPE_ACCUMULATION_FAST ||
                (accumulation == FP8PIPE_ACCUMULATION_DEFAULT && !gradient),
    };

    test_matrix_get(d, got);
    error = test_gemm_error(&precision, m, n, k, a, b, bias, before, got);
    free(got);
    return error;
}

double layer_y_error(const struct layer *layer)
{
    int64_t k = layer->config.k;

    return gemm_error(layer, &layer->y, false, k, (struct test_operand){layer->x_seen, k, 1},
                      (struct test_operand){layer->w_seen, k, 1},
                      layer->config.has_bias ? layer->bias_values : NULL, NULL);
}

double layer_dx_error(const struct layer *layer)
{
    int64_t n = layer->config.n, k = layer->config.k;

    return gemm_error(layer, &layer->dx, true, n, (struct test_operand){layer->dy_seen, n, 1},
                      (struct test_operand){layer->w_seen, 1, k}, NULL, NULL);
}

double layer_dw_error(const struct layer *layer)
{
    int64_t m = layer->config.m, n = layer->config.n, k = layer->config.k;

    return gemm_error(layer, &layer->dw, true, m, (struct test_operand){layer->dy_seen, 1, n},
                      (struct test_operand){layer->x_seen, 1, k}, NULL, layer->dw_before);
}

/* The sums are of dY itself, in float32: roundings of one tile of 64 rows and of as many tiles. */
double layer_db_error(const struct layer *layer)
{
    int64_t m = layer->config.m, n = layer->config.n;
    double *got = test_calloc((size_t)n, sizeof(*got)), worst = 0;

    test_matrix_get(&layer->db, got);
    for (int64_t col = 0; col < n; col++) {
        double want = layer->db_before[col], magnitude = fabs(want), error;

        for (int64_t row = 0; row < m; row++) {
            want += layer->dy_values[row * n + col];
            magnitude += fabs(layer->dy_values[row * n + col]);
        }
        error = fabs(got[col] - want);
        if (!isfinite(error) || (magnitude == 0 && error != 0))
            worst = INFINITY;
        else if (magnitude > 0)
            worst = fmax(worst, error / magnitude / ((double)(66 + m / 64) * 0x1p-24));
    }
    free(got);
    return worst;
}

/* Elements of an input that are no longer what they were set to. */
static int64_t changed(const struct test_matrix *matrix, const double *dense)
{
    int64_t count = matrix->view.rows * matrix->view.cols, differ = 0;
    double *got = test_calloc((size_t)count, sizeof(*got));

    test_matrix_get(matrix, got);
    for (int64_t i = 0; i < count; i++)
        differ += got[i] != dense[i];
    free(got);
    return differ;
}

int64_t layer_damage(const struct layer *layer)
{
    const struct test_matrix *matrices[] = {&layer->x, &layer->w,  &layer->bias, &layer->dy,
                                            &layer->y, &layer->dx, &layer->dw,   &layer->db};
    int64_t damage = changed(&layer->x, layer->x_values) + changed(&layer->w, layer->w_values) +
                     changed(&layer->bias, layer->bias_values) +
                     changed(&layer->dy, layer->dy_values);

    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
        damage += test_matrix_damage(matrices[i]);
    return damage;
}

/* ---- Random configs ----------------------------------------------------------------------- */

static enum fp8pipe_dtype random_dtype(struct test_rng *rng)
{
    return (enum fp8pipe_dtype)test_random_range(rng, FP8PIPE_FP32, FP8PIPE_FP16);
}

struct layer_config layer_config_random(struct test_rng *rng, int64_t max_side, int64_t max_long)
{
    struct layer_config config = {
        .m = test_random_range(rng, 1, max_side),
        .n = test_random_range(rng, 1, max_side),
        .k = test_random_range(rng, 1, max_side),
        .quantized = test_random_range(rng, 0, 3) > 0,
        .recipe = test_random_range(rng, 0, 2) == 0 ? FP8PIPE_ALL_E4M3 : FP8PIPE_HYBRID,
        .first_scale = (enum layer_first_scale)test_random_range(rng, 0, 2),
        .gradient = (enum layer_gradient)test_random_range(rng, 0, 2),
        .x_quantized = test_random_range(rng, 0, 2) == 0,
        .has_bias = test_random(rng) & 1,
        .accumulate = test_random(rng) & 1,
        .ragged = test_random(rng) & 1,
        .x_dtype = random_dtype(rng),
        .w_dtype = random_dtype(rng),
        .bias_dtype = random_dtype(rng),
        .dy_dtype = random_dtype(rng),
        .y_dtype = random_dtype(rng),
        .dx_dtype = random_dtype(rng),
        .dw_dtype = random_dtype(rng),
        .accumulation = (enum fp8pipe_accumulation)test_random_range(rng, 0, 2),
        .dy_deviation = 1.0,
    };

    if (test_random_range(rng, 0, 7) == 0) {
        int64_t *sides[] = {&config.m, &config.n, &config.k};

        *sides[test_random_range(rng, 0, 2)] = test_random_range(rng, max_side, max_long);
    }
    /* Small gradients, as they are in training; not where they would leave fp16's normal range, nor
     * where a given scale would lose them. */
    if (test_random(rng) & 1 && config.dx_dtype != FP8PIPE_FP16 &&
        config.dw_dtype != FP8PIPE_FP16 && config.first_scale != LAYER_SCALE_GIVEN)
        config.dy_deviation = exp(-20 * test_random_uniform(rng));
    return config;
}
