/*
 * Tuned GEMM plans on CUDA, by the backend's table and by the public API: a file gives them to the
 * next pipe, and is only believed where its algorithms fit.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/plan.h"
#include "ec.h"
#include "plan_rig.h"
#include "tune_file.h"

static char folder[] = "/tmp/fp8pipe-plans-XXXXXX";
static char file[64];

static const struct fp8pipe_tune_shape shapes[] = {
    {.m = 1024,
     .n = 1024,
     .k = 1024,
     .a = FP8PIPE_GEMM_E4M3,
     .b = FP8PIPE_GEMM_E4M3,
     .d = FP8PIPE_GEMM_BF16,
     .fast = 1},
    {.m = 240,
     .n = 1024,
     .k = 4096,
     .a = FP8PIPE_GEMM_E4M3,
     .b = FP8PIPE_GEMM_E4M3,
     .d = FP8PIPE_GEMM_E4M3,
     .bias = 1,
     .fast = 1},
    {.m = 2048,
     .n = 1024,
     .k = 1920,
     .a = FP8PIPE_GEMM_E5M2,
     .b = FP8PIPE_GEMM_E4M3,
     .d = FP8PIPE_GEMM_FP32,
     .residual = 2},
    {.m = 512,
     .n = 512,
     .k = 512,
     .a = FP8PIPE_GEMM_BF16,
     .b = FP8PIPE_GEMM_BF16,
     .d = FP8PIPE_GEMM_BF16,
     .residual = 1,
     .b_transposed = 1},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static const struct gemm_case tuned_case = {
    .m = 1024, .n = 1024, .k = 1024, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = GEMM_BF16, .fast = true};

/* The plan that a GEMM of the first shape gets. */
static struct plan tuned_plan(struct rig *rig)
{
    struct test_rng rng = {3};
    struct gemm_run run = run_make(rig, &tuned_case, &rng);
    struct plan *plan, copy;

    must(plan_get(cuda_backend_of(rig->backend), cuda_stream_of(rig->stream), &run.args, &plan));
    copy = *plan;
    run_free(rig, &run);
    return copy;
}

static void test_tuning(void)
{
    struct backend_tune tune = {.shapes = shapes,
                                .shape_count = SHAPES,
                                .file = file,
                                .candidates = 16,
                                .deadline_ns = EC_FOREVER};
    struct test_rng rng = {5};
    struct plan tuned, loaded;
    int64_t start;
    struct rig rig;
    bool refused;
    FILE *text;

    rig_open(&rig, FP8PIPE_PLANS_REFINED, NULL);
    start = test_now_ns();
    is_int(backend_cuda_ops.tune(rig.backend, &tune), FP8PIPE_OK, "%d shapes are timed: %s",
           (int)SHAPES, status_sentence());
    note("%.1f ms a shape", (double)(test_now_ns() - start) * 1e-6 / SHAPES);
    is_int(rig_stats(&rig).cached, SHAPES, "each has a plan");
    tuned = tuned_plan(&rig);
    ok(tuned.tuned && rig_stats(&rig).cached == SHAPES, "which an op of that shape gets");
    ok(case_holds(&rig, &tuned_case, &rng, &refused) && !refused, "and is right");
    rig_close(&rig);

    rig_open(&rig, FP8PIPE_PLANS_REFINED, file);
    is_int(rig.warnings, 0, "the file is loaded without a warning");
    loaded = tuned_plan(&rig);
    ok(loaded.tuned && memcmp(&loaded.algo, &tuned.algo, sizeof(loaded.algo)) == 0,
       "the next pipe has the same algorithm");
    ok(case_holds(&rig, &tuned_case, &rng, &refused) && !refused, "which is right there too");
    /* Whatever ran: the plans of the cache. */
    tune.shapes = NULL;
    tune.shape_count = 0;
    tune.untuned = true;
    is_int(backend_cuda_ops.tune(rig.backend, &tune), FP8PIPE_OK, "what is tuned is left alone");
    rig_close(&rig);

    text = fopen(file, "r+");
    if (text == NULL || fseek(text, 100, SEEK_SET) != 0 || fputc('x', text) == EOF ||
        fclose(text) != 0)
        bail("%s: %s", file, strerror(errno));
    rig_open(&rig, FP8PIPE_PLANS_FIXED, file);
    is_int(rig.warnings, 1, "a damaged file is ignored with one warning: %s", rig.warning);
    ok(!tuned_plan(&rig).tuned, "and nothing of it is taken");
    unlink(file);
    rig_close(&rig);
    rig_open(&rig, FP8PIPE_PLANS_FIXED, file);
    is_int(rig.warnings, 1, "so is one that is missing: %s", rig.warning);
    rig_close(&rig);
}

/* Reads the file's one section, whatever its card. */
static struct tune_table file_table(struct tune_card *card)
{
    struct tune_table table = {NULL, 0, 0};
    unsigned long long library;
    FILE *text = fopen(file, "r");

    memset(card, 0, sizeof(*card));
    if (text == NULL || fscanf(text, "fp8pipe tune file 1\ncard %llu %u %u %95[^\n]", &library,
                               &card->capability, &card->multiprocessors, card->name) != 4)
        bail("%s: no card", file);
    fclose(text);
    card->library = library;
    must(tune_file_read(file, card, &table));
    return table;
}

/* In a right file an algorithm of another GEMM, or none: it is checked, and then replaced. */
static void test_wrong_algorithms(void)
{
    const struct fp8pipe_tune_shape two[] = {shapes[0], shapes[SHAPES - 1]};
    struct backend_tune tune = {
        .shapes = two,
        .shape_count = 2,
        .file = file,
        .candidates = 4,
        .deadline_ns = EC_FOREVER,
    };
    struct test_rng rng = {8};
    struct tune_entry first, second;
    struct tune_table table;
    struct tune_card card;
    int wrong = 0;
    bool refused, damaged;
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    must(backend_cuda_ops.tune(rig.backend, &tune));
    rig_close(&rig);
    table = file_table(&card);
    if (table.count != 2)
        bail("%s: %zu plans", file, table.count);
    first = table.entries[0];
    second = table.entries[1];
    for (int i = 0; i < 2; i++) {
        memcpy(table.entries[0].algo, second.algo, sizeof(first.algo));
        memcpy(table.entries[1].algo, first.algo, sizeof(first.algo));
        if (i == 1) {
            memset(table.entries[0].algo, 0, sizeof(first.algo));
            memset(table.entries[1].algo, 0, sizeof(first.algo));
        }
        must(tune_file_write(file, &card, &table, &damaged));
        rig_open(&rig, FP8PIPE_PLANS_FIXED, file);
        wrong += !case_holds(&rig, &tuned_case, &rng, &refused) || refused;
        ok(!tuned_plan(&rig).tuned, "an algorithm %s is not taken",
           i == 0 ? "of another GEMM" : "of zeros");
        rig_close(&rig);
    }
    is_int(wrong, 0, "the heuristic's is, and is right");
    tune_table_free(&table);
    unlink(file);
}

/* By the public API: FP8PIPE_TUNE tunes what ran when the pipe is closed. */
static void test_tune_at_close(void)
{
    struct fp8pipe_gemm_op op = FP8PIPE_GEMM_OP_INIT;
    struct fp8pipe_options options = FP8PIPE_OPTIONS_INIT;
    struct test_rng rng = {6};
    struct fp8pipe_tune_options wanted = FP8PIPE_TUNE_OPTIONS_INIT;
    struct test_matrix a, b, d;
    struct fp8pipe *pipe;
    fp8pipe_ticket ticket;

    setenv("FP8PIPE_TUNE", "1", 1);
    setenv("FP8PIPE_TUNE_FILE", file, 1);
    options.log_level = FP8PIPE_LOG_NONE;
    pipe = test_open(FP8PIPE_BACKEND_CUDA, &options);
    a = test_matrix_random(pipe, FP8PIPE_BF16, 128, 256, 0, 0, 1, &rng, NULL);
    b = test_matrix_random(pipe, FP8PIPE_BF16, 512, 256, 0, 0, 1, &rng, NULL);
    d = test_matrix_make(pipe, FP8PIPE_BF16, 128, 512, 0, 0);
    op.a = a.view;
    op.b = b.view;
    op.d = d.view;
    must(fp8pipe_gemm(pipe, &op, &ticket));
    test_wait(pipe, ticket);
    test_matrix_free(&a);
    test_matrix_free(&b);
    test_matrix_free(&d);
    ok(access(file, F_OK) != 0, "nothing is written while a pipe runs");
    must(fp8pipe_close(pipe, 0, TEST_TIMEOUT_NS));
    is_int(access(file, F_OK), 0, "with FP8PIPE_TUNE, its close writes the tune file");
    unsetenv("FP8PIPE_TUNE");
    pipe = test_open(FP8PIPE_BACKEND_CUDA, &options);
    wanted.shapes = shapes;
    wanted.shape_count = 1;
    is_int(fp8pipe_tune(pipe, &wanted), FP8PIPE_OK, "fp8pipe_tune without a file: %s",
           fp8pipe_last_error());
    wanted.file = "/no/such/folder/plans";
    is_int(fp8pipe_tune(pipe, &wanted), FP8PIPE_EINVAL, "and with one that cannot be written: %s",
           fp8pipe_last_error());
    test_close(pipe);
    unsetenv("FP8PIPE_TUNE_FILE");
    unlink(file);
}

int main(void)
{
    char command[128];

    if (!rig_is_wanted())
        return done_testing();
    if (mkdtemp(folder) == NULL)
        bail("mkdtemp: %s", strerror(errno));
    snprintf(file, sizeof(file), "%s/plans", folder);
    unsetenv("FP8PIPE_TUNE");
    unsetenv("FP8PIPE_TUNE_FILE");
    test_tuning();
    test_wrong_algorithms();
    test_tune_at_close();
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        diag("%s: not removed", folder);
    return done_testing();
}
