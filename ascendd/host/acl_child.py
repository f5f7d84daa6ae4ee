"""
The ACL round trip, run as a program of its own: a stuck device can block any of these calls for ever.

Reads one JSON object on standard input: {"library", "device", "count_only", "num_bytes"}. Writes one JSON object
a line: {"step": name} before each call, and at the end {"result": {...}} or {"failed": step, "code": n, "text": ...}.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any, Dict

_HUGE_FIRST, _HOST_TO_DEVICE, _DEVICE_TO_HOST = 0, 1, 2
_MEMORY_DDR, _MEMORY_HBM = 0, 1
_REPEAT_INITIALIZE = 100002
_FILL = 0x5A

_int, _size, _pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_SIGNATURES = {
    "aclInit": [ctypes.c_char_p],
    "aclFinalize": [],
    "aclrtGetDeviceCount": [ctypes.POINTER(ctypes.c_uint32)],
    "aclrtSetDevice": [ctypes.c_int32],
    "aclrtResetDevice": [ctypes.c_int32],
    "aclrtGetMemInfo": [_int, ctypes.POINTER(_size), ctypes.POINTER(_size)],
    "aclrtMalloc": [ctypes.POINTER(_pointer), _size, _int],
    "aclrtFree": [_pointer],
    "aclrtMemset": [_pointer, _size, ctypes.c_int32, _size],
    "aclrtMemcpy": [_pointer, _size, _pointer, _size, _int],
    "aclrtSynchronizeDevice": [],
}


class StepFailed(Exception):
    """One call of the sequence did not return 0, or gave back other bytes than it was given."""

    def __init__(self, step: str, code: int, text: str) -> None:
        super().__init__(text)
        self.step, self.code, self.text = step, code, text


class AclRuntime:
    """libascendcl through ctypes; every call is announced first, so that a hang has a name."""

    def __init__(self, path: str) -> None:
        say({"step": "load"})
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise StepFailed("load", -1, str(error)) from error
        self._text = getattr(self._library, "aclGetRecentErrMsg", None)
        if self._text is not None:
            self._text.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any, tolerate: int = 0) -> int:
        """Call `name`; return 0 or the tolerated code. Raises StepFailed."""
        say({"step": name})
        function = getattr(self._library, name, None)
        if function is None:
            raise StepFailed(name, -1, f"the library has no {name}")
        function.argtypes, function.restype = _SIGNATURES[name], _int
        code = int(function(*arguments))
        if code not in (0, tolerate):
            message = self._text() if self._text is not None else None
            raise StepFailed(name, code, (message or b"").decode("utf-8", "replace").strip())
        return code

    def soc_name(self) -> str:
        """Return the chip name, `Ascend910B2`; empty when the library does not tell."""
        function = getattr(self._library, "aclrtGetSocName", None)
        if function is None:
            return ""
        function.restype = ctypes.c_char_p
        return (function() or b"").decode("utf-8", "replace")

    def memory(self) -> Dict[str, int]:
        """Return free and total bytes of the device's memory."""
        free, total = _size(), _size()
        for kind in (_MEMORY_HBM, _MEMORY_DDR):  # old releases answer 0 of 0 for the kind that the chip lacks
            self.call("aclrtGetMemInfo", kind, ctypes.byref(free), ctypes.byref(total))
            if total.value:
                break
        return {"free_bytes": free.value, "total_bytes": total.value}


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    """Perform the sequence and return what was learned. Raises StepFailed."""
    acl = AclRuntime(request["library"])
    is_owner = acl.call("aclInit", None, tolerate=_REPEAT_INITIALIZE) == 0
    count = ctypes.c_uint32()
    acl.call("aclrtGetDeviceCount", ctypes.byref(count))
    result: Dict[str, Any] = {"count": count.value}
    if not request["count_only"]:
        device = int(request["device"])
        acl.call("aclrtSetDevice", device)
        result.update(soc_name=acl.soc_name(), **acl.memory())
        round_trip(acl, int(request["num_bytes"]))
        acl.call("aclrtResetDevice", device)
    if is_owner:
        acl.call("aclFinalize")
    return result


def round_trip(acl: AclRuntime, num_bytes: int) -> None:
    """Take device memory, fill it, copy a pattern in and out, give it back. Raises StepFailed when bytes changed."""
    device_memory = _pointer()
    acl.call("aclrtMalloc", ctypes.byref(device_memory), num_bytes, _HUGE_FIRST)
    sent = (bytes(range(251)) * (num_bytes // 251 + 1))[:num_bytes]
    received = ctypes.create_string_buffer(num_bytes)
    acl.call("aclrtMemset", device_memory, num_bytes, _FILL, num_bytes)
    acl.call("aclrtSynchronizeDevice")
    acl.call("aclrtMemcpy", received, num_bytes, device_memory, num_bytes, _DEVICE_TO_HOST)
    compare("aclrtMemset", bytes([_FILL]) * num_bytes, received.raw)
    acl.call("aclrtMemcpy", device_memory, num_bytes, sent, num_bytes, _HOST_TO_DEVICE)
    acl.call("aclrtSynchronizeDevice")
    acl.call("aclrtMemcpy", received, num_bytes, device_memory, num_bytes, _DEVICE_TO_HOST)
    compare("aclrtMemcpy", sent, received.raw)
    acl.call("aclrtFree", device_memory)


def compare(step: str, expected: bytes, received: bytes) -> None:
    """Raise StepFailed when device memory gave back other bytes."""
    if received != expected:
        wrong = next(i for i, pair in enumerate(zip(expected, received)) if pair[0] != pair[1])
        raise StepFailed(
            step, -1, f"device memory came back changed: first difference at byte {wrong} of {len(expected)}"
        )


def say(message: Dict[str, Any]) -> None:
    """Write one line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        say({"result": run(json.loads(sys.stdin.read()))})
    except StepFailed as failure:
        say({"failed": failure.step, "code": failure.code, "text": failure.text})
