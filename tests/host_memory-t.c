/*
 * Guards against a host that runs out of memory: wherever an allocation of the library's is
 * refused, the call says ENOMEM, or the op does, and nothing crashes, hangs or stays behind.
 *
 * Linked with --wrap for the functions below, so that the library's calls come here.
 */
#include <errno.h>
#include <stdlib.h>

#include "async.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **data, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **data, size_t alignment, size_t bytes);

static int before_refusal = -1; /* allocations of any thread before the refused one; < 0: none */

static bool refuses(void)
{
    return __atomic_load_n(&before_refusal, __ATOMIC_RELAXED) >= 0 &&
           __atomic_fetch_sub(&before_refusal, 1, __ATOMIC_RELAXED) == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return refuses() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refuses() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return refuses() ? NULL : __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **data, size_t alignment, size_t bytes)
{
    return refuses() ? ENOMEM : __real_posix_memalign(data, alignment, bytes);
}

static void refuse_after(int allocations)
{
    __atomic_store_n(&before_refusal, allocations, __ATOMIC_RELAXED);
}

/* Whether the refusal has not come yet; none comes any more. */
static bool refuse_no_more(void)
{
    return __atomic_exchange_n(&before_refusal, -1, __ATOMIC_RELAXED) >= 0;
}

static void openings(enum fp8pipe_mode mode)
{
    struct fp8pipe_options options = async_options(mode, 3, 32, NULL);
    int refused = 0, wrong = 0;

    watchdog("open without memory", 60);
    options.backend = FP8PIPE_BACKEND_HOST;
    for (bool over = false; !over;) {
        struct fp8pipe *pipe = NULL;
        enum fp8pipe_status status;

        refuse_after(refused);
        status = fp8pipe_open(&options, &pipe);
        over = refuse_no_more();
        wrong += status != (over ? FP8PIPE_OK : FP8PIPE_ENOMEM);
        if (status == FP8PIPE_OK)
            test_close(pipe);
        else
            wrong += pipe != NULL || fp8pipe_last_error()[0] == '\0';
        refused += !over;
    }
    is_int(wrong, 0, "%s: open says ENOMEM whichever of its allocations is refused",
           mode_name(mode));
    ok(refused > 10, "of which there are %d", refused);
}

/* Each step that could be taken is undone; counts answers that are neither OK nor ENOMEM. */
static int work(struct fp8pipe *pipe, struct test_matrix *x, struct test_matrix *y, int allocations,
                bool *over)
{
    struct fp8pipe_scaling_options scaling_options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear_options linear_options = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_quantize_op quantize = FP8PIPE_QUANTIZE_OP_INIT;
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe_scaling *scaling = NULL;
    struct fp8pipe_linear *linear = NULL;
    struct fp8pipe_tensor *tensors[2] = {NULL, NULL};
    struct answer answer = {0};
    enum fp8pipe_status status[8] = {FP8PIPE_OK};
    fp8pipe_ticket tickets[3] = {0};
    bool deferred;
    int wrong = 0;

    refuse_after(allocations);
    scaling_options.slots = 3;
    status[0] = fp8pipe_scaling_create(pipe, &scaling_options, &scaling);
    for (int i = 0; i < 2; i++)
        status[1 + i] = fp8pipe_tensor_create(pipe, &tensors[i]);
    linear_options.in_features = linear_options.out_features = 16;
    linear_options.weight = x->view;
    linear_options.scaling = scaling;
    status[3] = fp8pipe_linear_create(pipe, &linear_options, &linear);
    if (scaling && tensors[0]) {
        quantize.submit = test_submit(0, FP8PIPE_RESUME, 0, 0);
        quantize.x = x->view;
        quantize.scaling = scaling;
        status[4] = fp8pipe_tensor_quantize(tensors[0], &quantize, &tickets[0]);
    }
    if (linear && tensors[1]) {
        forward.submit = test_submit(1, FP8PIPE_RESUME, 0, 0);
        forward.x = x->view;
        forward.y = y->view;
        forward.saved = tensors[1];
        forward.keep = FP8PIPE_KEEP_ALL;
        status[5] = fp8pipe_linear_forward(linear, &forward, &tickets[1]);
    }
    status[6] =
        try_host_call(pipe, test_submit(1, FP8PIPE_RESUME, 0, 0), work_nothing, NULL, &tickets[2]);
    status[7] = fp8pipe_defer(pipe, tickets[2], FP8PIPE_DONE, answer_take, &answer, 0);
    deferred = status[7] == FP8PIPE_OK;
    test_drain(pipe);
    *over = refuse_no_more();
    for (int i = 0; i < 8; i++)
        wrong += status[i] != FP8PIPE_OK && status[i] != FP8PIPE_ENOMEM;
    for (int i = 0; i < 3; i++) {
        status[i] = fp8pipe_wait(pipe, tickets[i], FP8PIPE_DONE, 0);
        wrong += status[i] != FP8PIPE_OK && status[i] != FP8PIPE_ENOMEM;
    }
    wrong += deferred && !answer_await(&answer);
    for (int i = 0; i < 2; i++)
        must(fp8pipe_tensor_destroy(tensors[i]));
    must(fp8pipe_linear_destroy(linear));
    must(fp8pipe_scaling_destroy(scaling));
    return wrong;
}

static void works(enum fp8pipe_mode mode)
{
    int refused = 0, wrong = 0;
    bool over = false;

    watchdog("work without memory", 60);
    while (!over) {
        struct fp8pipe *pipe = async_open(FP8PIPE_BACKEND_HOST, mode, 2, 32, NULL);
        struct test_matrix x = test_matrix_make(pipe, FP8PIPE_FP32, 16, 16, 0, 0);
        struct test_matrix y = test_matrix_make(pipe, FP8PIPE_FP32, 16, 16, 0, 0);
        const double zeros[16 * 16] = {0};

        test_matrix_set(&x, zeros);
        wrong += work(pipe, &x, &y, refused, &over);
        refused += !over;
        wrong += work(pipe, &x, &y, 1 << 30, &(bool){false});
        test_matrix_free(&x);
        test_matrix_free(&y);
        test_close(pipe);
    }
    is_int(wrong, 0, "%s: creates, ops and defers say ENOMEM, and the pipe goes on",
           mode_name(mode));
    ok(refused > 10, "whichever of %d allocations is refused", refused);
}

int main(void)
{
    for (int mode = FP8PIPE_ASYNC; mode <= FP8PIPE_INLINE; mode++) {
        openings((enum fp8pipe_mode)mode);
        works((enum fp8pipe_mode)mode);
    }
    return done_testing();
}
