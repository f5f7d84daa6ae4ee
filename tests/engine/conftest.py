"""Engines over tiny random models, driven in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported
import torch

from ascendd.config.model_facts import read_model_facts
from ascendd.config.resolve import resolve
from ascendd.config.schema import EngineSection, InstanceConfig, ModelSection
from ascendd.device.cpu import CpuDevice
from ascendd.engine.core import EngineCore
from ascendd.engine.exec.executor import InProcessExecutor
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.engine.sched.output import ScheduledChunk, SchedulerOutput
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.messages import AddSequence, SamplingParams

# What a family's configuration has besides the common sizes. Phi-3 turns to its long factors beyond 44 tokens, so that
# prompts of the tests lie on both sides and one grows across; DeepSeek-V2 has every part that it can have.
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
    "long_factor": [1.5 + 0.5 * pair for pair in range(8)],
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.707,
    "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
FAMILY_VALUES: dict[str, dict[str, object]] = {
    "qwen3": {"head_dim": 24},
    "phi3": {
        "rope_parameters": LONGROPE, "original_max_position_embeddings": 44, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "deepseek_v2": {
        "rope_parameters": YARN, "num_key_value_heads": 4, "first_k_dense_replace": 1, "kv_lora_rank": 24,
        "q_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8,
        "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2,
        "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7,
    },
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.torch)


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> None:
    # Tiny models gain nothing from a second thread, and its barriers cost much on a busy machine.
    torch.set_num_threads(2 if request.node.get_closest_marker("demo") else 1)


@pytest.fixture
def make_core() -> Callable[..., EngineCore]:
    """Build an engine over a folder; keyword arguments are those of the engine section."""

    def make(
        folder: Path, *, dtype: str = "float32", pack: bool = True, max_model_len: int | None = None, **engine: object
    ) -> EngineCore:
        facts = read_model_facts(folder)
        device = CpuDevice(pack=pack)
        config = InstanceConfig(
            model=ModelSection(path=str(folder), dtype=dtype, max_model_len=max_model_len),  # type: ignore[arg-type]
            engine=EngineSection(**engine),  # type: ignore[arg-type]
        )
        resolved = resolve(config, facts, device.facts)
        return EngineCore(resolved, InProcessExecutor(ModelRunner(resolved, facts, device)), facts.eos_token_ids)

    return make


@pytest.fixture
def generate() -> Callable[..., list[list[int]]]:
    """Run prompts to their end in one engine, all sent at once, with the integrity check after each step."""

    def run(core: EngineCore, prompts: list[list[int]], max_tokens: int = 8, **params: object) -> list[list[int]]:
        tokens: list[list[int]] = [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            sampling = SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **params})  # type: ignore[arg-type]
            assert core.add(AddSequence(index, prompt, sampling)) is None
        while core.has_work:
            output = core.step()
            if output is not None:
                for seq_id, token_id in zip(output.seq_ids, output.token_ids, strict=True):
                    tokens[seq_id].append(token_id)
            core.check_integrity()
        return tokens

    return run


@pytest.fixture
def logits_of() -> Callable[..., torch.Tensor]:
    """
    Feed one prompt through the paged cache in chunks of the given sizes; return the logits of each chunk's last token.

    The prompt counts as long from its first chunk on if it is longer than the model's `rope_switch_length`.
    """

    def run(core: EngineCore, token_ids: list[int], sizes: list[int]) -> torch.Tensor:
        assert sum(sizes) == len(token_ids)
        switch = core.config.rope_switch_length
        sequence = Sequence(seq_id=0, token_ids=[], params=SamplingParams(max_tokens=1), seed=0)
        sequence.rope_switch_length = 0 if switch is not None and len(token_ids) > switch else None
        sequence.status = SequenceStatus.RUNNING
        rows, start = [], 0
        for size in sizes:
            sequence.token_ids.extend(token_ids[start : start + size])
            assert core._kv.allocate_slots(sequence, start + size)
            output = SchedulerOutput(0, [ScheduledChunk(sequence, start, size)])
            rows.append(core.executor.runner.logits(output)[0])
            start += size
        return torch.stack(rows)

    return run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, torch.nn.Module]]:
    """Write a random model of a family once and return its folder and the reference model of transformers."""
    made: dict[str, tuple[Path, torch.nn.Module]] = {}

    def make(family: str, **overrides: object) -> tuple[Path, torch.nn.Module]:
        import transformers

        key = f"{family}-{sorted(overrides.items())}"
        if key not in made:
            name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3", "deepseek_v2": "DeepseekV2"}[
                family
            ]
            config_class = getattr(transformers, f"{name}Config")
            model_class = getattr(transformers, f"{name}ForCausalLM")
            values: dict[str, object] = {
                "vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
            }  # fmt: skip
            torch.manual_seed(len(made))
            model = model_class(config_class(**{**values, **FAMILY_VALUES.get(family, {}), **overrides})).eval()
            for name, parameter in model.named_parameters():
                # Wide enough that logits differ clearly and that a forgotten bias or norm would show.
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            made[key] = folder, model
        return made[key]

    return make


@pytest.fixture(scope="session")
def demo_reference(demo_model: Path, demo_folder: Path) -> tuple[Path, torch.nn.Module]:
    """The demo artefact, and the model that transformers itself reads from the GGUF file."""
    from transformers import AutoModelForCausalLM

    (source,) = demo_folder.glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(demo_folder, gguf_file=source.name, dtype=torch.float32).eval()
    return demo_model, model


@pytest.fixture(scope="session")
def first_wrong_token() -> Callable[..., int | None]:
    """Find the first token that is not the reference's best, nor within 1e-3 of it, given what came before."""

    def find(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> int | None:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        wrong = (logits.max(dim=1).values - chosen > 1e-3).nonzero()
        return None if len(wrong) == 0 else int(wrong[0])

    return find
