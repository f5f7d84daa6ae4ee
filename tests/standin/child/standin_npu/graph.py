"""
Operators of a captured stream: what was asked for is done at each run of the graph.

Other than on hardware it is done while capturing, too, since what comes after holds values to the operators' documents.
In an update it is not: the graph may be at work in the same memory.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from standin_npu.alias import on_host
from standin_npu.library import library

# Never taken out: a graph's tasks are few, and its runs may outlast whoever destroyed it.
_operators: dict[int, Callable[[], object]] = {}
_numbers = itertools.count(1)
_num_recorded = ctypes.c_int.in_dll(library, "standin_recorded_streams")
_AI_CORE_ERROR = 507015


def is_recorded() -> bool:
    """Whether operators of the current stream go into a graph, new or updated."""
    return _num_recorded.value != 0 and bool(library.standin_is_recorded(_stream()))


def record(operator: Callable[[], object]) -> None:
    """Add `operator` to the graph. Raises RuntimeError."""
    number = next(_numbers)
    _operators[number] = operator
    code = library.standin_add_operator(_stream(), ctypes.c_int64(number))
    if code:
        message = (library.aclGetRecentErrMsg() or b"").decode()
        raise RuntimeError(f"an operator cannot be recorded, error code is {code}\n{message}")


def recorded(
    compute: Callable[[], Any],
    meaning: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    written: list[Any],
    originals: dict[int, tuple[torch.Tensor, torch.Tensor]],
    device: torch.device,
) -> Any:
    """
    Record `compute` and return what the operator returns: tensors of the device that its runs will fill.

    In an update `meaning` gets spare memory in place of the tensors that it writes to.
    """
    spares: dict[int, torch.Tensor] = {}
    if not library.standin_is_captured(_stream()):
        spares = {
            id(tensor): torch.zeros(tensor.shape, dtype=tensor.dtype)
            for tensor in written
            if isinstance(tensor, torch.Tensor)
        }
    given_back = {id(spares[key]): originals[key][1] for key in spares if key in originals}

    def spare(tensor: torch.Tensor) -> torch.Tensor:
        return spares.get(id(tensor), tensor)

    result = meaning(*tree_map_only(torch.Tensor, spare, args), **tree_map_only(torch.Tensor, spare, kwargs))
    sinks: list[tuple[int, torch.Tensor]] = []
    places = {id(leaf): index for index, leaf in enumerate(tree_leaves(result))}

    def lift(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in given_back:
            return given_back[id(tensor)]
        if id(tensor) in originals:
            return originals[id(tensor)][1]
        empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
        sink = on_host(empty)
        sink.copy_(tensor)
        sinks.append((places[id(tensor)], sink))
        return empty

    lifted = tree_map_only(torch.Tensor, lift, result)

    def run() -> None:
        leaves = tree_leaves(compute())
        for index, sink in sinks:
            sink.copy_(leaves[index])

    record(run)
    return lifted


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.npu.current_stream().npu_stream)  # type: ignore[attr-defined]


def _run(number: int) -> int:
    try:
        with torch.inference_mode():  # this is a thread of the stream's own
            _operators[number]()
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        return _AI_CORE_ERROR
    return 0


_run_from_c = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(_run)
library.standin_set_operator(_run_from_c)
# Streams' threads outlive the interpreter.
atexit.register(library.standin_set_operator, None)
