/*
 * What the tests of modulate's CUDA kernels share: a launch's operands and outputs on both sides,
 * chosen by the bits of a shape, and the shapes that each kernel is run on.
 *
 * FP8PIPE_TEST_SMALL=1 leaves out the large shapes (for compute-sanitizer).
 */
#ifndef TESTS_MODULATE_TWINS_H
#define TESTS_MODULATE_TWINS_H

#include "twin.h"

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

/* Whether both sides are the same, but for a NaN's payload. */
bool memory_equal(const struct memory *m);
/* Whether the device has written the same bytes again; frees those that it had written before. */
bool memory_repeats(const struct memory *m, uint8_t *before[TWINS]);
void memory_upload(const struct memory *m);
void memory_free(struct memory *m);
/* Sums of up to 64 values, each at most `largest`, in two orders. */
bool memory_sums_agree(const struct entry *entry, float largest);

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
bool side_next(struct side *s);
/* A matrix, by `views` for both sides; stride 0 in a view for one row that stands for all. */
void side_place(struct side *s, const char *name, int64_t rows, bool one_for_all, bool input,
                struct kernel_view views[2]);
/* `count` float32; random, or to be written. */
void side_floats(struct side *s, const char *name, int64_t count, bool input, float *sides[2]);
/* Rows that tokens take: groups of all lengths, some empty. */
void side_take_rows(struct side *s, const int32_t *sides[2]);
/* Where the result goes. The sums are in another order than the host's. */
struct entry *side_aim(struct side *s, bool quantizes, struct fp8pipe_quantize_target targets[2]);

/* For a function with `s`, `args`, `views` and `values`: a field of both sides. */
#define PLACE(field, name, rows, by_row, input)                                                    \
    do {                                                                                           \
        side_place(&s, name, rows, (by_row) && shape->groups == 1, input, views);                  \
        args[0].field = views[0];                                                                  \
        args[1].field = views[1];                                                                  \
    } while (0)
#define FLOATS(field, name, count, input)                                                          \
    do {                                                                                           \
        side_floats(&s, name, count, input, values);                                               \
        args[0].field = values[0];                                                                 \
        args[1].field = values[1];                                                                 \
    } while (0)

/* ---- Cases -------------------------------------------------------------------------------- */

bool shapes_are_small(void); /* FP8PIPE_TEST_SMALL is set */
struct shape shape_random(bool fast, int64_t rows, int64_t cols, int i);
void shape_tell(const char *what, const struct shape *c);

/* Random shapes, edges and large ones. */
void shapes_test(const char *kernel, bool (*agrees)(const struct shape *shape));

#endif
