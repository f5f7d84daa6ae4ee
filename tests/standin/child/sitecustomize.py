"""Read by every interpreter that a stand-in machine's environment reaches; acts once torch_npu has been imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _AfterTorchNpu(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports torch_npu as it is, then gives its operators host arithmetic; others are none of its business."""

    def __init__(self) -> None:
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch_npu":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None
        assert module.__spec__ is not None
        # Before the module runs: it looks at its own loader for resources.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        from standin_npu.dispatch import install

        install()


sys.meta_path.insert(0, _AfterTorchNpu())
