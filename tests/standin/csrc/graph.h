/* Captured streams: what is submitted to one becomes a task of a graph, which runs when the graph is executed. */
#ifndef STANDIN_GRAPH_H
#define STANDIN_GRAPH_H

#include "stream.h"

#include <stddef.h>

/* Whether tasks for `stream` go into a graph, captured or updated, and not to the stream. */
int standin_is_recorded(void *stream);
/* Whether `stream` is captured; what waits for a captured stream fails. */
int standin_is_captured(void *stream);
/* Fail, and spoil the capture, where `stream` is captured. */
int standin_refuse_wait(void *stream, const char *what);
/* The same for an event that joins a captured stream to another, as collectives have. */
int standin_refuse_event(void *stream, const char *what);
/* Add a task to the graph that `stream` is captured into, or put it in its place of the group that is updated. */
int standin_add_task(void *stream, task_function function, const void *argument, size_t size);

#endif
