/*
 * Owns how each GEMM shape is run by cuBLASLt, of which this, with tune.c, is the only user.
 *
 * A plan is cuBLASLt's descriptors and an algorithm for a key of everything that matters to it
 * (plan_key.h): that of the tune file, if it has the key; else the one that cuBLASLt's heuristic
 * names first, or, where plans are refined, that of the nearest neighbour until the planner's
 * thread has asked the heuristic. So but for refinement all streams run one key the same way, and
 * the same bits come out of the same inputs. Reductions that round to D's type in between are ruled
 * out.
 *
 * A plan may also say that cuBLASLt has no way for the key (a D of another 16-bit type than the
 * operands', fp32 operands with a 16-bit D, a bias too oddly aligned): see cuda_gemm.
 */
#ifndef LIB_CUDA_PLAN_H
#define LIB_CUDA_PLAN_H

#include "internal.h"
#include "plan_key.h"

#define PLAN_CACHE_CAPACITY 4096
/* Shapes that wait for the planner; beyond, a launcher asks the heuristic itself. */
#define PLAN_QUEUE_CAPACITY 512
#define PLAN_CANDIDATES_MAX 64

enum plan_way {
    PLAN_DIRECT,
    PLAN_THROUGH_FP32, /* the product has to be made in fp32 and then stored */
    PLAN_REFUSED,      /* an epilogue that there is no kernel for */
};

/* Never changes once it is in the cache. Only `way` is set unless it is PLAN_DIRECT. */
struct plan {
    uint64_t id; /* no other plan of the backend ever has it; 0: the plan is not in the cache */
    enum plan_way way;
    bool heuristic; /* the algorithm is the heuristic's for this very key, or there is none */
    bool tuned;     /* the algorithm was timed, here or by who wrote the tune file */
    size_t workspace_bytes;
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a; /* cuBLASLt's A, which is B here */
    cublasLtMatrixLayoutOpaque_t b;
    cublasLtMatrixLayoutOpaque_t c;
    cublasLtMatrixLayoutOpaque_t d;
    cublasLtMatmulAlgo_t algo;
};

/* backend->plans and, where plans are refined, backend->planner; after a failure plans_destroy
 * takes the rest. Needs backend->lt and backend->tuner. */
enum fp8pipe_status plans_create(struct cuda_backend *backend, enum fp8pipe_plans plans);
/* Takes none. All fronts are cleared. */
void plans_destroy(struct cuda_backend *backend);

/* The plan for these args on this stream, valid until the stream's next plan_get. ENOTSUP. */
enum fp8pipe_status plan_get(struct cuda_backend *backend, struct cuda_stream *stream,
                             const struct gemm_args *args, struct plan **plan);

/*
 * Enqueues the product of a PLAN_DIRECT. Only reads the plan, which other streams use at the same
 * time (cuBLASLt's types do not say so). The first that needs it makes the stream's workspace.
 */
enum fp8pipe_status plan_run(struct cuda_backend *backend, struct cuda_stream *stream,
                             struct plan *plan, const struct gemm_args *args);

/*
 * Has cuBLASLt load the kernels of a plan that is not in the cache yet, as its first call would: see
 * load_gate.h. On the planner's thread. False: who runs the plan first will.
 */
bool plan_load(struct cuda_backend *backend, const struct plan_key *key, struct plan *plan);

/* Gives a key whose borrowed or loaded algorithm was refused by plan_run the heuristic's. */
enum fp8pipe_status plan_renew(struct cuda_backend *backend, const struct gemm_args *args);

/* Gives a key a copy of a plan that was chosen for it. */
enum fp8pipe_status plan_set(struct cuda_backend *backend, const struct plan_key *key,
                             const struct plan *chosen);

/* For tuning: up to `most` <= PLAN_CANDIDATES_MAX plans of the key, in the heuristic's order.
 * *found >= 1, or ENOTSUP. */
enum fp8pipe_status plan_candidates(const struct cuda_backend *backend, const struct plan_key *key,
                                    int most, struct plan *plans, int *found);

#endif
