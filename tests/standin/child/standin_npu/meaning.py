"""A meaning: what an npu operator computes, and the document that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Where the vendor describes torch_npu's operators, one page each. A page whose interface may yet change has BETA in its name.
OP_PLUGIN = "gitcode.com/Ascend/op-plugin docs/zh/custom_APIs/torch_npu/"
BETA = "\uff08beta\uff09"  # in the full-width brackets of the pages' names


@dataclass(frozen=True, slots=True)
class Meaning:
    """`compute` is the operator on CPU tensors; `document` is a page of the vendor, by repository and path."""

    compute: Callable[..., Any]
    document: str


def described(compute: Callable[..., Any], page: str) -> Meaning:
    """Return the meaning that `page` of the operators' own folder describes."""
    return Meaning(compute, f"{OP_PLUGIN}{page}.md")
