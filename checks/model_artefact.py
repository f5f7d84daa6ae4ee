"""Model artefact: complete, of the right sizes, packed for the configured tensor-parallel size; --deep: checksums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from ascendd.errors import AscenddError
from ascendd.preflight.check import Check, CheckResult, Finding, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext
from ascendd.preflight.target import Target

WEIGHTS_CORRUPT = "ASD-M04"
INDEX_NAME = "model.safetensors.index.json"


class ModelArtefact(Check):
    """The model on disk can be served as configured."""

    id = "model-artefact"
    title = "Model artefact"
    timeout_s = 60.0
    deep_timeout_s = 3600.0  # every byte is read and hashed

    def skip_reason(self, target: Target) -> Optional[str]:
        """Skip where no model was named."""
        return None if target.has_model else "no model named; add --instance, --config or --model"

    def run(self, context: CheckContext) -> CheckResult:
        """Read facts and manifest or weight headers of the model folder."""
        assert context.model_path is not None
        folder = Path(context.model_path)
        try:
            from ascendd.artefact.manifest import is_artefact
            from ascendd.config.model_facts import read_model_facts
            from ascendd.config.resolve import check_context_length
        except ImportError as error:
            return CheckResult(Verdict.SKIPPED, f"needs {error.name}, which this Python lacks")
        tp_size = 1 if context.config is None else context.config.parallel.tensor_parallel_size
        evidence: Dict[str, Any] = {"path": str(folder), "tensor_parallel_size": tp_size}
        try:
            facts = read_model_facts(folder)
            evidence.update(architecture=facts.architecture, num_parameters=facts.num_parameters)
            facts.check_tensor_parallel(tp_size)
            if context.config is not None:
                check_context_length(context.config, facts)
            look = _converted if is_artefact(folder) else _hugging_face
            finding = look(folder, context, evidence)
        except AscenddError as error:
            finding = Finding(Verdict.FAIL, error.message, Remedy(error.code, error.remedy))
        architecture = evidence.get("architecture", "unknown architecture")
        return conclude([finding], f"{architecture}, {evidence.get('num_files', 0)} weight file(s)", evidence)


def _converted(folder: Path, context: CheckContext, evidence: Dict[str, Any]) -> Finding:
    """Check a folder that `ascendd convert` wrote. Raises WeightsCorrupt or ModelError."""
    from ascendd.artefact.manifest import check_complete, check_tensor_parallel_size, read_manifest, verify_files

    manifest = read_manifest(folder)
    evidence.update(dtype=manifest.dtype, packed_for=manifest.tensor_parallel_size, num_files=len(manifest.rank_files))
    check_complete(folder, manifest)
    if context.config is not None:
        check_tensor_parallel_size(folder, manifest, evidence["tensor_parallel_size"])
    if "tokenizer.json" not in manifest.files:
        return _no_tokenizer(folder)
    if not context.request.deep:
        return Finding(Verdict.PASS, f"{manifest.total_bytes} bytes present; --deep compares checksums")
    problems = verify_files(folder, manifest)
    evidence["checksums"] = problems or "all equal"
    if problems:
        said = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        return Finding(Verdict.FAIL, said, Remedy(WEIGHTS_CORRUPT, "Convert or copy the model again."))
    return Finding(Verdict.PASS, f"checksums of {len(manifest.files)} files equal")


def _hugging_face(folder: Path, context: CheckContext, evidence: Dict[str, Any]) -> Finding:
    """Check a Hugging Face folder by the headers of its weight files. Raises WeightsCorrupt."""
    from ascendd.artefact.safetensors_header import read_header

    names = weight_files(folder)
    evidence["num_files"] = len(names)
    if not names:
        remedy = Remedy(WEIGHTS_CORRUPT, "Download the model again, in safetensors form.")
        return Finding(Verdict.FAIL, f"{folder} holds no *.safetensors file", remedy)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        said = f"{len(missing)} of {len(names)} weight files are missing: {', '.join(missing[:3])}"
        return Finding(Verdict.FAIL, said, Remedy(WEIGHTS_CORRUPT, "Download them again."))
    num_bytes = sum(tensor.num_bytes for name in names for tensor in read_header(folder / name).values())
    evidence["weight_bytes"] = num_bytes
    if not (folder / "tokenizer.json").is_file():
        return _no_tokenizer(folder)
    broken = _broken_tokenizer(folder / "tokenizer.json")
    if broken is not None:
        return broken
    note = "; a Hugging Face folder has no checksums to compare" if context.request.deep else ""
    return Finding(Verdict.PASS, f"{num_bytes} bytes of weights present{note}")


def _no_tokenizer(folder: Path) -> Finding:
    text = "Download tokenizer.json of the model into that folder, or save its tokenizer there in the fast format."
    return Finding(Verdict.FAIL, f"{folder} holds no tokenizer.json", Remedy("ASD-M02", text))


def _broken_tokenizer(path: Path) -> Optional[Finding]:
    """Return a finding where the file is no JSON object: an interrupted download, or a pointer of Git LFS."""
    try:
        why = "" if isinstance(json.loads(path.read_text(encoding="utf-8")), dict) else "no object"
    except (OSError, ValueError) as error:
        why = str(error)
    remedy = Remedy(WEIGHTS_CORRUPT, "Download tokenizer.json of the model again.")
    return Finding(Verdict.FAIL, f"{path} is no tokenizer: {why}", remedy) if why else None


def weight_files(folder: Path) -> List[str]:
    """Return the names of all weight files that should be there, after the index when there is one."""
    index = folder / INDEX_NAME
    if index.is_file():
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            from ascendd.errors import WeightsCorrupt

            raise WeightsCorrupt(f"{index} cannot be read: {error!r}", path=str(index)) from error
    return sorted(path.name for path in folder.glob("*.safetensors"))
