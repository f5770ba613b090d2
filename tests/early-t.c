/*
 * Kernels that may begin before what is in front of them in their stream has ended see all of it:
 * a quantize right behind a GEMM, a copy, another quantize's amax, a GEMM that writes FP8.
 */
#include <stdlib.h>
#include <string.h>

#include "util.h"

#define ROUNDS 40

struct scene {
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_tensor *seen, *later;
    struct test_matrix a[2], b, d; /* d = a[i] . b^T, of another magnitude each round */
    int64_t side;
};

static struct scene scene_make(enum fp8pipe_backend backend, float initial_scale)
{
    struct fp8pipe_scaling_options options = FP8PIPE_SCALING_OPTIONS_INIT;
    struct scene scene = {.side = backend == FP8PIPE_BACKEND_CUDA ? 2048 : 48};
    struct test_rng rng = {7};

    scene.pipe = test_open(backend, NULL);
    options.slots = 3;
    options.initial_scale = initial_scale;
    must(fp8pipe_scaling_create(scene.pipe, &options, &scene.scaling));
    must(fp8pipe_tensor_create(scene.pipe, &scene.seen));
    must(fp8pipe_tensor_create(scene.pipe, &scene.later));
    for (int i = 0; i < 2; i++)
        scene.a[i] = test_matrix_random(scene.pipe, FP8PIPE_BF16, scene.side, scene.side, 0, 0,
                                        i == 0 ? 1 : 1e-3, &rng, NULL);
    scene.b = test_matrix_random(scene.pipe, FP8PIPE_BF16, scene.side, scene.side, 0, 0, 0.02, &rng,
                                 NULL);
    scene.d = test_matrix_make(scene.pipe, FP8PIPE_BF16, scene.side, scene.side, 0, 0);
    return scene;
}

static void scene_free(struct scene *scene)
{
    must(fp8pipe_tensor_destroy(scene->seen));
    must(fp8pipe_tensor_destroy(scene->later));
    test_drain(scene->pipe);
    must(fp8pipe_scaling_destroy(scene->scaling));
    test_matrix_free(&scene->a[0]);
    test_matrix_free(&scene->a[1]);
    test_matrix_free(&scene->b);
    test_matrix_free(&scene->d);
    test_close(scene->pipe);
}

/* d anew, by a GEMM or by a copy of the other operand. */
static void write_d(struct scene *scene, int round, struct fp8pipe_submit submit)
{
    struct fp8pipe_gemm_op gemm = FP8PIPE_GEMM_OP_INIT;
    struct fp8pipe_copy_op copy = FP8PIPE_COPY_OP_INIT;
    fp8pipe_ticket ticket;

    if (round % 3 == 2) {
        copy.submit = submit;
        copy.to = scene->d.view.data;
        copy.from = scene->a[round % 2].view.data;
        copy.bytes = (size_t)(scene->side * scene->side) * 2;
        must(fp8pipe_copy(scene->pipe, &copy, &ticket));
        return;
    }
    gemm.submit = submit;
    gemm.a = scene->a[round % 2].view;
    gemm.b = scene->b.view;
    gemm.d = scene->d.view;
    must(fp8pipe_gemm(scene->pipe, &gemm, &ticket));
}

static bool same(const struct test_fp8 *a, const struct test_fp8 *b)
{
    const size_t bytes = (size_t)(a->rows * a->cols);

    return a->scale_inv == b->scale_inv && memcmp(a->rowwise, b->rowwise, bytes) == 0 &&
           memcmp(a->transposed, b->transposed, bytes) == 0;
}

static void behind(enum fp8pipe_backend backend, float initial_scale)
{
    const uint32_t copies = FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED;
    struct scene scene = scene_make(backend, initial_scale);
    struct fp8pipe_submit submit = test_submit(0, 0, 0, 0);
    int differ = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct test_fp8 seen, later;

        write_d(&scene, round, submit);
        test_quantize(scene.seen, scene.d.view, scene.scaling, 0, copies, submit);
        test_drain(scene.pipe);
        test_quantize(scene.later, scene.d.view, scene.scaling, 0, copies, submit);
        seen = test_tensor_read(scene.pipe, scene.seen);
        later = test_tensor_read(scene.pipe, scene.later);
        differ += !same(&seen, &later);
        test_fp8_free(&seen);
        test_fp8_free(&later);
    }
    is_int(differ, 0, "%s: a quantize sees what was written right before it, %s",
           test_backend_name(backend), initial_scale > 0 ? "scale given" : "own amax");
    scene_free(&scene);
}

/* The amax of FP8 results: each round's own, whatever the rounds before it left. */
static void amaxes(enum fp8pipe_backend backend)
{
    struct scene scene = scene_make(backend, 16);
    struct fp8pipe_submit submit = test_submit(0, 0, 0, 0);
    struct fp8pipe_tensor *out;
    int wrong = 0;

    must(fp8pipe_tensor_create(scene.pipe, &out));
    for (int round = 0; round < ROUNDS; round++) {
        struct fp8pipe_gemm_op gemm = FP8PIPE_GEMM_OP_INIT;
        fp8pipe_ticket ticket;
        float amax;

        test_quantize(scene.seen, scene.a[round % 2].view, scene.scaling, 0, FP8PIPE_ROWWISE,
                      submit);
        test_quantize(scene.later, scene.b.view, scene.scaling, 1, FP8PIPE_ROWWISE, submit);
        gemm.submit = submit;
        gemm.a_tensor = scene.seen;
        gemm.b_tensor = scene.later;
        gemm.epilogue.tensor = out;
        gemm.epilogue.scaling = scene.scaling;
        gemm.epilogue.copies =
            round % 5 == 0 ? FP8PIPE_ROWWISE | FP8PIPE_TRANSPOSED : FP8PIPE_ROWWISE;
        must(fp8pipe_gemm(scene.pipe, &gemm, &ticket));
        test_drain(scene.pipe);
        amax = test_slot(scene.scaling, 0).amax;
        /* Slot 0 has a[i]'s amax too: about 4 for the one, a thousandth for the other. */
        wrong += round % 2 == 0 ? !(amax > 1) : !(amax > 0 && amax < 0.5f);
        must(fp8pipe_tensor_clear(out));
        test_wait(scene.pipe, test_skip(scene.scaling));
    }
    is_int(wrong, 0, "%s: the amax of an FP8 result is of that result alone",
           test_backend_name(backend));
    must(fp8pipe_tensor_destroy(out));
    scene_free(&scene);
}

static void cases(enum fp8pipe_backend backend)
{
    behind(backend, 0);
    behind(backend, 24);
    amaxes(backend);
}

int main(void)
{
    test_each_backend(cases);
    return done_testing();
}
