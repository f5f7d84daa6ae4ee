"""What differs between the engines of an instance."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import ascendd.supervisor
from ascendd.__main__ import ROLES
from ascendd.config.load import load_text
from ascendd.config.schema import EngineSection
from ascendd.errors import ModelNotFound
from ascendd.supervisor.backend import EngineBackend, backend_of

BACKENDS = get_args(get_type_hints(EngineSection)["backend"])
# Where a difference between engines may be named: the table, and one module for each.
NAMES_A_BACKEND = {"backend.py", *(f"{name}_backend.py" for name in BACKENDS)}


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_of_the_schema_is_one(name):
    """What engine.backend takes has the parts of the interface, with its parameters, and a private role."""
    backend = importlib.import_module(f"ascendd.supervisor.{name}_backend").BACKEND

    assert backend.process in ROLES
    for method in ("check", "environment", "fits"):
        wanted = inspect.signature(getattr(EngineBackend, method)).parameters
        assert list(inspect.signature(getattr(backend, method)).parameters) == list(wanted)[1:]


def test_the_native_engine_is_the_default():
    """An instance file that names no backend gets ascendd's own engine."""
    assert backend_of(load_text("model: {path: /m}")).process == "_engine"


def test_the_native_backend_refuses_a_missing_model(tmp_path):
    """What cannot be loaded is told before a process is started."""
    config = load_text(f"model: {{path: {tmp_path}/none}}")

    with pytest.raises(ModelNotFound):
        backend_of(config).check(config)


def test_the_core_asks_no_backend_for_its_name():
    """Nothing of the supervisor but the table reads engine.backend."""
    folder = Path(ascendd.supervisor.__file__).parent
    readers = {
        path.name for path in folder.glob("*.py") if ".backend" in path.read_text().replace("supervisor.backend", "")
    }

    assert readers <= NAMES_A_BACKEND
