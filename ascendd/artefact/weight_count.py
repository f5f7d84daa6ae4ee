"""How many weights a folder really holds, from file headers alone; no torch."""

from __future__ import annotations

import math
from pathlib import Path

from ascendd.artefact.layout import stage_layout
from ascendd.artefact.manifest import is_artefact, read_manifest
from ascendd.artefact.safetensors_header import read_header
from ascendd.config.model_facts import ModelFacts
from ascendd.config.rank_place import RankPlace


def count_rank_weights(folder: Path, facts: ModelFacts, tp_size: int = 1, pp_size: int = 1) -> int | None:
    """
    Return the elements that the largest of `tp_size` x `pp_size` ranks holds; None for a folder without weight files.

    An artefact that is packed for `tp_size` is counted to the element, padding and copies included; else what
    is not replicated is divided. Stages of a pipeline are counted by the layout, which the files are held to when they
    are opened. Raises WeightsCorrupt for a file that is not what its header says.
    """
    if pp_size > 1:
        places = [RankPlace.of(rank, tp_size, pp_size) for rank in range(tp_size * pp_size)]
        return max(sum(tensor.num_elements for tensor in stage_layout(facts, place)) for place in places)
    if is_artefact(folder):
        manifest = read_manifest(folder)
        files = [folder / name for name in manifest.rank_files]
        if manifest.tensor_parallel_size == tp_size:
            return max(_count(path, facts) for path in files)
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    replicated = facts.num_replicated_parameters if tp_size > 1 else 0
    return math.ceil((sum(_count(path, facts) for path in files) - replicated) / tp_size) + replicated


def _count(path: Path, facts: ModelFacts) -> int:
    # Some checkpoints carry a copy of the embeddings as lm_head, though config.json ties the two; the engine drops it.
    unused = {"lm_head.weight"} if facts.tie_word_embeddings else set()
    return sum(math.prod(tensor.shape) for name, tensor in read_header(path).items() if name not in unused)
