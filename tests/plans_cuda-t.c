/*
 * GEMM plans on CUDA, by the backend's table: every epilogue against float64, or refused with no
 * effect; plans that are borrowed and refined; fixed ones that give the same bits; what a recorded
 * call leaves out.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/plan.h"
#include "cuda/replay_table.h"
#include "plan_rig.h"

/* ---- Epilogues ----------------------------------------------------------------------------- */

/* Without an epilogue all goes through, and residuals and FP8 results of FP8 operands do on
 * Hopper. */
static bool is_required(const struct gemm_case *c)
{
    const bool fp8 = gemm_type_is_fp8((int)c->a), to_fp8 = gemm_type_is_fp8((int)c->d);

    if (c->gelu)
        return fp8 && c->d == GEMM_BF16 && c->a == c->b && c->added == ADDED_NOTHING;
    if (to_fp8)
        return fp8 && c->added == ADDED_NOTHING && (c->d == GEMM_E4M3 || c->a != c->b);
    if (c->added == ADDED_RESIDUAL)
        return fp8 ? c->d != GEMM_FP16 : c->a == c->d;
    return true;
}

static void test_types(struct rig *rig, enum gemm_type a, enum gemm_type b)
{
    static const int64_t shapes[][3] = {{48, 64, 96}, {80, 144, 528}, {264, 96, 272}};
    struct test_rng rng = {(uint64_t)a * 8 + (uint64_t)b + 1};
    int wrong = 0, missing = 0, ran = 0, refusals = 0;

    for (int i = 0; i < 5 * 3 * 4 * 3 * 2; i++) {
        const int64_t *shape = shapes[i / 4 / 3 / 5 % 3];
        struct gemm_case c = {
            .m = shape[0],
            .n = shape[1],
            .k = shape[2],
            .a = a,
            .b = b,
            .d = (enum gemm_type)(i / 4 / 3 % 5),
            .added = (enum added)(i / 4 % 3),
            .bias = i & 1,
            .gelu = i >> 1 & 1,
            .fast = i >= 5 * 3 * 4 * 3,
            .padded = i % 7 > 3,
        };
        bool refused;

        wrong += !case_holds(rig, &c, &rng, &refused);
        refusals += refused;
        ran += !refused;
        if (refused && is_required(&c)) {
            diag("%s: refused: %s", case_name(&c), status_sentence());
            missing++;
        }
    }
    is_int(wrong, 0, "%s . %s: %d GEMMs with epilogues are right, %d are refused with no effect",
           gemm_type_names[a], gemm_type_names[b], ran, refusals);
    is_int(missing, 0, "%s . %s: none that is needed is refused", gemm_type_names[a],
           gemm_type_names[b]);
}

/* What an FP8 D makes of values that are not finite, told to whoever reads. */
static void note_nonfinite(struct rig *rig)
{
    const struct gemm_case c = {
        .m = 64, .n = 64, .k = 64, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = GEMM_E4M3, .bias = true};
    static const uint16_t specials[] = {0x7F80, 0x7FC0};
    struct test_rng rng = {77};
    struct gemm_run run = run_make(rig, &c, &rng);

    for (int i = 0; i < 2; i++) {
        uint8_t *d;
        float words[WORDS];

        must(backend_cuda_ops.memory_copy(rig->backend, run.bias.device, &specials[i], 2));
        must(backend_cuda_ops.gemm(rig->backend, rig->stream, &run.args));
        rig_finish(rig);
        must(backend_cuda_ops.memory_copy(rig->backend, words, run.words, sizeof(words)));
        d = operand_download(rig, &run.d);
        note("a bias of %s: byte %02x, amax %g", i == 0 ? "inf" : "NaN", d[0],
             (double)words[WORD_AMAX]);
        free(d);
    }
    run_free(rig, &run);
}

static void test_epilogues(void)
{
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    ok(cuda_stream_of(rig.stream)->workspace == NULL, "a stream without GEMMs has no workspace");
    test_types(&rig, GEMM_E4M3, GEMM_E4M3);
    test_types(&rig, GEMM_E4M3, GEMM_E5M2);
    test_types(&rig, GEMM_E5M2, GEMM_E4M3);
    test_types(&rig, GEMM_BF16, GEMM_BF16);
    test_types(&rig, GEMM_FP16, GEMM_FP16);
    test_types(&rig, GEMM_FP32, GEMM_FP32);
    note_nonfinite(&rig);
    rig_close(&rig);
}

/* ---- Borrowing and fixed plans ------------------------------------------------------------- */

static int64_t await_refined(struct rig *rig)
{
    const int64_t start = test_now_ns();

    while (rig_stats(rig).refined < rig_stats(rig).borrowed &&
           test_now_ns() - start < INT64_C(5000000000))
        usleep(200);
    return test_now_ns() - start;
}

static void test_borrowing(void)
{
    struct gemm_case c = {.m = 1024,
                          .n = 256,
                          .k = 512,
                          .a = GEMM_E4M3,
                          .b = GEMM_E4M3,
                          .d = GEMM_BF16,
                          .fast = true};
    struct backend_plan_stats stats;
    struct test_rng rng = {12};
    int wrong = 0, again = 0;
    bool refused;
    int64_t took;
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_REFINED, NULL);
    wrong += !case_holds(&rig, &c, &rng, &refused);
    is_int(rig_stats(&rig).borrowed, 0, "the first shape asks the heuristic");
    for (int i = 0; i < 40; i++) {
        c.m = 16 + 61 * i;
        wrong += !case_holds(&rig, &c, &rng, &refused);
    }
    stats = rig_stats(&rig);
    ok(stats.borrowed >= 35, "shapes of other tokens borrow: %d of 40", (int)stats.borrowed);
    took = await_refined(&rig);
    stats = rig_stats(&rig);
    ok(stats.refined == stats.borrowed && took < INT64_C(100000000),
       "all are refined within 100 ms of the last: %.1f ms", (double)took * 1e-6);
    /* wgrads: the tokens are k. */
    c = (struct gemm_case){.m = 128,
                           .n = 256,
                           .k = 1024,
                           .a = GEMM_E5M2,
                           .b = GEMM_E4M3,
                           .d = GEMM_FP32,
                           .added = ADDED_D};
    wrong += !case_holds(&rig, &c, &rng, &refused);
    for (int i = 0; i < 20; i++) {
        c.k = 16 + 112 * i;
        wrong += !case_holds(&rig, &c, &rng, &refused);
    }
    ok(rig_stats(&rig).borrowed >= stats.borrowed + 15, "so do wgrads: %d of 20",
       (int)(rig_stats(&rig).borrowed - stats.borrowed));
    is_int(wrong, 0, "results by borrowed algorithms are right");
    await_refined(&rig);
    for (int i = 0; i < 20; i++) {
        c.k = 16 + 112 * i;
        again += !case_holds(&rig, &c, &rng, &refused);
    }
    is_int(again, 0, "and so are those by refined ones");
    rig_close(&rig);
}

/* Kernels that the process has not loaded are, by plan_load, and not by who runs the plan. */
static void test_loading_of(enum gemm_type d)
{
    const struct gemm_case c = {
        .m = 1000, .n = 1040, .k = 2048, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = d};
    enum { MOST = 24 };
    bool loads = true;
    int64_t longest_load = 0, longest_run = 0;
    struct test_rng rng = {9};
    struct plan plans[MOST];
    struct gemm_run run;
    struct plan_key key;
    struct rig rig;
    int found;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    run = run_make(&rig, &c, &rng);
    plan_key_make(&key, &run.args);
    must(plan_candidates(cuda_backend_of(rig.backend), &key, MOST, plans, &found));
    /* What makes the stream's workspace, and loads what all plans need. */
    must(plan_run(cuda_backend_of(rig.backend), cuda_stream_of(rig.stream), &plans[0], &run.args));
    for (int i = 1; i < found; i++) {
        int64_t start = test_now_ns(), loaded, ran;

        loads &= plan_load(cuda_backend_of(rig.backend), &key, &plans[i]);
        loaded = test_now_ns();
        must(plan_run(cuda_backend_of(rig.backend), cuda_stream_of(rig.stream), &plans[i],
                      &run.args));
        ran = test_now_ns();
        longest_load = loaded - start > longest_load ? loaded - start : longest_load;
        longest_run = ran - loaded > longest_run ? ran - loaded : longest_run;
    }
    ok(longest_run < longest_load / 2,
       "of %d plans to %s loading takes %.2f ms at most, running what is loaded %.3f", found,
       gemm_type_names[d], (double)longest_load * 1e-6, (double)longest_run * 1e-6);
    ok(loads, "and each of them can be loaded");
    rig_finish(&rig);
    run_free(&rig, &run);
    rig_close(&rig);
}

static void test_loading(void)
{
    test_loading_of(GEMM_BF16);
    test_loading_of(GEMM_E4M3);
}

/* The bytes of D of GEMMs in an order, the same inputs for the same number. */
static uint64_t bits_of(struct rig *rig, int number)
{
    const struct gemm_case c = {
        .m = 16 + 48 * number, .n = 512, .k = 4096, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = GEMM_FP32};
    struct test_rng rng = {(uint64_t)number};
    struct gemm_run run = run_make(rig, &c, &rng);
    uint64_t hash = 0;
    uint8_t *d;

    must(backend_cuda_ops.gemm(rig->backend, rig->stream, &run.args));
    rig_finish(rig);
    d = operand_download(rig, &run.d);
    for (size_t i = 0; i < run.d.bytes; i++)
        hash = (hash ^ d[i]) * UINT64_C(0x100000001b3);
    free(d);
    run_free(rig, &run);
    return hash;
}

static void test_fixed(void)
{
    uint64_t forth[12];
    int differs = 0;
    struct rig rig;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    for (int i = 0; i < 12; i++)
        forth[i] = bits_of(&rig, i);
    is_int(rig_stats(&rig).borrowed, 0, "fixed plans borrow nothing");
    rig_close(&rig);
    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    for (int i = 11; i >= 0; i--)
        differs += bits_of(&rig, i) != forth[i];
    is_int(differs, 0, "and give the same bits, whichever shape comes first");
    rig_close(&rig);
}

/* ---- The amax of a recorded GEMM ----------------------------------------------------------- */

/* Runs it with the bits `before` in the word of the amax, and gives those that are in it then. */
static uint32_t amax_after(struct rig *rig, struct gemm_run *run, uint32_t before)
{
    uint32_t *const amax = run->args.d_amax;
    uint32_t after;

    must(backend_cuda_ops.memory_copy(rig->backend, amax, &before, sizeof(before)));
    must(backend_cuda_ops.gemm(rig->backend, rig->stream, &run->args));
    rig_finish(rig);
    must(backend_cuda_ops.memory_copy(rig->backend, &after, amax, sizeof(after)));
    return after;
}

/* cuBLASLt sets the amax to 0 first. A record leaves that out: what is in the word counts. */
static void test_recorded_amax(void)
{
    const struct gemm_case c = {
        .m = 240, .n = 512, .k = 256, .a = GEMM_E4M3, .b = GEMM_E4M3, .d = GEMM_E4M3, .bias = true};
    const uint32_t large = 0x7F000000; /* 2 to the 127 */
    struct test_rng rng = {31};
    struct backend_replay_stats stats;
    uint8_t *by_cublaslt, *by_record;
    struct gemm_run run;
    struct rig rig;
    uint32_t amax;

    rig_open(&rig, FP8PIPE_PLANS_FIXED, NULL);
    run = run_make(&rig, &c, &rng);
    amax = amax_after(&rig, &run, large);
    ok(amax > 0 && amax < large,
       "cuBLASLt itself sets the amax to 0 before: it is %08" PRIx32 " then", amax);
    by_cublaslt = operand_download(&rig, &run.d);
    for (int i = 1; i < REPLAY_SIGHTS; i++)
        (void)amax_after(&rig, &run, 0);
    backend_cuda_ops.replay_stats(rig.backend, rig.stream, &stats);
    ok(stats.kept == 1 && stats.issued == 1, "the call is recorded, and issued from its record");

    is_int(amax_after(&rig, &run, large), large, "which leaves alone what is in the amax before");
    is_int(amax_after(&rig, &run, 0), amax, "and with 0 in it gives the amax of the result");
    by_record = operand_download(&rig, &run.d);
    is_mem(by_record, by_cublaslt, run.d.bytes, "whose bytes are the same as cuBLASLt's");
    backend_cuda_ops.replay_stats(rig.backend, rig.stream, &stats);
    ok(stats.kept == 1 && stats.issued == 3, "both by the record");
    free(by_cublaslt);
    free(by_record);
    run_free(&rig, &run);
    rig_close(&rig);
}

int main(void)
{
    if (!rig_is_wanted())
        return done_testing();
    unsetenv("FP8PIPE_TUNE");
    unsetenv("FP8PIPE_TUNE_FILE");
    test_epilogues();
    test_borrowing();
    test_loading();
    test_fixed();
    test_recorded_amax();
    return done_testing();
}
