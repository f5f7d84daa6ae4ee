"""ModelRunner: executes one SchedulerOutput on the injected Device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch

from ascendd.artefact.layout import rank_layout
from ascendd.artefact.rank_weights import open_rank_weights
from ascendd.config.model_facts import ModelFacts
from ascendd.config.plan import kv_heads_per_rank
from ascendd.config.resolve import EngineConfig
from ascendd.device.base import AttentionForm, Device, KVCacheSpec
from ascendd.device.kernel_shapes import kernel_shapes
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.lora import LoraLayers
from ascendd.engine.layers.rotary import RotaryTable
from ascendd.engine.layers.vocabulary import VocabularyShards
from ascendd.engine.layers.weight_scope import WeightScope
from ascendd.engine.models.registry import build_model
from ascendd.engine.parallel.rank_group import RankGroup
from ascendd.engine.runner.capture_accord import CaptureAccord
from ascendd.engine.runner.graph_runner import GraphRunner, decode_buckets
from ascendd.engine.runner.input_batch import InputBatch
from ascendd.engine.runner.logprobs import score_prompts
from ascendd.engine.runner.profile_run import finish, profile_steps, scratch_blocks
from ascendd.engine.runner.runner_report import RunnerReport
from ascendd.engine.runner.sampler import Sampler
from ascendd.engine.runner.sharded_sampler import ShardedSampler
from ascendd.engine.sched.output import ModelRunnerOutput, SchedulerOutput
from ascendd.errors import AdapterInvalid
from ascendd.grammar.matcher import grammar_factory
from ascendd.telemetry import log


class ModelRunner:
    """
    Owns the weights, the KV tensors and the persistent batch of one rank.

    `group` are the ranks that compute a step together; without it this one holds the whole model.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        device: Device,
        on_progress: Callable[[float], None] | None = None,
        group: RankGroup | None = None,
    ) -> None:
        self._config = config
        self._facts = facts
        self._device = device
        self._group = group or RankGroup()
        place = self._group.place
        self.vocab_size = facts.vocab_size
        self._vocabulary = VocabularyShards(self._group.tensor, facts.vocab_size)
        self._dtype = dtype = getattr(torch, config.dtype)
        # Before any weight: what the device cannot do decides the form that weights and cache take.
        self.kernel_verdicts = device.prove_kernels(
            kernel_shapes(facts, dtype=config.dtype, tp_size=config.tensor_parallel_size, block_size=config.block_size)
        )
        if config.weight_dtype is not None:
            device.use_weight_dtype(config.weight_dtype)
        self.report = RunnerReport(tuple(verdict.kernel for verdict in self.kernel_verdicts if not verdict.passed))
        with open_rank_weights(
            Path(config.model_path), facts, place.tp_rank, place.tp_size, pp_rank=place.pp_rank, pp_size=place.pp_size
        ) as weights:
            done = 0

            def count(_name: str, num_bytes: int) -> None:
                nonlocal done
                done += num_bytes
                if on_progress is not None:
                    on_progress(min(1.0, done / max(1, weights.total_bytes)))

            self._lora: LoraLayers | None = None
            if config.max_loras:
                self._lora = LoraLayers(
                    {tensor.name: tensor for tensor in rank_layout(facts, place.tp_rank, place.tp_size)},
                    num_slots=config.max_loras,
                    max_rank=config.max_lora_rank,
                    dtype=dtype,
                    device=device.torch_device(),
                )
            wrap = None if self._lora is None else self._lora.wrap
            self._model = build_model(
                WeightScope(weights, device, dtype, on_read=count, wrap_linear=wrap, group=self._group.tensor), facts
            )
        self._first_layer = place.layers(facts.num_layers).start
        self._rotary = RotaryTable(facts, config.max_model_len, dtype, device.torch_device())
        self._kv_spec = KVCacheSpec(
            num_layers=len(place.layers(facts.num_layers)),
            num_kv_heads=1 if facts.latent else kv_heads_per_rank(facts, place.tp_size),
            head_dim=facts.latent.cached_dim if facts.latent else facts.head_dim,
            block_size=config.block_size,
            num_blocks=config.num_blocks + 1,  # the null block
            dtype=config.kv_cache_dtype,
            is_latent=facts.latent is not None,
        )
        self._batch = InputBatch(
            config.max_num_seqs + 1,  # a probe has a row beside the full batch
            -(-config.max_model_len // config.block_size),
            config.block_size,
            self._rotary.long_offset,
            device.kernels.attention_form(is_latent=facts.latent is not None),
        )
        grammars = grammar_factory(Path(config.model_path), facts.vocab_size, facts.eos_token_ids)
        self._sampler = Sampler(device.kernels, grammars)
        self._sharded = ShardedSampler(self._vocabulary, self._sampler, device.kernels, draws=place.draws)
        self._graphs: GraphRunner | None = None

    @cached_property
    def _kv_caches(self) -> list[torch.Tensor]:
        # Made by the first step, so that a profile run has the memory to itself.
        return self._device.allocate_kv(self._kv_spec)

    def profile(self) -> int:
        """
        Run the widest prefill and the widest decode on a scratch cache; return their bytes of activations at the peak.

        For the time between loading and the first step. A device may bound the width (DeviceFacts.max_profile_tokens).
        """
        steps = profile_steps(self._config, self._device.facts.max_profile_tokens)
        self._kv_caches = self._device.allocate_kv(replace(self._kv_spec, num_blocks=scratch_blocks(steps)))
        peaks = []
        for step in steps:
            peaks.append(self._device.peak_memory(partial(self._discard, step)))
            finish(step)
        del self._kv_caches
        self._device.empty_cache()
        return max(peaks)

    def set_num_blocks(self, num_blocks: int) -> None:
        """Have the KV cache made with `num_blocks` blocks; for the time before the first step."""
        assert "_kv_caches" not in vars(self), "the cache is there already"
        self._kv_spec = replace(self._kv_spec, num_blocks=num_blocks + 1)

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """
        Capture decode steps where the device can and the configuration lets it; before the first request.

        Attention that reads groups of rows has another shape at each step, so such kernels run eagerly; of tensor ranks
        all do where one must. Raises the device's typed fault where it fails for another reason than capturing.
        """
        # What a stage of a pipeline waits for, its neighbours' tensors, is no part of a graph.
        if self._config.enforce_eager or self._group.place.pp_size > 1:
            return
        accord = CaptureAccord(self._group.tensor, self._device.classify_fault)
        backend = self._device.open_graphs()
        form = self._device.kernels.attention_form(is_latent=self._kv_spec.is_latent)
        against = ""
        if backend is None:
            against = "the device captures no graphs"
        elif not form & (AttentionForm.SEQUENCE_TABLE | AttentionForm.DECODE_TABLE):
            against = "attention is computed by the reference"
        reason = accord.may_capture(against)
        if reason or backend is None:
            if backend is not None:
                log.get_logger("graphs").info("graphs.off", reason=reason)
            return
        self._graphs = GraphRunner(
            self._compute_whole,
            self._rotary,
            self._kv_caches,
            backend,
            accord,
            max_blocks=-(-self._config.max_model_len // self._config.block_size),
            block_size=self._config.block_size,
            num_blocks=self._kv_spec.num_blocks,
            device=self._device.torch_device(),
            is_latent=self._kv_spec.is_latent,
        )
        self._graphs.capture(decode_buckets(self._config.max_num_seqs))
        self.report.num_graph_buckets = len(self._graphs.buckets)

    def _discard(self, step: SchedulerOutput) -> None:
        self.execute(step)

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """
        Compute the chunks and draw a token for each that samples; of several ranks the one that draws returns them.

        Raises the device's typed fault (DeviceOutOfMemory, ...) where the error is one of the device's.
        """
        with self._device.naming_faults():
            logits, drawn = self._forward(output)
            if logits is None:
                return ModelRunnerOutput([])
            if self._group.tensor.size > 1:
                return self._sharded.choose(logits, drawn, output)
            prompt_logprobs = {}
            if drawn is not None:
                prompt_logprobs = score_prompts(logits[~drawn], output.chunks)
                logits = logits[drawn]
            token_ids, logprobs = self._sampler.sample(logits, [chunk.sequence for chunk in output.sampling_chunks])
            return ModelRunnerOutput(token_ids, logprobs, prompt_logprobs)

    def release_memory(self) -> None:
        """Give memory that no tensor uses back to the device."""
        self._device.empty_cache()

    def load_adapter(self, adapter_id: int, path: str) -> int:
        """
        Read the adapter in folder `path` into host memory under `adapter_id` and return its bytes.

        Raises AdapterInvalid, also where LoRA is off, or DeviceOutOfMemory.
        """
        if self._lora is None:
            raise AdapterInvalid("LoRA is off", remedy="Set engine.enable_lora: true, or list model.adapters.")
        with self._device.naming_faults():
            return self._lora.load(adapter_id, Path(path))

    def drop_adapter(self, adapter_id: int) -> None:
        """Forget an adapter that no sequence uses."""
        assert self._lora is not None
        self._lora.drop(adapter_id)

    @torch.inference_mode()
    def logits(self, output: SchedulerOutput) -> torch.Tensor:
        """Return logits [num_samples, vocab] of a step without sampling, for comparison with a reference."""
        logits, drawn = self._forward(output)
        assert logits is not None, "this stage has no logits"
        logits = self._vocabulary.gather(logits)
        return logits if drawn is None else logits[drawn]

    def _forward(self, output: SchedulerOutput) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """
        Return logits [rows, vocab], and which of the rows draw a token where not all do (StepInputs.drawn).

        The logits are this rank's part of the vocabulary; there are none before the last stage of a pipeline.
        """
        inputs = self._batch.prepare(output.chunks)
        if self._lora is not None:
            self._lora.set_step([(chunk.sequence.adapter_id, chunk.num_tokens) for chunk in output.chunks])
        if self._graphs is not None and self._graphs.takes(inputs) and not _has_adapters(output):
            self.report.num_replays += 1
            return self._graphs.replay(inputs), None
        inputs = inputs.to(self._device.torch_device())
        cos, sin = self._rotary.rows(inputs.rotary_rows)
        context = ForwardContext(cos, sin, self._kv_caches, inputs.attention, inputs.sample_rows, self._first_layer)
        return self._compute(inputs.token_ids, context), inputs.drawn

    def _compute(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor | None:
        """Compute this rank's part of the model; return logits [rows, part of vocab] where the last stage is here."""
        group, residual = self._group, None
        if group.place.is_first_stage:
            x = self._model.enter(token_ids)
        else:
            x, residual = group.receive(
                token_ids.shape[0], self._facts.hidden_size, self._dtype, self._device.torch_device()
            )
        x, residual = self._model.forward(x, residual, context)
        if not group.place.is_last_stage:
            group.send(x, residual)
            return None
        if context.sample_rows.shape[0] == 0:
            return x.new_empty((0, self.vocab_size), dtype=torch.float32)
        return self._model.logits(x, residual, context)

    def _compute_whole(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        logits = self._compute(token_ids, context)
        assert logits is not None, "only a rank with all layers is captured"
        return logits


def _has_adapters(output: SchedulerOutput) -> bool:
    """Whether a step computes LoRA deltas, whose rows no graph knows."""
    return any(chunk.sequence.adapter_id for chunk in output.chunks)
