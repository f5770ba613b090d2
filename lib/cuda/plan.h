/*
 * Owns how each GEMM shape is run by cuBLASLt, of which this is the only user.
 *
 * A plan is cuBLASLt's descriptors and the algorithm that its heuristic names first for a key of
 * everything that matters to it. So all streams run one key the same way, and the same bits come
 * out of the same inputs. Reductions that round to D's type in between are ruled out.
 *
 * A plan may also say that cuBLASLt has no way for the key (a D of another 16-bit type than the
 * operands', fp32 operands with a 16-bit D, a bias too oddly aligned): see cuda_gemm.
 */
#ifndef LIB_CUDA_PLAN_H
#define LIB_CUDA_PLAN_H

#include "internal.h"

#define PLAN_CACHE_CAPACITY 4096

struct plan;

/* backend->plans, destroyed with plan_cache_destroy(). Needs backend->lt. */
enum fp8pipe_status plans_create(struct cuda_backend *backend);

/* The plan for these args on this stream, valid until the stream's next plan_get. ENOTSUP. */
enum fp8pipe_status plan_get(struct cuda_backend *backend, struct cuda_stream *stream,
                             const struct gemm_args *args, struct plan **plan);

/* Whether the product has to be made in fp32 and then stored. */
bool plan_is_through_fp32(const struct plan *plan);

/* Enqueues the product. Only reads the plan, which other streams use at the same time. */
enum fp8pipe_status plan_run(const struct cuda_backend *backend, const struct cuda_stream *stream,
                             struct plan *plan, const struct gemm_args *args);

#endif
