/* The kernels over float32. */
#define BFLOAT16 0
#include "attention.h"
#include "gemm.h"
#include "gemm_int4.h"
#include "gemm_int8.h"
#include "packed_attention.h"
#include "pointwise.h"
