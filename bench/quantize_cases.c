#include "bench/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/quantize_variants.h"
#include "kernels/kernels.h"

enum outputs { ROW = 1, TRANSPOSED = 2, AMAX = 4, SUMS = 8, EXTREMES = 16 };

/* Which kernel: the library's, or a variant of one of the two. */
enum kernel { LIBRARY, ROWS_VARIANT, TILES_VARIANT };

struct choice {
    unsigned outputs;
    enum fp8pipe_format format;
    enum fp8pipe_dtype dtype;
    enum kernel kernel;
    int variant;
};

struct set {
    struct choice choice;
    struct kernel_quantize_args args; /* device */
    float *words;                     /* scale, scale_inv, amax, padding, extremes */
};

#define WORDS 8

static int64_t element_bytes(enum fp8pipe_dtype dtype)
{
    return dtype == FP8PIPE_FP32 ? 4 : 2;
}

static void *set_make(const struct bench_case *self, int64_t rows, int64_t cols)
{
    const float words[WORDS] = {100.0f};
    struct set *set = calloc(1, sizeof(*set));
    struct kernel_quantize_args *args;

    if (set == NULL)
        bench_fail("out of memory");
    set->choice = *(const struct choice *)self->choice;
    if (set->choice.dtype == FP8PIPE_FP32)
        cols /= 2;
    args = &set->args;
    args->x = (struct fp8pipe_matrix){NULL, rows, cols, cols, set->choice.dtype, 0};
    args->x.data = bench_alloc((size_t)(rows * cols * element_bytes(set->choice.dtype)));
    if (set->choice.dtype == FP8PIPE_FP32)
        bench_fill_fp32(args->x.data, rows * cols, 1.0f);
    else
        bench_fill_bf16(args->x.data, rows * cols, 1.0f);
    set->words = bench_alloc(sizeof(words));
    bench_must(cudaMemcpy(set->words, words, sizeof(words), cudaMemcpyHostToDevice));
    args->format = set->choice.format;
    args->scale = &set->words[0];
    args->scale_inv = &set->words[1];
    if (set->choice.outputs & AMAX)
        args->amax = (uint32_t *)&set->words[2];
    if (set->choice.outputs & EXTREMES)
        args->extremes = (uint64_t *)&set->words[4];
    if (set->choice.outputs & ROW) {
        args->row_stride = padded(cols);
        args->row = bench_alloc((size_t)(rows * args->row_stride));
    }
    if (set->choice.outputs & TRANSPOSED) {
        args->transposed_stride = padded(rows);
        args->transposed = bench_alloc((size_t)(cols * args->transposed_stride));
    }
    if (set->choice.outputs & SUMS)
        args->partials = bench_alloc((size_t)(part_count(rows) * cols) * sizeof(float));
    return set;
}

static void set_free(void *memory)
{
    struct set *set = memory;

    bench_must(cudaFree(set->args.x.data));
    bench_must(cudaFree(set->args.row));
    bench_must(cudaFree(set->args.transposed));
    bench_must(cudaFree(set->args.partials));
    bench_must(cudaFree(set->words));
    free(set);
}

static int set_run(void *memory, cudaStream_t stream)
{
    const struct set *set = memory;

    switch (set->choice.kernel) {
    case LIBRARY:
        break;
    case ROWS_VARIANT:
        return quantize_rows_variant(set->choice.variant, &set->args, stream);
    case TILES_VARIANT:
        return quantize_tiles_variant(set->choice.variant, &set->args, stream);
    }
    return kernel_quantize_cuda(&set->args, stream);
}

static int64_t set_bytes(const void *memory)
{
    const struct set *set = memory;
    const struct kernel_quantize_args *args = &set->args;
    int64_t count = args->x.rows * args->x.cols;
    int64_t bytes = count * element_bytes(args->x.dtype);

    bytes += args->row != NULL ? count : 0;
    bytes += args->transposed != NULL ? count : 0;
    bytes += args->partials != NULL ? part_count(args->x.rows) * args->x.cols * 4 : 0;
    return bytes;
}

/* Bytes for bytes; partial sums within what 64 additions of normal values may lose. */
static bool set_check(void *memory)
{
    const struct set *set = memory;
    struct kernel_quantize_args args = set->args;
    size_t row_bytes = (size_t)(args.x.rows * args.row_stride);
    size_t transposed_bytes = (size_t)(args.x.cols * args.transposed_stride);
    size_t sums_bytes =
        args.partials != NULL ? (size_t)(part_count(args.x.rows) * args.x.cols) * sizeof(float) : 0;
    float words[WORDS] = {100.0f};
    void *got_row = bench_download(args.row, row_bytes);
    void *got_transposed = bench_download(args.transposed, transposed_bytes);
    float *got_sums = bench_download(args.partials, sums_bytes);
    float *got_words = bench_download(set->words, sizeof(words));
    bool same;

    args.x.data = bench_download(args.x.data,
                                 (size_t)(args.x.rows * args.x.cols * element_bytes(args.x.dtype)));
    args.row = args.row != NULL ? calloc(row_bytes, 1) : NULL;
    args.transposed = args.transposed != NULL ? calloc(transposed_bytes, 1) : NULL;
    args.partials = args.partials != NULL ? calloc(sums_bytes, 1) : NULL;
    args.scale = &words[0];
    args.scale_inv = &words[1];
    args.amax = args.amax != NULL ? (uint32_t *)&words[2] : NULL;
    args.extremes = args.extremes != NULL ? (uint64_t *)&words[4] : NULL;
    kernel_quantize_host(&args);
    same =
        memcmp(got_words, words, sizeof(words)) == 0 &&
        (args.row == NULL || memcmp(got_row, args.row, row_bytes) == 0) &&
        (args.transposed == NULL || memcmp(got_transposed, args.transposed, transposed_bytes) == 0);
    for (size_t i = 0; i < sums_bytes / sizeof(float); i++) {
        float difference = got_sums[i] - args.partials[i];

        same = same && difference < 1e-3f && difference > -1e-3f;
    }
    free(got_row);
    free(got_transposed);
    free(got_sums);
    free(got_words);
    free(args.x.data);
    free(args.row);
    free(args.transposed);
    free(args.partials);
    return same;
}

#define CASE(name, outputs, format, dtype)                                                         \
    {                                                                                              \
        name, set_make, set_free, set_run, set_bytes, set_check, &(const struct choice)            \
        {                                                                                          \
            outputs, FP8PIPE_##format, FP8PIPE_##dtype, LIBRARY, 0                                 \
        }                                                                                          \
    }

const struct bench_case quantize_cases[] = {
    CASE("quantize e4m3 amax", ROW | AMAX, E4M3, BF16),
    CASE("quantize e5m2 amax", ROW | AMAX, E5M2, BF16),
    CASE("quantize e4m3", ROW, E4M3, BF16),
    CASE("quantize e4m3 amax extremes", ROW | AMAX | EXTREMES, E4M3, BF16),
    CASE("quantize fp32 e4m3 amax", ROW | AMAX, E4M3, FP32),
    CASE("quantize e4m3 amax transposed", ROW | AMAX | TRANSPOSED, E4M3, BF16),
    CASE("quantize e5m2 amax transposed", ROW | AMAX | TRANSPOSED, E5M2, BF16),
    CASE("quantize e5m2 amax transposed sums", ROW | AMAX | TRANSPOSED | SUMS, E5M2, BF16),
    CASE("quantize e4m3 amax sums", ROW | AMAX | SUMS, E4M3, BF16),
    CASE("quantize e4m3 amax transposed extremes", ROW | AMAX | TRANSPOSED | EXTREMES, E4M3, BF16),
    CASE("quantize e4m3 amax transposed alone", AMAX | TRANSPOSED, E4M3, BF16),
    CASE("quantize fp32 e4m3 amax transposed", ROW | AMAX | TRANSPOSED, E4M3, FP32),
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};

const struct bench_case *quantize_variant_cases(void)
{
    enum { COUNT = QUANTIZE_ROW_VARIANTS + QUANTIZE_TILE_VARIANTS };
    static struct choice choices[COUNT];
    static char names[COUNT][96];
    static struct bench_case cases[COUNT + 1];

    for (int i = 0; i < COUNT; i++) {
        bool rows = i < QUANTIZE_ROW_VARIANTS;
        int variant = rows ? i : i - QUANTIZE_ROW_VARIANTS;

        choices[i] = (struct choice){rows ? ROW | AMAX : ROW | AMAX | TRANSPOSED, FP8PIPE_E4M3,
                                     FP8PIPE_BF16, rows ? ROWS_VARIANT : TILES_VARIANT, variant};
        snprintf(names[i], sizeof(names[i]), "variant %s: %s", rows ? "rows" : "tiles",
                 rows ? quantize_rows_variant_name(variant) : quantize_tiles_variant_name(variant));
        cases[i] = (struct bench_case){names[i],  set_make,  set_free,   set_run,
                                       set_bytes, set_check, &choices[i]};
    }
    return cases;
}
