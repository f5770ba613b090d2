/*
 * A linear layer under test: its matrices, the operands as its GEMMs see them (quantized by tensors
 * of the test's own at the same scales, read back, made float64 again), its three ops, and how far
 * their results are from float64.
 */
#ifndef TESTS_LAYER_H
#define TESTS_LAYER_H

#include "util.h"

enum layer_first_scale {
    LAYER_SCALE_OWN,     /* no scale yet: each tensor's own amax */
    LAYER_SCALE_GIVEN,   /* initial_scale 24 */
    LAYER_SCALE_DELAYED, /* one update after the operands, with a margin of 1 */
};

enum layer_gradient {
    LAYER_DY_OF_DGRAD,  /* dgrad quantizes dY and keeps it for wgrad; bias_grad by dgrad */
    LAYER_DY_TWICE,     /* dgrad and wgrad each quantize dY; bias_grad by wgrad */
    LAYER_DY_QUANTIZED, /* dY quantized before, shared; bias_grad by that quantize */
};

struct layer_config {
    int64_t m; /* tokens */
    int64_t n; /* out_features */
    int64_t k; /* in_features */
    bool quantized;
    enum fp8pipe_recipe recipe;
    enum layer_first_scale first_scale;
    enum layer_gradient gradient;
    bool x_quantized; /* X quantized before, as for a tensor that layers share */
    bool has_bias;
    bool accumulate; /* wgrad and bias_grad */
    bool ragged;     /* random strides, rows at any alignment */
    enum fp8pipe_dtype x_dtype, w_dtype, bias_dtype, dy_dtype; /* unquantized: all w_dtype */
    enum fp8pipe_dtype y_dtype, dx_dtype, dw_dtype;
    enum fp8pipe_accumulation accumulation;
    double dy_deviation;
};

struct layer {
    struct fp8pipe *pipe;
    enum fp8pipe_backend backend;
    struct layer_config config;
    struct fp8pipe_scaling *scaling; /* slots 0, 1, 2: X, W, dY */
    struct fp8pipe_linear *linear;
    struct fp8pipe_tensor *saved, *dy_saved, *x_tensor, *dy_tensor;
    struct test_matrix x, w, bias, dy; /* inputs */
    struct test_matrix y, dx, dw, db;  /* outputs */
    double *x_values, *w_values, *bias_values, *dy_values;
    double *x_seen, *w_seen, *dy_seen; /* by the GEMMs */
    double *dw_before, *db_before;     /* zeros, or what is accumulated on */
};

struct layer layer_make(struct fp8pipe *pipe, const struct layer_config *config,
                        struct test_rng *rng);
void layer_free(struct layer *layer);

/*
 * forward keeps `keep` in saved. dgrad uses what it kept. wgrad comes after dgrad, sets or adds to
 * dw; bias_grad comes from whichever op the config says. Each returns its ticket.
 */
fp8pipe_ticket layer_forward(struct layer *layer, enum fp8pipe_keep keep,
                             struct fp8pipe_submit submit);
fp8pipe_ticket layer_dgrad(struct layer *layer, struct fp8pipe_submit submit);
fp8pipe_ticket layer_wgrad(struct layer *layer, struct fp8pipe_submit submit);

/*
 * Errors as a part of what is allowed: more than 1 is wrong, inf not finite. Call when the ops are
 * done. The allowed error, as norm over norm, depends on accumulation and output dtype.
 */
double layer_y_error(const struct layer *layer);
double layer_dx_error(const struct layer *layer);
double layer_dw_error(const struct layer *layer);
double layer_db_error(const struct layer *layer);

/* Bytes outside of the layer's matrices that are no longer poison, and inputs that have changed. */
int64_t layer_damage(const struct layer *layer);

/*
 * Random shapes with sides up to max_side, one of them up to max_long instead in one case of eight;
 * random everything else.
 */
struct layer_config layer_config_random(struct test_rng *rng, int64_t max_side, int64_t max_long);

#endif
