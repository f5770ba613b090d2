#include "modulate_twins.h"

#include "kernels/convert.h"

static struct test_rng rng = {3};

static struct entry *keep(struct memory *m, const char *name, struct twin twin,
                          enum fp8pipe_dtype dtype, bool bytes)
{
    struct entry *entry = &m->of[m->count++];

    if (m->count > TWINS)
        bail("too many twins");
    *entry = (struct entry){name, twin, dtype, bytes, false};
    return entry;
}

static bool is_nan(enum fp8pipe_dtype dtype, const uint8_t *at)
{
    return isnan(test_element_get(dtype, at));
}

static bool entry_equal(const struct entry *entry)
{
    size_t element = entry->bytes ? 1 : test_dtype_bytes(entry->dtype);
    uint8_t *device = twin_download(&entry->twin);
    const uint8_t *host = entry->twin.host;
    bool equal = true;

    for (size_t i = 0; equal && i < entry->twin.bytes; i += element)
        if (memcmp(device + i, host + i, element) != 0 &&
            (entry->bytes ||
             !(is_nan(entry->dtype, device + i) && is_nan(entry->dtype, host + i)))) {
            uint32_t d = 0, h = 0;

            memcpy(&d, device + i, element);
            memcpy(&h, host + i, element);
            diag("%s: element %lld of %zu: device %x, host %x", entry->name,
                 ((long long)i - GUARD_BYTES) / (long long)element,
                 (entry->twin.bytes - 2 * GUARD_BYTES) / element, d, h);
            equal = false;
        }
    free(device);
    return equal;
}

/* Whether both sides are the same, but for a NaN's payload. */
static bool memory_equal(const struct memory *m)
{
    bool equal = true;

    for (int i = 0; i < m->count; i++)
        equal &= m->of[i].skipped || entry_equal(&m->of[i]);
    return equal;
}

static void memory_upload(const struct memory *m)
{
    for (int i = 0; i < m->count; i++)
        twin_upload(&m->of[i].twin);
}

static void memory_free(struct memory *m)
{
    for (int i = 0; i < m->count; i++)
        twin_free(&m->of[i].twin);
}

/* Sums of up to 64 values, each at most `largest`, in two orders. */
static bool memory_sums_agree(const struct entry *entry, float largest)
{
    uint8_t *bytes = twin_download(&entry->twin);
    const float *device = (const float *)(const void *)bytes;
    const float *host = (const float *)(const void *)entry->twin.host;
    size_t guard = GUARD_BYTES / sizeof(float), count = entry->twin.bytes / sizeof(float);
    bool equal = true;

    for (size_t i = 0; equal && i < count; i++) {
        bool around = i < guard || i >= count - guard;
        double bound = around ? 0 : 64 * 64 * FLT_EPSILON * (double)largest;

        /* Where values are not finite, or their sums might not be, the order may tell. */
        if (!around && !(largest < FLT_MAX / 64))
            continue;
        equal = memcmp(&device[i], &host[i], sizeof(float)) == 0 ||
                fabs((double)device[i] - (double)host[i]) <= bound;
        if (!equal)
            diag("partial sums, %zu: device %a, host %a", i - guard, (double)device[i],
                 (double)host[i]);
    }
    free(bytes);
    return equal;
}

/* Whether the device has written the same bytes again; frees those that it had written before. */
static bool memory_repeats(const struct memory *m, uint8_t *before[TWINS])
{
    bool same = true;

    for (int i = 0; i < m->count; i++) {
        uint8_t *after = twin_download(&m->of[i].twin);

        same &= memcmp(before[i], after, m->of[i].twin.bytes) == 0;
        if (memcmp(before[i], after, m->of[i].twin.bytes) != 0)
            diag("%s: not the same a second time", m->of[i].name);
        free(after);
        free(before[i]);
    }
    return same;
}

/* ---- What varies -------------------------------------------------------------------------- */

bool side_next(struct side *s)
{
    return s->shape->given >> s->bit++ % 24 & 1;
}

int64_t side_groups(const struct side *s)
{
    return s->shape->groups == 0 ? s->shape->rows : s->shape->groups;
}

void side_place(struct side *s, const char *name, int64_t rows, bool one_for_all, bool input,
                struct kernel_view views[2])
{
    const struct shape *shape = s->shape;
    int64_t cols = shape->cols;
    enum fp8pipe_dtype dtype =
        shape->fast ? FP8PIPE_BF16 : (enum fp8pipe_dtype)test_random_range(&rng, 0, 2);
    struct twin_matrix m =
        shape->fast
            ? twin_matrix_make(dtype, rows, cols, cols + test_random_range(&rng, 0, 2) * 8, 0)
            : twin_matrix_make(dtype, rows, cols, cols + test_random_range(&rng, 0, 9),
                               test_random_range(&rng, 0, 8));

    if (input)
        twin_matrix_fill(&m, &rng, shape->data);
    for (int side = 0; side < 2; side++) {
        const struct fp8pipe_matrix *of = side == 0 ? &m.host : &m.device;

        views[side] = (struct kernel_view){of->data, one_for_all ? 0 : of->stride, of->dtype};
    }
    keep(&s->memory, name, m.memory, dtype, false);
}

void side_floats(struct side *s, const char *name, int64_t count, bool input, float *sides[2])
{
    struct twin twin = twin_make((size_t)count * sizeof(float));

    for (int64_t i = 0; input && i < count; i++)
        ((float *)twin_host(&twin))[i] = (float)test_random_normal(&rng);
    sides[0] = twin_host(&twin);
    sides[1] = twin_device(&twin);
    keep(&s->memory, name, twin, FP8PIPE_FP32, false);
}

/* Groups of all lengths, some empty. */
static void take_rows(struct side *s)
{
    const struct shape *shape = s->shape;
    struct twin twin = twin_make((size_t)shape->rows * sizeof(int32_t));
    int32_t *rows_of = twin_host(&twin), group = 0;
    int64_t every = shape->rows / shape->groups + 1;

    for (int64_t i = 0; i < shape->rows; i++) {
        if (test_random_range(&rng, 0, every) == 0 && group + 2 < shape->groups)
            group += (int32_t)test_random_range(&rng, 1, 2);
        rows_of[i] = group;
    }
    s->rows_of[0] = rows_of;
    s->rows_of[1] = twin_device(&twin);
    keep(&s->memory, "rows_of", twin, FP8PIPE_FP32, true);
}

static void take_target(struct side *s, bool quantizes)
{
    const struct shape *shape = s->shape;
    int64_t row_stride = (shape->cols + 15) / 16 * 16 + test_random_range(&rng, 0, 5) / 5 * 208;
    int64_t transposed_stride =
        (shape->rows + 15) / 16 * 16 + test_random_range(&rng, 0, 5) / 5 * 208;
    int64_t parts = (shape->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    bool row = side_next(s), transposed = side_next(s), amax = side_next(s), sums = side_next(s),
         counts = side_next(s);
    struct twin words = twin_make(8 * sizeof(uint32_t));
    uint64_t *zeros;
    struct twin extremes = twin_make(2 * sizeof(uint64_t));
    struct twin row_twin = twin_make(row ? (size_t)(shape->rows * row_stride) : 0);
    struct twin transposed_twin =
        twin_make(transposed ? (size_t)(shape->cols * transposed_stride) : 0);
    struct twin partials = twin_make(sums ? (size_t)(parts * shape->cols) * sizeof(float) : 0);
    float *floats_of = twin_host(&words);

    zeros = twin_host(&extremes);
    zeros[0] = 5;
    zeros[1] = 7;
    floats_of[0] = (float)exp2((double)test_random_range(&rng, -4, 9) + 0.3);
    floats_of[1] = float_from_bits(shape->has_scale);
    floats_of[2] = 0; /* own amax */
    floats_of[4] = 0; /* amax */
    for (int side = 0; side < 2; side++) {
        struct fp8pipe_quantize_target *t = &s->targets[side];
        void *(*at)(const struct twin *) = side == 0 ? twin_host : twin_device;
        float *word = at(&words);

        memset(t, 0, sizeof(*t));
        t->rows = shape->rows;
        t->cols = shape->cols;
        if (!quantizes)
            continue;
        t->format = shape->format;
        t->scale_numerator = shape->format == FP8PIPE_E4M3 ? 448.0f : 57344.0f;
        t->scale = &word[0];
        t->has_scale = (int32_t *)(void *)&word[1];
        t->own_amax = shape->own ? (uint32_t *)(void *)&word[2] : NULL;
        t->scale_inv = &word[3];
        t->amax = amax ? (uint32_t *)(void *)&word[4] : NULL;
        t->row = row ? at(&row_twin) : NULL;
        t->row_stride = row ? row_stride : 0;
        t->transposed = transposed ? at(&transposed_twin) : NULL;
        t->transposed_stride = transposed ? transposed_stride : 0;
        t->partials = sums ? at(&partials) : NULL;
        t->extremes = counts ? at(&extremes) : NULL;
    }
    keep(&s->memory, "scale, own amax, scale_inv, amax", words, FP8PIPE_FP32, false);
    keep(&s->memory, "extremes", extremes, FP8PIPE_FP32, true);
    keep(&s->memory, "row-wise codes", row_twin, FP8PIPE_FP32, true);
    keep(&s->memory, "transposed codes", transposed_twin, FP8PIPE_FP32, true);
    s->sums = keep(&s->memory, "partial sums", partials, FP8PIPE_FP32, false);
    s->sums->skipped = true;
}

void side_aim(struct side *s)
{
    if (s->shape->groups > 1)
        take_rows(s);
    take_target(s, side_next(s) || side_next(s));
}

static void shape_tell(const char *what, const struct shape *c)
{
    diag("%s: %lld x %lld, %lld groups, %s, data %d, given %#x, norm %d, %s, %s%s", what,
         (long long)c->rows, (long long)c->cols, (long long)c->groups, c->fast ? "fast" : "any",
         c->data, c->given, c->norm, test_format_name(c->format), c->own ? "own " : "",
         c->has_scale ? "has scale" : "");
}

bool side_agrees(struct side *s, const char *kernel, void (*on_device)(void *launch),
                 void (*on_host)(void *launch), void *launch)
{
    const uint32_t *amax = s->targets[0].amax;
    uint8_t *before[TWINS];
    bool agree;

    memory_upload(&s->memory);
    on_device(launch);
    for (int i = 0; i < s->memory.count; i++)
        before[i] = twin_download(&s->memory.of[i].twin);
    memory_upload(&s->memory);
    on_device(launch);
    agree = memory_repeats(&s->memory, before);
    on_host(launch);
    agree &= memory_equal(&s->memory);
    if (amax != NULL)
        agree &= memory_sums_agree(s->sums, float_from_bits(*amax));
    if (!agree)
        shape_tell(kernel, s->shape);
    memory_free(&s->memory);
    return agree;
}

/* ---- Cases -------------------------------------------------------------------------------- */

bool shapes_are_small(void)
{
    return test_environment_is_set("FP8PIPE_TEST_SMALL");
}

struct shape shape_random(bool fast, int64_t rows, int64_t cols, int i)
{
    static const int64_t groups[] = {0, 1, 2, 5, 40};
    struct shape shape = {rows,
                          fast ? (cols + 7) / 8 * 8 : cols,
                          groups[i % 5],
                          fast,
                          (enum data)(i % 7 == 3   ? DATA_BITS
                                      : i % 7 == 5 ? DATA_ZERO
                                                   : DATA_NORMAL),
                          (unsigned)test_random(&rng),
                          (enum fp8pipe_norm)test_random_range(&rng, 0, 2),
                          (enum fp8pipe_format)test_random_range(&rng, 0, 1),
                          test_random(&rng) % 4 == 0,
                          test_random(&rng) % 2};

    shape.has_scale |= !shape.own;
    /* More often than not everything is there. */
    if (i % 3 == 0)
        shape.given |= 0x5b7fdfu;
    return shape;
}

static void test_shapes(const char *kernel, bool (*agrees)(const struct shape *shape), bool fast)
{
    bool agree = true;

    for (int i = 0; i < (shapes_are_small() ? 60 : 300); i++) {
        int64_t rows = test_random_range(&rng, 1, i % 4 == 0 ? 5 : 300);
        struct shape shape =
            shape_random(fast, rows, test_random_range(&rng, 1, i % 9 == 0 ? 4500 : 1200), i);

        agree &= agrees(&shape);
    }
    ok(agree, "%s, %s: random shapes, operands, data", kernel, fast ? "bf16" : "any dtype");
}

static void test_edges(const char *kernel, bool (*agrees)(const struct shape *shape), bool fast)
{
    static const int64_t rows[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129};
    static const int64_t cols[] = {1,   7,   8,    9,    64,   72,   504, 511,
                                   512, 520, 1032, 4096, 4104, 8192, 8200};
    const int count[2] = {sizeof(rows) / sizeof(*rows), sizeof(cols) / sizeof(*cols)};
    bool agree = true;

    for (int i = 0; i < count[0]; i += shapes_are_small() ? 3 : 1)
        for (int j = 0; j < count[1]; j++) {
            struct shape shape = shape_random(fast, rows[i], cols[j], i + j);

            shape.given = 0xffffffu;
            shape.norm = (enum fp8pipe_norm)(1 + j % 2);
            agree &= agrees(&shape);
        }
    ok(agree, "%s, %s: sizes around those of units, tiles, segments and panels", kernel,
       fast ? "bf16" : "any dtype");
}

static void test_large(const char *kernel, bool (*agrees)(const struct shape *shape))
{
    static const int64_t cols[] = {2048, 4096, 5120, 8192};

    for (int i = 0; i < 4; i++) {
        struct shape shape = {
            i == 0 ? 8192 : 1003, cols[i],      8,     true, DATA_NORMAL, 0xffffffu,
            FP8PIPE_NORM_LAYER,   FP8PIPE_E4M3, false, true};

        if (shapes_are_small())
            skip(1, "FP8PIPE_TEST_SMALL is set");
        else
            ok(agrees(&shape), "%s %lld x %lld", kernel, (long long)shape.rows,
               (long long)shape.cols);
    }
}

void shapes_test(const char *kernel, bool (*agrees)(const struct shape *shape))
{
    for (int fast = 0; fast < 2; fast++)
        test_shapes(kernel, agrees, fast);
    for (int fast = 0; fast < 2; fast++)
        test_edges(kernel, agrees, fast);
    test_large(kernel, agrees);
}
