/* The kernels over float32. */
#define BFLOAT16 0
#include "attention.h"
#include "gemm.h"
#include "pointwise.h"
