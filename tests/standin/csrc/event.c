/*
 * Events: a mark in one stream that others, and the host, wait for. Recording again starts a new wait. In a capture it
 * orders tasks of the graph, and the host cannot ask for it.
 */
#include "call.h"
#include "graph.h"
#include "stream.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

struct event {
    pthread_mutex_t lock;
    pthread_cond_t reached;
    uint64_t recorded, done; /* numbers of records submitted and executed */
    struct timespec when;
    void *stream;
    struct capture_mark captured;
    int unused; /* destroyed; freed with its last reference */
    int references;
};

struct mark {
    struct event *event;
    uint64_t number;
};

static void let_go(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    int gone = --event->references == 0;
    pthread_mutex_unlock(&event->lock);
    if (gone)
        free(event);
}

static struct mark hold(struct event *event, int is_record)
{
    pthread_mutex_lock(&event->lock);
    event->references++;
    struct mark mark = {event, is_record ? ++event->recorded : event->recorded};
    pthread_mutex_unlock(&event->lock);
    return mark;
}

static int reach(void *argument)
{
    struct mark *mark = argument;
    pthread_mutex_lock(&mark->event->lock);
    mark->event->done = mark->number;
    clock_gettime(CLOCK_MONOTONIC, &mark->event->when);
    pthread_cond_broadcast(&mark->event->reached);
    pthread_mutex_unlock(&mark->event->lock);
    let_go(mark->event);
    return ACL_OK;
}

static int await(void *argument)
{
    struct mark *mark = argument;
    pthread_mutex_lock(&mark->event->lock);
    while (mark->event->done < mark->number)
        pthread_cond_wait(&mark->event->reached, &mark->event->lock);
    pthread_mutex_unlock(&mark->event->lock);
    let_go(mark->event);
    return ACL_OK;
}

static int create(void **handle)
{
    struct event *event = calloc(1, sizeof *event);
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->reached, NULL);
    event->references = 1;
    *handle = event;
    return ACL_OK;
}

int aclrtCreateEventWithFlag(void **handle, uint32_t flag)
{
    (void)flag;
    ENTER();
    return create(handle);
}

int aclrtCreateEventExWithFlag(void **handle, uint32_t flag)
{
    (void)flag;
    ENTER();
    return create(handle);
}

int aclrtDestroyEvent(void *handle)
{
    ENTER();
    let_go(handle);
    return ACL_OK;
}

int aclrtRecordEvent(void *handle, void *stream)
{
    ENTER();
    if (standin_mark_capture(stream, &((struct event *)handle)->captured))
        return ACL_OK;
    struct mark mark = hold(handle, 1);
    mark.event->stream = stream;
    return standin_submit(stream, reach, &mark, sizeof mark, 0);
}

int aclrtResetEvent(void *handle, void *stream)
{
    (void)handle, (void)stream;
    ENTER();
    return ACL_OK;
}

static int is_captured(const struct event *event)
{
    return event->captured.capture && standin_is_marked(&event->captured);
}

static int is_done(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    int done = event->done >= event->recorded;
    pthread_mutex_unlock(&event->lock);
    return done;
}

int aclrtStreamWaitEvent(void *stream, void *handle)
{
    ENTER();
    const struct capture_mark *captured = &((struct event *)handle)->captured;
    if (captured->capture && standin_is_marked(captured))
        return standin_join_capture(stream, captured);
    /* What was never recorded, or is done, holds nobody up. */
    if (is_done(handle))
        return ACL_OK;
    if (standin_is_captured(stream))
        return standin_fail(RT_CAPTURE_DEPENDENCY, "%s: a captured stream waits for what is outside its capture", __func__);
    struct mark mark = hold(handle, 0);
    return standin_submit(stream, await, &mark, sizeof mark, 1);
}

int aclrtSynchronizeEvent(void *handle)
{
    ENTER();
    struct event *event = handle;
    REQUIRE(!is_captured(event), RT_EVENT_CAPTURED);
    struct mark mark = hold(event, 0);
    await(&mark);
    /* A task ahead of the mark may have failed: the wait for it tells, as a wait for the stream would. */
    return event->recorded ? standin_failure(event->stream) : ACL_OK;
}

/* aclrtEventRecordedStatus: 0 not ready, 1 complete. */
int aclrtQueryEventStatus(void *handle, int *status)
{
    ENTER();
    REQUIRE(!is_captured(handle), RT_EVENT_CAPTURED);
    *status = is_done(handle);
    return ACL_OK;
}

/* aclrtEventWaitStatus: 0 complete, 1 not ready. */
int aclrtQueryEventWaitStatus(void *handle, int *status)
{
    ENTER();
    REQUIRE(!is_captured(handle), RT_EVENT_CAPTURED);
    *status = !is_done(handle);
    return ACL_OK;
}

/*
 * Words of device memory that streams write and wait for: torch_npu's external events, at which a graph waits for an
 * update. One lock and one signal for all of them.
 */
struct word {
    volatile uint64_t *address;
    uint64_t value;
    uint32_t flag;
};

static pthread_mutex_t words = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t written = PTHREAD_COND_INITIALIZER;

static int write_word(void *argument)
{
    struct word *word = argument;
    pthread_mutex_lock(&words);
    *word->address = word->value;
    pthread_cond_broadcast(&written);
    pthread_mutex_unlock(&words);
    return ACL_OK;
}

/* The wait modes of aclrtValueWait: at least, equal, any bit in common, any bit of either missing. */
static int has_come(const struct word *word)
{
    uint64_t now = *word->address;
    switch (word->flag) {
    case 0: return (int64_t)(now - word->value) >= 0;
    case 1: return now == word->value;
    case 2: return (now & word->value) != 0;
    default: return ~(now | word->value) != 0;
    }
}

static int await_word(void *argument)
{
    pthread_mutex_lock(&words);
    while (!has_come(argument))
        pthread_cond_wait(&written, &words);
    pthread_mutex_unlock(&words);
    return ACL_OK;
}

int aclrtValueWrite(void *address, uint64_t value, uint32_t flag, void *stream)
{
    (void)flag;
    ENTER();
    return standin_submit(stream, write_word, &(struct word){address, value, 0}, sizeof(struct word), 0);
}

int aclrtValueWait(void *address, uint64_t value, uint32_t flag, void *stream)
{
    ENTER();
    return standin_submit(stream, await_word, &(struct word){address, value, flag}, sizeof(struct word), 1);
}

int aclrtEventElapsedTime(float *milliseconds, void *start, void *end)
{
    ENTER();
    struct timespec from = ((struct event *)start)->when, to = ((struct event *)end)->when;
    *milliseconds = (float)((to.tv_sec - from.tv_sec) * 1e3 + (to.tv_nsec - from.tv_nsec) / 1e6);
    return ACL_OK;
}

int aclrtEventGetTimestamp(void *handle, uint64_t *microseconds)
{
    ENTER();
    struct timespec when = ((struct event *)handle)->when;
    *microseconds = (uint64_t)when.tv_sec * 1000000 + (uint64_t)when.tv_nsec / 1000;
    return ACL_OK;
}
