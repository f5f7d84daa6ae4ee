/* All kernels of one instruction set, and the table through which they are called. */
#include <math.h>
#include "vector.h"
#include "linear.h"
#include "attention.h"
#include "prompt.h"
#include "elementwise.h"

const kernel_table ISA(table) = {ISA(linear), ISA(attend), ISA(attend_prompt), ISA(norm),
                                 ISA(gate),   ISA(rotate), ISA(store),         MAX_ROWS};
