/*
 * Collectives. All ranks meet, look at each other's seat, and meet again before a seat is overwritten; long data goes
 * in pieces. Reductions go in the order of the ranks on every rank, so that all get the same bits.
 */
#include "hccl.h"
#include "call.h"
#include "stream.h"

#include <string.h>

struct work {
    struct communicator *comm;
    const char *source;
    char *target;
    struct signature what;
};

static struct seat *seat_of(struct work *work, uint32_t rank) { return &work->comm->segment->seats[rank]; }

/* Show `bytes` of `source` to all (NULL: nothing) and wait until all show theirs. */
static int show(struct work *work, const char *source, size_t bytes)
{
    if (source)
        memcpy(seat_of(work, work->comm->rank)->data, source, bytes);
    return standin_meet(work->comm);
}

static int agree(struct work *work)
{
    struct communicator *comm = work->comm;
    seat_of(work, comm->rank)->signature = work->what;
    int code = standin_meet(comm);
    for (uint32_t rank = 0; rank < comm->num_ranks && !code; rank++)
        if (memcmp(&seat_of(work, rank)->signature, &work->what, sizeof work->what))
            code = standin_break(comm, HCCL_E_PARA, RT_DRV_INTERNAL_ERROR,
                                 "EI0005: The arguments for collective communication are inconsistent between ranks: "
                                 "rank %u and rank %u differ in operation, count, type or root", comm->rank, rank);
    return code ? code : standin_meet(comm);
}

static int combine(struct work *work, char *target, size_t count)
{
    size_t size = standin_type_size(work->what.type);
    memcpy(target, seat_of(work, 0)->data, count * size);
    for (uint32_t rank = 1; rank < work->comm->num_ranks; rank++)
        standin_reduce(target, seat_of(work, rank)->data, count, work->what.type, work->what.reduction);
    return ACL_OK;
}

/* The ranks' pieces [first, first + count) for the part of rank `part`, by operation. */
static int one_piece(struct work *work, uint32_t part, size_t first, size_t count)
{
    struct communicator *comm = work->comm;
    size_t size = standin_type_size(work->what.type), bytes = count * size, at = first * size;
    size_t whole = work->what.count * size;
    int is_root = comm->rank == work->what.root, shows = 1;
    const char *source = work->source + at;
    switch (work->what.operation) {
    case OP_BROADCAST: shows = is_root; break;
    case OP_REDUCE_SCATTER: source += part * whole; break;
    case OP_SCATTER: source += part * whole, shows = is_root; break;
    default: break;
    }
    int code = show(work, shows ? source : NULL, bytes);
    if (code)
        return code;
    char *target = work->target + at;
    switch (work->what.operation) {
    case OP_ALL_REDUCE: combine(work, target, count); break;
    case OP_REDUCE:
        if (is_root)
            combine(work, target, count);
        break;
    case OP_REDUCE_SCATTER:
        if (part == comm->rank)
            combine(work, target, count);
        break;
    case OP_BROADCAST:
        if (!is_root)
            memcpy(target, seat_of(work, work->what.root)->data, bytes);
        break;
    case OP_SCATTER:
        if (part == comm->rank)
            memcpy(target, seat_of(work, work->what.root)->data, bytes);
        break;
    case OP_ALL_GATHER:
        for (uint32_t rank = 0; rank < comm->num_ranks; rank++)
            memcpy(work->target + rank * whole + at, seat_of(work, rank)->data, bytes);
        break;
    default: break;
    }
    return standin_meet(comm);
}

static int run(void *argument)
{
    struct work *work = argument;
    struct communicator *comm = work->comm;
    pthread_mutex_lock(&comm->lock);
    int code = ACL_OK;
    if (!comm->segment) {
        pthread_mutex_unlock(&comm->lock);
        return standin_fail(RT_FFTS_PLUS_TIMEOUT, "communicator %s was destroyed", comm->name);
    }
    if (comm->broken)
        code = standin_fail(comm->broken, "%s", comm->failure);
    else
        code = agree(work);
    int is_split = work->what.operation == OP_REDUCE_SCATTER || work->what.operation == OP_SCATTER;
    size_t most = SEAT_BYTES / 8;
    for (uint32_t part = 0; part < (is_split ? comm->num_ranks : 1) && !code; part++)
        for (size_t first = 0; first < work->what.count && !code; first += most) {
            size_t left = work->what.count - first;
            code = one_piece(work, part, first, left < most ? left : most);
        }
    pthread_mutex_unlock(&comm->lock);
    return code;
}

static int launch(struct communicator *comm, const void *source, void *target, struct signature what, void *stream)
{
    char probe[8] = {0};
    if (!standin_type_size(what.type))
        return standin_fail(HCCL_E_PARA, "EI0003: no data type %u", what.type);
    int reduces = what.operation == OP_ALL_REDUCE || what.operation == OP_REDUCE || what.operation == OP_REDUCE_SCATTER;
    if (reduces && standin_reduce(probe, probe, 1, what.type, what.reduction))
        return standin_fail(HCCL_E_PARA, "EI0003: data type %u cannot be reduced by %u", what.type, what.reduction);
    if (what.root >= comm->num_ranks)
        return standin_fail(HCCL_E_PARA, "EI0003: no rank %u", what.root);
    struct work work = {comm, source, target, what};
    return standin_submit(stream, run, &work, sizeof work, 1) ? HCCL_E_PARA : HCCL_OK;
}

int HcclAllReduce(void *source, void *target, uint64_t count, int type, int reduction, void *comm, void *stream)
{
    ENTER();
    return launch(comm, source, target, (struct signature){count, OP_ALL_REDUCE, (uint32_t)type, (uint32_t)reduction, 0}, stream);
}

int HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root, void *comm, void *stream)
{
    ENTER();
    return launch(comm, buffer, buffer, (struct signature){count, OP_BROADCAST, (uint32_t)type, 0, root}, stream);
}

int HcclReduce(void *source, void *target, uint64_t count, int type, int reduction, uint32_t root, void *comm, void *stream)
{
    ENTER();
    return launch(comm, source, target, (struct signature){count, OP_REDUCE, (uint32_t)type, (uint32_t)reduction, root}, stream);
}

int HcclAllGather(void *source, void *target, uint64_t count, int type, void *comm, void *stream)
{
    ENTER();
    return launch(comm, source, target, (struct signature){count, OP_ALL_GATHER, (uint32_t)type, 0, 0}, stream);
}

int HcclReduceScatter(void *source, void *target, uint64_t count, int type, int reduction, void *comm, void *stream)
{
    ENTER();
    return launch(comm, source, target, (struct signature){count, OP_REDUCE_SCATTER, (uint32_t)type, (uint32_t)reduction, 0},
                  stream);
}

int HcclScatter(void *source, void *target, uint64_t count, int type, uint32_t root, void *comm, void *stream)
{
    ENTER();
    return launch(comm, source, target, (struct signature){count, OP_SCATTER, (uint32_t)type, 0, root}, stream);
}

int HcclBarrier(void *comm, void *stream)
{
    ENTER();
    return launch(comm, NULL, NULL, (struct signature){0, OP_BARRIER, 0, 0, 0}, stream);
}
