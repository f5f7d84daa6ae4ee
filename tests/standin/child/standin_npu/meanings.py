"""Every meaning that the stand-in has, by the operator's name without `npu::`, with its overload where that is another."""

from __future__ import annotations

from standin_npu import attention, cache, experts, formats, norm, pointwise
from standin_npu.meaning import Meaning

MEANINGS: dict[str, Meaning] = {
    name: meaning
    for module in (attention, cache, experts, formats, norm, pointwise)
    for name, meaning in module.MEANINGS.items()
}
