/*
 * Helpers for tests of the public API: which backends to run on, matrices in the backend's memory
 * with poison around them, FP8 tensors read back. numbers.h, which this includes, has the random
 * generator, the number formats and the float64 references.
 *
 * Promises: nothing here looks behind include/fp8pipe.h, so a test that only uses this header runs
 * the same on both backends. Helpers that cannot fail unless the library or the machine is broken
 * bail out (tap.h) with the library's sentence, so that tests need not check them. Every wait in
 * here has a time-out. Any thread may call any of these, on objects of its own.
 *
 * A test program looks like this:
 *
 *     static void cases(enum fp8pipe_backend backend)
 *     {
 *         struct fp8pipe *pipe = test_open(backend, NULL);
 *         ok(..., "%s: what is guarded", test_backend_name(backend));
 *         test_close(pipe);
 *     }
 *     int main(void)
 *     {
 *         test_each_backend(cases);
 *         return done_testing();
 *     }
 */
#ifndef TESTS_UTIL_H
#define TESTS_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fp8pipe.h"
#include "numbers.h"
#include "tap.h"

/* ---- Backends and pipes ------------------------------------------------------------------- */

/* Longer than any op of a test takes, under sanitizers too; a wait that reaches it is a hang. */
#define TEST_TIMEOUT_NS INT64_C(120000000000)

/*
 * The backends to run on, found once: host, then cuda if it opens. FP8PIPE_TEST_BACKEND=host|cuda
 * restricts them (with host, CUDA is never touched). Where cuda is wanted and does not open, that
 * is one skip; with FP8PIPE_TEST_REQUIRE_GPU=1 it bails out.
 */
struct test_backends {
    int count;
    enum fp8pipe_backend list[2];
    bool cuda_missing; /* cuda was wanted, and skip() has said why it is not there */
};
const struct test_backends *test_backends(void);

/* Calls cases(backend) for each of test_backends(). */
void test_each_backend(void (*cases)(enum fp8pipe_backend backend));

const char *test_backend_name(enum fp8pipe_backend backend); /* "host", "cuda" */

/* Bails out unless the call returns FP8PIPE_OK. */
#define must(call) test_must(__FILE__, __LINE__, #call, call)
void test_must(const char *file, int line, const char *call, enum fp8pipe_status status);

/*
 * A pipe on `backend`; the rest of the options from `options` (NULL: all defaults). Bails out.
 * close bails out unless it returns FP8PIPE_OK in time, so that a test also sees that nothing
 * hangs.
 */
struct fp8pipe *test_open(enum fp8pipe_backend backend, const struct fp8pipe_options *options);
void test_close(struct fp8pipe *pipe);

/*
 * Such a pipe, whose own memory is all NaN, in every format, when the library gets it: what it
 * reads without having written it shows in results. On the host backend only; else as test_open.
 */
struct fp8pipe *test_open_poisoned(enum fp8pipe_backend backend);

/* Waits until the op is done, or all are; bails out unless with FP8PIPE_OK. */
void test_wait(struct fp8pipe *pipe, fp8pipe_ticket ticket);
void test_drain(struct fp8pipe *pipe);

/* A submit part for `lane` after the given tickets (0: none). */
struct fp8pipe_submit test_submit(int32_t lane, uint32_t flags, fp8pipe_ticket after0,
                                  fp8pipe_ticket after1);

/* Memory of the backend, all bytes `fill`. Bails out. Given back by fp8pipe_free. */
void *test_alloc(struct fp8pipe *pipe, size_t bytes, int fill);

/* CLOCK_MONOTONIC. */
int64_t test_now_ns(void);

/* ---- Matrices in the backend's memory ----------------------------------------------------- */

/*
 * A matrix with its own block of memory: a guard, `offset` elements, the rows with their stride, a
 * guard. All of the block, what lies between the rows too, is poison until set. An `offset` that is
 * no multiple of 16 bytes, or such a stride, makes misaligned rows.
 */
struct test_matrix {
    struct fp8pipe_matrix view; /* to be given to ops */
    struct fp8pipe *pipe;
    void *block; /* in memory of the backend */
    size_t block_bytes;
    size_t offset_bytes; /* of the first element in the block */
};

/* stride: elements between rows, 0: cols. Never NULL data, also when empty. Bails out. */
struct test_matrix test_matrix_make(struct fp8pipe *pipe, enum fp8pipe_dtype dtype, int64_t rows,
                                    int64_t cols, int64_t stride, int64_t offset);
/* Takes one that was freed or is all zero. */
void test_matrix_free(struct test_matrix *matrix);

/*
 * set: rounds dense[rows * cols] to the dtype; set_raw: takes the dense elements as they are (their
 * bits). Blocking, not ordered with ops; what is outside of the matrix stays as it is in the
 * backend.
 */
void test_matrix_set(struct test_matrix *matrix, const double *dense);
void test_matrix_set_raw(struct test_matrix *matrix, const void *dense);
void test_matrix_get(const struct test_matrix *matrix, double *dense);
void test_matrix_get_raw(const struct test_matrix *matrix, void *dense);
/* Back to poison, rows too. */
void test_matrix_poison(struct test_matrix *matrix);

/* Bytes of the block outside of the matrix's elements that are no longer poison. */
int64_t test_matrix_damage(const struct test_matrix *matrix);
/* Bytes of the elements themselves that are no longer poison: 0 if nothing was written. */
int64_t test_matrix_written(const struct test_matrix *matrix);

/* make, then set to normal values times `deviation`, rounded; *dense (may be NULL): those
 * values. */
struct test_matrix test_matrix_random(struct fp8pipe *pipe, enum fp8pipe_dtype dtype, int64_t rows,
                                      int64_t cols, int64_t stride, int64_t offset,
                                      double deviation, struct test_rng *rng, double **dense);

/* The first row as a vector; its count is cols. */
struct fp8pipe_vector test_vector(const struct test_matrix *matrix);

/* ---- Quantized tensors -------------------------------------------------------------------- */

/* What fp8pipe_tensor_read gives, on the host. */
struct test_fp8 {
    int64_t rows;
    int64_t cols;
    enum fp8pipe_format format;
    uint8_t *rowwise;    /* rows * cols, NULL if the tensor has none */
    uint8_t *transposed; /* cols * rows, NULL if the tensor has none */
    float scale_inv;
    int64_t damage; /* bytes outside of the destinations that the read changed */
};

/* Submits a quantize of `x` by `slot` (copies: FP8PIPE_ROWWISE ...), returns its ticket. Bails. */
fp8pipe_ticket test_quantize(struct fp8pipe_tensor *tensor, struct fp8pipe_matrix x,
                             struct fp8pipe_scaling *scaling, uint32_t slot, uint32_t copies,
                             struct fp8pipe_submit submit);

/* Reads both copies that the tensor has, and waits. Bails out. */
struct test_fp8 test_tensor_read(struct fp8pipe *pipe, struct fp8pipe_tensor *tensor);
void test_fp8_free(struct test_fp8 *fp8);

/* values[rows * cols] = byte's value * scale_inv, from whichever copy is there. */
void test_fp8_dequantize(const struct test_fp8 *fp8, double *values);

/* ---- Scalings and linears ----------------------------------------------------------------- */

/* The slot's state, bails out. */
struct fp8pipe_slot_state test_slot(struct fp8pipe_scaling *scaling, uint32_t slot);

/* With all other options at their defaults; initial_scale 0: none. Bails out. */
struct fp8pipe_scaling *test_scaling(struct fp8pipe *pipe, uint32_t slots, float initial_scale);

/* Of a weight [out, in], slots 0, 1, 2, no bias; scaling NULL: not quantized. Bails out. */
struct fp8pipe_linear *test_linear(struct fp8pipe *pipe, struct fp8pipe_matrix weight,
                                   struct fp8pipe_scaling *scaling);

/* Update or skip, submitted on lane 0 without tickets; bails out. */
fp8pipe_ticket test_update(struct fp8pipe_scaling *scaling);
fp8pipe_ticket test_skip(struct fp8pipe_scaling *scaling);

#endif
