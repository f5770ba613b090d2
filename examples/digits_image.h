/*
 * What a run of dit_digits leaves behind: the picture, the loss curves, the numbers.
 *
 * Each function writes one whole file and returns 0, or -1 with a sentence in error. Knows nothing
 * of the library nor of the model.
 */
#ifndef DIGITS_IMAGE_H
#define DIGITS_IMAGE_H

#include "digits_data.h"

/* One dtype's training and sampling. */
struct digits_result {
    const char *dtype;
    double *losses; /* [steps] */
    int64_t steps;
    double final_loss; /* mean of the last 100 losses, or of all if fewer */
    double train_seconds;
    double sample_seconds;
    uint64_t ops;                    /* enqueued in training */
    double submit_ns;                /* the caller's time for one of them, in the mean */
    float (*samples)[DIGITS_PIXELS]; /* [sample_count], by class */
    int64_t sample_count;
    int64_t named_right; /* by the classifier */
};

struct digits_run {
    const char *backend;
    int64_t steps;
    int64_t hidden;
    int64_t depth;
    int64_t heads;
    int64_t batch;
    uint64_t seed;
    int crops;
    const struct digits_result *results;
    int result_count;
};

/* Images side by side: a row for each class, `columns` images in it. */
struct digits_panel {
    float (*images)[DIGITS_PIXELS]; /* [DIGITS_CLASSES, per_class]; the first `columns` are drawn */
    int64_t per_class;
    int columns;
};

/* Fails if the file cannot be opened for writing. Changes nothing. */
int digits_file_check(const char *path, char *error, size_t error_bytes);

int digits_png_write(const char *path, const struct digits_panel *panels, int count, char *error,
                     size_t error_bytes);
int digits_csv_write(const char *path, const struct digits_run *run, char *error,
                     size_t error_bytes);
int digits_json_write(const char *path, const struct digits_run *run, char *error,
                      size_t error_bytes);

#endif
