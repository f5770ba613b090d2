/*
 * Delayed scaling: long random traces against the second implementation of its contract
 * (reference_scaling.h), bit for bit, with saved states on the way.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "reference_scaling.h"
#include "util.h"

#define FOLDS_MAX 2 /* of one slot in one step */
#define TENSORS 4

struct config {
    const char *name;
    enum fp8pipe_recipe recipe;
    enum fp8pipe_amax algorithm;
    uint32_t history;
    int32_t margin;
    float initial_scale;
    uint32_t slots;
    int64_t touched_percent; /* of the slots in one step */
    int64_t steps;
};

/* Together more than 10,000 updates. 3,000 slots are more than one block of the update kernel. */
static const struct config configs[] = {
    {"hybrid, max of 16", FP8PIPE_HYBRID, FP8PIPE_AMAX_MAX, 16, 0, 0, 6, 75, 1400},
    {"e4m3, max of 16", FP8PIPE_ALL_E4M3, FP8PIPE_AMAX_MAX, 16, 0, 0, 6, 75, 1200},
    {"hybrid, most recent of 16", FP8PIPE_HYBRID, FP8PIPE_AMAX_MOST_RECENT, 16, 0, 0, 6, 75, 1200},
    {"hybrid, history 1", FP8PIPE_HYBRID, FP8PIPE_AMAX_MAX, 1, 0, 0, 6, 75, 1200},
    {"hybrid, history 2, margin 3", FP8PIPE_HYBRID, FP8PIPE_AMAX_MAX, 2, 3, 0, 6, 75, 1200},
    {"hybrid, history 3, margin -5, initial scale 4", FP8PIPE_HYBRID, FP8PIPE_AMAX_MAX, 3, -5, 4, 6,
     75, 1200},
    {"e4m3, most recent of 1, margin 64", FP8PIPE_ALL_E4M3, FP8PIPE_AMAX_MOST_RECENT, 1, 64, 0, 6,
     75, 1200},
    {"hybrid, history 300, margin -64", FP8PIPE_HYBRID, FP8PIPE_AMAX_MAX, 300, -64, 0, 6, 75, 1400},
    {"hybrid, history 5, 3000 slots", FP8PIPE_HYBRID, FP8PIPE_AMAX_MAX, 5, 0, 0, 3000, 2, 100},
};

static struct fp8pipe_scaling_options config_options(const struct config *config)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;

    options.slots = config->slots;
    options.history = config->history;
    options.recipe = config->recipe;
    options.amax = config->algorithm;
    options.margin = config->margin;
    options.initial_scale = config->initial_scale;
    return options;
}

/* Zeros, subnormals, tiny, huge, infinite and NaN values, of both signs, among ordinary ones. */
static uint32_t random_value_bits(struct test_rng *rng)
{
    uint32_t sign = (uint32_t)(test_random(rng) & 1) << 31;
    uint32_t fraction = (uint32_t)test_random(rng) & 0x7FFFFF;

    switch (test_random_range(rng, 0, 24)) {
    case 0:
    case 1:
        return sign;
    case 2:
        return sign | 0x7F800000;
    case 3:
        return sign | 0x7F800000 | 1 | fraction;
    case 4:
        return sign | 1 | fraction;
    case 5:
        return sign | test_float_bits(1e-38f);
    case 6:
        return sign | test_float_bits(FLT_MAX);
    case 7:
    case 8:
        return sign | (uint32_t)test_random_range(rng, 1, 254) << 23 | fraction;
    default:
        return sign | (uint32_t)test_random_range(rng, 117, 134) << 23 | fraction;
    }
}

/* The slots' states that differ from the reference's, of many slots a part; says which one
 * first. */
static int64_t count_differences(struct fp8pipe_scaling *scaling,
                                 const struct reference_scaling *reference)
{
    uint32_t step = reference->slots > 100 ? 7 : 1;
    int64_t count = 0;

    for (uint32_t i = 0; i < reference->slots; i += step) {
        const struct reference_slot *want = &reference->slot[i];
        struct fp8pipe_slot_state got = test_slot(scaling, i);
        float scale = want->has_scale ? want->scale : 1.0f;

        if (got.format == want->format && got.has_scale == want->has_scale &&
            got.nonfinite == want->nonfinite &&
            test_float_bits(got.scale) == test_float_bits(scale) &&
            test_float_bits(got.amax) == want->history[0])
            continue;
        if (count++ == 0)
            diag("slot %u: has_scale %d, scale %a, amax %a, nonfinite %d; wanted %d, %a, %a, %d", i,
                 got.has_scale, (double)got.scale, (double)got.amax, got.nonfinite, want->has_scale,
                 (double)scale, (double)test_float_from_bits(want->history[0]), want->nonfinite);
    }
    return count;
}

struct trace {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct reference_scaling *reference;
    struct fp8pipe_tensor *tensor[TENSORS];
    int64_t entries;        /* steps * slots * FOLDS_MAX */
    float *values;          /* of the backend, [entries]: what is quantized */
    float *scale_inv;       /* of the backend, [entries]: what was captured */
    int32_t *flag;          /* of the backend, [steps] */
    uint32_t *want;         /* [entries]; all bits set where nothing was quantized */
    int32_t *want_flag;     /* [steps] */
    uint32_t *value_bits;   /* [entries] */
    int64_t state_failures; /* slots that differed when asked */
};

/* Quantizes the value of one entry, a matrix of 1 x 1, and has its captured inverse scale
 * copied. */
static void quantize_entry(struct trace *trace, uint32_t slot, int64_t entry, uint32_t flags)
{
    struct fp8pipe_tensor *tensor = trace->tensor[entry % TENSORS];
    struct fp8pipe_matrix x = {.data = trace->values + entry, .rows = 1, .cols = 1, .stride = 1};
    struct fp8pipe_read_op read = FP8PIPE_READ_OP_INIT;
    uint32_t amax_bits = trace->value_bits[entry] & 0x7FFFFFFF;

    test_quantize(tensor, x, trace->scaling, slot, FP8PIPE_ROWWISE, test_submit(0, flags, 0, 0));
    read.submit = test_submit(0, 0, 0, 0);
    read.scale_inv = trace->scale_inv + entry;
    must(fp8pipe_tensor_read(tensor, &read, NULL));

    trace->want[entry] =
        test_float_bits(1.0f / reference_scaling_scale(trace->reference, slot, amax_bits));
    if (!(flags & FP8PIPE_NO_AMAX))
        reference_scaling_fold(trace->reference, slot, amax_bits);
}

static void trace_step(struct trace *trace, const struct config *config, int64_t step,
                       const int32_t *flag, struct test_rng *rng)
{
    struct fp8pipe_copy_op copy = FP8PIPE_COPY_OP_INIT;

    for (uint32_t slot = 0; slot < config->slots; slot++)
        for (int64_t fold = 0; fold < FOLDS_MAX; fold++) {
            int64_t percent = fold == 0 ? config->touched_percent : config->touched_percent / 4;

            if (test_random_range(rng, 0, 99) < percent)
                quantize_entry(trace, slot, (step * config->slots + slot) * FOLDS_MAX + fold,
                               test_random_range(rng, 0, 19) == 0 ? FP8PIPE_NO_AMAX : 0);
        }
    if (step % 64 == 63 && config->slots < 100)
        trace->state_failures += count_differences(trace->scaling, trace->reference);
    if (test_random_range(rng, 0, 9) == 0) {
        test_skip(trace->scaling);
        reference_scaling_skip(trace->reference);
    }
    test_update(trace->scaling);
    reference_scaling_update(trace->reference);

    copy.submit = test_submit(0, 0, 0, 0);
    copy.to = trace->flag + step;
    copy.from = flag;
    copy.bytes = sizeof(*flag);
    must(fp8pipe_copy(trace->pipe, &copy, NULL));
    trace->want_flag[step] = reference_scaling_nonfinite(trace->reference);
}

/* Runs `steps` steps on both; true if all that was captured, flagged and left is the same. */
static bool run_trace(struct fp8pipe *pipe, struct fp8pipe_scaling *scaling,
                      struct reference_scaling *reference, const struct config *config,
                      int64_t steps, uint64_t seed)
{
    struct trace trace = {.pipe = pipe, .scaling = scaling, .reference = reference};
    struct test_rng rng = {seed};
    size_t entry_bytes, flag_bytes = (size_t)steps * sizeof(int32_t);
    const int32_t *flag;
    uint32_t *seen;
    int32_t *seen_flag;
    bool same;

    trace.entries = steps * config->slots * FOLDS_MAX;
    entry_bytes = (size_t)trace.entries * sizeof(float);
    trace.value_bits = test_calloc(1, entry_bytes);
    trace.want = test_calloc(1, entry_bytes);
    trace.want_flag = test_calloc(1, flag_bytes);
    for (int64_t i = 0; i < trace.entries; i++)
        trace.value_bits[i] = random_value_bits(&rng);
    memset(trace.want, 0xFF, entry_bytes);
    trace.values = test_alloc(pipe, entry_bytes, 0);
    trace.scale_inv = test_alloc(pipe, entry_bytes, 0xFF);
    trace.flag = test_alloc(pipe, flag_bytes, 0xFF);
    must(fp8pipe_upload(pipe, trace.values, trace.value_bits, entry_bytes));
    for (int i = 0; i < TENSORS; i++)
        must(fp8pipe_tensor_create(pipe, &trace.tensor[i]));
    must(fp8pipe_scaling_nonfinite_get(scaling, &flag));

    for (int64_t step = 0; step < steps; step++)
        trace_step(&trace, config, step, flag, &rng);
    trace.state_failures += count_differences(scaling, reference);
    test_drain(pipe);

    seen = test_calloc(1, entry_bytes);
    seen_flag = test_calloc(1, flag_bytes);
    must(fp8pipe_download(pipe, seen, trace.scale_inv, entry_bytes));
    must(fp8pipe_download(pipe, seen_flag, trace.flag, flag_bytes));
    same = trace.state_failures == 0 && memcmp(seen_flag, trace.want_flag, flag_bytes) == 0;
    for (int64_t i = 0; i < trace.entries && same; i++)
        if (seen[i] != trace.want[i]) {
            diag("step %lld, slot %lld: scale_inv %a, wanted %a",
                 (long long)(i / FOLDS_MAX / config->slots),
                 (long long)(i / FOLDS_MAX % config->slots), (double)test_float_from_bits(seen[i]),
                 (double)test_float_from_bits(trace.want[i]));
            same = false;
        }

    for (int i = 0; i < TENSORS; i++)
        must(fp8pipe_tensor_destroy(trace.tensor[i]));
    must(fp8pipe_free(pipe, trace.values));
    must(fp8pipe_free(pipe, trace.scale_inv));
    must(fp8pipe_free(pipe, trace.flag));
    free(trace.value_bits);
    free(trace.want);
    free(trace.want_flag);
    free(seen);
    free(seen_flag);
    return same;
}

static void test_trace(struct fp8pipe *pipe, const char *backend, const struct config *config,
                       uint64_t seed)
{
    struct fp8pipe_scaling_options options = config_options(config);
    struct reference_scaling reference = reference_scaling_make(&options), saved, saved_too;
    struct fp8pipe_scaling *scaling, *other;
    int64_t half = config->steps / 2, more = config->steps / 10;
    size_t bytes;
    void *state;

    must(fp8pipe_scaling_create(pipe, &options, &scaling));
    ok(run_trace(pipe, scaling, &reference, config, half, seed),
       "%s: %s: every scale and flag of %lld updates is the contract's, bit for bit", backend,
       config->name, (long long)half);
    must(fp8pipe_scaling_state_bytes(scaling, &bytes));
    state = test_calloc(1, bytes);
    must(fp8pipe_scaling_save(scaling, state, bytes));
    saved = reference_scaling_copy(&reference);
    saved_too = reference_scaling_copy(&reference);
    ok(run_trace(pipe, scaling, &reference, config, half, seed + 1),
       "%s: %s: a save in the middle changes nothing in the next %lld", backend, config->name,
       (long long)half);

    must(fp8pipe_scaling_load(scaling, state, bytes));
    ok(run_trace(pipe, scaling, &saved, config, more, seed + 2),
       "%s: %s: loading goes on from the saved step", backend, config->name);
    must(fp8pipe_scaling_create(pipe, &options, &other));
    must(fp8pipe_scaling_load(other, state, bytes));
    ok(run_trace(pipe, other, &saved_too, config, more, seed + 3),
       "%s: %s: so does loading into another scaling", backend, config->name);

    must(fp8pipe_scaling_destroy(scaling));
    must(fp8pipe_scaling_destroy(other));
    reference_scaling_free(&reference);
    reference_scaling_free(&saved);
    reference_scaling_free(&saved_too);
    free(state);
}

static void cases(enum fp8pipe_backend backend)
{
    struct fp8pipe *pipe = test_open_poisoned(backend);

    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++)
        test_trace(pipe, test_backend_name(backend), &configs[i], 1000 * (i + 1));
    test_close(pipe);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
