#include "bench_chain.h"

#include <stdio.h>

#include "outcome.h"

struct fp8pipe_submit bench_chain_submit(enum bench_lane lane, const char *name)
{
    struct fp8pipe_submit submit = FP8PIPE_SUBMIT_INIT;

    submit.lane = lane;
    submit.name = name;
    return submit;
}

void bench_chain_keep(struct bench_chain *chain, enum fp8pipe_status status, const char *what)
{
    const char *why = fp8pipe_last_error();

    if (status != FP8PIPE_OK && chain->status == FP8PIPE_OK) {
        chain->status = status;
        snprintf(chain->sentence, sizeof(chain->sentence), "%s: %s", what,
                 why[0] ? why : fp8pipe_strerror(status));
    }
}

void bench_chain_submitted(struct bench_chain *chain, enum fp8pipe_status status, const char *name)
{
    chain->enqueued += status == FP8PIPE_OK;
    bench_chain_keep(chain, status, name);
}

void bench_chain_call(struct bench_chain *chain, const char *name, const struct bench_op *op)
{
    struct fp8pipe_call_op call = FP8PIPE_CALL_OP_INIT;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    call.submit = bench_chain_submit(BENCH_LANE_CHAIN, name);
    call.fn = bench_call;
    call.arg = (void *)op;
    call.arg_bytes = sizeof(*op);
    bench_chain_submitted(chain, fp8pipe_call(chain->pipe, &call, &chain->last), name);
}

void bench_chain_values(struct bench_chain *chain, const char *name, int64_t rows, int64_t cols,
                        const struct bench_values *values, const struct fp8pipe_quantized *out)
{
    struct fp8pipe_tensor_call_op call = FP8PIPE_TENSOR_CALL_OP_INIT;

    if (chain->status != FP8PIPE_OK) {
        return;
    }
    call.submit = bench_chain_submit(BENCH_LANE_CHAIN, name);
    call.rows = rows;
    call.cols = cols;
    call.fn = bench_values_call;
    call.arg = (void *)values;
    call.arg_bytes = sizeof(*values);
    if (out) {
        call.out = *out;
    }
    bench_chain_submitted(chain, fp8pipe_tensor_call(chain->pipe, &call, &chain->last), name);
}

void bench_chain_wait(struct bench_chain *chain, fp8pipe_ticket ticket)
{
    if (chain->status == FP8PIPE_OK) {
        chain->status = outcome_wait(chain->pipe, ticket, chain->sentence, sizeof(chain->sentence));
    }
}

void bench_chain_drain(struct bench_chain *chain)
{
    bench_chain_wait(chain, chain->last_wgrad);
    bench_chain_wait(chain, chain->last);
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_drain(chain->pipe, -1), "waiting for all ops");
    }
}

void bench_chain_read(struct bench_chain *chain, void *to, const void *from, size_t bytes)
{
    bench_chain_drain(chain);
    if (chain->status == FP8PIPE_OK) {
        bench_chain_keep(chain, fp8pipe_download(chain->pipe, to, from, bytes), "reading a result");
    }
}
