/*
 * The optimizer's CUDA kernels against their host twins: the same tables and inputs, the same bits
 * afterwards in everything that they may write, what lies around it included; where a result is
 * NaN, a NaN. And the same bits in every run.
 *
 * FP8PIPE_TEST_SMALL=1 leaves out the large shapes (for compute-sanitizer).
 */
#include "twin.h"

#include "kernels/convert.h"

static bool small;
static struct test_rng rng = {3};

#define PARAMETERS_MAX 12
#define GROUPS 3

enum { MASTER, GRADIENT, FIRST, SECOND, AVERAGE, COPY, ROW, TRANSPOSED, MATRICES };
static const char *const matrix_names[MATRICES] = {"master",  "gradient", "first", "second",
                                                   "average", "copy",     "row",   "transposed"};

/* What the slots and the optimizer have besides tables, in words. */
struct words {
    int64_t steps;
    double partials[512];
    uint32_t scratch;
    float lr_device;
    float gradient_scale;
    int32_t skip_if;
    float norm;
    float clip;
    int32_t nonfinite;
    float scale[PARAMETERS_MAX];
    float scale_inv[PARAMETERS_MAX];
    int32_t has_scale[PARAMETERS_MAX];
    uint32_t amax[PARAMETERS_MAX];
    uint32_t own_amax[PARAMETERS_MAX];
    uint64_t extremes[PARAMETERS_MAX][2];
};

/* One optimizer's memory on both sides. */
struct optimizer_twin {
    int count;
    int64_t tile_count;
    struct kernel_parameter parameter[2][PARAMETERS_MAX]; /* of the host, of the device */
    struct twin memory[PARAMETERS_MAX][MATRICES];
    struct twin parameters, tiles, groups, words;
    struct kernel_adamw_args adamw[2];
    struct kernel_gradient_norm_args norm[2];
};

static const struct fp8pipe_parameter_group groups[GROUPS] = {
    {1.0f, 0.9f, 0.999f, 1e-8f, 0.01f, 0.9999f},
    {0.5f, 0.95f, 0.99f, 1e-6f, 0.0f, 0.5f},
    {2.0f, 0.0f, 0.0f, 1e-3f, 0.1f, 1.0f}};

/* USUAL: of an optimizer. WIDE: of magnitudes on which quotients over- and underflow now and then.
 * BITS: of any kind. */
enum fill { USUAL, WIDE, BITS };
static const char *const fill_names[] = {"usual values", "values of all magnitudes", "any bits"};

/* Elements of one matrix. `magnitude`: of usual ones. */
static void fill_matrix(struct twin *twin, enum fp8pipe_dtype dtype, int64_t count, enum fill fill,
                        double magnitude, bool positive)
{
    size_t element = test_dtype_bytes(dtype);
    uint8_t *at = twin_host(twin);

    for (int64_t i = 0; i < count; i++, at += element) {
        uint64_t random = test_random(&rng);
        double value = test_random_normal(&rng) * magnitude;

        if (fill == WIDE)
            value = ldexp(test_random_normal(&rng), (int)test_random_range(&rng, -60, 25));
        if (fill == BITS)
            memcpy(at, &random, element);
        else
            test_element_set(dtype, at, positive ? value * value : value);
    }
}

struct shape {
    int64_t rows;
    int64_t cols;
    bool fp8;
};

static void make_parameter(struct optimizer_twin *o, int i, struct shape shape, enum fill fill)
{
    const struct kernel_parameter none = {0};
    int64_t count = shape.rows * shape.cols;
    int64_t row_stride = (shape.cols + 15) / 16 * 16;
    int64_t transposed_stride = (shape.rows + 15) / 16 * 16;
    enum fp8pipe_dtype gradient = (enum fp8pipe_dtype)test_random_range(&rng, 0, 2);
    enum fp8pipe_dtype copy = (enum fp8pipe_dtype)test_random_range(&rng, 1, 2);
    bool wanted[MATRICES] = {
        true, true, true, true, test_random(&rng) % 2, test_random(&rng) % 2, shape.fp8, shape.fp8};
    size_t bytes[MATRICES] = {(size_t)count * 4,
                              (size_t)count * test_dtype_bytes(gradient),
                              (size_t)count * 4,
                              (size_t)count * 4,
                              (size_t)count * 4,
                              (size_t)count * 2,
                              (size_t)(shape.rows * row_stride),
                              (size_t)(shape.cols * transposed_stride)};
    uint32_t group = (uint32_t)test_random_range(&rng, 0, GROUPS - 1);

    for (int m = 0; m < MATRICES; m++)
        o->memory[i][m] = twin_make(wanted[m] ? bytes[m] : 0);
    fill_matrix(&o->memory[i][MASTER], FP8PIPE_FP32, count, fill, 0.1, false);
    fill_matrix(&o->memory[i][GRADIENT], gradient, count, fill, 0.01, false);
    fill_matrix(&o->memory[i][FIRST], FP8PIPE_FP32, count, fill, 0.01, false);
    fill_matrix(&o->memory[i][SECOND], FP8PIPE_FP32, count, fill, 0.01, true);
    if (wanted[AVERAGE])
        fill_matrix(&o->memory[i][AVERAGE], FP8PIPE_FP32, count, fill, 0.1, false);
    /* Padding of FP8 copies is zero already, and stays. */
    for (int m = ROW; m <= TRANSPOSED && shape.fp8; m++)
        memset(twin_host(&o->memory[i][m]), 0, bytes[m]);
    for (int m = 0; m < MATRICES; m++)
        twin_upload(&o->memory[i][m]);
    for (int side = 0; side < 2; side++) {
        void *(*at)(const struct twin *) = side == 0 ? twin_host : twin_device;
        struct kernel_parameter *p = &o->parameter[side][i];
        struct words *words = at(&o->words);

        *p = none;
        p->master = at(&o->memory[i][MASTER]);
        p->gradient = at(&o->memory[i][GRADIENT]);
        p->first = at(&o->memory[i][FIRST]);
        p->second = at(&o->memory[i][SECOND]);
        p->average = wanted[AVERAGE] ? at(&o->memory[i][AVERAGE]) : NULL;
        p->copy = wanted[COPY] ? at(&o->memory[i][COPY]) : NULL;
        p->rows = shape.rows;
        p->cols = shape.cols;
        p->gradient_dtype = (int32_t)gradient;
        p->copy_dtype = (int32_t)copy;
        p->group = group;
        p->square = shape.fp8;
        if (!shape.fp8)
            continue;
        p->row = at(&o->memory[i][ROW]);
        p->transposed = at(&o->memory[i][TRANSPOSED]);
        p->row_stride = row_stride;
        p->transposed_stride = transposed_stride;
        p->scale_inv = &words->scale_inv[i];
        p->scale = &words->scale[i];
        p->has_scale = &words->has_scale[i];
        p->amax = &words->amax[i];
        p->extremes = i % 3 == 0 ? words->extremes[i] : NULL;
        p->scale_numerator = 448.0f;
    }
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t tiles_of(const struct shape *shape)
{
    return shape->fp8
               ? divide_up(shape->rows, KERNEL_TILE_SIDE) * divide_up(shape->cols, KERNEL_TILE_SIDE)
               : divide_up(shape->rows * shape->cols, KERNEL_TILE_ELEMENTS);
}

/* known: every slot has a scale and the host knows; else some have none, and own_amax is given. */
static struct optimizer_twin *make(const struct shape *shapes, int count, enum fill fill,
                                   bool known)
{
    struct optimizer_twin *o = test_calloc(1, sizeof(*o));
    struct words *words;
    struct kernel_tile *tile;

    o->count = count;
    o->words = twin_make(sizeof(*words));
    words = twin_host(&o->words);
    memset(words, 0, sizeof(*words));
    words->steps = test_random_range(&rng, 0, 40);
    words->lr_device = 0.75f;
    words->gradient_scale = 0.5f;
    words->skip_if = 0;
    for (int i = 0; i < count; i++) {
        words->scale[i] = (float)exp2(test_random_uniform(&rng) * 8);
        words->has_scale[i] = known || test_random(&rng) % 2;
        words->amax[i] = test_random(&rng) % 2 ? float_bits(0.2f) : 0;
        o->tile_count += tiles_of(&shapes[i]);
    }
    twin_upload(&o->words);
    for (int i = 0; i < count; i++)
        make_parameter(o, i, shapes[i], fill);
    if (o->tile_count > (int64_t)(sizeof(words->partials) / sizeof(words->partials[0])))
        bail("%lld tiles are too many for this test", (long long)o->tile_count);
    o->parameters = twin_make(sizeof(o->parameter[0]));
    o->tiles = twin_make((size_t)o->tile_count * sizeof(*tile));
    o->groups = twin_make(sizeof(groups));
    memcpy(twin_host(&o->groups), groups, sizeof(groups));
    tile = twin_host(&o->tiles);
    for (int i = 0; i < count; i++)
        for (int64_t index = 0; index < tiles_of(&shapes[i]); index++)
            *tile++ = (struct kernel_tile){(uint32_t)i, (uint32_t)index};
    memcpy(twin_host(&o->parameters), o->parameter[1], sizeof(o->parameter[1]));
    twin_upload(&o->parameters);
    twin_upload(&o->tiles);
    twin_upload(&o->groups);
    /* The device has its own addresses, the host's side of the table the host's. */
    memcpy(twin_host(&o->parameters), o->parameter[0], sizeof(o->parameter[0]));
    for (int side = 0; side < 2; side++) {
        void *(*at)(const struct twin *) = side == 0 ? twin_host : twin_device;
        struct words *w = at(&o->words);

        o->adamw[side] = (struct kernel_adamw_args){
            .parameters = at(&o->parameters),
            .tiles = at(&o->tiles),
            .tile_count = o->tile_count,
            .groups = at(&o->groups),
            .lr = 1e-2f,
            .lr_device = &w->lr_device,
            .gradient_scale = &w->gradient_scale,
            .skip_if = &w->skip_if,
            .steps = &w->steps,
            .scratch = &w->scratch,
            .own_amax = known ? NULL : w->own_amax,
        };
        o->norm[side] = (struct kernel_gradient_norm_args){
            .parameters = at(&o->parameters),
            .tiles = at(&o->tiles),
            .tile_count = o->tile_count,
            .partials = w->partials,
            .scratch = &w->scratch,
            .max_norm = 0.3f,
            .gradient_scale = &w->gradient_scale,
            .norm = &w->norm,
            .clip = &w->clip,
            .nonfinite = &w->nonfinite,
        };
    }
    return o;
}

static void destroy(struct optimizer_twin *o)
{
    for (int i = 0; i < o->count; i++)
        for (int m = 0; m < MATRICES; m++)
            twin_free(&o->memory[i][m]);
    twin_free(&o->parameters);
    twin_free(&o->tiles);
    twin_free(&o->groups);
    twin_free(&o->words);
    free(o);
}

/* Byte for byte, but that float32 NaNs, or 16-bit ones, may differ in their bits. */
static bool elements_equal(const struct twin *twin, size_t element, int32_t dtype, const char *what)
{
    uint8_t *bytes = twin_download(twin);
    bool equal = memcmp(bytes, twin->host, GUARD_BYTES) == 0 &&
                 memcmp(bytes + twin->bytes - GUARD_BYTES, twin->host + twin->bytes - GUARD_BYTES,
                        GUARD_BYTES) == 0;

    if (!equal)
        diag("%s: wrote outside", what);
    for (size_t at = GUARD_BYTES; equal && at < twin->bytes - GUARD_BYTES; at += element) {
        double a, b;

        if (memcmp(bytes + at, twin->host + at, element) == 0)
            continue;
        a = test_element_get((enum fp8pipe_dtype)dtype, bytes + at);
        b = test_element_get((enum fp8pipe_dtype)dtype, twin->host + at);
        if (!isnan(a) || !isnan(b)) {
            uint32_t bits[2] = {0, 0};

            memcpy(&bits[0], bytes + at, element);
            memcpy(&bits[1], twin->host + at, element);
            diag("%s[%zu]: device %a (%08x), host %a (%08x)", what, (at - GUARD_BYTES) / element, a,
                 bits[0], b, bits[1]);
            equal = false;
        }
    }
    free(bytes);
    return equal;
}

static bool equal(const struct optimizer_twin *o)
{
    bool all = true;

    for (int i = 0; i < o->count; i++) {
        const struct kernel_parameter *p = &o->parameter[0][i];

        for (int m = 0; m < MATRICES; m++) {
            bool same;

            if (m == ROW || m == TRANSPOSED || m == GRADIENT)
                same = twin_equal(&o->memory[i][m], matrix_names[m]);
            else if (m == COPY)
                same = elements_equal(&o->memory[i][m], 2, p->copy_dtype, matrix_names[m]);
            else
                same = elements_equal(&o->memory[i][m], 4, FP8PIPE_FP32, matrix_names[m]);
            if (!same)
                diag("parameter %d: %lld x %lld, gradient %s%s", i, (long long)p->rows,
                     (long long)p->cols, test_dtype_name((enum fp8pipe_dtype)p->gradient_dtype),
                     p->square ? ", FP8" : "");
            all = all && same;
        }
    }
    return all;
}

/* The words, of which the norm may be a NaN of other bits. */
static bool words_equal(const struct optimizer_twin *o)
{
    uint8_t *bytes = twin_download(&o->words);
    const struct words *device = (const struct words *)(const void *)(bytes + GUARD_BYTES);
    const struct words *host = twin_host(&o->words);
    bool same = device->steps == host->steps && device->scratch == host->scratch &&
                device->nonfinite == host->nonfinite &&
                (device->norm == host->norm || (isnan(device->norm) && isnan(host->norm))) &&
                (device->clip == host->clip || (isnan(device->clip) && isnan(host->clip))) &&
                memcmp(device->scale_inv, host->scale_inv, sizeof(host->scale_inv)) == 0 &&
                memcmp(device->amax, host->amax, sizeof(host->amax)) == 0 &&
                memcmp(device->own_amax, host->own_amax, sizeof(host->own_amax)) == 0 &&
                memcmp(device->extremes, host->extremes, sizeof(host->extremes)) == 0;

    if (!same)
        diag("steps %lld, %lld; scratch %u, %u; norm %a, %a; clip %a, %a; nonfinite %d, %d",
             (long long)device->steps, (long long)host->steps, device->scratch, host->scratch,
             (double)device->norm, (double)host->norm, (double)device->clip, (double)host->clip,
             device->nonfinite, host->nonfinite);
    for (int i = 0; !same && i < o->count; i++)
        diag("slot %d: scale_inv %a, %a; amax %08x, %08x; own %08x, %08x; saturated %llu, %llu; "
             "flushed %llu, %llu",
             i, (double)device->scale_inv[i], (double)host->scale_inv[i], device->amax[i],
             host->amax[i], device->own_amax[i], host->own_amax[i],
             (unsigned long long)device->extremes[i][0], (unsigned long long)host->extremes[i][0],
             (unsigned long long)device->extremes[i][1], (unsigned long long)host->extremes[i][1]);
    for (int64_t i = 0; same && i < o->tile_count; i++)
        if (device->partials[i] != host->partials[i] &&
            !(isnan(device->partials[i]) && isnan(host->partials[i]))) {
            diag("partials[%lld]: %a, %a", (long long)i, device->partials[i], host->partials[i]);
            same = false;
        }
    free(bytes);
    return same;
}

/* A norm, a step and what follows it, on both sides. */
static bool agrees(struct optimizer_twin *o, int steps)
{
    for (int i = 0; i < steps; i++)
        for (int first = 0; first <= (o->adamw[0].own_amax != NULL); first++) {
            o->adamw[0].first = o->adamw[1].first = first;
            if (first == 0) {
                kernel_gradient_norm_host(&o->norm[0]);
                launched(kernel_gradient_norm_cuda(&o->norm[1], NULL), "gradient_norm");
            }
            kernel_adamw_host(&o->adamw[0]);
            launched(kernel_adamw_cuda(&o->adamw[1], NULL), "adamw");
        }
    return equal(o) & words_equal(o);
}

static bool shapes_agree(const struct shape *shapes, int count, enum fill fill, bool known,
                         int steps)
{
    struct optimizer_twin *o = make(shapes, count, fill, known);
    bool same = agrees(o, steps);

    destroy(o);
    return same;
}

static void test_random_shapes(enum fill fill, bool known)
{
    bool same = true;

    for (int i = 0; i < (small ? 6 : 40); i++) {
        struct shape shapes[PARAMETERS_MAX];
        int count = (int)test_random_range(&rng, 1, PARAMETERS_MAX);

        for (int j = 0; j < count; j++) {
            shapes[j] = (struct shape){test_random_range(&rng, 0, j % 3 == 0 ? 300 : 40),
                                       test_random_range(&rng, 0, j % 4 == 0 ? 500 : 140),
                                       test_random(&rng) % 4 != 0};
            if (j % 2 == 0)
                shapes[j].cols = shapes[j].cols / 4 * 4;
        }
        same &= shapes_agree(shapes, count, fill, known, fill == BITS || !known ? 1 : 3);
    }
    ok(same, "parameters of random shapes, %s, %s", fill_names[fill],
       known ? "every slot with a scale" : "some slots without a scale");
}

static void test_edges(void)
{
    static const int64_t edge[] = {1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 132, 256};
    const int count = sizeof(edge) / sizeof(edge[0]);
    bool same = true;

    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j += small ? 4 : 1) {
            struct shape shapes[2] = {{edge[i], edge[j], true}, {edge[i], edge[j], false}};

            same &= shapes_agree(shapes, 2, USUAL, true, 2);
        }
    ok(same, "shapes around the edges of tiles");
}

static void test_large(void)
{
    struct shape shapes[3] = {{1024, 2048, true}, {1, 12288, false}, {1100, 1032, false}};

    if (small) {
        skip(2, "FP8PIPE_TEST_SMALL");
        return;
    }
    ok(shapes_agree(shapes, 3, USUAL, true, 3), "large parameters");
    ok(shapes_agree(shapes, 3, USUAL, false, 1), "large parameters without a scale");
}

static void test_nothing(void)
{
    struct shape shapes[2] = {{0, 5, true}, {7, 0, false}};

    ok(shapes_agree(shapes, 2, USUAL, true, 2), "parameters that are all empty: steps count");
}

/* The skip is in the device's memory of both sides. */
static void test_skip(void)
{
    struct shape shapes[2] = {{130, 140, true}, {9, 100, false}};
    struct optimizer_twin *o = make(shapes, 2, USUAL, false);
    struct words *words = twin_host(&o->words);
    int64_t steps = words->steps;

    words->skip_if = -1;
    twin_upload(&o->words);
    ok(agrees(o, 2) && words->steps == steps, "a skipped step writes nothing");
    destroy(o);
}

/* The same launch on the same input, several times over. */
static void test_repeats(void)
{
    struct shape shapes[2] = {{700, 900, true}, {3, 100000, false}};
    struct optimizer_twin *o = make(shapes, 2, USUAL, true);
    struct words first, again;
    bool same = true;

    for (int i = 0; i < 20; i++) {
        launched(kernel_gradient_norm_cuda(&o->norm[1], NULL), "gradient_norm");
        cuda_must(cudaMemcpy(i == 0 ? &first : &again, twin_device(&o->words), sizeof(first),
                             cudaMemcpyDeviceToHost));
        same = same && (i == 0 || memcmp(&first, &again, sizeof(first)) == 0);
    }
    ok(same, "the norm has the same bits every time");
    destroy(o);
}

static void test_refusals(void)
{
    struct shape shapes[1] = {{4, 4, true}};
    struct optimizer_twin *o = make(shapes, 1, USUAL, true);
    struct kernel_adamw_args args = o->adamw[1];
    struct kernel_gradient_norm_args norm = o->norm[1];

    args.steps = NULL;
    ok(kernel_adamw_cuda(&args, NULL) != 0, "a step without a count is refused");
    args = o->adamw[1];
    args.first = 1;
    ok(kernel_adamw_cuda(&args, NULL) != 0, "first copies without an amax are refused");
    norm.scratch = NULL;
    ok(kernel_gradient_norm_cuda(&norm, NULL) != 0, "a norm without a count of blocks is refused");
    norm = o->norm[1];
    norm.tile_count = -1;
    ok(kernel_gradient_norm_cuda(&norm, NULL) != 0, "a norm of less than nothing is refused");
    launched(0, "nothing");
    destroy(o);
}

int main(void)
{
    device_require();
    small = test_environment_is_set("FP8PIPE_TEST_SMALL");
    for (int fill = USUAL; fill <= BITS; fill++)
        for (int known = 0; known < 2; known++)
            test_random_shapes((enum fill)fill, known);
    test_edges();
    test_large();
    test_nothing();
    test_skip();
    test_repeats();
    test_refusals();
    return done_testing();
}
