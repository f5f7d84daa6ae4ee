/*
 * Messages from one rank to another. A send is done when its receiver has it all, as between chips: two ranks that both
 * send first wait for each other for ever, unless the calls are one batch or one group.
 */
#include "hccl.h"
#include "call.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ITEMS 64

/* HcclSendRecvItem of hccl_types.h. */
struct item {
    uint32_t is_receive;
    void *buffer;
    uint64_t count;
    uint32_t type, peer;
};

struct header {
    uint64_t bytes;
    uint64_t type;
};

struct transfer {
    struct item item;
    struct header header;
    uint64_t moved; /* header included */
    int is_done;
};

struct batch {
    struct communicator *comm;
    uint32_t count;
    struct item items[MAX_ITEMS];
};

static uint64_t total(struct transfer *transfer)
{
    return sizeof(struct header) + transfer->item.count * standin_type_size(transfer->item.type);
}

/* The next stretch of the message that lies in one piece of memory. */
static char *stretch(struct transfer *transfer, uint64_t *length)
{
    uint64_t at = transfer->moved;
    if (at < sizeof transfer->header) {
        *length = sizeof transfer->header - at;
        return (char *)&transfer->header + at;
    }
    *length = total(transfer) - at;
    return (char *)transfer->item.buffer + at - sizeof transfer->header;
}

/* Move what can be moved now; 1 when anything was, -1 when the message is another than the receiver waits for. */
static int advance(struct communicator *comm, struct transfer *transfer)
{
    int receives = (int)transfer->item.is_receive, progress = 0;
    struct ring *ring = receives ? standin_ring(comm, transfer->item.peer, comm->rank)
                                 : standin_ring(comm, comm->rank, transfer->item.peer);
    while (transfer->moved < total(transfer)) {
        uint64_t written = __atomic_load_n(&ring->written, __ATOMIC_ACQUIRE);
        uint64_t taken = __atomic_load_n(&ring->taken, __ATOMIC_ACQUIRE), length;
        char *memory = stretch(transfer, &length);
        uint64_t there = receives ? taken : written, room = receives ? written - taken : RING_BYTES - (written - taken);
        uint64_t to_end = RING_BYTES - there % RING_BYTES;
        length = length < room ? length : room;
        length = length < to_end ? length : to_end;
        if (!length)
            break;
        char *place = ring->data + there % RING_BYTES;
        memcpy(receives ? memory : place, receives ? place : memory, length);
        __atomic_store_n(receives ? &ring->taken : &ring->written, there + length, __ATOMIC_RELEASE);
        transfer->moved += length;
        progress = 1;
        if (receives && transfer->moved == sizeof transfer->header &&
            (transfer->header.bytes != total(transfer) - sizeof transfer->header || transfer->header.type != transfer->item.type))
            return -1;
    }
    int was_done = transfer->is_done;
    transfer->is_done = transfer->moved == total(transfer) &&
                        (receives || __atomic_load_n(&ring->taken, __ATOMIC_ACQUIRE) == ring->written);
    return progress || transfer->is_done != was_done;
}

/* Messages to, or from, one peer go one after the other. */
static int has_earlier(struct transfer *transfers, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++)
        if (!transfers[i].is_done && transfers[i].item.peer == transfers[index].item.peer &&
            transfers[i].item.is_receive == transfers[index].item.is_receive)
            return 1;
    return 0;
}

static int exchange(struct communicator *comm, struct transfer *transfers, uint32_t count)
{
    double since = standin_now();
    for (;;) {
        uint32_t seen = __atomic_load_n(&comm->segment->changes, __ATOMIC_ACQUIRE);
        uint64_t missing = 0;
        int progress = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (transfers[i].is_done || has_earlier(transfers, i))
                continue;
            int moved = advance(comm, &transfers[i]);
            if (moved < 0)
                return standin_break(comm, HCCL_E_PARA, RT_DRV_INTERNAL_ERROR,
                                     "EI0005: rank %u waits for %llu bytes from rank %u and gets %llu, or another type",
                                     comm->rank, (unsigned long long)(total(&transfers[i]) - sizeof(struct header)),
                                     transfers[i].item.peer, (unsigned long long)transfers[i].header.bytes);
            progress |= moved;
            if (!transfers[i].is_done)
                missing |= 1ull << transfers[i].item.peer;
        }
        if (progress) {
            standin_change(comm->segment);
            since = standin_now();
        }
        if (!missing)
            return ACL_OK;
        int code = progress ? ACL_OK : standin_await_change(comm, seen, missing, since, comm->exec_timeout_s);
        if (code)
            return code;
    }
}

static int run(void *argument)
{
    struct batch *batch = argument;
    struct communicator *comm = batch->comm;
    struct transfer *transfers = calloc(batch->count + 1, sizeof *transfers);
    for (uint32_t i = 0; i < batch->count; i++) {
        struct transfer *transfer = &transfers[i];
        transfer->item = batch->items[i];
        transfer->header = (struct header){total(transfer) - sizeof(struct header), transfer->item.type};
    }
    pthread_mutex_lock(&comm->lock);
    int code;
    if (!comm->segment)
        code = standin_fail(RT_FFTS_PLUS_TIMEOUT, "communicator %s was destroyed", comm->name);
    else if (comm->broken)
        code = standin_fail(comm->broken, "%s", comm->failure);
    else
        code = exchange(comm, transfers, batch->count);
    pthread_mutex_unlock(&comm->lock);
    free(transfers);
    return code;
}

/* Calls between HcclGroupStart and HcclGroupEnd of one thread, which become one batch. */
static _Thread_local int group_depth;
static _Thread_local struct batch group;
static _Thread_local void *group_stream;

static int launch(struct communicator *comm, const struct item *items, uint32_t count, void *stream)
{
    for (uint32_t i = 0; i < count; i++)
        if (!standin_type_size(items[i].type) || items[i].peer >= comm->num_ranks || items[i].peer == comm->rank)
            return standin_fail(HCCL_E_PARA, "EI0003: type %u, peer %u", items[i].type, items[i].peer);
    struct batch *batch = group_depth ? &group : &(struct batch){.comm = comm};
    if (group_depth && group.count && (group.comm != comm || group_stream != stream))
        return standin_fail(HCCL_E_PARA, "a group with two communicators or streams");
    if (batch->count + count > MAX_ITEMS)
        return standin_fail(HCCL_E_PARA, "more than %d messages at once", MAX_ITEMS);
    batch->comm = comm;
    memcpy(batch->items + batch->count, items, count * sizeof *items);
    batch->count += count;
    group_stream = stream;
    if (group_depth)
        return HCCL_OK;
    return standin_submit(stream, run, batch, sizeof *batch, 1) ? HCCL_E_PARA : HCCL_OK;
}

int HcclSend(void *buffer, uint64_t count, uint32_t type, uint32_t peer, void *comm, void *stream)
{
    ENTER();
    return launch(comm, &(struct item){0, buffer, count, type, peer}, 1, stream);
}

int HcclRecv(void *buffer, uint64_t count, uint32_t type, uint32_t peer, void *comm, void *stream)
{
    ENTER();
    return launch(comm, &(struct item){1, buffer, count, type, peer}, 1, stream);
}

int HcclBatchSendRecv(const struct item *items, uint32_t count, void *comm, void *stream)
{
    ENTER();
    return launch(comm, items, count, stream);
}

int HcclGroupStart(void)
{
    ENTER();
    group_depth++;
    return HCCL_OK;
}

int HcclGroupEnd(void)
{
    ENTER();
    if (!group_depth || --group_depth || !group.count)
        return HCCL_OK;
    int code = standin_submit(group_stream, run, &group, sizeof group, 1);
    group.count = 0;
    return code ? HCCL_E_PARA : HCCL_OK;
}
