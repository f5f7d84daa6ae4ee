/* Device memory is host memory, charged to the device's budget. A process sees where an address belongs. */
#include "call.h"
#include "machine.h"
#include "stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct block {
    struct block *next;
    char *address;
    size_t size;
    int device; /* -1: pinned host memory */
};

static struct block *blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int allocate(void **address, size_t size, int device)
{
    size_t rounded = (size + 4095) & ~(size_t)4095;
    struct block *block = malloc(sizeof *block);
    /* Untouched pages cost the host nothing, so a device may be larger than the machine under it. */
    char *memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!block || memory == MAP_FAILED) {
        free(block);
        return -1;
    }
    *block = (struct block){blocks, memory, rounded, device};
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
    *address = memory;
    return 0;
}

static int release(void *address)
{
    pthread_mutex_lock(&lock);
    struct block **link = &blocks;
    while (*link && (*link)->address != (char *)address)
        link = &(*link)->next;
    struct block *block = *link;
    if (block)
        *link = block->next;
    pthread_mutex_unlock(&lock);
    if (!block)
        return standin_fail(RT_PARAM_INVALID, "free failed: %p was never allocated, or is freed twice", address);
    munmap(block->address, block->size);
    if (block->device >= 0)
        standin_charge(block->device, -(int64_t)block->size);
    free(block);
    return ACL_OK;
}

static int allocate_on_device(const char *function, void **address, size_t size)
{
    int device = standin_device();
    if (device < 0)
        return standin_fail(RT_CONTEXT_NULL, "%s failed: aclrtSetDevice was not called in this thread", function);
    if (!size)
        return standin_fail(RT_PARAM_INVALID, "%s failed: size 0", function);
    size_t rounded = (size + 4095) & ~(size_t)4095;
    if (standin_charge(device, (int64_t)rounded))
        return standin_fail(RT_MEMORY_ALLOCATION, "EL0004: Failed to allocate memory: %zu bytes on device %d", size,
                            device);
    if (allocate(address, size, device)) {
        standin_charge(device, -(int64_t)rounded);
        return standin_fail(RT_MEMORY_ALLOCATION, "%s failed: the host has no %zu bytes", function, size);
    }
    return ACL_OK;
}

int aclrtMalloc(void **address, size_t size, int policy)
{
    (void)policy;
    ENTER();
    return allocate_on_device(__func__, address, size);
}

int aclrtMallocAlign32(void **address, size_t size, int policy)
{
    (void)policy;
    ENTER();
    return allocate_on_device(__func__, address, size);
}

int aclrtFree(void *address)
{
    ENTER();
    return release(address);
}

int aclrtMallocHost(void **address, size_t size)
{
    ENTER();
    REQUIRE(!allocate(address, size ? size : 1, -1), RT_MEMORY_ALLOCATION);
    return ACL_OK;
}

int aclrtFreeHost(void *address)
{
    ENTER();
    return release(address);
}

int aclrtGetMemInfo(int attribute, size_t *unused, size_t *total)
{
    (void)attribute;
    ENTER();
    REQUIRE(standin_device() >= 0, RT_CONTEXT_NULL);
    uint64_t used = standin_used(standin_device());
    *total = standin_machine()->hbm_bytes;
    *unused = used < *total ? *total - used : 0;
    return ACL_OK;
}

/* aclrtPtrAttributes: uint32 device id, uint32 kind of place (0 host, 1 device, 2 not registered), then 20 bytes. */
int aclrtPointerGetAttributes(const void *address, uint32_t *attributes)
{
    ENTER();
    memset(attributes, 0, 28);
    attributes[1] = 2;
    pthread_mutex_lock(&lock);
    for (struct block *block = blocks; block; block = block->next)
        if ((const char *)address >= block->address && (const char *)address < block->address + block->size) {
            attributes[0] = block->device < 0 ? 0 : (uint32_t)block->device;
            attributes[1] = block->device >= 0;
        }
    pthread_mutex_unlock(&lock);
    return ACL_OK;
}

struct transfer {
    void *target;
    const void *source; /* NULL: fill with `value` */
    size_t size;
    int value;
};

static int transfer_now(void *argument)
{
    struct transfer *transfer = argument;
    if (transfer->source)
        memmove(transfer->target, transfer->source, transfer->size);
    else
        memset(transfer->target, transfer->value, transfer->size);
    return ACL_OK;
}

int aclrtMemcpy(void *target, size_t room, const void *source, size_t size, int kind)
{
    (void)kind;
    ENTER();
    REQUIRE(size <= room && (!size || (target && source)), RT_PARAM_INVALID);
    return transfer_now(&(struct transfer){target, source, size, 0});
}

int aclrtMemcpyAsync(void *target, size_t room, const void *source, size_t size, int kind, void *stream)
{
    (void)kind;
    ENTER();
    REQUIRE(size <= room && (!size || (target && source)), RT_PARAM_INVALID);
    return standin_submit(stream, transfer_now, &(struct transfer){target, source, size, 0}, sizeof(struct transfer), 0);
}

int aclrtMemset(void *target, size_t room, int32_t value, size_t size)
{
    ENTER();
    REQUIRE(size <= room, RT_PARAM_INVALID);
    return transfer_now(&(struct transfer){target, NULL, size, value});
}

int aclrtMemsetAsync(void *target, size_t room, int32_t value, size_t size, void *stream)
{
    ENTER();
    REQUIRE(size <= room, RT_PARAM_INVALID);
    return standin_submit(stream, transfer_now, &(struct transfer){target, NULL, size, value}, sizeof(struct transfer), 0);
}
