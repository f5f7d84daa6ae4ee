"""Architecture name of config.json -> model class."""

from __future__ import annotations

from ascendd.config.model_facts import SUPPORTED_ARCHITECTURES, ModelFacts
from ascendd.engine.layers.weight_scope import WeightScope
from ascendd.engine.models.deepseek_v2 import DeepseekV2ForCausalLM
from ascendd.engine.models.llama import LlamaForCausalLM
from ascendd.engine.models.phi3 import Phi3ForCausalLM
from ascendd.engine.models.qwen2 import Qwen2ForCausalLM
from ascendd.engine.models.qwen3 import Qwen3ForCausalLM

MODELS: dict[str, type[LlamaForCausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "DeepseekV2ForCausalLM": DeepseekV2ForCausalLM,
}
assert tuple(MODELS) == SUPPORTED_ARCHITECTURES, "config.model_facts and the registry name different architectures"


def build_model(scope: WeightScope, facts: ModelFacts) -> LlamaForCausalLM:
    """Build the model of `facts.architecture` from the weights of `scope`."""
    return MODELS[facts.architecture](scope, facts)
