"""What is installed: the wheel's contents, what each part imports at run time, and that the bootstrap part needs nothing."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent
REMAPPED = ("checks", "installer")


def run_python(code: str, *, python: str = sys.executable, flags: tuple[str, ...] = ()) -> str:
    """Run `code` in a fresh interpreter and return what it prints; fails with its traceback."""
    done = subprocess.run(
        [python, *flags, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_of(package: str) -> list[str]:
    """Return the dotted names of all modules of a package, as installed."""
    parts = package.split(".")
    folder = ROOT / (parts[1] if parts[-1] in REMAPPED else Path(*parts))
    return sorted(
        ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        for path in folder.rglob("*.py")
        if path.name != "__main__.py"
    )


# --- the wheel -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a wheel built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("ascendd", *REMAPPED):
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [*command, "--quiet", "--wheel-dir", str(folder), str(folder / "tree")],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = folder.glob("ascendd-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_holds_every_module_and_data_file(wheel_names: list[str]) -> None:
    """Each Python and JSON file of the tree is in the wheel, checks and installer under ascendd/."""
    expected = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.json", "py.typed")
        for path in (ROOT / "ascendd").rglob(pattern)
    } | {
        f"ascendd/{path.relative_to(ROOT).as_posix()}"
        for room in REMAPPED
        for pattern in ("*.py", "*.json")
        for path in (ROOT / room).rglob(pattern)
    }

    assert expected - set(wheel_names) == set()


def test_wheel_has_no_other_top_level_names(wheel_names: list[str]) -> None:
    """Nothing is installed as top-level `checks` or `installer`, which other distributions own."""
    tops = {name.split("/")[0] for name in wheel_names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"ascendd"}


def test_wheel_carries_the_licence(wheel_names: list[str]) -> None:
    """The licence text travels with the product."""
    assert any(name.endswith("LICENSE") for name in wheel_names)


# --- metadata --------------------------------------------------------------------------------------------------------


def test_command_is_installed() -> None:
    """The `ascendd` command and `python -m ascendd` are the same program."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="ascendd")
    version = importlib.metadata.version("ascendd")

    said = subprocess.run(
        [sys.executable, "-m", "ascendd", "--version"], capture_output=True, text=True, timeout=120, check=True
    )

    assert callable(entry.load())
    assert said.stdout == f"ascendd {version}\n"


def test_constraints_pin_every_requirement() -> None:
    """Each requirement of the product and its tests has one exact version in constraints.txt that satisfies it."""
    text = (ROOT / "tests" / "constraints.txt").read_text(encoding="utf-8")
    pins = {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}
    requirements = [Requirement(line) for line in importlib.metadata.requires("ascendd") or []]
    wanted = [r for r in requirements if r.name not in ("torch-npu", "setuptools")]

    assert len(wanted) > 15
    for requirement in wanted:
        version = pins.get(canonical(requirement.name))
        assert version is not None, f"{requirement.name} is not pinned"
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}"


def canonical(name: str) -> str:
    """Return the name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- what is imported ------------------------------------------------------------------------------------------------

HEAVY = {"torch", "transformers", "aiohttp", "prometheus_client", "safetensors", "tokenizers", "gguf"}


def imported_by(statement: str) -> set[str]:
    """Return the heavy libraries that `statement` brings into a fresh interpreter."""
    code = f"import json, sys\n{statement}\nprint('\\n' + json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
    return set(json.loads(run_python(code).splitlines()[-1]))


def test_help_imports_nothing_heavy() -> None:
    """`ascendd --help` is quick: it imports none of the heavy libraries."""
    assert imported_by("from ascendd.cli.app import main\nmain(['--help'])") == set()


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("ascendd.config", set()),
        ("ascendd.ipc", set()),
        ("ascendd.host", set()),
        ("ascendd.preflight", set()),
        ("ascendd.supervisor", set()),
        ("ascendd.engine.sched", set()),
        ("ascendd.engine.kv", set()),
        ("ascendd.checks", set()),
        ("ascendd.installer", set()),
        ("ascendd.telemetry", {"prometheus_client"}),
        ("ascendd.api", {"aiohttp", "tokenizers"}),
    ],
)
def test_package_brings_along_only_its_libraries(package: str, allowed: set[str]) -> None:
    """All modules of a room together, and all that they import in turn, bring no library that is not the room's."""
    statement = "\n".join(f"import {name}" for name in modules_of(package))

    assert imported_by(statement) <= allowed


def test_only_the_exporter_brings_prometheus() -> None:
    """The other modules of telemetry do without the exporter's library."""
    page = {"ascendd.telemetry.exporter", "ascendd.telemetry.exposition", "ascendd.telemetry.host_exporter"}
    names = [name for name in modules_of("ascendd.telemetry") if name not in page]

    assert imported_by("\n".join(f"import {name}" for name in names)) == set()


# --- the bootstrap part ----------------------------------------------------------------------------------------------

BOOTSTRAP = """
import sys
sys.path.insert(0, {root!r})
import importlib, pkgutil
names = ["ascendd.errors", "ascendd.host", "ascendd.preflight", "checks", "installer"]
loaded = 0
for name in names:
    module = importlib.import_module(name)
    loaded += 1
    for info in pkgutil.iter_modules(getattr(module, "__path__", []), name + "."):
        if info.name not in ("ascendd.host.proc", "ascendd.host.systemd") and not info.name.endswith("__main__"):
            importlib.import_module(info.name)
            loaded += 1
assert not [m for m in sys.modules if "site-packages" in (getattr(sys.modules[m], "__file__", None) or "")]
print(loaded)
"""


def pythons() -> list[str]:
    """Return interpreters to try: the oldest that the bootstrap part promises where it is installed, and this one."""
    found = [sys.executable]
    oldest = shutil.which("python3.9")
    # A version manager leaves names on PATH that start nothing.
    if oldest and subprocess.run([oldest, "-c", ""], capture_output=True, check=False, timeout=120).returncode == 0:
        found.append(oldest)
    return found


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_bootstrap_part_needs_the_standard_library_only(python: str) -> None:
    """checks, installer, preflight, host and errors import in a bare interpreter without site-packages."""
    loaded = run_python(BOOTSTRAP.format(root=str(ROOT)), python=python, flags=("-I", "-S"))

    assert int(loaded) > 20
