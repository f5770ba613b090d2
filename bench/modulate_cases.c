#include "bench/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/modulate_variants.h"
#include "kernels/kernels.h"

/* Tokens of one sample, which share a row of gate, scale and shift. */
#define SAMPLE 1024

struct choice {
    bool backward;
    bool sums; /* backward: dgate, dscale, dshift; forward: column sums */
    enum fp8pipe_norm norm;
    int variant; /* 1 + that of modulate_variant(); 0: the library's kernels */
};

/* Of one set: all that either direction needs, in the order in which it is freed. */
enum { X, Y, GATE, SCALE, SHIFT, X_OUT, DX_OUT, DX, DY, DATA };

struct set {
    struct choice choice;
    int64_t rows;
    int64_t cols;
    int64_t groups;
    uint16_t *data[DATA];
    int32_t *rows_of;
    float *stats; /* mean, rstd, then row means */
    float *partials[3];
    float *words; /* scale, scale_inv, amax */
    uint8_t *row;
    uint8_t *transposed;
};

static void *set_make(const struct bench_case *self, int64_t rows, int64_t cols)
{
    const float words[4] = {60.0f};
    struct set *set = calloc(1, sizeof(*set));
    int32_t *rows_of = calloc((size_t)rows, sizeof(*rows_of));

    if (set == NULL || rows_of == NULL)
        bench_fail("out of memory");
    set->choice = *(const struct choice *)self->choice;
    set->rows = rows;
    set->cols = cols;
    set->groups = (rows + SAMPLE - 1) / SAMPLE;
    for (int i = 0; i < DATA; i++) {
        int64_t of = i == GATE || i == SCALE || i == SHIFT ? set->groups : rows;

        set->data[i] = bench_alloc((size_t)(of * cols) * 2);
        bench_fill_bf16(set->data[i], of * cols, 1.0f);
    }
    for (int64_t i = 0; i < rows; i++)
        rows_of[i] = (int32_t)(i / SAMPLE);
    set->rows_of = bench_alloc((size_t)rows * sizeof(*rows_of));
    bench_must(
        cudaMemcpy(set->rows_of, rows_of, (size_t)rows * sizeof(*rows_of), cudaMemcpyHostToDevice));
    free(rows_of);
    set->stats = bench_alloc((size_t)rows * 4 * sizeof(float));
    bench_fill_fp32(set->stats, 4 * rows, 1.0f);
    for (int i = 0; i < 3; i++)
        set->partials[i] =
            bench_alloc((size_t)((part_count(rows) + set->groups) * cols) * sizeof(float));
    set->words = bench_alloc(sizeof(words));
    bench_must(cudaMemcpy(set->words, words, sizeof(words), cudaMemcpyHostToDevice));
    set->row = bench_alloc((size_t)(rows * padded(cols)));
    set->transposed = bench_alloc((size_t)(cols * padded(rows)));
    return set;
}

static void set_free(void *memory)
{
    struct set *set = memory;

    for (int i = 0; i < DATA; i++)
        bench_must(cudaFree(set->data[i]));
    for (int i = 0; i < 3; i++)
        bench_must(cudaFree(set->partials[i]));
    bench_must(cudaFree(set->rows_of));
    bench_must(cudaFree(set->stats));
    bench_must(cudaFree(set->words));
    bench_must(cudaFree(set->row));
    bench_must(cudaFree(set->transposed));
    free(set);
}

static struct kernel_view view(const struct set *set, int which)
{
    return (struct kernel_view){set->data[which], set->cols, FP8PIPE_BF16};
}

static struct fp8pipe_quantize_target target(const struct set *set)
{
    return (struct fp8pipe_quantize_target){
        .rows = set->rows,
        .cols = set->cols,
        .format = set->choice.backward ? FP8PIPE_E5M2 : FP8PIPE_E4M3,
        .scale = &set->words[0],
        .scale_inv = &set->words[1],
        .amax = (uint32_t *)&set->words[2],
        .row = set->row,
        .row_stride = padded(set->cols),
        .transposed = set->transposed,
        .transposed_stride = padded(set->rows),
        .partials = set->choice.sums && !set->choice.backward ? set->partials[0] : NULL,
    };
}

static struct kernel_modulate_args forward_args(const struct set *set)
{
    return (struct kernel_modulate_args){
        .rows = set->rows,
        .cols = set->cols,
        .x = view(set, X),
        .y = view(set, Y),
        .gate = view(set, GATE),
        .x_out = view(set, X_OUT),
        .scale = view(set, SCALE),
        .shift = view(set, SHIFT),
        .rows_of = set->rows_of,
        .norm = set->choice.norm,
        .epsilon = 1e-6f,
        .mean = set->stats,
        .rstd = set->stats + set->rows,
        .target = target(set),
    };
}

static struct kernel_modulate_backward_args backward_args(const struct set *set)
{
    return (struct kernel_modulate_backward_args){
        .rows = set->rows,
        .cols = set->cols,
        .dz = view(set, X),
        .dx_out = view(set, DX_OUT),
        .x_out = view(set, X_OUT),
        .y = view(set, Y),
        .gate = view(set, GATE),
        .scale = view(set, SCALE),
        .rows_of = set->rows_of,
        .norm = set->choice.norm,
        .mean = set->stats,
        .rstd = set->stats + set->rows,
        .dx = view(set, DX),
        .gate_partials = set->choice.sums ? set->partials[0] : NULL,
        .scale_partials = set->choice.sums ? set->partials[1] : NULL,
        .shift_partials = set->choice.sums ? set->partials[2] : NULL,
        .row_means = set->stats + 2 * set->rows,
        .target = target(set),
    };
}

static int set_run(void *memory, cudaStream_t stream)
{
    const struct set *set = memory;

    if (set->choice.backward) {
        struct kernel_modulate_backward_args args = backward_args(set);

        return kernel_modulate_backward_cuda(&args, stream);
    }
    struct kernel_modulate_args args = forward_args(set);

    if (set->choice.variant > 0)
        return modulate_variant(set->choice.variant - 1, &args, stream);
    return kernel_modulate_cuda(&args, stream);
}

/* Forward: x, y, x' and two copies; backward: dz, dx_out, x', y if it is summed, dx, two copies. */
static int64_t set_bytes(const void *memory)
{
    const struct set *set = memory;
    int64_t count = set->rows * set->cols;
    int64_t matrices = !set->choice.backward ? 3 : set->choice.sums ? 5 : 4;

    return count * (2 * matrices + 2);
}

/* The codes and the main matrix, byte for byte. */
static bool set_check(void *memory)
{
    const struct set *set = memory;
    struct set host = *set;
    size_t count = (size_t)(set->rows * set->cols);
    size_t row_bytes = (size_t)(set->rows * padded(set->cols));
    size_t transposed_bytes = (size_t)(set->cols * padded(set->rows));
    int written = set->choice.backward ? DX : X_OUT;
    float words[4] = {60.0f};
    void *got[3] = {bench_download(set->data[written], count * 2),
                    bench_download(set->row, row_bytes),
                    bench_download(set->transposed, transposed_bytes)};
    bool same;

    for (int i = 0; i < DATA; i++) {
        bool grouped = i == GATE || i == SCALE || i == SHIFT;

        host.data[i] = bench_download(
            set->data[i], (size_t)((grouped ? set->groups : set->rows) * set->cols) * 2);
    }
    host.rows_of = bench_download(set->rows_of, (size_t)set->rows * sizeof(int32_t));
    host.stats = bench_download(set->stats, (size_t)set->rows * 4 * sizeof(float));
    for (int i = 0; i < 3; i++)
        host.partials[i] =
            calloc((size_t)((part_count(set->rows) + set->groups) * set->cols), sizeof(float));
    host.words = words;
    host.row = calloc(row_bytes, 1);
    host.transposed = calloc(transposed_bytes, 1);
    if (set->choice.backward) {
        struct kernel_modulate_backward_args args = backward_args(&host);

        kernel_modulate_backward_host(&args);
    } else {
        struct kernel_modulate_args args = forward_args(&host);

        kernel_modulate_host(&args);
    }
    same = memcmp(got[0], host.data[written], count * 2) == 0 &&
           memcmp(got[1], host.row, row_bytes) == 0 &&
           memcmp(got[2], host.transposed, transposed_bytes) == 0;
    for (int i = 0; i < 3; i++) {
        free(got[i]);
        free(host.partials[i]);
    }
    for (int i = 0; i < DATA; i++)
        free(host.data[i]);
    free(host.rows_of);
    free(host.stats);
    free(host.row);
    free(host.transposed);
    return same;
}

#define CASE(name, backward, sums, norm)                                                           \
    {                                                                                              \
        name, set_make, set_free, set_run, set_bytes, set_check, &(const struct choice)            \
        {                                                                                          \
            backward, sums, FP8PIPE_NORM_##norm, 0                                                 \
        }                                                                                          \
    }

const struct bench_case modulate_cases[] = {
    CASE("gate, LAYER, modulate, e4m3 amax transposed", false, false, LAYER),
    CASE("gate, RMS, modulate, e4m3 amax transposed", false, false, RMS),
    CASE("gate, LAYER, modulate, e4m3 amax transposed sums", false, true, LAYER),
    CASE("gate, modulate, e4m3 amax transposed", false, false, NONE),
    CASE("modulate backward, LAYER, e5m2 amax transposed", true, false, LAYER),
    CASE("modulate backward, LAYER, e5m2 amax transposed sums", true, true, LAYER),
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};

const struct bench_case *modulate_variant_cases(void)
{
    static struct choice choices[MODULATE_VARIANTS];
    static char names[MODULATE_VARIANTS][96];
    static struct bench_case cases[MODULATE_VARIANTS + 1];

    for (int i = 0; i < MODULATE_VARIANTS; i++) {
        choices[i] = (struct choice){false, false, FP8PIPE_NORM_LAYER, i + 1};
        snprintf(names[i], sizeof(names[i]), "variant modulate: %s", modulate_variant_name(i));
        cases[i] = (struct bench_case){names[i],  set_make,  set_free,   set_run,
                                       set_bytes, set_check, &choices[i]};
    }
    return cases;
}
