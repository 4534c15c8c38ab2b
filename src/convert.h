/* convert.h: f32, bf16, f16: conversion and the finite scan. */
#ifndef NG_CONVERT_H
#define NG_CONVERT_H

#include "natgrad.h"

#include <stdbool.h>

float ng_bf16_to_f32(uint16_t h);
uint16_t ng_f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */
float ng_f16_to_f32(uint16_t h);
uint16_t ng_f32_to_f16(float f); /* round to nearest even; subnormals; overflow is Inf */

/* n elements; dtype f32, bf16 or f16. */
void ng_to_f32(float *dst, const void *src, ng_dtype t, int64_t n);
void ng_from_f32(void *dst, ng_dtype t, const float *src, int64_t n);
bool ng_all_finite(const void *src, ng_dtype t, int64_t n);

#endif
