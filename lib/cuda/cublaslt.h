/*
 * Owns the process's cuBLASLt, loaded when a backend opens and not linked: linking it costs every
 * process its start-up, and makes programs unlinkable where CUDA lies outside the loader's path.
 *
 * A process that has loaded the library already shares its copy; the loader counts the users, and
 * the library stays loaded after the last, for it leaves threads and exit handlers behind.
 *
 * cublaslt_open needs the device's context current. All entries may be called from any thread.
 */
#ifndef LIB_CUDA_CUBLASLT_H
#define LIB_CUDA_CUBLASLT_H

#include <stddef.h>

#include <cublasLt.h>

#include "fp8pipe.h"

/* The entry points used, under their own names. */
#define CUBLASLT_ENTRIES(X)                                                                        \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusName)                                                                       \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulDescInit_internal)                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutInit_internal)                                                           \
    X(cublasLtMatmulPreferenceInit_internal)                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)

struct cublaslt {
    void *library;
    cublasLtHandle_t handle;
    size_t version;
#define CUBLASLT_FIELD(name) __typeof__(name) *name;
    CUBLASLT_ENTRIES(CUBLASLT_FIELD)
#undef CUBLASLT_FIELD
};

/* ENODEV if it is not found, of another major version, or does not start. */
enum fp8pipe_status cublaslt_open(struct cublaslt *lt);
/* All zero: nothing to close. */
void cublaslt_close(struct cublaslt *lt);

/* `otherwise`, or what the status stands for; records the sentence. */
enum fp8pipe_status cublaslt_fail(const struct cublaslt *lt, cublasStatus_t error,
                                  enum fp8pipe_status otherwise, const char *call,
                                  const char *object);

#endif
