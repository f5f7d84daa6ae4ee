"""
Build the native kernels of the CPU beside what pyproject.toml says: a plain shared library, no extension module.

It needs a C compiler and no Python headers, and one build serves every Python, so a wheel with it is tagged `py3-none`
and a platform. Without a compiler, or with ASCENDD_PURE=1, there is none of it: the same package computes in torch.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NAME = "ascendd.device.kernels.libcpukernels"
FOLDER = Path("ascendd/device/kernels/csrc")
SOURCES = ["native.c", "avx2.c", "avx512.c", "vnni.c", "neon.c"]
IS_WANTED = os.environ.get("ASCENDD_PURE") != "1" and platform.machine() in {"x86_64", "aarch64"}


class BuildLibrary(build_ext):
    """Name the file as a library is named, and leave it out where it cannot be built."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without the interpreter's version in the name."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """There is no PyInit function."""
        return list(ext.export_symbols)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python of one platform, or of any where nothing was compiled."""

    def get_tag(self) -> tuple[str, str, str]:
        """Look at what was built."""
        command = self.get_finalized_command("build_ext")
        assert isinstance(command, build_ext)
        is_built = bool(command.extensions) and Path(command.get_ext_fullpath(NAME)).exists()
        return "py3", "none", super().get_tag()[2] if is_built else "any"


setup(
    ext_modules=[
        Extension(
            NAME,
            [str(FOLDER / name) for name in SOURCES],
            depends=[str(path) for path in sorted(FOLDER.glob("*.h"))],
            # OpenMP is compiled for and not linked: see native.c.
            extra_compile_args=["-O2", "-std=gnu11", "-fopenmp", "-fvisibility=hidden"],
            libraries=["m"],
            optional=True,
        )
    ]
    if IS_WANTED
    else [],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
