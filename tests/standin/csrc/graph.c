/*
 * Graphs: the tasks of captured streams, run by one task of the stream that executes them, in the order in which they
 * came: it is one of those that the events between the streams allow. A stream joins a capture where it waits for an
 * event of it, as HCCL's do. A task group is a run of tasks that another stream may replace, one for one, while the
 * graph waits at an external event in front of them.
 */
#include "graph.h"
#include "call.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct graph_task {
    struct graph_task *next;
    task_function function;
    char *argument;
};

struct group {
    struct graph_task *first;
    int count;
};

#define MAX_MEMBERS 8

/* A stream of a capture: how many tasks it has, and how many of them the first stream has waited for. */
struct member {
    void *stream;
    uint64_t tasks, joined;
};

struct graph {
    struct graph_task *first, **last;
    struct group *open; /* the group that new tasks belong to */
    struct member members[MAX_MEMBERS]; /* the first is the stream that the capture began in */
    int num_members;
    uint64_t number;
    pthread_t thread;
    int is_invalid; /* something was done that a capture does not allow */
};

/* One capture and one update at a time in a process, as torch_npu does them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph *captured;
static void *updating;
static struct graph_task *next_updated;
static int left_to_update;
/* Streams whose tasks go into a graph now, for callers that only want to know whether there are any. */
int standin_recorded_streams;
int standin_captures;

/* With the lock held. */
static struct member *member_of(void *stream)
{
    for (int i = 0; stream && captured && i < captured->num_members; i++)
        if (captured->members[i].stream == stream)
            return &captured->members[i];
    return NULL;
}

int standin_is_captured(void *stream)
{
    if (!__atomic_load_n(&standin_recorded_streams, __ATOMIC_ACQUIRE))
        return 0;
    pthread_mutex_lock(&lock);
    int found = member_of(stream) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

int standin_is_recorded(void *stream)
{
    if (!__atomic_load_n(&standin_recorded_streams, __ATOMIC_ACQUIRE))
        return 0;
    return standin_is_captured(stream) || (stream && __atomic_load_n(&updating, __ATOMIC_ACQUIRE) == stream);
}

int standin_add_task(void *stream, task_function function, const void *argument, size_t size)
{
    char *copy = malloc(size ? size : 1);
    memcpy(copy, argument, size);
    pthread_mutex_lock(&lock);
    int is_update = updating == stream;
    struct graph_task *task = is_update ? next_updated : calloc(1, sizeof *task);
    if (is_update && !left_to_update) {
        pthread_mutex_unlock(&lock);
        free(copy);
        return standin_fail(RT_TASK_GROUP_STATUS, "an update has more tasks than its group");
    }
    if (is_update) {
        free(task->argument);
        next_updated = task->next;
        left_to_update--;
    } else {
        struct member *member = member_of(stream);
        if (member)
            member->tasks++;
        *captured->last = task;
        captured->last = &task->next;
        if (captured->open) {
            captured->open->first = captured->open->first ? captured->open->first : task;
            captured->open->count++;
        }
    }
    task->function = function;
    task->argument = copy;
    pthread_mutex_unlock(&lock);
    return ACL_OK;
}

int aclmdlRICaptureBegin(void *stream, int mode)
{
    (void)mode;
    static uint64_t number;
    ENTER();
    REQUIRE(stream, RT_CAPTURE_IMPLICIT);
    pthread_mutex_lock(&lock);
    int busy = captured != NULL;
    if (!busy) {
        captured = calloc(1, sizeof *captured);
        captured->last = &captured->first;
        captured->members[0].stream = stream;
        captured->num_members = 1;
        captured->number = ++number;
        captured->thread = pthread_self();
        __atomic_store_n(&standin_captures, 1, __ATOMIC_RELEASE);
        __atomic_add_fetch(&standin_recorded_streams, 1, __ATOMIC_ACQ_REL);
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(!busy, RT_STREAM_CAPTURED);
    return ACL_OK;
}

/* aclmdlRICaptureStatus: 0 none, 1 active, 2 invalidated. */
int aclmdlRICaptureGetInfo(void *stream, int *status, void **graph)
{
    ENTER();
    int found = standin_is_captured(stream);
    *status = found ? 1 + captured->is_invalid : 0;
    if (graph)
        *graph = found ? captured : NULL;
    return ACL_OK;
}

static void let_go(struct graph *graph)
{
    while (graph->first) {
        struct graph_task *task = graph->first;
        graph->first = task->next;
        free(task->argument);
        free(task);
    }
    free(graph);
}

/* Whatever it returns, the capture is over. */
int aclmdlRICaptureEnd(void *stream, void **graph)
{
    int fault = standin_enter(__func__);
    REQUIRE(standin_is_captured(stream), RT_STREAM_NOT_CAPTURED);
    pthread_mutex_lock(&lock);
    struct graph *ended = captured;
    captured = NULL;
    __atomic_store_n(&standin_captures, 0, __ATOMIC_RELEASE);
    int is_first = ended->members[0].stream == stream, is_joined = 1;
    for (int i = 1; i < ended->num_members; i++)
        is_joined = is_joined && ended->members[i].joined == ended->members[i].tasks;
    __atomic_sub_fetch(&standin_recorded_streams, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_unlock(&lock);
    if (!fault && !pthread_equal(ended->thread, pthread_self()))
        fault = standin_fail(RT_CAPTURE_WRONG_THREAD, "a capture ends in another thread than it began in");
    if (!fault && !is_first)
        fault = standin_fail(RT_CAPTURE_UNMATCHED, "a capture ends in another stream than it began in");
    if (!fault && !is_joined)
        fault = standin_fail(RT_STREAM_UNJOINED, "a stream that joined the capture was not waited for at its end");
    if (!fault && ended->is_invalid)
        fault = standin_fail(RT_MODEL_CAPTURED, "the capture is invalid");
    if (fault) {
        let_go(ended);
        return fault;
    }
    *graph = ended;
    return ACL_OK;
}

/* What a capture does not allow is refused, and spoils the capture. */
int standin_refuse_wait(void *stream, const char *what)
{
    if (!standin_is_captured(stream))
        return ACL_OK;
    captured->is_invalid = 1;
    return standin_fail(RT_STREAM_CAPTURED, "%s: not allowed to synchronize a captured stream", what);
}

int standin_mark_capture(void *stream, struct capture_mark *mark)
{
    memset(mark, 0, sizeof *mark);
    if (!__atomic_load_n(&standin_recorded_streams, __ATOMIC_ACQUIRE))
        return 0;
    pthread_mutex_lock(&lock);
    struct member *member = member_of(stream);
    if (member)
        *mark = (struct capture_mark){captured->number, (int)(member - captured->members), member->tasks};
    pthread_mutex_unlock(&lock);
    return member != NULL;
}

int standin_is_marked(const struct capture_mark *mark)
{
    pthread_mutex_lock(&lock);
    int found = captured && mark->capture == captured->number;
    pthread_mutex_unlock(&lock);
    return found;
}

int standin_join_capture(void *stream, const struct capture_mark *mark)
{
    int code = ACL_OK;
    pthread_mutex_lock(&lock);
    struct member *waits = member_of(stream);
    if (!waits && captured->num_members < MAX_MEMBERS)
        (waits = &captured->members[captured->num_members++])->stream = stream;
    if (!waits)
        code = standin_fail(RT_FEATURE_NOT_SUPPORT, "the stand-in NPU captures at most %d streams", MAX_MEMBERS);
    else if (waits == captured->members && captured->members[mark->member].joined < mark->tasks)
        captured->members[mark->member].joined = mark->tasks;
    pthread_mutex_unlock(&lock);
    return code;
}

static int run_graph(void *argument)
{
    struct graph *graph = *(struct graph **)argument;
    int code = ACL_OK;
    /* Tasks are read as they come up: an update may have replaced one behind an event that the graph waited at. */
    for (struct graph_task *task = graph->first; task && !code; task = task->next) {
        pthread_mutex_lock(&lock);
        task_function function = task->function;
        char *now = task->argument;
        pthread_mutex_unlock(&lock);
        code = function(now);
    }
    return code;
}

int aclmdlRIExecuteAsync(void *graph, void *stream)
{
    ENTER();
    return standin_submit(stream, run_graph, &graph, sizeof graph, 1);
}

int aclmdlRIDestroy(void *graph)
{
    ENTER();
    let_go(graph);
    return ACL_OK;
}

int aclmdlRICaptureThreadExchangeMode(int *mode)
{
    static _Thread_local int current;
    ENTER();
    int before = current;
    current = *mode;
    *mode = before;
    return ACL_OK;
}

int aclmdlRICaptureTaskGrpBegin(void *stream)
{
    ENTER();
    REQUIRE(standin_is_captured(stream), RT_STREAM_NOT_CAPTURED);
    REQUIRE(!captured->open, RT_TASK_GROUP_STATUS);
    captured->open = calloc(1, sizeof *captured->open);
    return ACL_OK;
}

/* A few bytes a group stay: handles may outlive their graph. */
int aclmdlRICaptureTaskGrpEnd(void *stream, void **group)
{
    ENTER();
    REQUIRE(standin_is_captured(stream), RT_STREAM_NOT_CAPTURED);
    REQUIRE(captured->open, RT_TASK_GROUP_STATUS);
    *group = captured->open;
    captured->open = NULL;
    return ACL_OK;
}

int aclmdlRICaptureTaskUpdateBegin(void *stream, void *handle)
{
    ENTER();
    REQUIRE(stream && !updating && handle, RT_TASK_GROUP_STATUS);
    struct group *group = handle;
    pthread_mutex_lock(&lock);
    next_updated = group->first;
    left_to_update = group->count;
    __atomic_store_n(&updating, stream, __ATOMIC_RELEASE);
    __atomic_add_fetch(&standin_recorded_streams, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_unlock(&lock);
    return ACL_OK;
}

int aclmdlRICaptureTaskUpdateEnd(void *stream)
{
    ENTER();
    REQUIRE(updating == stream, RT_TASK_GROUP_STATUS);
    pthread_mutex_lock(&lock);
    int left = left_to_update;
    __atomic_store_n(&updating, NULL, __ATOMIC_RELEASE);
    __atomic_sub_fetch(&standin_recorded_streams, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_unlock(&lock);
    REQUIRE(!left, RT_TASK_GROUP_STATUS);
    return ACL_OK;
}

int aclrtSetStreamAttribute(void *stream, int attribute, void *value)
{
    (void)stream, (void)attribute, (void)value;
    ENTER();
    return ACL_OK;
}

/* An operator of the child's Python as a task of a graph: a number that Python knows. */
static int (*run_operator)(int64_t number);

void standin_set_operator(int (*function)(int64_t)) { run_operator = function; }

static int run_numbered(void *argument)
{
    return run_operator ? run_operator(*(int64_t *)argument) : ACL_OK;
}

int standin_add_operator(void *stream, int64_t number)
{
    return standin_add_task(stream, run_numbered, &number, sizeof number);
}
