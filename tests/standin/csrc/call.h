/* What every exported function begins with: count the call, apply the machine's faults, keep the thread's message. */
#ifndef STANDIN_CALL_H
#define STANDIN_CALL_H

#include <stdint.h>

/* Codes as acl_base_rt.h and error_codes/rt_error_codes.h of the torch_npu wheel name them. */
enum {
    ACL_OK = 0,
    ACL_INVALID_PARAM = 100000,
    ACL_REPEAT_INITIALIZE = 100002,
    RT_PARAM_INVALID = 107000,
    RT_INVALID_DEVICEID = 107001,
    RT_CONTEXT_NULL = 107002,
    RT_STREAM_CONTEXT = 107003,
    RT_CAPTURE_DEPENDENCY = 107024,
    RT_STREAM_UNJOINED = 107025,
    RT_MODEL_CAPTURED = 107026,
    RT_STREAM_CAPTURED = 107027,
    RT_EVENT_CAPTURED = 107028,
    RT_STREAM_NOT_CAPTURED = 107029,
    RT_CAPTURE_IMPLICIT = 107031,
    RT_TASK_GROUP_STATUS = 107033,
    RT_CAPTURE_UNMATCHED = 107036,
    RT_CAPTURE_WRONG_THREAD = 107038,
    RT_STREAM_SYNC_TIMEOUT = 507046,
    RT_FEATURE_NOT_SUPPORT = 207000,
    RT_MEMORY_ALLOCATION = 207001,
    RT_FFTS_PLUS_TIMEOUT = 507048,
    RT_DRV_INTERNAL_ERROR = 507899,
};

/* The fault due at this call of `function`, or 0. Hangs where the machine says so. */
int standin_enter(const char *function);
/* Set the text that aclGetRecentErrMsg gives this thread next, and return `code`. */
int standin_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Physical device of this thread, or -1 before aclrtSetDevice. */
int standin_device(void);
/* The code of a dead device, or 0. */
int standin_dead(int device);

#define ENTER()                                   \
    do {                                          \
        int fault_ = standin_enter(__func__);     \
        if (fault_)                               \
            return fault_;                        \
    } while (0)

#define REQUIRE(condition, code)                                                       \
    do {                                                                               \
        if (!(condition))                                                              \
            return standin_fail(code, "%s failed: %s is not so", __func__, #condition); \
    } while (0)

#endif
