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
from ascendd.engine.runner.model_runner import ModelRunner
from ascendd.ipc.messages import AddSequence, SamplingParams


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
        return EngineCore(resolved, ModelRunner(resolved, facts, device), facts.eos_token_ids)

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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, torch.nn.Module]]:
    """Write a random model of a family once and return its folder and the reference model of transformers."""
    made: dict[str, tuple[Path, torch.nn.Module]] = {}

    def make(family: str, **overrides: object) -> tuple[Path, torch.nn.Module]:
        from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

        key = f"{family}-{sorted(overrides.items())}"
        if key not in made:
            config_class, model_class = {
                "llama": (LlamaConfig, LlamaForCausalLM),
                "qwen2": (Qwen2Config, Qwen2ForCausalLM),
            }[family]
            values: dict[str, object] = {
                "vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
            }  # fmt: skip
            torch.manual_seed(len(made))
            model = model_class(config_class(**{**values, **overrides})).eval()
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
