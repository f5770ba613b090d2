/*
 * What the tests of CUDA's plans share: a CUDA backend with one stream, through its table, and
 * GEMMs of every type with random operands, compared with float64.
 */
#ifndef TESTS_PLAN_RIG_H
#define TESTS_PLAN_RIG_H

#include "backend.h"
#include "log.h"
#include "util.h"

/* Before all else: false if there is nothing to test here, which test_backends() has told. */
bool rig_is_wanted(void);

/* ---- A backend and its memory ------------------------------------------------------------- */

struct rig {
    struct backend *backend;
    struct fp8pipe_stream *stream;
    struct backend_event *event;
    struct backend_scope scope;
    struct log log;
    int warnings;
    char warning[512];
};

void rig_open(struct rig *rig, enum fp8pipe_plans plans, const char *tune_file);
void rig_close(struct rig *rig);
/* Waits until the stream is done. */
void rig_finish(struct rig *rig);
struct backend_plan_stats rig_stats(struct rig *rig);

/* ---- GEMMs -------------------------------------------------------------------------------- */

enum added { ADDED_NOTHING, ADDED_RESIDUAL, ADDED_D };

struct gemm_case {
    int64_t m, n, k;
    enum gemm_type a, b, d;
    enum added added;
    bool bias, gelu, fast, padded; /* padded: strides beyond the rows */
};

extern const char *const gemm_type_names[];
const char *case_name(const struct gemm_case *c); /* until the next call */

struct operand {
    enum gemm_type type;
    int64_t rows, cols, stride;
    double *values; /* [rows, cols], as the elements are */
    void *device;
    size_t bytes;
};

struct gemm_run {
    struct operand a, b, d, residual, bias;
    float *words; /* scales of A, B and D, and an amax, on the device */
    struct gemm_args args;
};

/* Scales and the amax, each 16 bytes from the one before, as cuBLASLt demands. */
enum { WORD_A = 0, WORD_B = 4, WORD_D = 8, WORD_AMAX = 12, WORDS = 16 };

struct gemm_run run_make(struct rig *rig, const struct gemm_case *c, struct test_rng *rng);
void run_free(struct rig *rig, struct gemm_run *run);
/* Its bytes now; free() them. */
uint8_t *operand_download(struct rig *rig, const struct operand *operand);

/* Runs it once. *refused: with ENOTSUP, which is to have no effect. */
bool case_holds(struct rig *rig, const struct gemm_case *c, struct test_rng *rng, bool *refused);

#endif
