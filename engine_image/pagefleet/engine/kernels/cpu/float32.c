/* The kernels over float32. */
#define BFLOAT16 0
#include "attention.h"
