/*
 * The CUDA kernel of modulate against its host twin: the same inputs, the same bits in every output
 * and around it, but for a NaN's payload. Each of the ways that the launcher chooses between,
 * shapes around those of units, tiles, segments and panels. Twice the same bits.
 */
#include "modulate_twins.h"

#include "kernels/convert.h"

/* args: of both sides. */
static void on_device(void *args)
{
    launched(kernel_modulate_cuda((const struct kernel_modulate_args *)args + 1, NULL), "modulate");
}

static void on_host(void *args)
{
    kernel_modulate_host(args);
}

static bool forward_agrees(const struct shape *shape)
{
    struct side s = {.shape = shape};
    struct kernel_modulate_args args[2];
    struct kernel_view views[2];
    const int64_t groups = side_groups(&s);
    float *values[2];
    bool has_y = side_next(&s), has_gate = side_next(&s) && has_y;

    memset(args, 0, sizeof(args));
    PLACE(x, "x", shape->rows, false, true);
    if (has_y)
        PLACE(y, "y", shape->rows, false, true);
    if (has_gate)
        PLACE(gate, "gate", groups, true, true);
    if (side_next(&s)) {
        if (side_next(&s)) {
            args[0].x_out = args[0].x;
            args[1].x_out = args[1].x;
        } else {
            PLACE(x_out, "x_out", shape->rows, false, false);
        }
    }
    if (side_next(&s))
        PLACE(scale, "scale", groups, true, true);
    if (side_next(&s))
        PLACE(shift, "shift", groups, true, true);
    if (side_next(&s))
        PLACE(z, "z", shape->rows, false, false);
    if (side_next(&s))
        FLOATS(weight, "weight", shape->cols, true);
    if (side_next(&s))
        FLOATS(bias, "bias", shape->cols, true);
    if (shape->norm != FP8PIPE_NORM_NONE) {
        FLOATS(mean, "mean", shape->rows, false);
        FLOATS(rstd, "rstd", shape->rows, false);
    }
    AIM();
    args[0].epsilon = args[1].epsilon = 1e-6f;
    return side_agrees(&s, "modulate", on_device, on_host, args);
}

/* What the rows way takes: codes, with or without their transpose, and their amax. In bits of
 * `given`, in forward's order. */
#define GIVEN_Y 0x1u
#define GIVEN_GATE 0x2u
#define GIVEN_X_OUT 0x4u
#define GIVEN_IN_PLACE 0x8u
#define GIVEN_SCALE 0x10u
#define GIVEN_SHIFT 0x20u
#define GIVEN_CODES 0x200u
#define GIVEN_ROW 0x400u
#define GIVEN_TRANSPOSED 0x800u
#define GIVEN_AMAX 0x1000u
#define GIVEN_ROWS                                                                                 \
    (GIVEN_Y | GIVEN_GATE | GIVEN_X_OUT | GIVEN_SCALE | GIVEN_SHIFT | GIVEN_CODES | GIVEN_ROW |    \
     GIVEN_TRANSPOSED | GIVEN_AMAX)

/* Each of its shapes, alone and in clusters, around units, segments, chunks, tiles and panels. */
static void test_rows(void)
{
    static const unsigned given[] = {
        GIVEN_ROWS,
        GIVEN_ROWS | GIVEN_IN_PLACE,
        GIVEN_ROWS & ~(GIVEN_Y | GIVEN_GATE),
        /* Without x_out nothing is asked about in_place. */
        (GIVEN_ROWS & ~(GIVEN_Y | GIVEN_GATE | GIVEN_X_OUT)) >> 1,
        GIVEN_ROWS & ~GIVEN_GATE,
        GIVEN_ROWS & ~GIVEN_SCALE,
        GIVEN_ROWS & ~GIVEN_SHIFT,
        GIVEN_ROWS & ~GIVEN_TRANSPOSED,
        GIVEN_ROWS & ~(GIVEN_ROW | GIVEN_AMAX),
    };
    static const int64_t sizes[][2] = {/* narrow: panels of 512 columns */
                                       {1, 8},
                                       {15, 504},
                                       {31, 512},
                                       {32, 520},
                                       {33, 1024},
                                       {65, 2048},
                                       {240, 2056},
                                       {33, 4096},
                                       /* middle: of 1024, 96 blocks or more than 4096 columns */
                                       {1500, 2048},
                                       {3001, 1032},
                                       {40, 4104},
                                       {17, 8192},
                                       /* of 2048, 96 blocks or more than 8192 columns */
                                       {3100, 8},
                                       {3073, 1032},
                                       {3072, 2048},
                                       {1601, 2056},
                                       {1537, 4096},
                                       {1100, 6152},
                                       {800, 8192},
                                       {40, 8200},
                                       {33, 16384},
                                       /* of 1536, 96 blocks of 2049 to 3072, 5121 to 6144 */
                                       {1537, 2056},
                                       {1600, 3072},
                                       {800, 5128},
                                       {770, 6144},
                                       /* of 5120, 96 tiles of 4097 to 5120 */
                                       {3050, 4104},
                                       {3073, 5120}};
    const int variants = sizeof(given) / sizeof(*given);
    const int count = sizeof(sizes) / sizeof(*sizes);

    for (int norm = 0; norm < 3; norm++) {
        bool same = true;

        for (int i = 0; i < count; i++)
            for (int j = 0; j < variants; j++) {
                int64_t elements = sizes[i][0] * sizes[i][1];
                struct shape shape = shape_random(true, sizes[i][0], sizes[i][1], i + j);

                /* Of the large ones some. */
                if (elements > 1000000 && (shapes_are_small() || (i + j + norm) % variants > 1))
                    continue;
                shape.norm = (enum fp8pipe_norm)norm;
                shape.given = given[j];
                shape.own = false;
                shape.has_scale = true;
                same &= forward_agrees(&shape);
            }
        ok(same, "modulate, norm %d: rows in registers", norm);
    }
}

static void test_refused(void)
{
    struct kernel_modulate_args args;

    memset(&args, 0, sizeof(args));
    args.rows = args.cols = 8;
    is_int(kernel_modulate_cuda(&args, NULL), cudaErrorInvalidValue, "modulate without x: refused");
    is_int(cudaPeekAtLastError(), cudaSuccess, "a refusal leaves no error behind");
}

int main(void)
{
    device_require();
    shapes_test("modulate", forward_agrees);
    test_rows();
    test_refused();
    return done_testing();
}
