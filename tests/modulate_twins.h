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
    /* By side_aim. */
    const int32_t *rows_of[2];
    struct fp8pipe_quantize_target targets[2];
    struct entry *sums; /* of the target */
};

/* Whether the next operand is there. */
bool side_next(struct side *s);
/* How many rows there are of what is given by group. */
int64_t side_groups(const struct side *s);
/* A matrix, by `views` for both sides; stride 0 in a view for one row that stands for all. */
void side_place(struct side *s, const char *name, int64_t rows, bool one_for_all, bool input,
                struct kernel_view views[2]);
/* `count` float32; random, or to be written. */
void side_floats(struct side *s, const char *name, int64_t count, bool input, float *sides[2]);
/* After the operands: which row of what is given by group each token takes, and where the result
 * goes. */
void side_aim(struct side *s);
/*
 * Whether the device, launched twice, writes the same bytes both times, and those that the host
 * does: but for a NaN's payload, and the target's sums, which are in another order. Ends the case:
 * tells of it where it does not agree, and frees its memory.
 */
bool side_agrees(struct side *s, const char *kernel, void (*on_device)(void *launch),
                 void (*on_host)(void *launch), void *launch);

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
/* What every launch is told, after its operands. */
#define AIM()                                                                                      \
    do {                                                                                           \
        side_aim(&s);                                                                              \
        for (int side = 0; side < 2; side++) {                                                     \
            args[side].rows = shape->rows;                                                         \
            args[side].cols = shape->cols;                                                         \
            args[side].rows_of = s.rows_of[side];                                                  \
            args[side].norm = shape->norm;                                                         \
            args[side].target = s.targets[side];                                                   \
        }                                                                                          \
    } while (0)

/* ---- Cases -------------------------------------------------------------------------------- */

bool shapes_are_small(void); /* FP8PIPE_TEST_SMALL is set */
struct shape shape_random(bool fast, int64_t rows, int64_t cols, int i);

/* Random shapes, edges and large ones. */
void shapes_test(const char *kernel, bool (*agrees)(const struct shape *shape));

#endif
