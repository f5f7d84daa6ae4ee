/* Streams: tasks of one stream run in the order of their submission, tasks of different streams in any. */
#ifndef STANDIN_STREAM_H
#define STANDIN_STREAM_H

#include <stddef.h>

/* Runs once; returns 0 or the code that the stream fails with. */
typedef int (*task_function)(void *argument);

/*
 * Run `function` on a copy of `argument` after all that is in the stream (NULL: the device's default stream).
 * Where nothing is ahead and the task cannot wait (`may_wait` 0) it runs at once, in the caller.
 */
int standin_submit(void *stream, task_function function, const void *argument, size_t size, int may_wait);
/* Wait until the stream is empty, at most `milliseconds` (-1: for ever); return its error, a timeout's code, or 0. */
int standin_drain(void *stream, int milliseconds);
/* The code that the stream, or its device, failed with, or 0; waits for nothing. */
int standin_failure(void *stream);
int standin_drain_device(int device, int milliseconds);

#endif
