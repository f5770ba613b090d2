#include "parameters.h"

#include <math.h>
#include <stdlib.h>

#include "linear.h"
#include "scaling.h"

static struct fp8pipe_linear *linear_make(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling,
                                          const struct parameter_config *config,
                                          struct fp8pipe_matrix weight)
{
    struct fp8pipe_linear_options options = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_linear *linear = NULL;

    options.in_features = config->cols;
    options.out_features = config->rows;
    options.weight = weight;
    options.scaling = scaling;
    options.slot_x = 0;
    options.slot_w = config->slot_w;
    options.slot_dy = 2;
    must(fp8pipe_linear_create(pipe, &options, &linear));
    return linear;
}

static void set_floats(struct test_matrix *matrix, const float *values)
{
    test_matrix_set_raw(matrix, values);
}

struct parameter parameter_make(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling,
                                const struct parameter_config *config, struct test_rng *rng)
{
    static const struct fp8pipe_parameter init = FP8PIPE_PARAMETER_INIT;
    struct parameter p = {.config = *config, .view = init, .elements = config->rows * config->cols};
    size_t count = (size_t)p.elements;
    float **floats[] = {&p.master32, &p.first32, &p.second32, &p.average32, &p.gradient32};
    double **doubles[] = {&p.master64, &p.first64, &p.second64};

    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++)
        *floats[i] = test_calloc(count, sizeof(float));
    for (size_t i = 0; i < sizeof(doubles) / sizeof(doubles[0]); i++)
        *doubles[i] = test_calloc(count, sizeof(double));
    for (size_t i = 0; i < count; i++) {
        p.master32[i] = (float)(test_random_normal(rng) / 8);
        p.average32[i] = p.master32[i];
        p.master64[i] = p.master32[i];
    }
    p.master = test_matrix_make(pipe, FP8PIPE_FP32, config->rows, config->cols, 0, 0);
    p.first = test_matrix_make(pipe, FP8PIPE_FP32, config->rows, config->cols, 0, 0);
    p.second = test_matrix_make(pipe, FP8PIPE_FP32, config->rows, config->cols, 0, 0);
    p.gradient = test_matrix_make(pipe, config->gradient_dtype, config->rows, config->cols, 0, 0);
    set_floats(&p.master, p.master32);
    set_floats(&p.first, p.first32);
    set_floats(&p.second, p.second32);
    p.view.master = p.master.view;
    p.view.first = p.first.view;
    p.view.second = p.second.view;
    p.view.gradient = p.gradient.view;
    p.view.group = config->group;
    if (config->average) {
        p.average = test_matrix_make(pipe, FP8PIPE_FP32, config->rows, config->cols, 0, 0);
        set_floats(&p.average, p.average32);
        p.view.average = p.average.view;
    }
    if (config->copy) {
        p.copy = test_matrix_make(pipe, config->copy_dtype, config->rows, config->cols, 0, 0);
        p.view.copy = p.copy.view;
    }
    if (config->linear)
        p.view.linear = linear_make(pipe, scaling, config, p.master.view);
    return p;
}

void parameter_matrices_free(struct parameter *p)
{
    test_matrix_free(&p->master);
    test_matrix_free(&p->gradient);
    test_matrix_free(&p->first);
    test_matrix_free(&p->second);
    test_matrix_free(&p->average);
    test_matrix_free(&p->copy);
}

void parameter_free(struct parameter *p)
{
    must(fp8pipe_linear_destroy(p->view.linear));
    parameter_matrices_free(p);
    free(p->master32);
    free(p->first32);
    free(p->second32);
    free(p->average32);
    free(p->gradient32);
    free(p->master64);
    free(p->first64);
    free(p->second64);
}

void parameter_gradient(struct parameter *p, double deviation, struct test_rng *rng)
{
    size_t element = test_dtype_bytes(p->config.gradient_dtype);
    uint8_t *raw = test_calloc((size_t)p->elements, element);

    for (int64_t i = 0; i < p->elements; i++) {
        uint8_t *at = raw + (size_t)i * element;

        test_element_set(p->config.gradient_dtype, at, test_random_normal(rng) * deviation);
        p->gradient32[i] = (float)test_element_get(p->config.gradient_dtype, at);
    }
    test_matrix_set_raw(&p->gradient, raw);
    free(raw);
}

/* ---- The step, again ----------------------------------------------------------------------- */

static void step32(struct parameter *p, int64_t i, const struct fp8pipe_parameter_group *group,
                   float l, float gradient_scale, float correction1, float root2)
{
    float g = p->gradient32[i] * gradient_scale;
    float decay = 1.0f - l * group->weight_decay;
    float rate1 = 1.0f - group->beta1, rate2 = 1.0f - group->beta2;
    float size = l / correction1;
    float kept, square, denominator, change;

    kept = p->master32[i] * decay;
    change = g - p->first32[i];
    change = change * rate1;
    p->first32[i] = p->first32[i] + change;
    square = rate2 * g;
    square = square * g;
    p->second32[i] = p->second32[i] * group->beta2;
    p->second32[i] = p->second32[i] + square;
    denominator = sqrtf(p->second32[i]) / root2;
    denominator = denominator + group->epsilon;
    change = size * p->first32[i];
    change = change / denominator;
    p->master32[i] = kept - change;
    change = (1.0f - group->average_decay) * p->master32[i];
    p->average32[i] = group->average_decay * p->average32[i];
    p->average32[i] = p->average32[i] + change;
}

/* As the documentation of torch.optim.AdamW writes it. */
static void step64(struct parameter *p, int64_t i, const struct fp8pipe_parameter_group *group,
                   double l, double gradient_scale, int64_t t)
{
    double beta1 = group->beta1, beta2 = group->beta2;
    double g = (double)p->gradient32[i] * gradient_scale;
    double m, v;

    p->master64[i] -= l * (double)group->weight_decay * p->master64[i];
    p->first64[i] = beta1 * p->first64[i] + (1 - beta1) * g;
    p->second64[i] = beta2 * p->second64[i] + (1 - beta2) * g * g;
    m = p->first64[i] / (1 - pow(beta1, (double)t));
    v = p->second64[i] / (1 - pow(beta2, (double)t));
    p->master64[i] -= l * m / (sqrt(v) + (double)group->epsilon);
}

void parameter_step(struct parameter *p, const struct fp8pipe_parameter_group *group, float lr,
                    float lr_device, float gradient_scale, int64_t t)
{
    double power1 = 1, power2 = 1, b1 = group->beta1, b2 = group->beta2;
    float l;

    /* From the lowest bit of t on, as the header's repeated squaring. */
    for (int64_t n = t; n > 0; n /= 2) {
        power1 *= n % 2 ? b1 : 1;
        power2 *= n % 2 ? b2 : 1;
        b1 *= b1;
        b2 *= b2;
    }
    l = lr * lr_device;
    l = l * group->lr_factor;
    for (int64_t i = 0; i < p->elements; i++) {
        step32(p, i, group, l, gradient_scale, (float)(1 - power1), (float)sqrt(1 - power2));
        step64(p, i, group, (double)lr * (double)lr_device * (double)group->lr_factor,
               (double)gradient_scale, t);
    }
}

/* ---- Comparisons --------------------------------------------------------------------------- */

static bool floats_agree(const struct test_matrix *matrix, const float *want, int64_t count,
                         const char *what, const char *name)
{
    float *got = test_calloc((size_t)count, sizeof(*got));
    bool agree = test_matrix_damage(matrix) == 0;

    if (!agree)
        diag("%s: memory around %s was written", what, name);
    test_matrix_get_raw(matrix, got);
    for (int64_t i = 0; i < count && agree; i++)
        if (test_float_bits(got[i]) != test_float_bits(want[i]) &&
            !(isnan(got[i]) && isnan(want[i]))) {
            diag("%s: %s[%lld] is %a, not %a", what, name, (long long)i, (double)got[i],
                 (double)want[i]);
            agree = false;
        }
    free(got);
    return agree;
}

static bool copy_agrees(const struct parameter *p, const char *what)
{
    double *got = test_calloc((size_t)p->elements, sizeof(*got));
    bool agree = test_matrix_damage(&p->copy) == 0;

    test_matrix_get(&p->copy, got);
    for (int64_t i = 0; i < p->elements && agree; i++) {
        uint16_t bits;

        test_element_set(p->config.copy_dtype, &bits, (double)p->master32[i]);
        agree = test_element_get(p->config.copy_dtype, &bits) == got[i] || isnan(got[i]);
        if (!agree)
            diag("%s: copy[%lld] is %a of %a", what, (long long)i, got[i], (double)p->master32[i]);
    }
    free(got);
    return agree;
}

bool parameter_agrees(const struct parameter *p, const char *what)
{
    return floats_agree(&p->master, p->master32, p->elements, what, "master") &&
           floats_agree(&p->first, p->first32, p->elements, what, "first") &&
           floats_agree(&p->second, p->second32, p->elements, what, "second") &&
           (!p->config.average ||
            floats_agree(&p->average, p->average32, p->elements, what, "average")) &&
           (!p->config.copy || copy_agrees(p, what)) && test_matrix_damage(&p->gradient) == 0;
}

double parameter_distance(const struct parameter *p, double lr)
{
    double largest = 0;

    for (int64_t i = 0; i < p->elements; i++)
        largest = fmax(largest, fabs((double)p->master32[i] - p->master64[i]) / lr);
    return largest;
}

static bool bytes_agree(const uint8_t *got, int64_t stride, const uint8_t *want, int64_t rows,
                        int64_t cols, const char *what)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < stride; col++) {
            uint8_t byte = col < cols ? want[row * cols + col] : 0;

            if (got[row * stride + col] != byte) {
                diag("%s [%lld, %lld]: %02x, not %02x", what, (long long)row, (long long)col,
                     got[row * stride + col], byte);
                return false;
            }
        }
    return true;
}

/* `bytes` of the backend's memory; free() them. */
static uint8_t *fetch(struct fp8pipe *pipe, const void *from, size_t bytes)
{
    uint8_t *to = test_calloc(bytes, 1);

    must(fp8pipe_download(pipe, to, from, bytes));
    return to;
}

bool parameter_fp8_agrees(const struct parameter *p, struct fp8pipe_scaling *scaling,
                          const char *what)
{
    struct fp8pipe *pipe = p->master.pipe;
    struct fp8pipe_tensor *tensor = NULL;
    struct test_fp8 want;
    const struct filling *filling = p->view.linear->current->filling;
    uint8_t *row, *transposed;
    float *scale_inv;
    bool agree;

    must(fp8pipe_tensor_create(pipe, &tensor));
    test_wait(pipe, test_quantize(tensor, p->master.view, scaling, p->config.slot_w,
                                  FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED,
                                  test_submit(FP8PIPE_LANE_AUTO, FP8PIPE_NO_AMAX, 0, 0)));
    test_drain(pipe);
    want = test_tensor_read(pipe, tensor);
    row = fetch(pipe, filling->row, (size_t)(filling->rows * filling->row_stride));
    transposed =
        fetch(pipe, filling->transposed_data, (size_t)(filling->cols * filling->transposed_stride));
    scale_inv = (float *)(void *)fetch(pipe, filling->scale_inv, sizeof(float));
    agree =
        bytes_agree(row, filling->row_stride, want.rowwise, p->config.rows, p->config.cols, what) &&
        bytes_agree(transposed, filling->transposed_stride, want.transposed, p->config.cols,
                    p->config.rows, what);
    if (*scale_inv != want.scale_inv) {
        diag("%s: scale_inv is %a, not %a", what, (double)*scale_inv, (double)want.scale_inv);
        agree = false;
    }
    free(scale_inv);
    free(transposed);
    free(row);
    test_fp8_free(&want);
    must(fp8pipe_tensor_destroy(tensor));
    return agree;
}

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_memory(uint64_t hash, struct fp8pipe *pipe, const void *data, size_t bytes)
{
    uint8_t *copy;

    if (data == NULL || bytes == 0)
        return hash;
    copy = fetch(pipe, data, bytes);
    hash = hash_bytes(hash, copy, bytes);
    free(copy);
    return hash;
}

uint64_t parameter_hash(const struct parameter *p)
{
    const struct test_matrix *matrices[] = {&p->master, &p->first, &p->second, &p->average,
                                            &p->copy};
    struct fp8pipe *pipe = p->master.pipe;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
        hash = hash_memory(hash, pipe, matrices[i]->block, matrices[i]->block_bytes);
    if (p->view.linear != NULL) {
        const struct filling *filling = p->view.linear->current->filling;

        hash = hash_memory(hash, pipe, filling->row, (size_t)(filling->rows * filling->row_stride));
        hash = hash_memory(hash, pipe, filling->transposed_data,
                           (size_t)(filling->cols * filling->transposed_stride));
        hash = hash_memory(hash, pipe, filling->scale_inv, sizeof(float));
    }
    return hash;
}

struct fp8pipe_optimizer *parameters_optimizer(struct fp8pipe *pipe, struct parameter *parameters,
                                               uint32_t count,
                                               const struct fp8pipe_parameter_group *groups,
                                               uint32_t group_count)
{
    struct fp8pipe_optimizer_options options = FP8PIPE_OPTIMIZER_OPTIONS_INIT;
    struct fp8pipe_parameter *views = test_calloc(count, sizeof(*views));
    struct fp8pipe_optimizer *optimizer = NULL;

    for (uint32_t i = 0; i < count; i++)
        views[i] = parameters[i].view;
    options.parameters = views;
    options.parameter_count = count;
    options.groups = groups;
    options.group_count = group_count;
    must(fp8pipe_optimizer_create(pipe, &options, &optimizer));
    free(views);
    return optimizer;
}

fp8pipe_ticket parameters_adamw(struct fp8pipe_optimizer *optimizer, struct fp8pipe_submit submit,
                                float lr, const int32_t *skip_if)
{
    struct fp8pipe_adamw_op op = FP8PIPE_ADAMW_OP_INIT;
    fp8pipe_ticket ticket = 0;

    op.submit = submit;
    op.lr = lr;
    op.skip_if = skip_if;
    must(fp8pipe_optimizer_adamw(optimizer, &op, &ticket));
    return ticket;
}
