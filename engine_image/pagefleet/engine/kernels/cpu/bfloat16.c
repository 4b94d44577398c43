/* The kernels over bfloat16. */
#define BFLOAT16 1
#include "attention.h"
