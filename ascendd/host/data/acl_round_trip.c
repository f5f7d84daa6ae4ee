/* Opens a device, takes memory, copies a pattern there and back, compares it and gives everything back.
 * Prints one line for each call, and at the end `ascendd-acl-sample: OK`; status 0 only then.
 */
#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"

#define SIZE ((size_t)1 << 20)

static int failed(const char *call, int code) {
    printf("%s=%d\n", call, code);
    fflush(stdout);
    return code != 0;
}

int main(int argc, char **argv) {
    int32_t device = argc > 1 ? (int32_t)atoi(argv[1]) : 0;
    unsigned char *sent = malloc(SIZE), *received = calloc(1, SIZE);
    void *memory = NULL;
    size_t i;
    if (!sent || !received) return 2;
    for (i = 0; i < SIZE; i++) sent[i] = (unsigned char)(i * 31 + i / 251);
    if (failed("aclInit", aclInit(NULL))) return 1;
    if (failed("aclrtSetDevice", aclrtSetDevice(device))) return 1;
    if (failed("aclrtMalloc", aclrtMalloc(&memory, SIZE, ACL_MEM_MALLOC_HUGE_FIRST))) return 1;
    if (failed("aclrtMemcpy to the device", aclrtMemcpy(memory, SIZE, sent, SIZE, ACL_MEMCPY_HOST_TO_DEVICE))) return 1;
    if (failed("aclrtSynchronizeDevice", aclrtSynchronizeDevice())) return 1;
    if (failed("aclrtMemcpy to the host", aclrtMemcpy(received, SIZE, memory, SIZE, ACL_MEMCPY_DEVICE_TO_HOST))) return 1;
    for (i = 0; i < SIZE; i++) {
        if (sent[i] != received[i]) {
            printf("changed=%zu\n", i);
            return 1;
        }
    }
    if (failed("aclrtFree", aclrtFree(memory))) return 1;
    if (failed("aclrtResetDevice", aclrtResetDevice(device))) return 1;
    if (failed("aclFinalize", aclFinalize())) return 1;
    printf("ascendd-acl-sample: OK\n");
    return 0;
}
