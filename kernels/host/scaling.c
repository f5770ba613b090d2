#include <string.h>

#include "kernels/fp8.h"
#include "kernels/kernels.h"

static uint32_t window_max(const uint32_t *window, int64_t count, uint32_t largest)
{
    for (int64_t i = 0; i < count; i++) {
        largest = window[i] > largest ? window[i] : largest;
    }
    return largest;
}

static void slot_update(const struct kernel_scale_update_args *args, int64_t slot)
{
    uint32_t last = args->amax[slot];
    uint32_t amax = last;
    float quotient;

    args->nonfinite[slot] = last >= 0x7f800000u;
    if (last == 0) {
        return;
    }
    args->amax[slot] = 0;
    if (last >= 0x7f800000u) {
        return;
    }
    if (args->history > 1) {
        uint32_t *window = args->window + slot * (args->history - 1);
        uint32_t *cursor = &args->cursor[slot];

        if (args->algorithm == FP8PIPE_AMAX_MAX) {
            amax = window_max(window, args->history - 1, last);
        }
        window[*cursor] = last;
        *cursor = *cursor + 1 == args->history - 1 ? 0 : *cursor + 1;
    }
    quotient = args->numerator[slot] / float_from_bits(amax);
    args->scale[slot * KERNEL_SCALE_STRIDE] = fp8_scale(quotient);
    args->has_scale[slot] = 1;
}

void kernel_scale_update_host(const struct kernel_scale_update_args *args)
{
    int32_t any = 0;

    if (args->skip_if != NULL && *args->skip_if != 0) {
        memset(args->amax, 0, (size_t)args->slots * sizeof(*args->amax));
        return;
    }
    for (int64_t slot = 0; slot < args->slots; slot++) {
        slot_update(args, slot);
        any |= args->nonfinite[slot];
    }
    *args->any_nonfinite = any;
}
