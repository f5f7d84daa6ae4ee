"""Architecture name of config.json -> model class."""

from __future__ import annotations

from ascendd.config.model_facts import SUPPORTED_ARCHITECTURES, ModelFacts
from ascendd.engine.layers.weight_scope import WeightScope
from ascendd.engine.models.llama import LlamaForCausalLM
from ascendd.engine.models.qwen2 import Qwen2ForCausalLM

MODELS: dict[str, type[LlamaForCausalLM]] = {"LlamaForCausalLM": LlamaForCausalLM, "Qwen2ForCausalLM": Qwen2ForCausalLM}
assert tuple(MODELS) == SUPPORTED_ARCHITECTURES, "config.model_facts and the registry name different architectures"


def build_model(scope: WeightScope, facts: ModelFacts) -> LlamaForCausalLM:
    """Build the model of `facts.architecture` from the weights of `scope`."""
    return MODELS[facts.architecture](scope, facts)
