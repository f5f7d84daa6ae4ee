"""The shared library of native kernels: found beside this file where it was compiled, called through ctypes."""

from __future__ import annotations

import _ctypes
import ctypes
import os
from functools import cache
from pathlib import Path

import torch

from ascendd.telemetry import log

# ABI of csrc/calls.h. A library of another would be called with structures that it reads as something else.
ABI = 3
LIBRARY = Path(__file__).with_name("libcpukernels.so")
# 0 turns native kernels off, 1 allows AVX2 or NEON, 2 AVX-512 as well, 3 its VNNI for int8 weights; to compare them.
LEVEL_VARIABLE = "ASCENDD_NATIVE_LEVEL"
LEVEL_NAMES = {0: "none", 1: "AVX2 or NEON", 2: "AVX-512", 3: "AVX-512 VNNI"}
WHOLE_LEVEL = 3
FORMATS = {torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.bfloat16: 3}
PANEL = 16
FEATURES_AT_ONCE = 4 * PANEL
# int8 weights that are multiplied as whole numbers (vnni.h), and the input features that share a scale there.
WHOLE_FORMAT, GROUP = 4, 32
_REMEDY = (
    "Install ascendd again where a C compiler is (in a checkout: make venv, or pip install --editable .); until then "
    "torch computes, with equal results and more slowly."
)

_POINTER, _INT64, _INT32, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_ARGUMENTS: dict[str, list[type]] = {
    "ascendd_pack": [_POINTER, _POINTER, _INT64, _INT64, _INT64, _INT32],
    "ascendd_pack_whole": [_POINTER, _POINTER, _INT64, _INT64, _INT32],
    "ascendd_linear": [_POINTER, _POINTER, _INT64, _POINTER, _INT64, _INT32],
    "ascendd_attention": [_POINTER, _INT64, _INT32],
    "ascendd_norm": [_POINTER, _INT64, _POINTER, _POINTER, _FLOAT, _POINTER, _INT64, _INT64, _INT32],
    "ascendd_gate": [_POINTER, _POINTER, _INT64, _INT64, _INT32],
    "ascendd_rotate": [_POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, _INT64, _INT32],
    "ascendd_store": [_POINTER],
}


class PackedCall(ctypes.Structure):
    """packed_linear of calls.h."""

    _fields_ = (
        ("weights", _POINTER), ("scales", _POINTER), ("bias", _POINTER),
        ("num_features", _INT64), ("depth", _INT64), ("format", _INT64),
    )  # fmt: skip


class AttentionCall(ctypes.Structure):
    """attention_call of calls.h."""

    _fields_ = (
        ("query", _POINTER), ("cache", _POINTER), ("block_table", _POINTER), ("lengths", _POINTER), ("ends", _POINTER),
        ("out", _POINTER), ("query_stride", _INT64), ("table_width", _INT64), ("num_heads", _INT64),
        ("kv_heads", _INT64), ("head_dim", _INT64), ("num_blocks", _INT64), ("block_size", _INT64), ("format", _INT64),
        ("scale", _FLOAT),
    )  # fmt: skip


class StoreCall(ctypes.Structure):
    """store_call of calls.h."""

    _fields_ = (
        ("key", _POINTER), ("value", _POINTER), ("cache", _POINTER), ("slots", _POINTER), ("key_stride", _INT64),
        ("value_stride", _INT64), ("num_rows", _INT64), ("kv_heads", _INT64), ("num_slots", _INT64),
        ("head_dim", _INT64), ("format", _INT64),
    )  # fmt: skip


class _Unusable(Exception):
    """A library that is there and must not be called; says why and what to do."""


@cache
def native_library() -> ctypes.CDLL | None:
    """
    Return the library with a set of kernels chosen that this core runs, or None: not compiled, of another version of
    ascendd, or for no such core. Without it the torch forms compute the same, more slowly.

    torch has been imported by then, whose OpenMP the library uses; where that is not to be seen it does not load.
    """
    if not LIBRARY.exists():
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY), mode=os.RTLD_NOW)
        _check_abi(library)
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        level = library.ascendd_choose(int(os.environ.get(LEVEL_VARIABLE, str(WHOLE_LEVEL))))
    except (OSError, AttributeError, ValueError, _Unusable) as error:
        log.get_logger("device").warning("device.native_kernels_off", reason=str(error), remedy=_REMEDY)
        return None
    return library if level else None


def _check_abi(library: ctypes.CDLL) -> None:
    found = library.ascendd_abi() if hasattr(library, "ascendd_abi") else 1  # before there was a number
    if found != ABI:
        _ctypes.dlclose(library._handle)  # else the same path, compiled again, would be this one for the process
        raise _Unusable(f"{LIBRARY} was compiled for ABI {found} of the kernels, and this ascendd calls ABI {ABI}")
