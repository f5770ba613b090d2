/*
 * The command line of dit_digits. A refused one is answered with one sentence that names the
 * option, its value and the rule.
 */
#ifndef DIGITS_OPTIONS_H
#define DIGITS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <fp8pipe.h>

#include "digits_model.h"

struct digits_options {
    enum digits_dtype dtype;                 /* as given; DIGITS_DTYPES: compare */
    enum digits_dtype dtypes[DIGITS_DTYPES]; /* to train, in this order */
    int dtype_count;
    int64_t steps;
    int64_t hidden;
    int64_t depth;
    int64_t heads;
    int64_t batch;
    int64_t seed;
    enum fp8pipe_backend backend;
    const char *out;
    const char *csv;  /* NULL: none */
    const char *json; /* NULL: none */
    const char *data;
    bool crops;
    bool help;
};

/* Returns 0, or -1 with a sentence in error. */
int digits_options_parse(int argc, char **argv, struct digits_options *options, char *error,
                         size_t error_bytes);
void digits_options_help(FILE *file);

#endif
