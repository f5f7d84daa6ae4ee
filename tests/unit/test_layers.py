"""
The house rules that a parser can hold: who may import what, how long a file may be, what the bootstrap part may use.

Each rule is a function from one parsed file to the places that break it; the sentences are in RULES. The last tests
break every rule on purpose in a tree of their own, so a rule that cannot fail is found here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("ascendd", "checks", "installer")
MAX_LINES = 400

# Level of each room; a room imports its own level and those below. `ascendd` itself holds only the version.
LEVELS = {
    "ascendd.errors": 0, "ascendd.error_root": 0, "ascendd.request_errors": 0,
    "ascendd.config": 1, "ascendd.telemetry": 1, "ascendd.host": 1, "ascendd.ipc": 1,
    "ascendd.tuning": 2, "ascendd.cost": 2, "ascendd.preflight": 2, "ascendd.diagnose": 2,
    "ascendd.device": 3, "ascendd.artefact": 3, "ascendd.grammar": 3,
    "ascendd.instances": 3,
    "ascendd.engine": 4, "ascendd.api": 4, "ascendd.bench": 4, "ascendd.gateway": 4,
    "ascendd.vllm": 4,
    "ascendd.supervisor": 5,
    "ascendd.checks": 6, "ascendd.installer": 6, "ascendd.cli": 6,
}  # fmt: skip
ERRORS = ("ascendd.errors", "ascendd.error_root", "ascendd.request_errors")
BOOTSTRAP = (*ERRORS, "ascendd.host", "ascendd.preflight", "ascendd.checks", "ascendd.installer")
BOOTSTRAP_EXCEPT = ("ascendd.host.proc", "ascendd.host.systemd")


@dataclass(frozen=True)
class Import:
    """One imported module; `lazy` inside a function, `typing` under `if TYPE_CHECKING`."""

    module: str
    line: int
    lazy: bool
    typing: bool


@dataclass(frozen=True)
class Source:
    """One parsed file; `path` is relative to the root of the tree."""

    path: Path
    text: str

    @property
    def module(self) -> str:
        """Dotted name under which the installed product knows the file."""
        parts = list(self.path.with_suffix("").parts)
        if parts[0] in ("checks", "installer"):
            parts.insert(0, "ascendd")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of the file, relative ones resolved."""
        return list(self._walk(self.tree, lazy=False, typing=False))

    def within(self, *packages: str) -> bool:
        """Whether the file is one of `packages` or lies below one."""
        return is_within(self.module, *packages)

    def _walk(self, node: ast.AST, *, lazy: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, lazy, typing) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = self._resolve(child)
                # `from a import b` may import the module a.b, so both names are looked at.
                for name in (base, *(f"{base}.{alias.name}" for alias in child.names)):
                    yield Import(name, child.lineno, lazy, typing)
            elif isinstance(child, ast.Call) and (name := literal_import(child)):
                yield Import(name, child.lineno, lazy, typing)
                yield from self._walk(child, lazy=lazy, typing=typing)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                yield from self._walk(child, lazy=True, typing=typing)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from self._walk(child, lazy=lazy, typing=True)
            else:
                yield from self._walk(child, lazy=lazy, typing=typing)

    def _resolve(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.module.split(".")
        keep = len(package) - node.level + (self.path.name == "__init__.py")
        return ".".join([*package[:keep], *([node.module] if node.module else [])])


def literal_import(call: ast.Call) -> str | None:
    """Return NAME of `import_module("NAME")` and `__import__("NAME")`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function in ("import_module", "__import__") and call.args and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value)
    return None


def is_within(module: str, *packages: str) -> bool:
    """Whether `module` is one of `packages` or lies below one."""
    return any(module == package or module.startswith(package + ".") for package in packages)


def room_of(module: str) -> str:
    """`ascendd.engine.kv.block_pool` -> `ascendd.engine`."""
    return ".".join(module.split(".")[:2])


Found = Iterator[tuple[int, str]]
Rule = Callable[[Source], Found]
RULES: dict[str, tuple[str, Rule]] = {}


def rule(name: str, sentence: str) -> Callable[[Rule], Rule]:
    """Register a rule under `name`; `sentence` is what the reader of a failure learns."""

    def register(function: Rule) -> Rule:
        RULES[name] = (sentence, function)
        return function

    return register


def uses(source: Source, library: str, *, allowed: tuple[str, ...], lazily: tuple[str, ...] = ()) -> Found:
    """Yield imports of `library` outside `allowed` rooms; `lazily` rooms may import it inside functions."""
    for found in source.imports:
        if not is_within(found.module, library) or found.typing or source.within(*allowed):
            continue
        if not (found.lazy and source.within(*lazily)):
            yield found.line, f"imports {found.module}"


def forbids(source: Source, *, room: str, targets: tuple[str, ...], even_lazily: bool) -> Found:
    """Yield imports of `targets` by files of `room`; unless `even_lazily`, those inside functions are fine."""
    if source.within(room):
        for found in source.imports:
            if is_within(found.module, *targets) and not found.typing and (even_lazily or not found.lazy):
                yield found.line, f"imports {found.module}" + ("" if found.lazy else " at module level")


@rule(
    "layers", "A room imports its own level and those below (errors < config, telemetry, host, ipc < preflight < ...)"
)
def layers(source: Source) -> Found:
    """Compare the level of each import with that of the file; private roles are started by name, never imported."""
    level = LEVELS.get(room_of(source.module))
    if level is None:
        return
    for found in source.imports:
        target = LEVELS.get(room_of(found.module))
        if target is not None and target > level:
            yield found.line, f"{room_of(source.module)} (level {level}) imports {found.module} (level {target})"


@rule("rooms", "A file of ascendd/ lies in a room that has a level in LEVELS")
def rooms(source: Source) -> Found:
    """Find rooms that nobody gave a level."""
    if source.module not in ("ascendd", "ascendd.__main__") and room_of(source.module) not in LEVELS:
        yield 1, f"{room_of(source.module)} has no level"


@rule("torch", "torch only in engine (not sched, not kv), artefact and device; checks import it inside functions")
def torch_rooms(source: Source) -> Found:
    """Keep torch out of all that must start fast or run without it."""
    for library in ("torch", "torch_npu"):
        if source.within("ascendd.engine.sched", "ascendd.engine.kv"):
            yield from uses(source, library, allowed=())
        else:
            allowed = ("ascendd.engine", "ascendd.artefact", "ascendd.device")
            yield from uses(source, library, allowed=allowed, lazily=("ascendd.checks",))


@rule("torch-npu", "torch_npu is named by device/npu.py and device/kernels/npu.py only; elsewhere ask the Device")
def torch_npu_files(source: Source) -> Found:
    """Find imports and identifiers; checks may look for it inside functions."""
    allowed = ("ascendd.device.npu", "ascendd.device.kernels.npu")
    yield from uses(source, "torch_npu", allowed=allowed, lazily=("ascendd.checks",))
    if not source.within(*allowed, "ascendd.checks"):
        for node in ast.walk(source.tree):
            if "torch_npu" in (getattr(node, "id", None), getattr(node, "attr", None)):
                yield node.lineno, "names torch_npu"  # type: ignore[attr-defined]


def register_simple_rules() -> None:
    """Register the rules that are one library or one list of rooms each."""
    for name, library, allowed, sentence in (
        # bench is a client of any server, with thousands of streams at once; nothing that serves imports it.
        ("aiohttp", "aiohttp", ("ascendd.api", "ascendd.bench", "ascendd.gateway"), "aiohttp only in api, bench and gateway"),
        ("prometheus", "prometheus_client", ("ascendd.telemetry.exposition",), "prometheus_client only in telemetry/exposition.py"),
        ("transformers", "transformers", (), "transformers is a tool of the tests, not of the product"),
    ):  # fmt: skip
        RULES[name] = (sentence, partial(uses, library=library, allowed=allowed))
    others = ("ascendd.engine", "ascendd.device", "ascendd.artefact")
    engine = tuple(f"ascendd.engine.{room}" for room in ("sched", "kv", "exec", "core", "main", "parallel"))
    heavy = (*others, "ascendd.api", "ascendd.bench", "ascendd.gateway", "ascendd.supervisor", "ascendd.checks")
    for name, targets, even_lazily, sentence in (
        ("api", others, True, "api talks to the engine by ipc and imports neither engine, device nor artefact"),
        ("supervisor", (*others, "ascendd.api"), True, "supervisor talks to its children by ipc and imports none of their rooms"),
        ("cli", heavy, False, "cli imports the heavy rooms inside functions, so that `ascendd --help` is quick"),
        ("engine.models", (*engine, "ascendd.device"), True, "engine/models build from engine/layers and know no other room"),
    ):  # fmt: skip
        RULES[name] = (sentence, partial(forbids, room=f"ascendd.{name}", targets=targets, even_lazily=even_lazily))


register_simple_rules()


@rule("checks", "checks import preflight, host and errors; config and device inside functions")
def checks_imports(source: Source) -> Found:
    """Keep checks runnable before anything is installed."""
    if source.within("ascendd.checks"):
        for found in source.imports:
            if not is_within(found.module, "ascendd") or found.module == "ascendd":
                continue
            free = is_within(found.module, *BOOTSTRAP) and not is_within(found.module, "ascendd.installer")
            if not free and not (found.lazy or found.typing):
                yield found.line, f"imports {found.module} at module level"
            elif not free and not is_within(found.module, "ascendd.config", "ascendd.device", "ascendd.artefact"):
                yield found.line, f"imports {found.module}"


@rule("installer", "installer imports host, preflight and errors only")
def installer_imports(source: Source) -> Found:
    """Keep the installer independent of what it installs."""
    allowed = (*ERRORS, "ascendd.host", "ascendd.preflight", "ascendd.installer")
    if source.within("ascendd.installer"):
        for found in source.imports:
            if (
                is_within(found.module, "ascendd")
                and found.module != "ascendd"
                and not is_within(found.module, *allowed)
            ):
                yield found.line, f"imports {found.module}"


@rule("remap", "siblings of checks/ and installer/ are imported relatively or as ascendd.checks, never as `checks`")
def top_level_names(source: Source) -> Found:
    """Find the second name under which one file would be two modules."""
    for found in source.imports:
        if is_within(found.module, "checks", "installer"):
            yield found.line, f"imports {found.module}"


@rule("bootstrap", "checks/, installer/, preflight, host and errors import only the standard library at module level")
def bootstrap_imports(source: Source) -> Found:
    """Hold the part that runs before a virtual environment exists."""
    if not source.within(*BOOTSTRAP) or source.within(*BOOTSTRAP_EXCEPT):
        return
    for found in source.imports:
        if found.lazy or found.typing or found.module == "ascendd" or found.module.startswith("ascendd.__"):
            continue
        own = is_within(found.module, *BOOTSTRAP) and not is_within(found.module, *BOOTSTRAP_EXCEPT)
        if not own and found.module.partition(".")[0] not in sys.stdlib_module_names:
            yield found.line, f"imports {found.module} at module level"


@rule("python-3.9", "the bootstrap part keeps Python 3.9 syntax, annotations included")
def bootstrap_syntax(source: Source) -> Found:
    """Parse as Python 3.9 would; annotations stay text where the file says so."""
    if not source.within(*BOOTSTRAP) or source.within(*BOOTSTRAP_EXCEPT):
        return
    try:
        ast.parse(source.text, str(source.path), feature_version=(3, 9))
    except SyntaxError as error:
        yield error.lineno or 1, f"is not Python 3.9: {error.msg}"
    has_code = any(not isinstance(node, ast.Expr) for node in source.tree.body)
    if has_code and not any(found.module == "__future__.annotations" for found in source.imports):
        yield 1, "lacks `from __future__ import annotations`"


@rule("length", f"a file is one noun: more than {MAX_LINES} lines are two")
def file_length(source: Source) -> Found:
    """Count lines."""
    num_lines = len(source.text.splitlines())
    if num_lines > MAX_LINES:
        yield MAX_LINES, f"has {num_lines} lines"


@rule("names", "a file is named after what it holds; utils and helpers hold anything")
def file_names(source: Source) -> Found:
    """Find the two names."""
    if source.path.stem in ("utils", "util", "helpers", "helper"):
        yield 1, f"is named {source.path.name}"


@lru_cache
def read_tree(root: Path) -> list[Source]:
    """Parse every Python file of the product below `root`."""
    paths = sorted(path for room in ROOMS for path in (root / room).rglob("*.py"))
    return [Source(path.relative_to(root), path.read_text(encoding="utf-8")) for path in paths]


def violations(root: Path, names: tuple[str, ...] = ()) -> list[str]:
    """Apply the rules called `names` (all of them without) to the tree; one line per broken place."""
    chosen = {name: RULES[name] for name in names} if names else RULES
    return [
        f"{source.path}:{line}: {what} [{name}: {sentence}]"
        for source in read_tree(root)
        for name, (sentence, find) in chosen.items()
        for line, what in dict.fromkeys(find(source))
    ]


@pytest.mark.parametrize("name", RULES)
def test_house_keeps_rule(name: str) -> None:
    """The product keeps the rule everywhere."""
    broken = violations(ROOT, (name,))

    assert not broken, "\n" + "\n".join(broken)


BAD_FILES = [
    ("layers", "ascendd/config/load.py", "from ascendd.engine import core", "ascendd.config (level 1) imports ascendd.engine"),
    ("layers", "ascendd/ipc/frames.py", "def f():\n    import ascendd.supervisor.child", "level 1) imports ascendd.supervisor"),
    ("rooms", "ascendd/cellar/wine.py", "", "ascendd.cellar has no level"),
    ("torch", "ascendd/engine/sched/scheduler.py", "def f():\n    import torch", "imports torch"),
    ("torch", "ascendd/engine/kv/block_pool.py", "from torch import Tensor", "imports torch"),
    ("torch", "ascendd/api/server.py", "import torch.nn", "imports torch.nn"),
    ("torch", "checks/gloo.py", "import torch", "imports torch"),
    ("torch-npu", "ascendd/engine/runner/model_runner.py", "import torch_npu", "imports torch_npu"),
    ("torch-npu", "ascendd/device/base.py", "def f():\n    return torch_npu.npu", "names torch_npu"),
    ("torch-npu", "ascendd/device/cpu.py", "import importlib\nx = importlib.import_module('torch_npu')", "imports torch_npu"),
    ("aiohttp", "ascendd/supervisor/supervisor.py", "def f():\n    from aiohttp import web", "imports aiohttp"),
    ("prometheus", "ascendd/telemetry/metrics.py", "import prometheus_client", "imports prometheus_client"),
    ("transformers", "ascendd/artefact/convert.py", "def f():\n    import transformers", "imports transformers"),
    ("api", "ascendd/api/engine_client.py", "from ascendd.engine.sequence import Sequence", "imports ascendd.engine.sequence"),
    ("supervisor", "ascendd/supervisor/spec.py", "def f():\n    from ascendd.device import detect", "imports ascendd.device"),
    ("cli", "ascendd/cli/app.py", "from ascendd.supervisor import supervisor", "imports ascendd.supervisor at module level"),
    ("checks", "checks/model_files.py", "from ascendd.config import load", "imports ascendd.config at module level"),
    ("checks", "checks/port_free.py", "def f():\n    import ascendd.supervisor", "imports ascendd.supervisor"),
    ("installer", "installer/plan.py", "def f():\n    from ascendd.config import load", "imports ascendd.config"),
    ("engine.models", "ascendd/engine/models/llama.py", "from ..kv import block_pool", "imports ascendd.engine.kv"),
    ("remap", "ascendd/cli/doctor.py", "def f():\n    import checks", "imports checks"),
    ("remap", "installer/apply.py", "from installer import plan", "imports installer"),
    ("bootstrap", "ascendd/host/cgroup.py", "import psutil", "imports psutil at module level"),
    ("bootstrap", "ascendd/preflight/check.py", "from ascendd.host.proc import pids", "imports ascendd.host.proc"),
    ("bootstrap", "ascendd/errors.py", "from ascendd.config import load", "imports ascendd.config at module level"),
    ("python-3.9", "checks/numa.py", "from __future__ import annotations\nmatch 1:\n    case _:\n        pass", "is not Python 3.9"),
    ("python-3.9", "checks/ulimits.py", "def f(x: int | None) -> None: ...", "lacks `from __future__ import annotations`"),
    ("length", "ascendd/engine/core.py", "x = 1\n" * (MAX_LINES + 1), "has 401 lines"),
    ("names", "ascendd/api/utils.py", "", "is named utils.py"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "text", "expected"), BAD_FILES, ids=[f"{case[0]}-{case[1]}" for case in BAD_FILES]
)
def test_bad_file_breaks_rule(tmp_path: Path, name: str, path: str, text: str, expected: str) -> None:
    """A file that breaks the rule is reported with its place, what it does, and the rule's sentence."""
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")

    broken = violations(tmp_path, (name,))

    assert broken, f"rule {name} did not see {path}"
    assert broken[0].startswith(f"{path}:")
    assert expected in broken[0]
    assert RULES[name][0] in broken[0]


def test_every_rule_has_a_bad_file() -> None:
    """No rule is without a proof that it can fail."""
    assert {case[0] for case in BAD_FILES} == set(RULES)


GOOD_FILES = [
    ("ascendd/engine/layers/linear.py", "from __future__ import annotations\nimport torch"),
    ("ascendd/device/kernels/npu.py", "import torch_npu\nx = torch_npu"),
    ("ascendd/api/server.py", "from aiohttp import web\nfrom ascendd.ipc.messages import StepOutput"),
    ("ascendd/cli/app.py", "def f():\n    from ascendd.supervisor.supervisor import Supervisor"),
    ("checks/torch_npu_import.py", "from __future__ import annotations\ndef run():\n    import torch_npu"),
    ("checks/__init__.py", "from __future__ import annotations\nfrom .driver import Driver\nfrom ascendd.preflight import check"),
    ("ascendd/supervisor/spec.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import aiohttp"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "text"), GOOD_FILES, ids=[case[0] for case in GOOD_FILES])
def test_good_file_breaks_no_rule(tmp_path: Path, path: str, text: str) -> None:
    """What the rules allow is not reported."""
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")

    assert violations(tmp_path) == []
