/* Devices, contexts and what the runtime tells about them. Memory and streams are in files of their own. */
#include "call.h"
#include "machine.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int current = -1; /* physical; the runtime has none before aclrtSetDevice */
static int initialised;
static int set_count[MAX_DEVICES]; /* the address of an entry is the device's context */

int standin_device(void) { return current; }

/* ASCEND_RT_VISIBLE_DEVICES: the first entry that names no device ends the list, as with the real runtime. */
static int visible(int *physical)
{
    int num_devices = (int)standin_machine()->num_devices, count = 0;
    const char *list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (!list) {
        for (; count < num_devices; count++)
            physical[count] = count;
        return count;
    }
    while (*list && count < MAX_DEVICES) {
        char *end;
        long device = strtol(list, &end, 10);
        if (end == list || device < 0 || device >= num_devices)
            break;
        physical[count++] = (int)device;
        list = *end == ',' ? end + 1 : end;
    }
    return count;
}

/* Physical number of the process's device `logical`, or -1. */
static int physical_of(int logical)
{
    int physical[MAX_DEVICES];
    return logical >= 0 && logical < visible(physical) ? physical[logical] : -1;
}

static int logical_of(int device)
{
    int physical[MAX_DEVICES], count = visible(physical);
    for (int i = 0; i < count; i++)
        if (physical[i] == device)
            return i;
    return -1;
}

int aclInit(const char *path)
{
    (void)path;
    ENTER();
    REQUIRE(!initialised, ACL_REPEAT_INITIALIZE);
    initialised = 1;
    return ACL_OK;
}

int aclFinalize(void)
{
    ENTER();
    initialised = 0;
    return ACL_OK;
}

int aclrtGetDeviceCount(uint32_t *count)
{
    int physical[MAX_DEVICES];
    ENTER();
    *count = (uint32_t)visible(physical);
    return ACL_OK;
}

int aclrtSetDevice(int32_t device)
{
    int physical = physical_of(device);
    int before = current;
    current = physical; /* so that faults and death of this very device apply to the call */
    int fault = standin_enter(__func__);
    if (fault || physical < 0)
        current = before;
    if (fault)
        return fault;
    if (physical < 0)
        return standin_fail(RT_INVALID_DEVICEID, "aclrtSetDevice failed: this process has no device %d", device);
    set_count[physical]++;
    return ACL_OK;
}

int aclrtResetDevice(int32_t device)
{
    ENTER();
    REQUIRE(physical_of(device) >= 0, RT_INVALID_DEVICEID);
    if (set_count[physical_of(device)])
        set_count[physical_of(device)]--;
    return ACL_OK;
}

int aclrtGetDevice(int32_t *device)
{
    ENTER();
    REQUIRE(current >= 0, RT_CONTEXT_NULL);
    *device = logical_of(current);
    return ACL_OK;
}

int aclrtGetCurrentContext(void **context)
{
    ENTER();
    REQUIRE(current >= 0, RT_CONTEXT_NULL);
    *context = &set_count[current];
    return ACL_OK;
}

int aclrtSetCurrentContext(void *context)
{
    ENTER();
    REQUIRE((int *)context >= set_count && (int *)context < set_count + MAX_DEVICES, RT_PARAM_INVALID);
    current = (int)((int *)context - set_count);
    return ACL_OK;
}

int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active)
{
    ENTER();
    REQUIRE(physical_of(device) >= 0, RT_INVALID_DEVICEID);
    if (flags)
        *flags = 0;
    *active = set_count[physical_of(device)] > 0;
    return ACL_OK;
}

int aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds)
{
    ENTER();
    REQUIRE(current >= 0, RT_CONTEXT_NULL);
    return standin_drain_device(current, milliseconds);
}

int aclrtSynchronizeDevice(void)
{
    ENTER();
    REQUIRE(current >= 0, RT_CONTEXT_NULL);
    return standin_drain_device(current, -1);
}

const char *aclrtGetSocName(void) { return standin_machine()->soc; }

int aclsysGetVersionStr(char *package, char *version)
{
    (void)package;
    ENTER();
    strcpy(version, standin_machine()->cann);
    return ACL_OK;
}

/* aclCANNPackageVersion begins with char version[128] and is 128 + 4 x 64 + 128 bytes (acl_rt.h). */
int aclsysGetCANNVersion(int package, char *version)
{
    (void)package;
    ENTER();
    memset(version, 0, 128 + 4 * 64 + 128);
    strcpy(version, standin_machine()->cann);
    return ACL_OK;
}

int aclGetDeviceCapability(uint32_t device, int what, int64_t *value)
{
    (void)device, (void)what;
    ENTER();
    *value = 24; /* AI cores */
    return ACL_OK;
}

int aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer)
{
    (void)device, (void)peer;
    ENTER();
    *can = 1;
    return ACL_OK;
}

/* Settings that change nothing here; the process may make them. */
#define ACCEPT(name, ...)     \
    int name(__VA_ARGS__)     \
    {                         \
        ENTER();              \
        return ACL_OK;        \
    }
ACCEPT(aclrtDeviceEnablePeerAccess, int32_t peer, uint32_t flags)
ACCEPT(aclrtSetDeviceSatMode, int mode)
ACCEPT(aclrtSetSysParamOpt, int option, int64_t value)
ACCEPT(aclrtCtxSetSysParamOpt, int option, int64_t value)
ACCEPT(aclrtSetOpWaitTimeout, uint32_t seconds)
ACCEPT(aclrtSetOpExecuteTimeOut, uint32_t seconds)
ACCEPT(aclmdlInitDump, void)
ACCEPT(aclmdlFinalizeDump, void)
ACCEPT(aclSetCompileopt, int option, const char *value)
ACCEPT(MsprofRegisterCallback, uint32_t module, void *callback)

int aclrtGetSysParamOpt(int option, int64_t *value)
{
    (void)option;
    ENTER();
    *value = 0;
    return ACL_OK;
}

size_t aclGetCompileoptSize(int option)
{
    (void)option;
    return 1;
}

int aclGetCompileopt(int option, char *value, size_t length)
{
    (void)option;
    ENTER();
    if (length)
        *value = 0;
    return ACL_OK;
}

void aclAppLog(int level, const char *function, const char *file, uint32_t line, const char *format, ...)
{
    (void)level, (void)function, (void)file, (void)line, (void)format;
}

/* Chips whose floats saturate (910A, 310P) are asked to say when; host arithmetic has infinities. */
int aclrtSetStreamOverflowSwitch(void *stream, uint32_t flag)
{
    (void)stream, (void)flag;
    ENTER();
    return ACL_OK;
}

/* Handles of the path that compiles single operators, which host arithmetic replaces. NULL is what its callers check. */
void *aclCreateTensorDesc(void) { return NULL; }
void *aclopCreateAttr(void) { return NULL; }
void aclDestroyTensorDesc(void *desc) { (void)desc; }
void aclopDestroyAttr(void *attr) { (void)attr; }
