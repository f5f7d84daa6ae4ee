"""
What each generation of Ascend chips can do, as one immutable table. No torch, so that anything may ask.

A fused operator that is listed wrongly costs a warning at start: device.kernel_proof runs each before it is used and
puts the reference in its place where it fails. One that is missing costs speed. So the table leans to what operator
documents name for a chip, and chips that nobody here knows get no fused operator at all.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

# acl_format values of torch_npu.npu_format_cast, as in the runtime's aclFormat enum.
ACL_FORMAT_ND = 2
ACL_FORMAT_FRACTAL_NZ = 29
# Tokens in a KV block that the fused attention reads; it takes multiples of 128 for prompts, so nothing smaller.
FUSED_BLOCK_SIZE = 128


class FusedOp(enum.Enum):
    """A kernel of device.base.Kernels that has a fused form; the value is the method's name."""

    RMS_NORM = "rms_norm"
    ADD_RMS_NORM = "add_rms_norm"
    ROPE = "rope"
    ROPE_INTERLEAVED = "rope_interleaved"
    SILU_AND_MUL = "silu_and_mul"
    STORE_KV = "store_kv"
    PAGED_ATTENTION = "paged_attention"
    LATENT_ATTENTION = "latent_attention"
    EXPERTS = "experts"


_ELEMENTWISE = frozenset({FusedOp.RMS_NORM, FusedOp.ADD_RMS_NORM, FusedOp.ROPE, FusedOp.SILU_AND_MUL})
_ALL = frozenset(FusedOp)


@dataclass(frozen=True, slots=True)
class SocProfile:
    """
    One generation. `pattern` matches all of the name that the runtime gives (aclrtGetSocName).

    `fast_dtypes` are those of matrix products at full speed, the preferred one first. `weight_format` is the layout
    that weights of projections are cast to once. `graphs` says whether decode steps can be captured.
    """

    family: str
    title: str
    pattern: str
    fast_dtypes: tuple[str, ...]
    weight_format: int
    fused: frozenset[FusedOp]
    graphs: bool


# Order matters: `Ascend910B` alone is a 32 GB card of the first generation, `Ascend910B1` and on are the second.
SOC_PROFILES: tuple[SocProfile, ...] = (
    SocProfile(
        family="910_93", title="Atlas A3", pattern=r"Ascend910_93\d*", fast_dtypes=("bfloat16", "float16"),
        weight_format=ACL_FORMAT_FRACTAL_NZ, fused=_ALL, graphs=True,
    ),
    SocProfile(
        family="910b", title="Atlas A2 (Ascend 910B)", pattern=r"Ascend910B\d.*", fast_dtypes=("bfloat16", "float16"),
        weight_format=ACL_FORMAT_FRACTAL_NZ, fused=_ALL, graphs=True,
    ),
    SocProfile(
        family="910a", title="Ascend 910A", pattern=r"Ascend910(A|B|Pro[AB]|PremiumA)?", fast_dtypes=("float16",),
        weight_format=ACL_FORMAT_ND, fused=frozenset({FusedOp.RMS_NORM}), graphs=False,
    ),
    SocProfile(
        family="310p", title="Ascend 310P", pattern=r"Ascend310P\d.*", fast_dtypes=("float16",),
        weight_format=ACL_FORMAT_FRACTAL_NZ, fused=_ELEMENTWISE, graphs=False,
    ),
)  # fmt: skip

UNKNOWN_SOC = SocProfile(
    family="unknown", title="an Ascend chip that this version does not know", pattern=".*", fast_dtypes=("float16",),
    weight_format=ACL_FORMAT_ND, fused=frozenset(), graphs=False,
)  # fmt: skip

# Query heads of a rank for which the fused attention takes latents (a value of 512 and a rotary part of 64), by the
# operator's document. DeepSeek-V2-Lite has 16 heads, so it never fits, whatever the tensor parallel size.
FUSED_LATENT_HEADS = frozenset({32, 64, 128})
FUSED_LATENT_RANK = 512
FUSED_LATENT_ROPE_DIM = 64


def profile_of(soc_name: str) -> SocProfile:
    """Return the profile of the chip that calls itself `soc_name`; UNKNOWN_SOC, which fuses nothing, for a new one."""
    for profile in SOC_PROFILES:
        if re.fullmatch(profile.pattern, soc_name):
            return profile
    return UNKNOWN_SOC


def takes_fused_latents(*, heads: int, kv_rank: int, rope_dim: int) -> bool:
    """
    Whether the fused attention takes the latents of such a model; `heads` are those of one rank.

    Known from config.json and the tensor parallel size, so the choice is made before anything is loaded.
    """
    return heads in FUSED_LATENT_HEADS and kv_rank == FUSED_LATENT_RANK and rope_dim == FUSED_LATENT_ROPE_DIM
