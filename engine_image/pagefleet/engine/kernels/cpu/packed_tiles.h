/* The two products of attention over the codes of a packed cache: of the units `begin` to `end`, `bits` a code. */
#pragma once
#include "attention_workspace.h"

/* scores = scale * (least scores + code factors . codes) */
void score_codes(workspace *w, int rows, int begin, int end, int64_t dim, float scale, int64_t bits);

/* output += code factors . codes */
void weigh_codes(workspace *w, int rows, int begin, int end, int64_t dim, int64_t bits);
