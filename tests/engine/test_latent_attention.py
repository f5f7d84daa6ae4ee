"""Latent attention: both forms are the same sum, and the cache holds nothing but latents."""

from __future__ import annotations

import pytest
import torch

from ascendd.config.model_facts import read_model_facts
from ascendd.device.base import AttentionContext, DecodeGroup, KVCacheSpec, LatentUp, PrefillChunk
from ascendd.device.cpu import CpuDevice
from ascendd.device.kernels import latent_attention
from ascendd.device.kernels.cpu import CpuKernels
from ascendd.device.kernels.latent_attention import attend_absorbed, attend_expanded, is_absorbing_cheaper
from ascendd.device.kernels.reference import ReferenceKernels

HEADS, NOPE, ROPE, VALUE, RANK = 3, 6, 4, 5, 16


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("num_new", "num_total"), [(1, 1), (1, 40), (7, 40), (40, 40)])
def test_expanded_and_absorbed_are_equal(num_new: int, num_total: int) -> None:
    """Expanding latents into keys and values, or absorbing the matrices into query and output: one result."""
    query, latents = rand(num_new, HEADS, NOPE + ROPE), rand(num_total, RANK + ROPE, seed=1)
    up = LatentUp(rand(HEADS, NOPE + VALUE, RANK, seed=2), NOPE)
    positions = torch.arange(num_total)
    mask = positions[None] <= positions[-num_new:, None]

    expanded = attend_expanded(query, latents, mask, 0.3, up)
    absorbed = attend_absorbed(query[None], latents[None], mask[None], 0.3, up)[0]

    assert expanded.shape == (num_new, HEADS, VALUE)
    assert torch.allclose(expanded, absorbed, atol=1e-5)


def test_expanded_is_the_textbook_formula() -> None:
    """Head by head, token by token, beside softmax(q k) v written out."""
    query, latents = rand(4, HEADS, NOPE + ROPE), rand(4, RANK + ROPE, seed=1)
    up = LatentUp(rand(HEADS, NOPE + VALUE, RANK, seed=2), NOPE)
    expected = torch.zeros(4, HEADS, VALUE)
    for head in range(HEADS):
        keys = torch.cat((latents[:, :RANK] @ up.key[head].T, latents[:, RANK:]), dim=-1)
        values = latents[:, :RANK] @ up.value[head].T
        for token in range(4):
            weights = (keys[: token + 1] @ query[token, head] * 0.3).softmax(dim=0)
            expected[token, head] = weights @ values[: token + 1]

    assert torch.allclose(attend_expanded(query, latents, None, 0.3, up), expected, atol=1e-5)


def test_the_cheaper_form_is_taken() -> None:
    """With the sizes of DeepSeek-V2-Lite a lone token absorbs; beyond about 170 tokens a chunk expands."""
    up = LatentUp(torch.empty(16, 256, 512, device="meta"), 128)
    choices = [is_absorbing_cheaper(num_new, 4096, up, 192) for num_new in (1, 16, 150, 200, 512)]

    assert choices == [True, True, True, False, False]


def test_latents_come_back_from_scattered_blocks() -> None:
    """A cache of [block, slot, latent] takes tokens at slot = block x block size + offset."""
    (cache,) = CpuDevice().allocate_kv(KVCacheSpec(1, 1, RANK + ROPE, 4, 6, "float32", is_latent=True))
    latent = rand(5, RANK + ROPE)
    CpuKernels().store_latent(cache, latent, torch.tensor([12, 13, 14, 15, 4]))

    assert cache.shape == (6, 4, RANK + ROPE)
    assert torch.equal(cache[[3, 1]].flatten(0, 1)[:5], latent)
    assert cache[[0, 2, 4, 5]].abs().max() == 0


def test_neighbours_are_rotated_in_place_as_in_the_reference() -> None:
    """On a slice of a wider tensor, beside complex multiplication, without touching the rest."""
    x, angles = rand(6, 3, 16), rand(6, 1, 4, seed=1)
    cos, sin = (torch.cat((table, table), -1) for table in (angles.cos(), angles.sin()))
    turned = torch.view_as_complex(x[..., 8:].reshape(6, 3, 4, 2)) * torch.polar(torch.ones_like(angles), angles)
    expected, rest = torch.view_as_real(turned).flatten(2), x[..., :8].clone()

    reference = ReferenceKernels().rope_interleaved(x[..., 8:], cos, sin)
    out = CpuKernels().rope_interleaved(x[..., 8:], cos, sin)

    assert torch.allclose(reference, expected, atol=1e-6)
    assert torch.allclose(out, expected, atol=1e-6)
    assert torch.equal(x[..., :8], rest)


class AbsorbedKernels(CpuKernels):
    """Every chunk becomes a group of decodes over its own blocks, so that nothing is ever expanded."""

    def latent_attention(self, query, latent, cache, context, scale, up):
        groups = list(context.decode_groups)
        for chunk in context.prefill_chunks:
            num_new = chunk.end - chunk.begin
            slots = torch.arange(chunk.block_ids.shape[0] * cache.shape[1])
            groups.append(
                DecodeGroup(
                    torch.arange(chunk.begin, chunk.end),
                    chunk.block_ids.expand(num_new, -1),
                    slots[None] <= torch.arange(chunk.start, chunk.start + num_new)[:, None],
                )
            )
        return super().latent_attention(
            query, latent, cache, AttentionContext(context.slot_mapping, groups, []), scale, up
        )


class ExpandedKernels(CpuKernels):
    """Every decode becomes a chunk of one token, so that all is expanded."""

    def latent_attention(self, query, latent, cache, context, scale, up):
        chunks = list(context.prefill_chunks)
        for group in context.decode_groups:
            for row, table, mask in zip(group.rows.tolist(), group.block_table, group.mask, strict=True):
                num_tokens = int(mask.sum())
                chunks.append(PrefillChunk(row, row + 1, num_tokens - 1, table[: -(-num_tokens // cache.shape[1])]))
        return super().latent_attention(
            query, latent, cache, AttentionContext(context.slot_mapping, [], chunks), scale, up
        )


@pytest.mark.parametrize("kernels", [AbsorbedKernels, ExpandedKernels])
@pytest.mark.parametrize("shape", [{}, {"q_lora_rank": None}], ids=["query latent", "direct query"])
def test_a_model_in_one_form_alone_equals_transformers(
    monkeypatch, make_core, generate, logits_of, tiny_model, kernels, shape
) -> None:
    """Prefill and decode all absorbed, and all expanded: logits within 1e-4, greedy tokens equal."""
    if kernels is ExpandedKernels:
        monkeypatch.setattr(latent_attention, "is_absorbing_cheaper", lambda *_: False)
    monkeypatch.setattr("ascendd.device.cpu.CpuKernels", kernels)
    folder, reference = tiny_model("deepseek_v2", **shape)
    token_ids = torch.randint(0, 320, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]
    continued = reference.generate(
        torch.tensor([token_ids]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, 60:].tolist()
    core = make_core(folder, max_num_blocks=32)
    assert isinstance(core.executor.runner._device.kernels, kernels)

    logits = logits_of(make_core(folder, max_num_blocks=32), token_ids, [25, 20] + [1] * 15)

    assert logits.sub(expected[[24, *range(44, 60)]]).abs().max() < 1e-4
    assert generate(core, [token_ids, token_ids[:7]], 8)[0] == continued


def test_the_cache_of_a_model_takes_what_its_facts_say(make_core, tiny_model) -> None:
    """Bytes of all layers' tensors over the tokens they hold are kv_bytes_per_token, which the plan counts with."""
    folder, _ = tiny_model("deepseek_v2")
    core = make_core(folder, max_num_blocks=9)
    num_bytes = sum(cache.nbytes for cache in core.executor.runner._kv_caches)

    assert num_bytes / (10 * 16) == read_model_facts(folder).kv_bytes_per_token(4) == core.config.plan.bytes_per_token
    assert core.executor.runner._kv_caches[0].shape == (10, 16, 24 + 8)
