"""What must be equal on all hosts of a cluster, as this host has it: versions, TLS between chips, model, clock."""

from __future__ import annotations

import hashlib
from typing import Dict, Mapping

from ascendd.errors import ProbeError
from ascendd.host.command import RunCommand
from ascendd.host.files import HostFiles
from ascendd.host.hccn_tool import HccnTool, find_hccn_tool
from ascendd.host.version_files import parse_pairs, read_cann, read_driver, read_firmware

PACKAGES = ("ray", "vllm", "vllm_ascend", "torch", "torch_npu", "transformers")
_TIMEOUT_S = 5.0
_CHIPS = 16


def gather_facts(
    files: HostFiles, run: RunCommand, environ: Mapping[str, str], venv: str, model: str
) -> Dict[str, str]:
    """Return name -> text; what this host lacks, or this user may not ask for, is left out."""
    facts: Dict[str, str] = {}
    for site in files.list_dir(f"{venv}/lib", "python3*"):
        facts["python"] = site[len("python") :]
        for name in files.list_dir(f"{venv}/lib/{site}/site-packages", "*.dist-info"):
            package, _, version = name[: -len(".dist-info")].partition("-")
            if package.lower() in PACKAGES:
                facts[package.lower().replace("_", "-")] = version
    versions = {"driver": read_driver(files).version, "firmware": read_firmware(files).version}
    toolkits = read_cann(files, environ)
    versions["cann"] = toolkits[0].version if toolkits else None
    facts.update({name: version for name, version in versions.items() if version is not None})
    config = files.read_optional(f"{model}/config.json")
    if config is not None:
        facts["model"] = hashlib.sha256(config.encode()).hexdigest()[:16]
    facts.update(_tls(files, run, environ))
    facts.update(_clock(run, environ))
    return facts


def _tls(files: HostFiles, run: RunCommand, environ: Mapping[str, str]) -> Dict[str, str]:
    path = find_hccn_tool(files)
    if path is None:
        return {}
    tool = HccnTool(path, run, environ, _TIMEOUT_S)
    switches = set()
    for chip in range(_CHIPS):
        try:
            switches.add(tool.tls_is_on(chip))
        except ProbeError:
            break
    told = {frozenset({True}): "on", frozenset({False}): "off", frozenset({True, False}): "mixed"}
    return {"tls": told[frozenset(switches)]} if switches else {}


def _clock(run: RunCommand, environ: Mapping[str, str]) -> Dict[str, str]:
    try:
        said = run(("timedatectl", "show", "--property=NTPSynchronized"), _TIMEOUT_S, environ).stdout
    except ProbeError:
        return {}
    known = {"yes": "synchronised", "no": "not-synchronised"}
    answer = known.get(parse_pairs(said).get("NTPSynchronized", ""))
    return {"clock": answer} if answer else {}
