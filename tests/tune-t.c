/*
 * fp8pipe_tune's edge: each bad option is refused with a sentence that names it; the host backend
 * has nothing to tune, and looks at no tune file. What tuning does is tested in plans_cuda-t.
 */
#include <stdlib.h>
#include <string.h>

#include "fp8pipe_tune.h"
#include "util.h"

static const struct fp8pipe_tune_shape good = {
    .m = 64,
    .n = 64,
    .k = 64,
    .a = FP8PIPE_GEMM_E4M3,
    .b = FP8PIPE_GEMM_E4M3,
    .d = FP8PIPE_GEMM_BF16,
};

static struct fp8pipe *pipe_host;

/* That the second of two shapes is refused, and `names` is in the sentence. */
static void refused(struct fp8pipe_tune_shape bad, const char *names, const char *what)
{
    const struct fp8pipe_tune_shape shapes[] = {good, bad};
    struct fp8pipe_tune_options options = FP8PIPE_TUNE_OPTIONS_INIT;
    enum fp8pipe_status status;

    options.shapes = shapes;
    options.shape_count = 2;
    status = fp8pipe_tune(pipe_host, &options);
    ok(status == FP8PIPE_EINVAL && strstr(fp8pipe_last_error(), names) != NULL, "%s is refused: %s",
       what, fp8pipe_last_error());
}

#define REFUSED(change, names)                                                                     \
    do {                                                                                           \
        struct fp8pipe_tune_shape shape = good;                                                    \
        change;                                                                                    \
        refused(shape, names, #change);                                                            \
    } while (0)

static void test_shapes(void)
{
    REFUSED(shape.m = 0, "shapes[1].m = 0");
    REFUSED(shape.n = -1, "shapes[1].n = -1");
    REFUSED(shape.k = INT64_MAX, "shapes[1].k = 9223372036854775807");
    REFUSED(shape.m = INT64_C(1) << 40; shape.k = INT64_C(1) << 40, "overflows");
    REFUSED(shape.a = (enum fp8pipe_gemm_type)5, "shapes[1].a = 5");
    REFUSED(shape.b = FP8PIPE_GEMM_BF16, "shapes[1].b = 1");
    REFUSED(shape.a = FP8PIPE_GEMM_FP32; shape.b = FP8PIPE_GEMM_BF16, "shapes[1].b = 1");
    REFUSED(shape.a = FP8PIPE_GEMM_E5M2; shape.b = FP8PIPE_GEMM_E5M2, "shapes[1].b = 4");
    REFUSED(shape.d = (enum fp8pipe_gemm_type)(-1), "shapes[1].d = -1");
    REFUSED(shape.a = FP8PIPE_GEMM_BF16; shape.b = FP8PIPE_GEMM_BF16;
            shape.d = FP8PIPE_GEMM_E4M3, "shapes[1].d = 3");
    REFUSED(shape.bias = 2, "shapes[1].bias = 2");
    REFUSED(shape.residual = 3, "shapes[1].residual = 3");
    REFUSED(shape.d = FP8PIPE_GEMM_E4M3; shape.residual = 1, "shapes[1].residual = 1");
    REFUSED(shape.fast = -1, "shapes[1].fast = -1");
    REFUSED(shape.a_transposed = 1, "shapes[1].a_transposed = 1");
    REFUSED(shape.b_transposed = 1, "shapes[1].b_transposed = 1");
    REFUSED(shape.activation = FP8PIPE_ACTIVATION_SILU, "shapes[1].activation = 3");
}

static void test_options(void)
{
    struct fp8pipe_tune_options options = FP8PIPE_TUNE_OPTIONS_INIT;

    is_int(fp8pipe_tune(pipe_host, NULL), FP8PIPE_EINVAL, "no options are refused");
    is_int(fp8pipe_tune(NULL, &options), FP8PIPE_EINVAL, "so is no pipe");
    options.size = 8;
    is_int(fp8pipe_tune(pipe_host, &options), FP8PIPE_EINVAL, "a size that was not set");
    options.size = sizeof(options);
    options.candidates = 65;
    is_int(fp8pipe_tune(pipe_host, &options), FP8PIPE_EINVAL, "too many candidates: %s",
           fp8pipe_last_error());
    options.candidates = -1;
    is_int(fp8pipe_tune(pipe_host, &options), FP8PIPE_EINVAL, "or too few");
    options.candidates = 0;
    options.reserved = 1;
    is_int(fp8pipe_tune(pipe_host, &options), FP8PIPE_EINVAL, "a reserved field that is set");
    options.reserved = 0;
    options.shape_count = 1;
    is_int(fp8pipe_tune(pipe_host, &options), FP8PIPE_EINVAL, "shapes that are counted only");
    options.shape_count = 0;
    options.file = "";
    is_int(fp8pipe_tune(pipe_host, &options), FP8PIPE_EINVAL, "a file without a name");
    options.file = NULL;
    is_int(fp8pipe_tune(pipe_host, &options), FP8PIPE_ENOTSUP,
           "what is right is not for the host: %s", fp8pipe_last_error());
}

static enum fp8pipe_status tune_inside(struct fp8pipe_stream *stream, void *arg)
{
    struct fp8pipe_tune_options options = FP8PIPE_TUNE_OPTIONS_INIT;

    (void)stream;
    *(enum fp8pipe_status *)arg = fp8pipe_tune(pipe_host, &options);
    return FP8PIPE_OK;
}

static void test_inside(void)
{
    struct fp8pipe_call_op op = FP8PIPE_CALL_OP_INIT;
    enum fp8pipe_status status = FP8PIPE_OK;
    fp8pipe_ticket ticket;

    op.fn = tune_inside;
    op.arg = &status;
    must(fp8pipe_call(pipe_host, &op, &ticket));
    test_wait(pipe_host, ticket);
    is_int(status, FP8PIPE_EDEADLK, "inside a function of the library's it would wait for itself");
}

static int lines;

static void log_count(void *arg, enum fp8pipe_log_level level, const char *line)
{
    (void)arg;
    (void)line;
    lines += level <= FP8PIPE_LOG_WARN;
}

static void test_open_options(void)
{
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct fp8pipe_tune_options tune = FP8PIPE_TUNE_OPTIONS_INIT;
    struct fp8pipe *pipe = NULL;

    options.backend = FP8PIPE_BACKEND_HOST;
    options.plans = (enum fp8pipe_plans)2;
    is_int(fp8pipe_open(&options, &pipe), FP8PIPE_EINVAL, "plans = 2 is refused: %s",
           fp8pipe_last_error());
    options.plans = FP8PIPE_PLANS_FIXED;
    options.tune_file = "/no/such/file";
    options.log = log_count;
    setenv("FP8PIPE_TUNE", "1", 1);
    pipe = test_open(FP8PIPE_BACKEND_HOST, &options);
    test_close(pipe);
    is_int(lines, 0, "the host backend looks at no tune file");
    is_int(fp8pipe_tune(pipe, &tune), FP8PIPE_ECLOSED, "a closed pipe tunes nothing");
    unsetenv("FP8PIPE_TUNE");
}

int main(void)
{
    pipe_host = test_open(FP8PIPE_BACKEND_HOST, NULL);
    test_shapes();
    test_options();
    test_inside();
    test_close(pipe_host);
    test_open_options();
    return done_testing();
}
