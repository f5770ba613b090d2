/*
 * The conversions of fp8pipe_convert.h between float32, bf16 and fp16 by the short names that the
 * library uses. That header says what they promise.
 */
#ifndef KERNELS_CONVERT_H
#define KERNELS_CONVERT_H

#include "fp8pipe_convert.h"

#define CONVERT_FN FP8PIPE_CONVERT_FN

#define float_bits fp8pipe_float_bits
#define float_from_bits fp8pipe_float_from_bits
#define bf16_to_float fp8pipe_bf16_to_float
#define bf16_from_float fp8pipe_bf16_from_float
#define fp16_to_float fp8pipe_fp16_to_float
#define fp16_from_float fp8pipe_fp16_from_float

#endif
