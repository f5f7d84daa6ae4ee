/* One queue and, once a task had to wait, one thread for each stream. The first failure of a stream stays with it. */
#include "stream.h"
#include "call.h"
#include "graph.h"
#include "machine.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct task {
    struct task *next;
    task_function function;
    char argument[];
};

struct stream {
    struct stream *next;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct task *first, **last;
    int device;
    int32_t id;
    int running; /* a task is out of the queue and not yet done */
    int has_thread, closing;
    int error;
    char message[768];
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams, *defaults[MAX_DEVICES];
static int32_t next_id;
/* Streams that are not empty, for callers that only want to know whether anything is pending. */
int standin_busy_streams;

static struct stream *make_stream(int device)
{
    struct stream *stream = calloc(1, sizeof *stream);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, &attributes);
    stream->last = &stream->first;
    stream->device = device;
    pthread_mutex_lock(&registry);
    stream->id = next_id++;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&registry);
    return stream;
}

static struct stream *resolve(void *handle)
{
    if (handle)
        return handle;
    int device = standin_device();
    if (device < 0)
        return NULL;
    pthread_mutex_lock(&registry);
    struct stream *stream = defaults[device];
    pthread_mutex_unlock(&registry);
    if (stream)
        return stream;
    stream = make_stream(device);
    pthread_mutex_lock(&registry);
    if (!defaults[device])
        defaults[device] = stream;
    stream = defaults[device];
    pthread_mutex_unlock(&registry);
    return stream;
}

const char *aclGetRecentErrMsg(void);

/* With the lock held. */
static void note_failure(struct stream *stream, int code)
{
    if (!code || stream->error)
        return;
    stream->error = code;
    const char *text = aclGetRecentErrMsg(); /* of the thread that ran the task */
    strncpy(stream->message, text ? text : "a task of the stream failed", sizeof stream->message - 1);
    char *end = strstr(stream->message, "\n        runtime result");
    if (end)
        *end = 0;
}

static int failure_of(struct stream *stream)
{
    int dead = standin_dead(stream->device);
    if (dead)
        return standin_fail(dead, "device %d is dead", stream->device);
    return stream->error ? standin_fail(stream->error, "%s", stream->message) : ACL_OK;
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    while (!stream->closing || stream->first) {
        struct task *task = stream->first;
        if (!task) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        stream->first = task->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->running = 1;
        int failed = stream->error;
        pthread_mutex_unlock(&stream->lock);
        /* After a failure tasks still run: an event behind it must complete, or its waiters would never hear of it. */
        int code = task->function(task->argument);
        free(task);
        pthread_mutex_lock(&stream->lock);
        if (!failed)
            note_failure(stream, code);
        stream->running = 0;
        if (!stream->first)
            __atomic_sub_fetch(&standin_busy_streams, 1, __ATOMIC_ACQ_REL);
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

int standin_submit(void *handle, task_function function, const void *argument, size_t size, int may_wait)
{
    if (standin_is_recorded(handle))
        return standin_add_task(handle, function, argument, size);
    struct stream *stream = resolve(handle);
    if (!stream)
        return standin_fail(RT_STREAM_CONTEXT, "no stream: aclrtSetDevice was not called in this thread");
    pthread_mutex_lock(&stream->lock);
    if (!may_wait && !stream->first && !stream->running) {
        char copy[size ? size : 1];
        memcpy(copy, argument, size);
        note_failure(stream, function(copy));
        pthread_mutex_unlock(&stream->lock);
        return ACL_OK;
    }
    struct task *task = malloc(sizeof *task + size);
    task->next = NULL;
    task->function = function;
    memcpy(task->argument, argument, size);
    if (!stream->first && !stream->running)
        __atomic_add_fetch(&standin_busy_streams, 1, __ATOMIC_ACQ_REL);
    *stream->last = task;
    stream->last = &task->next;
    pthread_t thread;
    if (!stream->has_thread && !pthread_create(&thread, NULL, work, stream)) {
        stream->has_thread = 1;
        pthread_detach(thread);
    }
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return ACL_OK;
}

int standin_drain(void *handle, int milliseconds)
{
    int refused = standin_refuse_wait(handle, __func__);
    if (refused)
        return refused;
    struct stream *stream = resolve(handle);
    if (!stream)
        return standin_fail(RT_STREAM_CONTEXT, "no stream: aclrtSetDevice was not called in this thread");
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (milliseconds >= 0) {
        long long nanoseconds = end.tv_nsec + (milliseconds % 1000) * 1000000LL;
        end.tv_sec += milliseconds / 1000 + nanoseconds / 1000000000LL;
        end.tv_nsec = nanoseconds % 1000000000LL;
    }
    int late = 0;
    pthread_mutex_lock(&stream->lock);
    while ((stream->first || stream->running) && !late && !standin_dead(stream->device)) {
        struct timespec soon; /* short waits, since a device dies without a signal */
        clock_gettime(CLOCK_MONOTONIC, &soon);
        late = milliseconds >= 0 && (soon.tv_sec > end.tv_sec || (soon.tv_sec == end.tv_sec && soon.tv_nsec >= end.tv_nsec));
        if ((soon.tv_nsec += 50000000) >= 1000000000) {
            soon.tv_sec++;
            soon.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&stream->changed, &stream->lock, &soon);
    }
    late = late && (stream->first || stream->running);
    int code = late ? standin_fail(RT_STREAM_SYNC_TIMEOUT, "stream %d was not done after %d ms", stream->id, milliseconds)
                    : failure_of(stream);
    pthread_mutex_unlock(&stream->lock);
    return code;
}

int standin_failure(void *handle)
{
    struct stream *stream = resolve(handle);
    if (!stream)
        return ACL_OK;
    pthread_mutex_lock(&stream->lock);
    int code = failure_of(stream);
    pthread_mutex_unlock(&stream->lock);
    return code;
}

int standin_drain_device(int device, int milliseconds)
{
    struct stream *all[256];
    int count = 0, code = ACL_OK;
    pthread_mutex_lock(&registry);
    for (struct stream *stream = streams; stream && count < 256; stream = stream->next)
        if (stream->device == device)
            all[count++] = stream;
    pthread_mutex_unlock(&registry);
    for (int i = 0; i < count && !code; i++)
        code = standin_drain(all[i], milliseconds);
    return code;
}

static int create_stream(void **handle)
{
    if (standin_device() < 0)
        return standin_fail(RT_CONTEXT_NULL, "no stream: aclrtSetDevice was not called in this thread");
    *handle = make_stream(standin_device());
    return ACL_OK;
}

int aclrtCreateStream(void **handle)
{
    ENTER();
    return create_stream(handle);
}

int aclrtCreateStreamWithConfig(void **handle, uint32_t priority, uint32_t flag)
{
    (void)priority, (void)flag;
    ENTER();
    return create_stream(handle);
}

/* The structure stays, a few hundred bytes: handles of destroyed streams must not turn into wild pointers. */
static int destroy(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->closing = 1;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return ACL_OK;
}

int aclrtDestroyStream(void *handle)
{
    ENTER();
    return handle ? destroy(handle) : ACL_OK;
}

int aclrtDestroyStreamForce(void *handle)
{
    ENTER();
    return handle ? destroy(handle) : ACL_OK;
}

int aclrtSynchronizeStream(void *handle)
{
    ENTER();
    return standin_drain(handle, -1);
}

int aclrtSynchronizeStreamWithTimeout(void *handle, int32_t milliseconds)
{
    ENTER();
    return standin_drain(handle, milliseconds);
}

/* aclrtStreamStatus: 0 complete, 1 not ready. */
int aclrtStreamQuery(void *handle, int *status)
{
    ENTER();
    struct stream *stream = resolve(handle);
    REQUIRE(stream, RT_STREAM_CONTEXT);
    pthread_mutex_lock(&stream->lock);
    *status = stream->first || stream->running;
    pthread_mutex_unlock(&stream->lock);
    return ACL_OK;
}

int aclrtStreamGetId(void *handle, int32_t *id)
{
    ENTER();
    struct stream *stream = resolve(handle);
    REQUIRE(stream, RT_STREAM_CONTEXT);
    *id = stream->id;
    return ACL_OK;
}

int aclrtSetStreamFailureMode(void *handle, uint64_t mode)
{
    (void)handle, (void)mode;
    ENTER();
    return ACL_OK;
}
