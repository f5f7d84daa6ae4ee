/* Projections in whole numbers, where a core multiplies those. */
#ifndef ASCENDD_VNNI_H
#define ASCENDD_VNNI_H
#include "calls.h"

#define GROUP 32    /* neighbouring input features of a row that share a scale */
#define VNNI_ROWS 6 /* that one pass over the weights serves */

typedef struct {
    const packed_linear *packed; /* weights [panels][num_groups * GROUP / 4][PANEL][4], each 128 too high */
    const int8_t *x;             /* [rows][num_groups * GROUP] */
    const float *scales;         /* [rows][num_groups] */
    const int32_t *starts;       /* [rows][num_groups]: -128 times the sum of the group's x */
    float *y;                    /* [rows, num_features] */
    int64_t num_groups;
} whole_call;

/* One row of x [depth], filled up with zeros to whole groups. */
void vnni_quantize(const float *x, int64_t depth, int8_t *to, float *scales, int32_t *starts);
/* Rows [row, last_row) of panels [panel, last_panel), a multiple of PANELS_AT_ONCE. */
void vnni_linear(const whole_call *call, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel);
#endif
