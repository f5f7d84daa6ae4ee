"""The table of chips: what a name means, and which models the fused attention takes."""

from __future__ import annotations

import dataclasses

import pytest

from ascendd.device.soc import SOC_PROFILES, UNKNOWN_SOC, FusedOp, profile_of, takes_fused_latents


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Ascend910A", "910a"), ("Ascend910ProB", "910a"), ("Ascend910B", "910a"), ("Ascend910", "910a"),
        ("Ascend910PremiumA", "910a"), ("Ascend910B1", "910b"), ("Ascend910B2C", "910b"), ("Ascend910B4-1", "910b"),
        ("Ascend910_9391", "910_93"), ("Ascend310P3", "310p"), ("Ascend950DT_9571", "unknown"), ("Ascend310B4", "unknown"),
    ],
)  # fmt: skip
def test_a_chip_is_known_by_its_whole_name(name, family) -> None:
    """Ascend910B without a digit is a card of the first generation; what is new is nobody's relative."""
    assert profile_of(name).family == family


def test_an_unknown_chip_gets_no_fused_operator() -> None:
    """Everything is computed by the reference there, without graphs and in plain layout."""
    assert UNKNOWN_SOC.fused == frozenset()
    assert not UNKNOWN_SOC.graphs


def test_chips_of_the_first_generation_compute_in_half_precision_only() -> None:
    """bfloat16 came with the second."""
    by_family = {profile.family: profile.fast_dtypes for profile in SOC_PROFILES}

    assert by_family == {
        "910_93": ("bfloat16", "float16"),
        "910b": ("bfloat16", "float16"),
        "910a": ("float16",),
        "310p": ("float16",),
    }


def test_only_the_chips_that_have_it_get_the_fused_attention() -> None:
    """910B and A3."""
    assert {p.family for p in SOC_PROFILES if FusedOp.PAGED_ATTENTION in p.fused} == {"910_93", "910b"}


def test_the_table_cannot_be_changed() -> None:
    """A profile is frozen and its operators are a frozenset."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SOC_PROFILES[0].graphs = False  # type: ignore[misc]
    assert all(isinstance(profile.fused, frozenset) for profile in SOC_PROFILES)


@pytest.mark.parametrize(
    ("heads", "tp_size", "taken"),
    [(16, 1, False), (16, 2, False), (128, 1, True), (128, 2, True), (128, 4, True), (128, 8, False)],
)
def test_the_fused_attention_takes_32_64_or_128_heads_of_latents(heads, tp_size, taken) -> None:
    """DeepSeek-V2-Lite's 16 heads never fit; DeepSeek-V2's 128 do until they are cut into 8."""
    assert takes_fused_latents(heads=heads // tp_size, kv_rank=512, rope_dim=64) is taken


def test_latents_of_another_size_are_not_for_the_fused_attention() -> None:
    """It knows 512 + 64."""
    assert not takes_fused_latents(heads=128, kv_rank=256, rope_dim=64)
    assert not takes_fused_latents(heads=128, kv_rank=512, rope_dim=32)
