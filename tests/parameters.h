/*
 * Parameters for tests of optimizers: their matrices, a linear where there is to be one, and the
 * step by a second implementation: in float32 in the header's order of operations, and in float64.
 * Helpers bail out on what only a broken library or machine makes fail.
 */
#ifndef TESTS_PARAMETERS_H
#define TESTS_PARAMETERS_H

#include "fp8pipe_optimizer.h"
#include "util.h"

struct parameter_config {
    int64_t rows;
    int64_t cols;
    enum fp8pipe_dtype gradient_dtype;
    bool average;
    bool copy;
    enum fp8pipe_dtype copy_dtype;
    bool linear; /* slots 0 and 2 of the scaling, and slot_w */
    uint32_t slot_w;
    uint32_t group;
};

struct parameter {
    struct parameter_config config;
    struct fp8pipe_parameter view;
    struct test_matrix master, gradient, first, second, average, copy;
    int64_t elements;
    /* What the float32 and the float64 step make of it; the gradient as it was set. */
    float *master32, *first32, *second32, *average32, *gradient32;
    double *master64, *first64, *second64;
};

/* scaling: NULL if no linear is wanted. Master normal values / 8, moments 0, average = master. */
struct parameter parameter_make(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling,
                                const struct parameter_config *config, struct test_rng *rng);
void parameter_free(struct parameter *parameter);
/* Before the pipe is closed; the rest may be freed after. */
void parameter_matrices_free(struct parameter *parameter);

/* Sets the gradient to normal values times `deviation`, rounded to its dtype. Blocking. */
void parameter_gradient(struct parameter *parameter, double deviation, struct test_rng *rng);

/* Both steps number t (from 1 on) on what the struct keeps. */
void parameter_step(struct parameter *parameter, const struct fp8pipe_parameter_group *group,
                    float lr, float lr_device, float gradient_scale, int64_t t);

/* Whether the matrices are, bit for bit, what float32 says, and nothing around them has changed. */
bool parameter_agrees(const struct parameter *parameter, const char *what);

/* The largest difference of master to float64's, in steps of size lr. */
double parameter_distance(const struct parameter *parameter, double lr);

/*
 * Whether the linear's FP8 copies are what a quantize of master by slot_w gives, with the same
 * inverse scale and zeros as padding. Waits for the pipe; folds no amax.
 */
bool parameter_fp8_agrees(const struct parameter *parameter, struct fp8pipe_scaling *scaling,
                          const char *what);

/* FNV-1a of master, moments, average, copy and FP8 copies: whether anything was written. */
uint64_t parameter_hash(const struct parameter *parameter);

struct fp8pipe_optimizer *parameters_optimizer(struct fp8pipe *pipe, struct parameter *parameters,
                                               uint32_t count,
                                               const struct fp8pipe_parameter_group *groups,
                                               uint32_t group_count);

/* Submits; bails out. */
fp8pipe_ticket parameters_adamw(struct fp8pipe_optimizer *optimizer, struct fp8pipe_submit submit,
                                float lr, const int32_t *skip_if);

#endif
