/*
 * The handwritten digits: loading them, drawing training batches, naming an image's digit.
 *
 * Owns the data set's format (digits/README.md), the random numbers of the example and the cutting
 * of images into patches. Knows nothing of the library. Any thread, one at a time on one object.
 */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#include <stddef.h>
#include <stdint.h>

#define DIGITS_SIDE 8
#define DIGITS_PIXELS (DIGITS_SIDE * DIGITS_SIDE)
#define DIGITS_CLASSES 10
#define DIGITS_INK_MAX 16

/* The label that stands for 'not told': a table of labels has a row for it behind the classes. */
#define DIGITS_NO_LABEL DIGITS_CLASSES

/* A token is a patch of 2 x 2 pixels, in rows from the top left; a position names its place. */
#define DIGITS_PATCH 2
#define DIGITS_PATCH_PIXELS (DIGITS_PATCH * DIGITS_PATCH)
#define DIGITS_GRID (DIGITS_SIDE / DIGITS_PATCH)
#define DIGITS_POSITIONS (DIGITS_GRID * DIGITS_GRID)

/* Pixels are ink / 8 - 1: from -1 (paper) to 1. */
struct digits {
    float (*images)[DIGITS_PIXELS];
    int32_t *labels;
    int64_t count;
};

/* Reads folder/0.txt to folder/9.txt. Returns 0, or -1 with a sentence in error. */
int digits_load(const char *folder, struct digits *digits, char *error, size_t error_bytes);
void digits_free(struct digits *digits);

/* The label that most of the three nearest images have (Euclidean), or the nearest one's. */
int32_t digits_classify(const struct digits *digits, const float image[DIGITS_PIXELS]);

/*
 * Random numbers: xoshiro256** (Blackman and Vigna), seeded by splitmix64 from a seed and the
 * number of a stream, so that first weights, batches and samples do not depend on one another.
 */
struct digits_random {
    uint64_t state[4];
    double spare; /* the second number of a pair of normal ones */
    int has_spare;
};
enum digits_random_stream { DIGITS_RANDOM_WEIGHTS, DIGITS_RANDOM_BATCHES, DIGITS_RANDOM_SAMPLES };
void digits_random_seed(struct digits_random *random, uint64_t seed,
                        enum digits_random_stream stream);
double digits_random_uniform(struct digits_random *random); /* [0, 1) */
uint64_t digits_random_below(struct digits_random *random, uint64_t limit);
double digits_random_normal(struct digits_random *random);

/* What a training step is made of: tokens are in patches, row r belongs to image r / tokens. */
struct digits_batch {
    int64_t images;
    int64_t tokens;
    float *image;      /* [images * tokens, DIGITS_PATCH_PIXELS] */
    float *noise;      /* likewise, standard normal */
    float *t;          /* [images], uniform in [0, 1) */
    int32_t *labels;   /* [images], DIGITS_NO_LABEL for a tenth of them */
    int32_t *position; /* [tokens] */
};

/*
 * Fills a batch of batch->images images and sets its tokens. Its arrays have room for
 * DIGITS_POSITIONS tokens an image. crops: whole images, or bands of 8 x 6 or 6 x 8 pixels, one
 * shape for the whole batch.
 */
void digits_batch_draw(const struct digits *digits, struct digits_random *random, int crops,
                       struct digits_batch *batch);

/* Whole images to tokens in the order of their positions, and back. */
void digits_patches(const float image[DIGITS_PIXELS], float *tokens);
void digits_unpatch(const float *tokens, float image[DIGITS_PIXELS]);

#endif
