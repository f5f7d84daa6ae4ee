/*
 * Single operators by name, as torch_npu's own C++ launches them where no dispatcher is asked: collectives of lists fill
 * their flat buffer so. Everything else runs under the dispatcher, in the child's Python.
 */
#include "call.h"
#include "stream.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct buffer {
    void *data;
    size_t size;
};

/* `kept` bytes of the source, then the value to the end. */
struct fill {
    char *target;
    const char *source;
    size_t kept, bytes, width;
    char value[16];
};

void *aclCreateDataBuffer(void *data, size_t size)
{
    struct buffer *buffer = malloc(sizeof *buffer);
    if (buffer)
        *buffer = (struct buffer){data, size};
    return buffer;
}

int aclDestroyDataBuffer(void *buffer)
{
    free(buffer);
    return ACL_OK;
}

static int run_fill(void *argument)
{
    struct fill *fill = argument;
    if (fill->kept)
        memcpy(fill->target, fill->source, fill->kept);
    for (size_t at = fill->kept; at + fill->width <= fill->bytes; at += fill->width)
        memcpy(fill->target + at, fill->value, fill->width);
    return ACL_OK;
}

/* Whether the last of the paddings (int64 or int32) is `elements`: those of one row at its end. */
static int pads_by(const struct buffer *paddings, size_t elements)
{
    int64_t wide = -1;
    int32_t narrow = -1;
    if (paddings->size >= sizeof wide)
        memcpy(&wide, (char *)paddings->data + paddings->size - sizeof wide, sizeof wide);
    if (paddings->size >= sizeof narrow)
        memcpy(&narrow, (char *)paddings->data + paddings->size - sizeof narrow, sizeof narrow);
    return wide == (int64_t)elements || narrow == (int32_t)elements;
}

/* Fill (shape, value) and PadV3 (source, paddings, value) of one row at its end; the output is as large as its buffer. */
int aclopCompileAndExecute(const char *type, int num_inputs, const void *const *input_descs, struct buffer *const *inputs,
                           int num_outputs, const void *const *output_descs, struct buffer *const *outputs,
                           const void *attributes, int engine, int compile, const char *path, void *stream)
{
    (void)input_descs, (void)output_descs, (void)attributes, (void)engine, (void)compile, (void)path;
    ENTER();
    int pads = !strcmp(type, "PadV3") && num_inputs == 3;
    if ((!pads && (strcmp(type, "Fill") || num_inputs != 2)) || num_outputs != 1)
        return standin_fail(RT_FEATURE_NOT_SUPPORT, "operator %s has no meaning in the stand-in NPU", type);
    const struct buffer *value = inputs[num_inputs - 1], *output = outputs[0];
    struct fill fill = {.target = output->data, .bytes = output->size, .width = value->size};
    REQUIRE(fill.width && fill.width <= sizeof fill.value, RT_PARAM_INVALID);
    memcpy(fill.value, value->data, fill.width);
    if (pads) {
        fill.source = inputs[0]->data, fill.kept = inputs[0]->size;
        REQUIRE(fill.kept <= fill.bytes, RT_PARAM_INVALID);
        REQUIRE(pads_by(inputs[1], (fill.bytes - fill.kept) / fill.width), RT_FEATURE_NOT_SUPPORT);
    }
    return standin_submit(stream, run_fill, &fill, sizeof fill, 0);
}
