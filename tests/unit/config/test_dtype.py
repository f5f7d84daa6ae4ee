"""dtypes have one canonical form, whatever was written; block sizes are the device's to take or refuse."""

from __future__ import annotations

import msgspec
import pytest

from ascendd.cli.serve import build_config
from ascendd.config.load import load_text
from ascendd.config.model_facts import facts_from_config
from ascendd.config.plan import DeviceFacts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.errors import ConfigInvalid

TINY = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 256,
}  # fmt: skip
NPU = DeviceFacts(
    kind="npu", name="Ascend 910B", total_bytes=2**30, free_bytes=2**30, fast_dtypes=("float16",), block_sizes=(128,)
)

SPELLINGS = [
    ("auto", "auto"), ("fp16", "float16"), ("half", "float16"), ("float16", "float16"), ("bf16", "bfloat16"),
    ("bfloat16", "bfloat16"), ("fp32", "float32"), ("float", "float32"), ("float32", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "canonical"), SPELLINGS)
def test_every_spelling_means_one_dtype(written: str, canonical: str) -> None:
    """A file, a flag and the control link give the same dtype for each spelling."""
    from_file = load_text(f"model: {{path: /m, dtype: {written}}}\nengine: {{kv_cache_dtype: {written}}}")
    from_flags, _ = build_config(["/m", "--dtype", written, "--kv-cache-dtype", written])
    over_the_link = msgspec.json.decode(msgspec.json.encode(from_file), type=InstanceConfig)

    for config in (from_file, from_flags, over_the_link):
        assert (config.model.dtype, config.engine.kv_cache_dtype) == (canonical, canonical)


def test_other_dtypes_are_refused() -> None:
    """A dtype that no kernel stores is named."""
    with pytest.raises(ConfigInvalid, match=r"kv_cache_dtype = 'fp8': must be one of auto, .*bf16"):
        load_text("model: {path: /m}\nengine: {kv_cache_dtype: fp8}")


def test_block_sizes_without_a_kernel_are_refused_by_name() -> None:
    """A device that takes 128 only says so for 16, and has 128 as its default."""
    facts = facts_from_config(TINY)

    def block_size(written: int | None) -> int:
        engine = EngineSection(device="npu", block_size=written, max_num_blocks=4)  # type: ignore[arg-type]
        return resolve(InstanceConfig(model=ModelSection(path="/m"), engine=engine), facts, NPU).block_size

    assert (block_size(None), block_size(128)) == (128, 128)
    with pytest.raises(ConfigInvalid, match=r"block_size = 16: the kernels of Ascend 910B take blocks of 128 tokens"):
        block_size(16)


def test_weights_are_kept_in_another_dtype_where_the_device_computes_it() -> None:
    """A CPU keeps int8 or float16 and computes in float32; another device or dtype is refused by name."""
    facts = facts_from_config(TINY)
    cpu = msgspec.structs.replace(NPU, kind="cpu", block_sizes=(16,), fast_dtypes=("float32", "bfloat16"))

    def kept(written: str, dtype: str = "auto", device: DeviceFacts = cpu) -> tuple[str, str | None]:
        config = InstanceConfig(
            model=ModelSection(path="/m", dtype=dtype),  # type: ignore[arg-type]
            engine=EngineSection(weight_dtype=written, max_num_blocks=64),  # type: ignore[arg-type]
        )
        resolved = resolve(config, facts, device)
        return resolved.dtype, resolved.weight_dtype

    assert [kept("int8"), kept("fp16"), kept("fp32", "fp32")] == [
        ("float32", "int8"),
        ("float32", "float16"),
        ("float32", None),
    ]
    with pytest.raises(ConfigInvalid, match=r"weight_dtype = int8: a device of kind npu has no kernels"):
        kept("int8", device=NPU)
    with pytest.raises(
        ConfigInvalid, match=r"weight_dtype = int8: such weights are computed in float32, .* is bfloat16"
    ):
        kept("int8", "bf16")
