"""What a model folder or file holds, for `ascendd inspect`; an artefact is looked at without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ascendd.artefact.manifest import CastCount, check_complete, is_artefact, read_manifest, verify_files
from ascendd.config.model_facts import facts_from_config, read_model_facts


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The findings; `verified` is None where nothing was hashed, else what is wrong by file name."""

    path: str
    kind: str  # `artefact`, `huggingface` or `gguf`
    architecture: str
    num_parameters: int
    context_length: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    latent_dim: int | None  # numbers a token in a layer's cache, where K and V come out of one latent
    num_experts: int | None
    hidden_size: int
    vocab_size: int
    dtype: str
    quantisation: dict[str, int]  # of the source
    tensor_parallel_size: int | None
    fused_operators: tuple[str, ...]
    weight_files: dict[str, int]  # bytes by name, in rank order for an artefact
    tokenizer: bool
    source: str | None
    cast_report: dict[str, CastCount]
    clamped: bool
    created_unix_s: int | None
    ascendd_version: str | None
    checksums: dict[str, str]
    verified: dict[str, str] | None


def inspect_model(
    path: Path, *, verify: bool = False, progress: Callable[[int, int], None] | None = None
) -> Inspection:
    """
    Look at `path`: an artefact, a Hugging Face folder or a .gguf file. Contents are hashed only with `verify`.

    `progress` gets bytes hashed and bytes in all. Raises ModelNotFound, ModelUnsupported or WeightsCorrupt when the
    model cannot be used; a checksum that differs is a finding, not an error.
    """
    if path.is_dir() and is_artefact(path):
        return _artefact(path, verify, progress or (lambda done, total: None))
    return _checkpoint(path)


def _artefact(path: Path, verify: bool, progress: Callable[[int, int], None]) -> Inspection:
    manifest = read_manifest(path)
    facts = read_model_facts(path)
    verified = None
    if verify:
        done, total = 0, sum(entry.bytes for entry in manifest.files.values())

        def count(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress(done, total)

        verified = verify_files(path, manifest, count)
    else:
        check_complete(path, manifest)
    return Inspection(
        path=str(path),
        kind="artefact",
        architecture=manifest.architecture,
        num_parameters=manifest.num_parameters,
        context_length=facts.max_position_embeddings,
        num_layers=facts.num_layers,
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads,
        latent_dim=None if facts.latent is None else facts.latent.cached_dim,
        num_experts=None if facts.experts is None else facts.experts.num_routed,
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        dtype=manifest.dtype,
        quantisation=manifest.source.quantisation,
        tensor_parallel_size=manifest.tensor_parallel_size,
        fused_operators=manifest.fused_operators,
        weight_files={name: manifest.files[name].bytes for name in manifest.rank_files},
        tokenizer="tokenizer.json" in manifest.files,
        source=f"{manifest.source.path} ({manifest.source.format}, {manifest.source.dtype})",
        cast_report=manifest.cast_report,
        clamped=manifest.clamped,
        created_unix_s=manifest.created_unix_s,
        ascendd_version=manifest.ascendd_version,
        checksums={name: entry.sha256 for name, entry in manifest.files.items()},
        verified=verified,
    )


def _checkpoint(path: Path) -> Inspection:
    from ascendd.artefact.source import open_source

    with open_source(path) as source:
        facts = facts_from_config(source.config(), source.generation_config(), origin=str(path))
        source.check_complete(facts)
        return Inspection(
            path=str(path),
            kind=source.format,
            architecture=facts.architecture,
            num_parameters=facts.num_parameters,
            context_length=facts.max_position_embeddings,
            num_layers=facts.num_layers,
            num_heads=facts.num_heads,
            num_kv_heads=facts.num_kv_heads,
            latent_dim=None if facts.latent is None else facts.latent.cached_dim,
            num_experts=None if facts.experts is None else facts.experts.num_routed,
            hidden_size=facts.hidden_size,
            vocab_size=facts.vocab_size,
            dtype=str(source.main_dtype()).removeprefix("torch."),
            quantisation=source.quantisation,
            tensor_parallel_size=None,
            fused_operators=(),
            weight_files={
                file.name: file.stat().st_size
                for file in source.input_files()
                if file.suffix in (".safetensors", ".gguf")
            },
            tokenizer="tokenizer.json" in source.tokenizer_files(),
            source=None,
            cast_report={},
            clamped=False,
            created_unix_s=None,
            ascendd_version=None,
            checksums={},
            verified=None,
        )
