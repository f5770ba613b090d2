#include "kernels/adamw.h"

#include <stddef.h>

#include "kernels/host/convert.h"
#include "kernels/kernels.h"

/* Elements of a row that are worked on at a time. */
#define PIECE 256

static int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Nothing else folds into these words meanwhile: a step is a writer of the scaling. */
static void fold(uint32_t *amax, uint32_t bits)
{
    *amax = bits > *amax ? bits : *amax;
}

/* How many parameters the tiles name; those beyond are empty. */
static uint32_t parameters_of(const struct kernel_tile *tiles, int64_t tile_count)
{
    return tile_count > 0 ? tiles[tile_count - 1].parameter + 1 : 0;
}

/* Elements at .. at + count - 1, counted through the rows. Returns their largest bits. */
static uint32_t step_piece(const struct kernel_parameter *parameter,
                           const struct adamw_factors *factors, int64_t at, int64_t count)
{
    size_t gradient_bytes = dtype_bytes((enum fp8pipe_dtype)parameter->gradient_dtype);
    float *master = parameter->master + at;
    float gradient[PIECE];
    uint32_t largest = 0;

    row_load(gradient, (const char *)parameter->gradient + (size_t)at * gradient_bytes,
             (enum fp8pipe_dtype)parameter->gradient_dtype, count);
    for (int64_t i = 0; i < count; i++) {
        struct adamw_element old = {master[i], parameter->first[at + i], parameter->second[at + i]};
        struct adamw_element next = adamw_step(factors, old, gradient[i]);
        uint32_t bits = float_bits(next.master) & 0x7fffffffu;

        master[i] = next.master;
        parameter->first[at + i] = next.first;
        parameter->second[at + i] = next.second;
        largest = bits > largest ? bits : largest;
    }
    for (int64_t i = 0; parameter->average != NULL && i < count; i++) {
        parameter->average[at + i] = adamw_average(factors, parameter->average[at + i], master[i]);
    }
    if (parameter->copy != NULL) {
        row_store((uint16_t *)parameter->copy + at, (enum fp8pipe_dtype)parameter->copy_dtype,
                  master, count);
    }
    return largest;
}

/* The FP8 copies of a parameter's master; own_amax: NULL, or its own, which counts if the slot has
 * no scale. */
static void quantize(const struct kernel_parameter *parameter, const uint32_t *own_amax)
{
    struct kernel_quantize_args args = {
        .x = {parameter->master, parameter->rows, parameter->cols, parameter->cols, FP8PIPE_FP32,
              0},
        .format = FP8PIPE_E4M3,
        .scale_numerator = parameter->scale_numerator,
        .scale = parameter->scale,
        .has_scale = parameter->has_scale,
        .own_amax = own_amax,
        .scale_inv = parameter->scale_inv,
        .row = parameter->row,
        .row_stride = parameter->row_stride,
        .transposed = parameter->transposed,
        .transposed_stride = parameter->transposed_stride,
        .extremes = parameter->extremes,
    };

    kernel_quantize_host(&args);
}

static void step_parameter(const struct kernel_adamw_args *args, uint32_t index)
{
    const struct kernel_parameter *parameter = &args->parameters[index];
    const struct fp8pipe_parameter_group *group = &args->groups[parameter->group];
    int64_t t = *args->steps + 1;
    struct adamw_factors factors = adamw_factors_of(
        args, group, adamw_power((double)group->beta1, t), adamw_power((double)group->beta2, t));
    int64_t elements = parameter->rows * parameter->cols;
    uint32_t largest = 0;

    for (int64_t at = 0; at < elements; at += PIECE) {
        uint32_t bits = step_piece(parameter, &factors, at, minimum(PIECE, elements - at));

        largest = bits > largest ? bits : largest;
    }
    if (parameter->row == NULL || elements == 0) {
        return;
    }
    fold(parameter->amax, adamw_amax(largest));
    if (args->own_amax == NULL || *parameter->has_scale != 0) {
        quantize(parameter, NULL);
    } else {
        fold(&args->own_amax[index], adamw_amax(largest));
    }
}

/* The first copies of a parameter whose slot has no scale. */
static void copy_first(const struct kernel_adamw_args *args, uint32_t index)
{
    const struct kernel_parameter *parameter = &args->parameters[index];

    if (parameter->row != NULL && parameter->rows > 0 && parameter->cols > 0 &&
        *parameter->has_scale == 0) {
        quantize(parameter, &args->own_amax[index]);
    }
}

void kernel_adamw_host(const struct kernel_adamw_args *args)
{
    uint32_t parameters = parameters_of(args->tiles, args->tile_count);

    if (args->skip_if != NULL && *args->skip_if != 0) {
        return;
    }
    for (uint32_t i = 0; i < parameters; i++) {
        if (args->first) {
            copy_first(args, i);
        } else {
            step_parameter(args, i);
        }
    }
    *args->steps += !args->first;
}
