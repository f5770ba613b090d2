/*
 * The command line of dit_bench. A refused one is answered with one sentence that names the
 * option, its value and the rule.
 */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <fp8pipe.h>

/* BENCH_DTYPES: not given. */
enum bench_dtype { BENCH_FP32, BENCH_BF16, BENCH_FP8, BENCH_DTYPES };

struct bench_options {
    int64_t batch;
    int64_t tokens; /* of a sample; in a dynamic run at most */
    int64_t hidden;
    int64_t depth;
    int64_t mlp_ratio;
    enum bench_dtype dtype;
    enum bench_dtype grad_dtype; /* of weight gradients, BENCH_FP32 or BENCH_BF16 */
    bool train;
    bool dynamic;
    bool is_inline;
    int64_t iterations;
    int64_t warm_up;
    enum fp8pipe_backend backend;
    int64_t lanes;
    int64_t seed;
    double rate; /* AdamW's learning rate */
    bool grad_norm;
    bool no_idle;
    bool fixed_plans;
    bool no_replays;
    bool tune;
    const char *tune_file; /* these: NULL, or a path */
    const char *json;
    const char *profile;
    int64_t loss_run; /* 0: none */
    bool cosine;
    bool floor;
    bool check;
    bool help;
};

/* Returns 0, or -1 with a sentence in error. */
int bench_options_parse(int argc, char **argv, struct bench_options *options, char *error,
                        size_t error_bytes);
void bench_options_help(FILE *file);

const char *bench_dtype_name(enum bench_dtype dtype);

#endif
