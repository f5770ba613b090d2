/*
 * The CUDA kernels of modulate and its backward against their host twins: the same inputs, the same
 * bits in every output and around it, but for a NaN's payload. Each of the ways that the launcher
 * chooses between, shapes around those of units, tiles, segments and panels. Twice the same bits.
 *
 * FP8PIPE_TEST_SMALL=1 leaves out the large shapes (for compute-sanitizer).
 */
#include "twin.h"

#include "kernels/convert.h"

static bool small;
static struct test_rng rng = {3};

/* ---- Memory of one launch ----------------------------------------------------------------- */

#define TWINS 40

/* Every twin that a launch touches, and how it is compared. */
struct memory {
    int count;
    struct entry {
        const char *name;
        struct twin twin;
        enum fp8pipe_dtype dtype; /* of what is in it; with `bytes`, codes */
        bool bytes;
        bool skipped; /* compared otherwise */
    } of[TWINS];
};

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

/* ---- What varies -------------------------------------------------------------------------- */

struct shape {
    int64_t rows;
    int64_t cols;
    int64_t groups; /* 0: a row for each token; 1: one; else by rows_of */
    bool fast;      /* all bf16 and aligned, else anything */
    enum data data;
    unsigned given; /* bits choose what is there */
    enum fp8pipe_norm norm;
    enum fp8pipe_format format;
    bool own; /* the slot may lack a scale */
    bool has_scale;
};

struct side {
    const struct shape *shape;
    struct memory memory;
    unsigned bit;
};

/* Whether the next operand is there. */
static bool next(struct side *s)
{
    return s->shape->given >> s->bit++ % 24 & 1;
}

/* A matrix, by `views` for both sides; stride 0 in a view for one row that stands for all. */
static void place(struct side *s, const char *name, int64_t rows, bool one_for_all, bool input,
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

/* `count` float32; random, or to be written. */
static void floats(struct side *s, const char *name, int64_t count, bool input, float *sides[2])
{
    struct twin twin = twin_make((size_t)count * sizeof(float));

    for (int64_t i = 0; input && i < count; i++)
        ((float *)twin_host(&twin))[i] = (float)test_random_normal(&rng);
    sides[0] = twin_host(&twin);
    sides[1] = twin_device(&twin);
    keep(&s->memory, name, twin, FP8PIPE_FP32, false);
}

/* Rows that tokens take: groups of all lengths, some empty. */
static void take_rows(struct side *s, const int32_t *sides[2])
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
    sides[0] = rows_of;
    sides[1] = twin_device(&twin);
    keep(&s->memory, "rows_of", twin, FP8PIPE_FP32, true);
}

/* Where the result goes. The sums are in another order than the host's. */
static struct entry *aim(struct side *s, bool quantizes, struct fp8pipe_quantize_target targets[2])
{
    const struct shape *shape = s->shape;
    int64_t row_stride = (shape->cols + 15) / 16 * 16 + test_random_range(&rng, 0, 5) / 5 * 208;
    int64_t transposed_stride =
        (shape->rows + 15) / 16 * 16 + test_random_range(&rng, 0, 5) / 5 * 208;
    int64_t parts = (shape->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    bool row = next(s), transposed = next(s), amax = next(s), sums = next(s), counts = next(s);
    struct twin words = twin_make(8 * sizeof(uint32_t));
    uint64_t *zeros;
    struct twin extremes = twin_make(2 * sizeof(uint64_t));
    struct twin row_twin = twin_make(row ? (size_t)(shape->rows * row_stride) : 0);
    struct twin transposed_twin =
        twin_make(transposed ? (size_t)(shape->cols * transposed_stride) : 0);
    struct twin partials = twin_make(sums ? (size_t)(parts * shape->cols) * sizeof(float) : 0);
    float *floats_of = twin_host(&words);
    struct entry *kept;

    zeros = twin_host(&extremes);
    zeros[0] = 5;
    zeros[1] = 7;
    floats_of[0] = (float)exp2((double)test_random_range(&rng, -4, 9) + 0.3);
    floats_of[1] = float_from_bits(shape->has_scale);
    floats_of[2] = 0; /* own amax */
    floats_of[4] = 0; /* amax */
    for (int side = 0; side < 2; side++) {
        struct fp8pipe_quantize_target *t = &targets[side];
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
    kept = keep(&s->memory, "partial sums", partials, FP8PIPE_FP32, false);
    kept->skipped = true;
    return kept;
}

/* Sums of up to 64 values, each at most `largest`, in two orders. */
static bool sums_agree(const struct entry *entry, float largest)
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

static bool device_repeats(const struct memory *m, uint8_t *before[TWINS])
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

static void tell(const char *what, const struct shape *c)
{
    diag("%s: %lld x %lld, %lld groups, %s, data %d, given %#x, norm %d, %s, %s%s", what,
         (long long)c->rows, (long long)c->cols, (long long)c->groups, c->fast ? "fast" : "any",
         c->data, c->given, c->norm, test_format_name(c->format), c->own ? "own " : "",
         c->has_scale ? "has scale" : "");
}

/* ---- Forward ------------------------------------------------------------------------------ */

static bool forward_agrees(const struct shape *shape)
{
    struct side s = {.shape = shape};
    struct kernel_modulate_args args[2];
    struct kernel_view views[2];
    int64_t groups = shape->groups == 0 ? shape->rows : shape->groups;
    struct fp8pipe_quantize_target targets[2];
    const int32_t *rows_of[2] = {NULL, NULL};
    struct entry *sums;
    uint8_t *before[TWINS];
    float *values[2];
    bool has_y = next(&s), has_gate = next(&s) && has_y, quantizes;
    bool in_place = false, equal;

    memset(args, 0, sizeof(args));
#define PLACE(field, name, rows, by_row, input)                                                    \
    do {                                                                                           \
        place(&s, name, rows, (by_row) && shape->groups == 1, input, views);                       \
        args[0].field = views[0];                                                                  \
        args[1].field = views[1];                                                                  \
    } while (0)
#define FLOATS(field, name, count, input)                                                          \
    do {                                                                                           \
        floats(&s, name, count, input, values);                                                    \
        args[0].field = values[0];                                                                 \
        args[1].field = values[1];                                                                 \
    } while (0)
    PLACE(x, "x", shape->rows, false, true);
    if (has_y)
        PLACE(y, "y", shape->rows, false, true);
    if (has_gate)
        PLACE(gate, "gate", groups, true, true);
    if (next(&s)) {
        in_place = next(&s);
        if (in_place) {
            args[0].x_out = args[0].x;
            args[1].x_out = args[1].x;
        } else {
            PLACE(x_out, "x_out", shape->rows, false, false);
        }
    }
    if (next(&s))
        PLACE(scale, "scale", groups, true, true);
    if (next(&s))
        PLACE(shift, "shift", groups, true, true);
    if (next(&s))
        PLACE(z, "z", shape->rows, false, false);
    if (next(&s))
        FLOATS(weight, "weight", shape->cols, true);
    if (next(&s))
        FLOATS(bias, "bias", shape->cols, true);
    if (shape->norm != FP8PIPE_NORM_NONE) {
        FLOATS(mean, "mean", shape->rows, false);
        FLOATS(rstd, "rstd", shape->rows, false);
    }
    if (shape->groups > 1)
        take_rows(&s, rows_of);
    quantizes = next(&s) || next(&s);
    sums = aim(&s, quantizes, targets);
    memory_upload(&s.memory);
    for (int side = 0; side < 2; side++) {
        args[side].rows = shape->rows;
        args[side].cols = shape->cols;
        args[side].rows_of = rows_of[side];
        args[side].norm = shape->norm;
        args[side].epsilon = 1e-6f;
        args[side].target = targets[side];
    }
    launched(kernel_modulate_cuda(&args[1], NULL), "modulate");
    for (int i = 0; i < s.memory.count; i++)
        before[i] = twin_download(&s.memory.of[i].twin);
    memory_upload(&s.memory);
    launched(kernel_modulate_cuda(&args[1], NULL), "modulate");
    equal = device_repeats(&s.memory, before);
    kernel_modulate_host(&args[0]);
    equal &= memory_equal(&s.memory);
    if (quantizes && targets[0].amax != NULL)
        equal &= sums_agree(sums, float_from_bits(*targets[0].amax));
    if (!equal)
        tell("modulate", shape);
    memory_free(&s.memory);
    return equal;
}

/* ---- Backward ----------------------------------------------------------------------------- */

/* The outputs by row of gate, scale or shift: for each token, or partial sums and then sums. */
struct summed {
    struct kernel_group_sums_args args[2];
    bool wanted;
};

static void sum_later(struct side *s, const char *name, struct kernel_view by_token[2],
                      float *partials[2], struct summed *summed)
{
    const struct shape *shape = s->shape;
    struct kernel_view views[2];
    int64_t parts = (shape->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    float *room[2];

    summed->wanted = next(s);
    if (!summed->wanted)
        return;
    place(s, name, shape->groups == 0 ? shape->rows : shape->groups, false, false, views);
    if (shape->groups == 0) {
        by_token[0] = views[0];
        by_token[1] = views[1];
        summed->wanted = false;
        return;
    }
    floats(s, name, (parts + shape->groups) * shape->cols, false, room);
    for (int side = 0; side < 2; side++) {
        partials[side] = room[side];
        summed->args[side] = (struct kernel_group_sums_args){
            .partials = room[side],
            .rows = shape->rows,
            .groups = shape->groups,
            .cols = shape->cols,
            .out = views[side],
        };
    }
}

static bool backward_agrees(const struct shape *shape)
{
    struct side s = {.shape = shape};
    struct kernel_modulate_backward_args args[2];
    struct kernel_view views[2], by_token[2];
    int64_t groups = shape->groups == 0 ? shape->rows : shape->groups;
    int64_t parts = (shape->rows + KERNEL_SUM_ROWS - 1) / KERNEL_SUM_ROWS;
    struct fp8pipe_quantize_target targets[2];
    struct summed summed[3];
    const int32_t *rows_of[2] = {NULL, NULL};
    struct entry *sums;
    uint8_t *before[TWINS];
    float *values[2];
    bool quantizes, equal;

    memset(args, 0, sizeof(args));
    memset(summed, 0, sizeof(summed));
    PLACE(x_out, "x_out", shape->rows, false, true);
    if (next(&s))
        PLACE(dz, "dz", shape->rows, false, true);
    if (next(&s)) {
        PLACE(dx_out, "dx_out", shape->rows, false, true);
        if (next(&s)) {
            args[0].dx = args[0].dx_out;
            args[1].dx = args[1].dx_out;
        }
    }
    if (args[0].dx.data == NULL && next(&s))
        PLACE(dx, "dx", shape->rows, false, false);
    if (next(&s))
        PLACE(dy, "dy", shape->rows, false, false);
    if (next(&s))
        PLACE(gate, "gate", groups, true, true);
    if (next(&s))
        PLACE(scale, "scale", groups, true, true);
#define SUM_LATER(token_field, partials_field, name, at)                                           \
    do {                                                                                           \
        memset(by_token, 0, sizeof(by_token));                                                     \
        values[0] = values[1] = NULL;                                                              \
        sum_later(&s, name, by_token, values, &summed[at]);                                        \
        args[0].token_field = by_token[0];                                                         \
        args[1].token_field = by_token[1];                                                         \
        args[0].partials_field = values[0];                                                        \
        args[1].partials_field = values[1];                                                        \
    } while (0)
    if (next(&s)) {
        PLACE(y, "y", shape->rows, false, true);
        SUM_LATER(dgate, gate_partials, "dgate", 0);
    }
    SUM_LATER(dscale, scale_partials, "dscale", 1);
    SUM_LATER(dshift, shift_partials, "dshift", 2);
    /* Both ways of the tiles: with weight and bias, and without. */
    if (next(&s)) {
        if (next(&s))
            FLOATS(weight, "weight", shape->cols, true);
        if (next(&s))
            FLOATS(bias, "bias", shape->cols, true);
        if (next(&s))
            FLOATS(weight_partials, "weight_partials", parts * shape->cols, false);
        if (next(&s))
            FLOATS(bias_partials, "bias_partials", parts * shape->cols, false);
    }
    floats(&s, "mean", shape->rows, true, values);
    args[0].mean = values[0];
    args[1].mean = values[1];
    floats(&s, "rstd", shape->rows, true, values);
    args[0].rstd = values[0];
    args[1].rstd = values[1];
    if (shape->norm != FP8PIPE_NORM_NONE)
        FLOATS(row_means, "row means", 2 * shape->rows, false);
    if (shape->groups > 1)
        take_rows(&s, rows_of);
    quantizes = next(&s) || next(&s);
    sums = aim(&s, quantizes, targets);
    memory_upload(&s.memory);
    for (int side = 0; side < 2; side++) {
        args[side].rows = shape->rows;
        args[side].cols = shape->cols;
        args[side].rows_of = rows_of[side];
        args[side].norm = shape->norm;
        args[side].target = targets[side];
    }
    for (int time = 0; time < 2; time++) {
        launched(kernel_modulate_backward_cuda(&args[1], NULL), "modulate_backward");
        for (int i = 0; i < 3; i++)
            if (summed[i].wanted) {
                summed[i].args[1].rows_of = rows_of[1];
                launched(kernel_group_sums_cuda(&summed[i].args[1], NULL), "group_sums");
            }
        if (time == 0) {
            for (int i = 0; i < s.memory.count; i++)
                before[i] = twin_download(&s.memory.of[i].twin);
            memory_upload(&s.memory);
        }
    }
    equal = device_repeats(&s.memory, before);
    kernel_modulate_backward_host(&args[0]);
    for (int i = 0; i < 3; i++)
        if (summed[i].wanted) {
            summed[i].args[0].rows_of = rows_of[0];
            kernel_group_sums_host(&summed[i].args[0]);
        }
    equal &= memory_equal(&s.memory);
    if (quantizes && targets[0].amax != NULL)
        equal &= sums_agree(sums, float_from_bits(*targets[0].amax));
    if (!equal)
        tell("modulate_backward", shape);
    memory_free(&s.memory);
    return equal;
}

/* ---- Cases -------------------------------------------------------------------------------- */

static struct shape random_shape(bool fast, int64_t rows, int64_t cols, int i)
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

static void test_random_shapes(void)
{
    for (int fast = 0; fast < 2; fast++) {
        bool forward = true, backward = true;

        for (int i = 0; i < (small ? 60 : 300); i++) {
            int64_t rows = test_random_range(&rng, 1, i % 4 == 0 ? 5 : 300);
            struct shape shape =
                random_shape(fast, rows, test_random_range(&rng, 1, i % 9 == 0 ? 4500 : 1200), i);

            forward &= forward_agrees(&shape);
            backward &= backward_agrees(&shape);
        }
        ok(forward, "modulate, %s: random shapes, operands, data", fast ? "bf16" : "any dtype");
        ok(backward, "modulate_backward, %s: random shapes, operands, data",
           fast ? "bf16" : "any dtype");
    }
}

static void test_edges(void)
{
    static const int64_t rows[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129};
    static const int64_t cols[] = {1,   7,   8,    9,    64,   72,   504, 511,
                                   512, 520, 1032, 4096, 4104, 8192, 8200};
    const int count[2] = {sizeof(rows) / sizeof(*rows), sizeof(cols) / sizeof(*cols)};

    for (int fast = 0; fast < 2; fast++) {
        bool forward = true, backward = true;

        for (int i = 0; i < count[0]; i += small ? 3 : 1)
            for (int j = 0; j < count[1]; j++) {
                struct shape shape = random_shape(fast, rows[i], cols[j], i + j);

                shape.given = 0xffffffu;
                shape.norm = (enum fp8pipe_norm)(1 + j % 2);
                forward &= forward_agrees(&shape);
                backward &= backward_agrees(&shape);
            }
        ok(forward, "modulate, %s: sizes around those of units, tiles, segments and panels",
           fast ? "bf16" : "any dtype");
        ok(backward, "modulate_backward, %s: sizes around those of units, tiles and segments",
           fast ? "bf16" : "any dtype");
    }
}

/* What the rows way takes: codes, with or without their transpose, and their amax. In bits of
 * `given`, in forward's order. */
#define GIVEN_Y 0x1u
#define GIVEN_GATE 0x2u
#define GIVEN_X_OUT 0x4u
#define GIVEN_IN_PLACE 0x8u
#define GIVEN_SCALE 0x10u
#define GIVEN_SHIFT 0x20u
#define GIVEN_CODES 0x200u
#define GIVEN_ROW 0x400u
#define GIVEN_TRANSPOSED 0x800u
#define GIVEN_AMAX 0x1000u
#define GIVEN_ROWS                                                                                 \
    (GIVEN_Y | GIVEN_GATE | GIVEN_X_OUT | GIVEN_SCALE | GIVEN_SHIFT | GIVEN_CODES | GIVEN_ROW |    \
     GIVEN_TRANSPOSED | GIVEN_AMAX)

/* Each of its shapes, alone and in clusters, around units, segments, chunks, tiles and panels. */
static void test_rows(void)
{
    static const unsigned given[] = {
        GIVEN_ROWS,
        GIVEN_ROWS | GIVEN_IN_PLACE,
        GIVEN_ROWS & ~(GIVEN_Y | GIVEN_GATE),
        /* Without x_out nothing is asked about in_place. */
        (GIVEN_ROWS & ~(GIVEN_Y | GIVEN_GATE | GIVEN_X_OUT)) >> 1,
        GIVEN_ROWS & ~GIVEN_GATE,
        GIVEN_ROWS & ~GIVEN_SCALE,
        GIVEN_ROWS & ~GIVEN_SHIFT,
        GIVEN_ROWS & ~GIVEN_TRANSPOSED,
        GIVEN_ROWS & ~(GIVEN_ROW | GIVEN_AMAX),
    };
    static const int64_t sizes[][2] = {/* narrow: panels of 512 columns */
                                       {1, 8},
                                       {15, 504},
                                       {31, 512},
                                       {32, 520},
                                       {33, 1024},
                                       {65, 2048},
                                       {240, 2056},
                                       {33, 4096},
                                       /* middle: of 1024, 96 blocks or more than 4096 columns */
                                       {1500, 2048},
                                       {3001, 1032},
                                       {40, 4104},
                                       {17, 8192},
                                       /* wide: of 2048, 96 blocks or more than 8192 columns */
                                       {3100, 8},
                                       {3073, 1032},
                                       {3072, 2048},
                                       {1601, 2056},
                                       {1537, 4096},
                                       {1100, 6152},
                                       {800, 8192},
                                       {40, 8200},
                                       {33, 16384}};
    const int variants = sizeof(given) / sizeof(*given);
    const int count = sizeof(sizes) / sizeof(*sizes);

    for (int norm = 0; norm < 3; norm++) {
        bool same = true;

        for (int i = 0; i < count; i++)
            for (int j = 0; j < variants; j++) {
                int64_t elements = sizes[i][0] * sizes[i][1];
                struct shape shape = random_shape(true, sizes[i][0], sizes[i][1], i + j);

                /* Of the large ones some. */
                if (elements > 1000000 && (small || (i + j + norm) % variants > 1))
                    continue;
                shape.norm = (enum fp8pipe_norm)norm;
                shape.given = given[j];
                shape.own = false;
                shape.has_scale = true;
                same &= forward_agrees(&shape);
            }
        ok(same, "modulate, norm %d: rows in registers", norm);
    }
}

static void test_large(void)
{
    static const int64_t cols[] = {2048, 4096, 5120, 8192};

    for (int i = 0; i < 4; i++) {
        struct shape shape = {
            i == 0 ? 8192 : 1003, cols[i],      8,     true, DATA_NORMAL, 0xffffffu,
            FP8PIPE_NORM_LAYER,   FP8PIPE_E4M3, false, true};

        if (small) {
            skip(2, "FP8PIPE_TEST_SMALL is set");
            continue;
        }
        ok(forward_agrees(&shape), "modulate %lld x %lld", (long long)shape.rows,
           (long long)shape.cols);
        ok(backward_agrees(&shape), "modulate_backward %lld x %lld", (long long)shape.rows,
           (long long)shape.cols);
    }
}

static void test_refused(void)
{
    struct kernel_modulate_args args;
    struct kernel_modulate_backward_args back;
    struct kernel_group_sums_args sums;

    memset(&args, 0, sizeof(args));
    memset(&back, 0, sizeof(back));
    memset(&sums, 0, sizeof(sums));
    args.rows = args.cols = back.rows = back.cols = sums.groups = sums.cols = 8;
    is_int(kernel_modulate_cuda(&args, NULL), cudaErrorInvalidValue, "modulate without x: refused");
    is_int(kernel_modulate_backward_cuda(&back, NULL), cudaErrorInvalidValue,
           "modulate_backward without x_out: refused");
    is_int(kernel_group_sums_cuda(&sums, NULL), cudaErrorInvalidValue,
           "group_sums without an output: refused");
    is_int(cudaPeekAtLastError(), cudaSuccess, "a refusal leaves no error behind");
}

int main(void)
{
    device_require();
    small = test_environment_is_set("FP8PIPE_TEST_SMALL");
    test_random_shapes();
    test_edges();
    test_rows();
    test_large();
    test_refused();
    return done_testing();
}
