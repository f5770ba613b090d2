/*
 * AdamW of one element, for host and device from one source; the order of its float32 operations is
 * that of include/fp8pipe_optimizer.h. Compiled without contraction, so that both give the same
 * bits; NaNs may differ in theirs.
 */
#ifndef KERNELS_ADAMW_H
#define KERNELS_ADAMW_H

#include <math.h>

#include "kernels/convert.h"
#include "kernels/optimizer.h"

/* What a step does to every element of a group. */
struct adamw_factors {
    float gradient_scale;
    float decay;      /* 1 - l * weight_decay */
    float first_rate; /* 1 - beta1 */
    float beta2;
    float second_rate;    /* 1 - beta2 */
    float step;           /* l / (1 - beta1^t) */
    float second_divisor; /* sqrt(1 - beta2^t) */
    float epsilon;
    float average_decay;
    float average_rate; /* 1 - average_decay */
};

struct adamw_element {
    float master;
    float first;
    float second;
};

/* beta^t by repeated squaring. */
CONVERT_FN double adamw_power(double beta, int64_t t)
{
    double power = 1.0;

    for (; t > 0; t >>= 1) {
        if ((t & 1) != 0) {
            power *= beta;
        }
        beta *= beta;
    }
    return power;
}

/* Of a step of a group: beta1 and beta2 to the power of its number t. */
CONVERT_FN struct adamw_factors adamw_factors_of(const struct kernel_adamw_args *args,
                                                 const struct fp8pipe_parameter_group *group,
                                                 double first_power, double second_power)
{
    float l = args->lr * (args->lr_device != NULL ? *args->lr_device : 1.0f) * group->lr_factor;
    float first_correction = (float)(1.0 - first_power);
    struct adamw_factors factors;

    factors.gradient_scale = args->gradient_scale != NULL ? *args->gradient_scale : 1.0f;
    factors.decay = 1.0f - l * group->weight_decay;
    factors.first_rate = 1.0f - group->beta1;
    factors.beta2 = group->beta2;
    factors.second_rate = 1.0f - group->beta2;
    factors.step = l / first_correction;
    factors.second_divisor = (float)sqrt(1.0 - second_power);
    factors.epsilon = group->epsilon;
    factors.average_decay = group->average_decay;
    factors.average_rate = 1.0f - group->average_decay;
    return factors;
}

/* The moments after a step. */
CONVERT_FN float adamw_first(const struct adamw_factors *factors, float first, float gradient)
{
    return first + (gradient * factors->gradient_scale - first) * factors->first_rate;
}

CONVERT_FN float adamw_second(const struct adamw_factors *factors, float second, float gradient)
{
    float g = gradient * factors->gradient_scale;

    return second * factors->beta2 + factors->second_rate * g * g;
}

CONVERT_FN struct adamw_element adamw_step(const struct adamw_factors *factors,
                                           struct adamw_element old, float gradient)
{
    struct adamw_element next;

    next.first = adamw_first(factors, old.first, gradient);
    next.second = adamw_second(factors, old.second, gradient);
    next.master = old.master * factors->decay -
                  factors->step * next.first /
                      (sqrtf(next.second) / factors->second_divisor + factors->epsilon);
    return next;
}

CONVERT_FN float adamw_average(const struct adamw_factors *factors, float average, float master)
{
    return factors->average_decay * average + factors->average_rate * master;
}

/* The bits to fold of the largest bits of |x| seen: every NaN is one. */
CONVERT_FN uint32_t adamw_amax(uint32_t bits)
{
    return bits > 0x7f800000u ? 0x7fc00000u : bits;
}

#endif
