"""The bundle stands alone: standard library only, Python 3.9, whole, and started by one script."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
IMPORT_ALL = """
import importlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
for path in sorted(pathlib.Path(sys.argv[1], "installer").rglob("*.py")):
    name = ".".join(path.relative_to(sys.argv[1]).with_suffix("").parts)
    importlib.import_module(name[: -len(".__init__")] if name.endswith(".__init__") else name)
import checks.__main__
foreign = [m for m, module in sys.modules.items() if "-packages" in (getattr(module, "__file__", None) or "")]
print(sys.version_info[:2], foreign)
"""


def old_python() -> str | None:
    """A Python 3.9 on this machine; version managers keep theirs off PATH."""
    places = [shutil.which("python3.9"), *map(str, Path.home().glob(".pyenv/versions/3.9.*/bin/python"))]
    for path in filter(None, places):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.parametrize("find", [lambda: shutil.which("python3"), old_python], ids=["python3", "python3.9"])
def test_imports_with_the_standard_library_alone(bundle: Path, find) -> None:
    """Every module of the installer and the checks loads in -I -S, on the oldest Python as well."""
    python = find()
    if python is None:
        pytest.skip("there is no Python 3.9 on this machine")

    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", IMPORT_ALL, bundle], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n")


def test_install_sh_starts_the_installer(bundle: Path, tmp_path: Path) -> None:
    """From another folder and by a link, install.sh runs the verb with its arguments."""
    (tmp_path / "link").symlink_to(bundle / "install.sh")

    done = subprocess.run(
        [tmp_path / "link", "plan", "--nonsense"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 64
    assert "unrecognized arguments: --nonsense" in done.stderr


def test_install_sh_without_python(bundle: Path, tmp_path: Path) -> None:
    """On a host without Python it says what to install and ends with 71."""
    for tool in ("dirname", "readlink", "bash"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")

    done = subprocess.run(
        [bundle / "install.sh", "plan"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 71
    assert "needs Python 3.9 or newer" in done.stderr
    assert "dnf install python3" in done.stderr


def test_bundle_names_its_release(bundle: Path) -> None:
    """bundle.json holds release, Pythons and architecture, and every file is in SHA256SUMS."""
    data = json.loads((bundle / "bundle.json").read_text())
    listed = {line.split("  ", 1)[1] for line in (bundle / "SHA256SUMS").read_text().splitlines()}
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}

    assert (data["version"], data["pythons"]) == ("0.1.0", ["3.11"])
    assert files - listed == {"SHA256SUMS"}


def test_corrupt_bundle_is_refused(bundle: Path, host, tmp_path: Path) -> None:
    """A wheel that changed after packing is named, and nothing begins."""
    host.bundle = tmp_path / "copy"
    shutil.copytree(bundle, host.bundle)
    (host.bundle / "wheels/torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64.whl").write_text("rotten")

    assert host.apply() == 69
    assert "torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64.whl is corrupt" in host.output


def test_wheels_of_another_machine_are_refused(host, bundle: Path) -> None:
    """On aarch64 the wheel of x86_64 is refused by name."""
    host.environment["ASCENDD_INSTALL_MACHINE"] = "aarch64"

    assert host.run("plan", "--device", "cpu") == 69
    assert "torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64.whl does not fit Python 3.11 on aarch64" in host.output


def test_bundle_refuses_cuda(tmp_path: Path) -> None:
    """packaging/bundle.sh makes no bundle with wheels of CUDA in it."""
    for name in ("ascendd-0.1.0-py3-none-any.whl", "nvidia_cublas-1-py3-none-manylinux_2_27_x86_64.whl"):
        (tmp_path / name).touch()
    script = Path(__file__).resolve().parents[2] / "packaging/bundle.sh"

    done = subprocess.run([script, "--wheels", tmp_path, tmp_path / "out"], capture_output=True, text=True, check=False)

    assert done.returncode == 64
    assert "the wheels hold CUDA (nvidia_cublas-1-" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".whl")) == []


def bundle_of(folder: Path, options: tuple[str, ...], *names: str) -> subprocess.CompletedProcess[str]:
    """Make a bundle of wheels that only have names."""
    (folder / "wheels").mkdir()
    for name in ("ascendd-0.1.0-py3-none-any.whl", *names):
        (folder / "wheels" / name).touch()
    script = Path(__file__).resolve().parents[2] / "packaging/bundle.sh"
    command = [script, "--wheels", folder / "wheels", *options, folder / "out"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_wheels_tell_the_architecture_of_their_bundle(tmp_path: Path, architecture: str) -> None:
    """Not the machine that packs them: pip would refuse them on the host that the bundle claims to be for."""
    done = bundle_of(tmp_path, (), f"torch-2.9.0-cp311-cp311-manylinux_2_28_{architecture}.whl")

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out/bundle.json").read_text())["architecture"] == architecture
    assert "without native CPU kernels" in done.stdout


@pytest.mark.parametrize(
    ("options", "machines", "says"),
    [
        ((), ("x86_64", "aarch64"), "are for x86_64 and for aarch64"),
        (("--arch=x86_64",), ("aarch64",), "--arch is x86_64, and the wheels"),
    ],
)
def test_wheels_of_two_machines_make_no_bundle(
    tmp_path: Path, options: tuple[str, ...], machines: tuple[str, ...], says: str
) -> None:
    """Wheels for another architecture than the named one, or for two, are refused before anything is made."""
    done = bundle_of(tmp_path, options, *(f"a-1-cp311-cp311-manylinux_2_28_{machine}.whl" for machine in machines))

    assert (done.returncode, says in done.stderr) == (64, True), done.stderr
    assert not (tmp_path / "out").exists()


def run_wheel_needs(folder: Path, architecture: str, *requirements: str) -> subprocess.CompletedProcess[str]:
    """Ask packaging/wheel_needs.py about a wheel of torch with these requirements."""
    wheel = folder / "torch-2.9.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        lines = "".join(f"Requires-Dist: {line}\n" for line in requirements)
        archive.writestr("torch-2.9.0.dist-info/METADATA", f"Name: torch\nVersion: 2.9.0\n{lines}\n")
    script = Path(__file__).resolve().parents[2] / "packaging/wheel_needs.py"
    command = [sys.executable, script, architecture, "3.11", wheel]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_requirements_are_those_of_the_target(tmp_path: Path) -> None:
    """Conditions are evaluated for the target's architecture and Python, extras are left out, conditions are met."""
    cuda = 'nvidia-cublas-cu12==12.8; platform_machine == "x86_64"'
    done = run_wheel_needs(tmp_path, "aarch64", "filelock", 'a>=1; python_version < "3.12"', 'b; extra == "x"', cuda)

    assert (done.returncode, done.stdout.split()) == (0, ["filelock", "a>=1"]), done.stderr


def test_a_torch_that_needs_cuda_is_refused(tmp_path: Path) -> None:
    """A wheel that cannot start without NVIDIA's libraries is named, with what to write instead."""
    done = run_wheel_needs(tmp_path, "aarch64", "filelock", 'nvidia-cudnn-cu13==9.20; platform_system == "Linux"')

    assert done.returncode == 64
    assert "is a CUDA build: it does not start without nvidia-cudnn-cu13" in done.stderr
    assert "--torch-index" in done.stderr


def test_one_command_makes_no_bundle_of_wheels_that_are_there_for_two_machines(tmp_path: Path) -> None:
    """--wheels is a folder for one architecture, so it excludes a second --arch."""
    script = Path(__file__).resolve().parents[2] / "packaging/bundle.sh"
    command = [script, "--wheels", tmp_path, "--arch=x86_64", "--arch=aarch64", tmp_path / "out"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (64, "bundle.sh: --wheels is a folder for one --arch\n")
