/*
 * Products for the tests of epilogues: operands, a world to run them in, the float64 reference, and
 * what a result may be off from it.
 */
#ifndef TESTS_PRODUCT_H
#define TESTS_PRODUCT_H

#include "async.h"

/* Slots: X, W and DY of the operands; then those of results. */
#define SLOT_RESULT 3   /* E4M3 */
#define SLOT_ZEROS 4    /* E4M3: nothing but zeros are seen in it */
#define SLOT_GRADIENT 5 /* E5M2 */
#define SLOTS 6

struct world {
    struct fp8pipe *pipe;
    enum fp8pipe_backend backend;
    const char *name;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *result;
    struct test_rng rng;
};

void world_open(struct world *w, struct fp8pipe *pipe, uint64_t seed);
void world_close(struct world *w);

enum residual { RESIDUAL_NONE, RESIDUAL_APART, RESIDUAL_D };

struct config {
    int64_t m, n, k;
    bool fp8, ragged, has_bias, has_pre;
    enum fp8pipe_dtype in, out, bias, pre;
    enum fp8pipe_activation activation;
    enum residual residual;
};

/* Operands, [m, k] and [n, k], as the product sees them; bias, residual. */
struct product {
    struct config c;
    struct test_matrix a, b, bias, d, pre, residual;
    struct fp8pipe_tensor *a_tensor, *b_tensor;
    double *a_seen, *b_seen, *bias_seen, *residual_seen;
};

/* Random values times `deviation`, ragged as the config says. */
struct test_matrix product_matrix(struct world *w, const struct config *c, enum fp8pipe_dtype dtype,
                                  int64_t rows, int64_t cols, double deviation, double **values);

/* A new tensor of the matrix; what its bytes stand for goes to `seen`. */
struct fp8pipe_tensor *product_quantized(struct world *w, const struct test_matrix *x,
                                         uint32_t slot, double *seen);

void product_make(struct world *w, struct product *p, const struct config *c);
void product_free(struct product *p);
int64_t product_damage(const struct product *p);

/* The op with D as a matrix, and the one into the world's tensor. */
struct fp8pipe_gemm_op product_op(const struct product *p);
struct fp8pipe_gemm_op product_quantizing_op(const struct world *w, const struct product *p,
                                             uint32_t slot, uint32_t copies);
void product_run(struct world *w, const struct fp8pipe_gemm_op *op);

float product_activated(enum fp8pipe_activation activation, float x);

/* P and D in float64; *norm: of all that is added up. */
void product_reference(const struct product *p, double *product, double *d, double *norm);
double product_distance(int64_t count, const double *got, const double *want);

/* What a result may be off, as a part of the norm. */
double product_allowed(const struct world *w, const struct config *c, enum fp8pipe_dtype out);

/* The world's tensor against float64: codes, copies, inverse scale. */
bool product_tensor_is_right(struct world *w, const struct product *p, const struct test_fp8 *fp8,
                             float scale);

/* Gives the result slots their scales. The zeros' slot sees none but zeros. */
void product_give_scales(struct world *w);

void product_say(const struct config *c);

#endif
