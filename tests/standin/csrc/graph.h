/* Captured streams: what is submitted to one becomes a task of a graph, which runs when the graph is executed. */
#ifndef STANDIN_GRAPH_H
#define STANDIN_GRAPH_H

#include "stream.h"

#include <stddef.h>
#include <stdint.h>

/* 1 while a capture is on in this process. */
extern int standin_captures;
/* Whether tasks for `stream` go into a graph, captured or updated, and not to the stream. */
int standin_is_recorded(void *stream);
/* Whether `stream` is captured; what waits for a captured stream fails. */
int standin_is_captured(void *stream);
/* Fail, and spoil the capture, where `stream` is captured. */
int standin_refuse_wait(void *stream, const char *what);
/* Where in a capture an event was recorded: which one, in which of its streams, after how many tasks of that stream. */
struct capture_mark {
    uint64_t capture; /* 0: in none */
    int member;
    uint64_t tasks;
};
/* Fill `mark` and return 1 where `stream` is captured; else clear it. */
int standin_mark_capture(void *stream, struct capture_mark *mark);
/* Whether the capture that `mark` belongs to is on. */
int standin_is_marked(const struct capture_mark *mark);
/* Let `stream` wait for a mark of the capture that is on; one that is not captured joins it. */
int standin_join_capture(void *stream, const struct capture_mark *mark);
/* Add a task to the graph that `stream` is captured into, or put it in its place of the group that is updated. */
int standin_add_task(void *stream, task_function function, const void *argument, size_t size);

#endif
