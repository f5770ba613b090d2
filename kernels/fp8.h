/*
 * The conversions of fp8pipe_convert.h between float32, E4M3 and E5M2 by the short names that the
 * library uses. That header says what they promise.
 */
#ifndef KERNELS_FP8_H
#define KERNELS_FP8_H

#include "kernels/convert.h"

#define FP8_E4M3_MAX FP8PIPE_E4M3_MAX

#define fp8_e4m3_from_float fp8pipe_e4m3_from_float
#define fp8_e5m2_from_float fp8pipe_e5m2_from_float
#define fp8_e4m3_to_float fp8pipe_e4m3_to_float
#define fp8_e5m2_to_float fp8pipe_e5m2_to_float
#define fp8_from_float fp8pipe_fp8_from_float
#define fp8_to_float fp8pipe_fp8_to_float
#define fp8_max fp8pipe_fp8_max
#define fp8_scale fp8pipe_fp8_scale

#endif
