#include "bench/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/activation_variants.h"
#include "kernels/kernels.h"

struct choice {
    enum fp8pipe_activation activation;
    bool backward;
    bool transposed;
    bool sums;
    bool result; /* in bf16 too */
    int variant; /* 0: the library's kernel, n: variant n - 1 */
};

struct set {
    struct kernel_activation_args args; /* device */
    int variant;
    float *words; /* scale, scale_inv, amax */
};

#define WORDS 4

static struct fp8pipe_matrix make_matrix(int64_t rows, int64_t cols, float deviation)
{
    struct fp8pipe_matrix matrix = {NULL, rows, cols, cols, FP8PIPE_BF16, 0};

    matrix.data = bench_alloc((size_t)(rows * cols) * 2);
    bench_fill_bf16(matrix.data, rows * cols, deviation);
    return matrix;
}

/* rows x cols of x; cols is a multiple of 32 in every shape of the benchmark. */
static void *set_make(const struct bench_case *self, int64_t rows, int64_t cols)
{
    const struct choice *choice = self->choice;
    const float words[WORDS] = {100.0f};
    struct set *set = calloc(1, sizeof(*set));
    struct fp8pipe_quantize_target *target;
    int64_t inner = choice->activation == FP8PIPE_ACTIVATION_SWIGLU ? cols / 2 : cols;

    if (set == NULL)
        bench_fail("out of memory");
    set->words = bench_alloc(sizeof(words));
    bench_must(cudaMemcpy(set->words, words, sizeof(words), cudaMemcpyHostToDevice));
    set->variant = choice->variant;
    set->args.activation = choice->activation;
    set->args.backward = choice->backward;
    set->args.x = make_matrix(rows, cols, 1.5f);
    if (choice->backward)
        set->args.dy = make_matrix(rows, inner, 1.0f);
    target = &set->args.target;
    target->rows = rows;
    target->cols = choice->backward ? cols : inner;
    target->format = choice->backward ? FP8PIPE_E5M2 : FP8PIPE_E4M3;
    target->scale = &set->words[0];
    target->scale_inv = &set->words[1];
    target->amax = (uint32_t *)&set->words[2];
    target->row_stride = (target->cols + 15) / 16 * 16;
    target->row = bench_alloc((size_t)(rows * target->row_stride));
    if (choice->transposed) {
        target->transposed_stride = (rows + 15) / 16 * 16;
        target->transposed = bench_alloc((size_t)(target->cols * target->transposed_stride));
    }
    if (choice->sums)
        target->partials = bench_alloc((size_t)(part_count(rows) * target->cols) * sizeof(float));
    if (choice->result)
        set->args.result = make_matrix(rows, target->cols, 1.0f);
    return set;
}

static void set_free(void *memory)
{
    struct set *set = memory;

    bench_must(cudaFree(set->args.x.data));
    bench_must(cudaFree(set->args.dy.data));
    bench_must(cudaFree(set->args.result.data));
    bench_must(cudaFree(set->args.target.row));
    bench_must(cudaFree(set->args.target.transposed));
    bench_must(cudaFree(set->args.target.partials));
    bench_must(cudaFree(set->words));
    free(set);
}

static int set_run(void *memory, cudaStream_t stream)
{
    const struct set *set = memory;

    return set->variant == 0 ? kernel_activation_cuda(&set->args, stream)
                             : activation_variant(set->variant - 1, &set->args, stream);
}

static int64_t set_bytes(const void *memory)
{
    const struct set *set = memory;
    const struct fp8pipe_quantize_target *target = &set->args.target;
    int64_t count = target->rows * target->cols;
    int64_t bytes =
        2 * (set->args.x.rows * set->args.x.cols + set->args.dy.rows * set->args.dy.cols);

    bytes += count;
    bytes += target->transposed != NULL ? count : 0;
    bytes += target->partials != NULL ? part_count(target->rows) * target->cols * 4 : 0;
    return bytes + (set->args.result.data != NULL ? 2 * count : 0);
}

static size_t matrix_bytes(const struct fp8pipe_matrix *matrix)
{
    return matrix->data != NULL ? (size_t)(matrix->rows * matrix->cols) * 2 : 0;
}

/* Numbers of `bytes` bytes each that differ in one of a hundred places at most: the twins' values
 * are not the same to the last bit, and are rounded to different sides. tests/activation_cuda-t
 * looks at each. */
static bool nearly_same(const void *a, const void *b, size_t size, size_t bytes)
{
    size_t differ = 0;

    for (size_t i = 0; i < size; i += bytes)
        differ += memcmp((const char *)a + i, (const char *)b + i, bytes) != 0;
    return differ <= size / bytes / 100;
}

static bool set_check(void *memory)
{
    const struct set *set = memory;
    struct kernel_activation_args args = set->args;
    struct fp8pipe_quantize_target *target = &args.target;
    size_t row_bytes = (size_t)(target->rows * target->row_stride);
    size_t transposed_bytes = (size_t)(target->cols * target->transposed_stride);
    size_t result_bytes = matrix_bytes(&args.result);
    float words[WORDS] = {100.0f};
    void *got_row = bench_download(target->row, row_bytes);
    void *got_transposed = bench_download(target->transposed, transposed_bytes);
    void *got_result = bench_download(args.result.data, result_bytes);
    float *got_words = bench_download(set->words, sizeof(words));
    bool same;

    args.x.data = bench_download(args.x.data, matrix_bytes(&args.x));
    args.dy.data = args.backward ? bench_download(args.dy.data, matrix_bytes(&args.dy)) : NULL;
    args.result.data = args.result.data != NULL ? calloc(result_bytes, 1) : NULL;
    target->row = calloc(row_bytes, 1);
    target->transposed = target->transposed != NULL ? calloc(transposed_bytes, 1) : NULL;
    target->partials = NULL; /* their order may differ; kernels' tests look at them */
    target->scale = &words[0];
    target->scale_inv = &words[1];
    target->amax = (uint32_t *)&words[2];
    kernel_activation_host(&args);
    same = got_words[1] == words[1] && fabsf(got_words[2] - words[2]) <= 1e-5f * words[2] &&
           nearly_same(got_row, target->row, row_bytes, 1) &&
           nearly_same(got_transposed, target->transposed, transposed_bytes, 1) &&
           nearly_same(got_result, args.result.data, result_bytes, 2);
    free(got_row);
    free(got_transposed);
    free(got_result);
    free(got_words);
    free(args.x.data);
    free(args.dy.data);
    free(args.result.data);
    free(target->row);
    free(target->transposed);
    return same;
}

/* ---- scale_update ------------------------------------------------------------------------- */

#define SLOTS 1000
#define HISTORY 1024

/* 1000 slots with a history of 1024, whatever the size asked for. */
static void *update_make(const struct bench_case *self, int64_t rows, int64_t cols)
{
    struct kernel_scale_update_args *args = calloc(1, sizeof(*args));
    size_t words = (4 + KERNEL_SCALE_STRIDE) * SLOTS + 3;
    float *state;

    (void)self;
    (void)rows;
    (void)cols;
    if (args == NULL)
        bench_fail("out of memory");
    state = bench_alloc(words * 4);
    bench_must(cudaMemset(state, 0, words * 4));
    args->slots = SLOTS;
    args->history = HISTORY;
    args->algorithm = FP8PIPE_AMAX_MAX;
    args->scale = state;
    state += KERNEL_SCALE_STRIDE * SLOTS;
    args->has_scale = (int32_t *)state;
    args->cursor = (uint32_t *)state + SLOTS;
    args->nonfinite = (int32_t *)state + 2 * SLOTS;
    args->amax = (uint32_t *)state + 3 * SLOTS;
    args->any_nonfinite = (int32_t *)state + 4 * SLOTS;
    args->scratch = (uint32_t *)state + 4 * SLOTS + 1;
    args->numerator = bench_alloc(SLOTS * 4);
    /* Magnitudes: bits of non-negative floats. */
    bench_must(cudaMemset((void *)(uintptr_t)args->numerator, 0x43, SLOTS * 4));
    bench_must(cudaMemset(args->amax, 0x3f, SLOTS * 4));
    args->window = bench_alloc((size_t)SLOTS * (HISTORY - 1) * 4);
    bench_must(cudaMemset(args->window, 0x3e, (size_t)SLOTS * (HISTORY - 1) * 4));
    return args;
}

static void update_free(void *memory)
{
    struct kernel_scale_update_args *args = memory;

    bench_must(cudaFree(args->scale));
    bench_must(cudaFree((void *)(uintptr_t)args->numerator));
    bench_must(cudaFree(args->window));
    free(args);
}

static int update_run(void *memory, cudaStream_t stream)
{
    const struct kernel_scale_update_args *args = memory;
    cudaError_t error = cudaMemsetAsync(args->amax, 0x3f, SLOTS * 4, stream);

    /* Each update finds something to do; the time has the memset in it. */
    return error != cudaSuccess ? (int)error : kernel_scale_update_cuda(args, stream);
}

static int64_t update_bytes(const void *memory)
{
    (void)memory;
    return (int64_t)SLOTS * (HISTORY - 1) * 4;
}

/* Every slot has got the scale that its amax, larger than the window's entries, gives. */
static bool update_check(void *memory)
{
    const struct kernel_scale_update_args *args = memory;
    float *scale = bench_download(args->scale, KERNEL_SCALE_STRIDE * SLOTS * 4);
    int32_t *has_scale = bench_download(args->has_scale, SLOTS * 4);
    uint32_t amax = 0x3f3f3f3fu, numerator = 0x43434343u;
    float want, divisor;
    bool same = true;

    memcpy(&want, &numerator, 4);
    memcpy(&divisor, &amax, 4);
    want /= divisor;
    for (int i = 0; i < SLOTS; i++)
        same = same && has_scale[i] == 1 && scale[i * KERNEL_SCALE_STRIDE] == want;
    free(scale);
    free(has_scale);
    return same;
}

#define CASE(name, activation, ...)                                                                \
    {                                                                                              \
        name, set_make, set_free, set_run, set_bytes, set_check, &(const struct choice)            \
        {                                                                                          \
            FP8PIPE_ACTIVATION_##activation, __VA_ARGS__, 0                                        \
        }                                                                                          \
    }

const struct bench_case activation_cases[] = {
    CASE("dgelu_tanh e5m2 transposed dbias", GELU_TANH, true, true, true, false),
    CASE("dgelu_tanh e5m2 transposed", GELU_TANH, true, true, false, false),
    CASE("dgelu_erf e5m2 transposed dbias", GELU_ERF, true, true, true, false),
    CASE("dsilu e5m2 transposed dbias", SILU, true, true, true, false),
    CASE("dswiglu e5m2 transposed dbias", SWIGLU, true, true, true, false),
    CASE("gelu_tanh e4m3", GELU_TANH, false, false, false, false),
    CASE("gelu_tanh e4m3 transposed", GELU_TANH, false, true, false, false),
    CASE("gelu_tanh e4m3 transposed result", GELU_TANH, false, true, false, true),
    CASE("swiglu e4m3 transposed", SWIGLU, false, true, false, false),
    {"memset, scale_update 1000 slots of 1024", update_make, update_free, update_run, update_bytes,
     update_check, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL, NULL},
};

const struct bench_case *activation_variant_cases(void)
{
    static const struct choice families[] = {
        [ACTIVATION_DGELU] = {FP8PIPE_ACTIVATION_GELU_TANH, true, true, true, false, 0},
        [ACTIVATION_DSWIGLU] = {FP8PIPE_ACTIVATION_SWIGLU, true, true, true, false, 0},
        [ACTIVATION_GELU] = {FP8PIPE_ACTIVATION_GELU_TANH, false, false, false, false, 0},
    };
    static struct choice choices[ACTIVATION_VARIANTS];
    static char names[ACTIVATION_VARIANTS][96];
    static struct bench_case cases[ACTIVATION_VARIANTS + 1];

    for (int i = 0; i < ACTIVATION_VARIANTS; i++) {
        choices[i] = families[activation_variant_family(i)];
        choices[i].variant = i + 1;
        snprintf(names[i], sizeof(names[i]), "variant %s", activation_variant_name(i));
        cases[i] = (struct bench_case){names[i],  set_make,  set_free,   set_run,
                                       set_bytes, set_check, &choices[i]};
    }
    return cases;
}
