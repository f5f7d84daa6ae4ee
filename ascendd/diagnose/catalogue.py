"""
What can be diagnosed, read from data/: signs (what one line shows), rules (which signs mean what) and texts.

A sign has needles, plain lower-case byte strings that a whole block is searched for, and a pattern that decides on the
few lines that hold one. A rule names the signs that must be seen within a window of lines. Its level says how specific
it is: 1 a cause, 2 a code with several causes, 3 the victim of another failure, 4 an aftermath, 5 slowness only.

The daemon's own error codes are diagnoses as well. A row of the table that has the code of an error class is that
error; every other class becomes `daemon.<name>` with the texts of the class.
"""

from __future__ import annotations

import enum
import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascendd.errors import AscenddError, RequestError, walk_errors

_DATA = Path(__file__).resolve().parent / "data"

DEFAULT_WINDOW = 300
_PREFIX_BYTES = 4
# Own codes that tell of an end seen from outside rather than of its cause.
_OWN_LEVELS = {"ASD-E01": 3, "ASD-E02": 3, "ASD-E04": 3, "ASD-E06": 3, "ASD-E07": 4, "ASD-X01": 3}
_OWN_LEVELS.update({f"ASD-I0{number}": 3 for number in range(1, 5)})


class Action(enum.Enum):
    """What the daemon does by itself about a cause; the text is what an operator reads."""

    FIX_HOST = "fix_host"
    FIX_CONFIG = "fix_config"
    FIX_MODEL = "fix_model"
    WAIT_RETRY = "wait_retry"
    RESTART_WORKER = "restart_worker"
    RESTART_ALL_RANKS = "restart_all_ranks"
    REDUCE_MEMORY = "reduce_memory"
    CORDON_DEVICE = "cordon_device"
    INSPECT_PEER = "inspect_peer"

    @property
    def text(self) -> str:
        """One sentence for people."""
        return _ACTION_TEXT[self]


_ACTION_TEXT = {
    Action.FIX_HOST: "stays down with this reason: a restart would fail again until the host is changed",
    Action.FIX_CONFIG: "stays down with this reason: a restart would fail again until the configuration is changed",
    Action.FIX_MODEL: "stays down with this reason: a restart would fail again until the model's files are changed",
    Action.WAIT_RETRY: "waits and tries again with growing pauses",
    Action.RESTART_WORKER: "drains and restarts the process concerned",
    Action.RESTART_ALL_RANKS: "ends what runs with an error and restarts every rank together",
    Action.REDUCE_MEMORY: "starts again with less memory asked for, or stays down where that cannot help",
    Action.CORDON_DEVICE: "takes the device out of service; restarting on it would fail again",
    Action.INSPECT_PEER: "looks for the first failure on the other rank and restarts every rank together",
}


@dataclass(frozen=True)
class Sign:
    """What one line can show; `classify` names the function of diagnose.classify that decides further."""

    name: str
    needles: tuple[bytes, ...]
    pattern: re.Pattern[str]
    classify: str | None = None


@dataclass(frozen=True)
class Rule:
    """Signs that together mean a diagnosis, and texts that differ from the diagnosis' own."""

    diagnosis_id: str
    when: tuple[str, ...]
    level: int = 1
    window: int = DEFAULT_WINDOW
    min_count: int = 1
    refines: tuple[str, ...] = ()
    # Position among all rules: of two that one line fires, the first is taken.
    index: int = 0
    overrides: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Diagnosis:
    """One row of the table: a dotted id, its only error code, and what to tell."""

    id: str
    code: str
    title: str
    cause: str
    remedy: str
    check: str
    action: Action
    source: str

    @property
    def runbook(self) -> str:
        """Where the operator reads on, relative to the documentation root."""
        return f"docs/runbooks/{self.code}.md"


class Catalogue:
    """Every diagnosis, sign and rule, indexed the way the scanner asks."""

    def __init__(self, table: dict[str, Any], signs: dict[str, Any]) -> None:
        self.diagnoses: dict[str, Diagnosis] = {}
        self.rules: list[Rule] = []
        for row in table["diagnoses"]:
            self._add(row)
        self._add_own_errors()
        self.signs = [_sign(name, raw) for name, raw in signs["signs"].items()]
        self.wrappers = [_sign(f"wrapper.{number}", raw) for number, raw in enumerate(signs["wrappers"])]
        self.signs_by_needle: dict[bytes, list[Sign]] = defaultdict(list)
        for sign in (*self.signs, *self.wrappers):
            for needle in sign.needles:
                self.signs_by_needle[needle].append(sign)
        self.needle_groups = _grouped(self.signs_by_needle)
        self.rules_by_sign: dict[str, list[Rule]] = defaultdict(list)
        for rule in self.rules:
            for name in rule.when:
                self.rules_by_sign[name].append(rule)

    def _add(self, row: dict[str, Any]) -> None:
        texts = {key: row[key] for key in ("id", "code", "title", "cause", "remedy", "check", "source")}
        diagnosis = Diagnosis(action=Action(row["action"]), **texts)
        self.diagnoses[diagnosis.id] = diagnosis
        for raw in row["rules"]:
            self.rules.append(
                Rule(
                    diagnosis_id=diagnosis.id,
                    when=tuple(raw["when"]),
                    level=raw.get("level", 1),
                    window=raw.get("window", DEFAULT_WINDOW),
                    min_count=raw.get("min_count", 1),
                    refines=tuple(raw.get("refines", ())),
                    index=len(self.rules),
                    overrides={key: raw[key] for key in ("cause", "remedy", "action") if key in raw},
                )
            )

    def _add_own_errors(self) -> None:
        ids = {diagnosis.code: diagnosis.id for diagnosis in self.diagnoses.values()}
        for cls in walk_errors():
            if issubclass(cls, RequestError) or not cls.__module__.startswith("ascendd."):
                continue
            if cls.code not in ids:
                own = _own_diagnosis(cls)
                self.diagnoses[own.id] = own
                ids[cls.code] = own.id
            level = _OWN_LEVELS.get(cls.code, 2)
            rule = Rule(ids[cls.code], (f"own_code.{cls.code}",), level, index=len(self.rules))
            self.rules.append(rule)


def _sign(name: str, raw: dict[str, Any]) -> Sign:
    needles = tuple(needle.encode() for needle in raw["needles"])
    return Sign(name, needles, re.compile(raw["pattern"], re.IGNORECASE), raw.get("classify"))


def _grouped(needles: Iterable[bytes]) -> list[tuple[bytes, tuple[bytes, ...]]]:
    """Group needles by their beginning: a block without it needs no look for any of them (5070 for twenty codes)."""
    groups: dict[bytes, list[bytes]] = defaultdict(list)
    for needle in needles:
        groups[needle[:_PREFIX_BYTES]].append(needle)
    alone = [(needle, (needle,)) for members in groups.values() if len(members) == 1 for needle in members]
    return alone + [(prefix, tuple(members)) for prefix, members in groups.items() if len(members) > 1]


def _own_diagnosis(cls: type[AscenddError]) -> Diagnosis:
    """Make a diagnosis of an error class, whose sentence and remedy are its texts."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
    family = cls.code[4]
    action = {"C": Action.FIX_CONFIG, "U": Action.FIX_CONFIG, "M": Action.FIX_MODEL, "H": Action.FIX_HOST}
    action.update({"P": Action.FIX_HOST, "D": Action.FIX_HOST})
    sentence = (cls.__doc__ or "").strip().splitlines()[0]
    return Diagnosis(
        id=f"daemon.{words}",
        code=cls.code,
        title=sentence.rstrip("."),
        cause=sentence,
        remedy=cls.default_remedy,
        check="ascendd doctor",
        action=action.get(family, Action.RESTART_ALL_RANKS),
        source="ascendd's own error tree",
    )


@functools.cache
def load_catalogue() -> Catalogue:
    """Return the catalogue that ships with the product."""
    table, signs = (json.loads((_DATA / name).read_text(encoding="utf-8")) for name in ("diagnoses.json", "signs.json"))
    return Catalogue(table, signs)
