"""What the arithmetic asks the stand-in's libascendcl: may this operator run, and has its stream come so far."""

from __future__ import annotations

import ctypes

import torch

library = ctypes.CDLL("libascendcl.so")
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
library.standin_perturbation.restype = ctypes.c_double
_busy_streams = ctypes.c_int.in_dll(library, "standin_busy_streams")


def begin(operator: str, *, waits: bool = True) -> None:
    """
    Count a call of `operator` and, unless it is only recorded, wait for what is ahead of it in the current stream.

    Raises RuntimeError with the text that torch_npu gives a failed launch, for a fault set on the operator's name and on
    a dead device.
    """
    code = library.standin_enter(operator.encode())
    if code:
        message = (library.aclGetRecentErrMsg() or b"").decode()
        raise RuntimeError(
            f"call {operator} failed, error code is {code}\n[ERROR] ERR00100 PTA call acl api failed.\n{message}"
        )
    if waits:
        catch_up()


def catch_up() -> None:
    """
    Wait, without the interpreter's lock, for what is ahead in the current stream: a graph's operators run in Python.

    A stream's failure is told by whoever waits for the stream, as with work that is launched behind it.
    """
    if _busy_streams.value:
        stream = torch.npu.current_stream().npu_stream  # type: ignore[attr-defined]
        library.standin_drain(ctypes.c_void_p(stream), -1)


def perturbation(operator: str) -> tuple[float, int]:
    """Return a factor and which result of `operator` it is for; 1.0 unless the machine perturbs it now."""
    output = ctypes.c_int(0)
    factor: float = library.standin_perturbation(operator.encode(), ctypes.byref(output))
    return factor, output.value
