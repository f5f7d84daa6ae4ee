"""
Puts host arithmetic under every operator that torch_npu has a kernel for.

aten operators run torch's CPU kernel on the same bytes; npu operators run the meaning that this package gives them, and
their results are held against the wheel's own shape functions. An npu operator without a meaning keeps the wheel's
kernel, which fails for want of CANN. Views, allocation and copies between host and device stay the wheel's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from standin_npu import graph
from standin_npu.alias import on_device, on_host
from standin_npu.graph import recorded
from standin_npu.library import begin, catch_up, perturbation
from standin_npu.meanings import MEANINGS

# Storage, allocation and what only asks about it.
_OWN = frozenset(
    {
        "empty", "empty_strided", "empty_like", "as_strided", "view", "_reshape_alias", "set_", "resize_", "_copy_from",
        "_copy_from_and_resize", "record_stream", "is_pinned", "_pin_memory", "pin_memory", "_local_scalar_dense",
        "_to_copy", "to", "_has_compatible_shallow_copy_type", "set_data", "is_set_to", "_resize_output_", "_lazy_clone",
        "set_source_Storage_storage_offset",
    }
)  # fmt: skip
_libraries: list[torch.library.Library] = []
_generators: dict[int, torch.Generator] = {}


def install() -> None:
    """Register the kernels for the PrivateUse1 key; for once, right after torch_npu's own."""
    dispatch = torch._C
    aten, npu = (torch.library.Library(namespace, "IMPL") for namespace in ("aten", "npu"))
    _libraries.extend((aten, npu))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is there already is the point
        for schema in dispatch._jit_get_all_schemas():
            namespace, _, name = schema.name.partition("::")
            full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
            if namespace not in ("aten", "npu") or not dispatch._dispatch_has_kernel(full):
                continue
            if not dispatch._dispatch_has_kernel_for_dispatch_key(full, "PrivateUse1"):
                continue
            qualified = full.partition("::")[2]
            overload = getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")
            meaning = MEANINGS.get(qualified) or MEANINGS.get(name)
            if namespace == "npu" and meaning is not None:
                npu.impl(qualified, _kernel(overload, meaning.compute), "PrivateUse1", allow_override=True)
            elif namespace == "aten" and name == "copy_":
                aten.impl(qualified, _copy_kernel(), "PrivateUse1", allow_override=True)
            elif namespace == "aten" and name not in _OWN and not _is_view(overload) and _runs_on_cpu(full):
                aten.impl(qualified, _kernel(overload, overload), "PrivateUse1", allow_override=True)


def _is_view(overload: Any) -> bool:
    return any(result.alias_info and not result.alias_info.is_write for result in overload._schema.returns)


def _runs_on_cpu(name: str) -> bool:
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _kernel(overload: Any, meaning: Callable[..., Any]) -> Callable[..., Any]:
    name: str = overload._schema.name
    written = [
        (index, argument.name)
        for index, argument in enumerate(overload._schema.arguments)
        # The vendor's `out` lists are written without being marked so.
        if (argument.alias_info and argument.alias_info.is_write) or argument.name == "out"
    ]
    is_vendor = not name.startswith("aten::")

    def places(args: Any, kwargs: Any) -> list[Any]:
        return tree_leaves([args[index] if index < len(args) else kwargs.get(key) for index, key in written])

    def run(*args: Any, **kwargs: Any) -> Any:
        is_recorded = graph.is_recorded()
        begin(name, waits=not is_recorded)
        originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        device: torch.device | None = None

        def down(value: Any) -> Any:
            nonlocal device
            if isinstance(value, torch.Tensor):
                if value.device.type != "npu":
                    return value
                device = device or value.device
                host = on_host(value)
                originals[id(host)] = (host, value)
                return host
            if isinstance(value, (list, tuple)):
                return type(value)(map(down, value))
            if isinstance(value, torch.device):
                return torch.device("cpu")
            if isinstance(value, torch.Generator):
                return _host_generator(value)
            return value

        host_args, host_kwargs = [down(value) for value in args], {key: down(value) for key, value in kwargs.items()}
        target = device or torch.device(kwargs.get("device") or "npu")

        def compute() -> Any:
            result = meaning(*host_args, **host_kwargs)
            factor, output = perturbation(name)
            if factor != 1.0:
                _perturb(places(host_args, host_kwargs) or tree_leaves(result), factor, output)
            return result

        def up(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in originals:
                return on_device(tensor, target)
            original = originals[id(tensor)][1]
            if original.shape != tensor.shape:  # an `out` argument that the operator made fit
                original.resize_(tensor.shape)
                on_host(original).copy_(tensor)
            return original

        if is_recorded:
            written_to = places(host_args, host_kwargs)
            lifted = recorded(compute, meaning, host_args, host_kwargs, written_to, originals, target)
        else:
            lifted = tree_map_only(torch.Tensor, up, compute())
        if is_vendor:
            _hold_against_shape_function(overload, args, kwargs, lifted)
        return lifted

    return run


def _perturb(results: list[Any], factor: float, output: int) -> None:
    """Multiply floating-point tensor number `output` in place; the first is the one that the operator is called for."""
    tensors = [tensor for tensor in results if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()]
    if tensors:
        tensors[output].mul_(factor)


def _hold_against_shape_function(overload: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Fail where a meaning's shapes or dtypes are not those that the wheel derives from the same arguments."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "Meta"):
        return

    def ghost(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")

    derived = overload(*tree_map_only(torch.Tensor, ghost, args), **tree_map_only(torch.Tensor, ghost, kwargs))
    pairs = [
        [(tuple(tensor.shape), tensor.dtype) for tensor in tree_leaves(value) if isinstance(tensor, torch.Tensor)]
        for value in (derived, result)
    ]
    assert pairs[0] == pairs[1], f"{overload.name()}: stand-in gives {pairs[1]}, torch_npu derives {pairs[0]}"


def _host_generator(generator: torch.Generator) -> torch.Generator:
    """Return the CPU generator that stands for an NPU one; its stream of numbers is not the device's."""
    if generator.device.type != "npu":
        return generator
    seed = generator.initial_seed()
    if seed not in _generators:
        _generators[seed] = torch.Generator().manual_seed(seed)
    return _generators[seed]


def _copy_kernel() -> Callable[..., torch.Tensor]:
    """Copies with a change of dtype, of layout or within the devices by the host; plain transfers by the wheel."""
    own = torch.library.get_kernel("aten::copy_", "PrivateUse1")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        is_plain = target.dtype == source.dtype and target.shape == source.shape
        is_plain = is_plain and target.is_contiguous() and source.is_contiguous()
        if is_plain and target.device.type != source.device.type:
            catch_up()  # the wheel's kernel would wait with the interpreter's lock held
            copied: torch.Tensor = own.call_boxed(keys, target, source, non_blocking)
            return copied
        is_recorded = graph.is_recorded()
        begin("aten::copy_", waits=not is_recorded)
        to, of = on_host(target), on_host(source)
        if is_recorded:
            graph.record(partial(to.copy_, of))
        to.copy_(of)
        return target

    return copy_
