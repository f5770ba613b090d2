/* What the parts of bench/issue share: a pipe with an FP8 layer, and what is reported. */
#ifndef BENCH_ISSUE_H
#define BENCH_ISSUE_H

#include <stddef.h>
#include <stdint.h>

#include "examples/clock.h"
#include "examples/json.h"
#include "fp8pipe.h"

/* End the program with a sentence unless all is well. */
void must(enum fp8pipe_status status, const char *what);
void *host_alloc(size_t count, size_t bytes); /* zeros */

/* A line of a table, and a row in the file if there is one. */
extern struct json issue_json;
void report(const char *name, const char *unit, double value);

struct fp8pipe *pipe_open(int32_t lanes);
#define RING_SLOTS 4096

struct layer {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    uint16_t *x, *w, *y; /* bf16: [tokens, features], [features, features], [tokens, features] */
    int64_t features;
};
struct layer layer_make(struct fp8pipe *pipe, int64_t tokens, int64_t features);
void layer_free(struct layer *layer);
struct fp8pipe_matrix matrix(void *data, int64_t rows, int64_t cols);
void forward(struct layer *layer, int32_t lane, uint16_t *x, uint16_t *y, int64_t tokens,
             fp8pipe_ticket *ticket);

/* The table of chains on several lanes. */
void issue_chains(void);

#endif
