/* The kernels over bfloat16. */
#define BFLOAT16 1
#include "attention.h"
#include "gemm.h"
#include "gemm_int4.h"
#include "gemm_int8.h"
#include "packed_attention.h"
#include "pointwise.h"
