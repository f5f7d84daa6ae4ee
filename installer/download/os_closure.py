"""OS closure: which packages of a repository an operating system needs beside those that it has. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .fetch import RemoteFile

Compare = Callable[[str, str], int]
_HOLDS: Mapping[str, Callable[[int], bool]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    "=": lambda order: order == 0,
    ">=": lambda order: order >= 0,
    ">": lambda order: order > 0,
}


@dataclass(frozen=True)
class Relation:
    """A name that is needed or provided, `operator` one of < <= = >= > or empty."""

    name: str
    operator: str = ""
    version: str = ""


@dataclass(frozen=True)
class RepositoryPackage:
    """A package of a repository; `requires` are met when of each of its groups one relation is."""

    name: str
    version: str
    file: RemoteFile
    requires: Tuple[Tuple[Relation, ...], ...] = ()
    provides: Tuple[Relation, ...] = ()
    is_base: bool = False  # Every system of this distribution has it.


class OsClosure:
    """
    The packages of all repositories of one system, the newest of each name.

    `installed` are the packages of the host with their versions; None where that is not known: then those that every
    system of the distribution has, with what they need, count as there.
    """

    def __init__(
        self, packages: Iterable[RepositoryPackage], compare: Compare, installed: Optional[Mapping[str, str]] = None
    ) -> None:
        self._compare = compare
        self._newest: Dict[str, RepositoryPackage] = {}
        for package in packages:
            other = self._newest.get(package.name)
            if other is None or compare(package.version, other.version) > 0:
                self._newest[package.name] = package
        self._providers: Dict[str, List[Tuple[Relation, RepositoryPackage]]] = {}
        for package in self._newest.values():
            for provided in (Relation(package.name, "=", package.version), *package.provides):
                self._providers.setdefault(provided.name, []).append((provided, package))
        self._versions: Dict[str, str] = {}
        if installed is not None:
            self._versions = dict(installed)
        else:
            base = [package.name for package in self._newest.values() if package.is_base]
            found, _ = self.resolve(base)
            self._versions = {package.name: package.version for package in found}

    def has(self, name: str) -> bool:
        """Tell whether a repository has this package."""
        return name in self._newest

    def newest_version(self, name: str) -> str:
        """Return the newest version that a repository has, empty where none has any."""
        return self._newest[name].version if name in self._newest else ""

    def is_installed(self, name: str) -> bool:
        """Tell whether the host has it already."""
        return name in self._versions

    def resolve(self, names: Sequence[str]) -> Tuple[List[RepositoryPackage], List[str]]:
        """Return these packages and what they need, without what the host has, and what nothing there gives."""
        chosen: Dict[str, RepositoryPackage] = {}
        problems: Dict[str, None] = {}
        waiting = [(self._newest[name], "") for name in names if name in self._newest and not self.is_installed(name)]
        problems.update((f"no repository has {name}", None) for name in names if name not in self._newest)
        while waiting:
            package, _ = waiting.pop()
            if package.name in chosen:
                continue
            chosen[package.name] = package
            for group in package.requires:
                if any(self._is_there(relation, chosen) for relation in group):
                    continue
                provider = next((p for relation in group for p in self._who_gives(relation)), None)
                if provider is None or self.is_installed(provider.name):
                    problems[self._sentence(package, group, provider)] = None
                else:
                    waiting.append((provider, package.name))
        return sorted(chosen.values(), key=lambda package: package.name), list(problems)

    def _is_there(self, relation: Relation, chosen: Mapping[str, RepositoryPackage]) -> bool:
        """Tell whether the host or what was chosen gives it; what a package of the host provides is its newest's."""
        if relation.name in self._versions:
            return self._holds(relation, self._versions[relation.name])
        return any(
            package.name in chosen or (package.name in self._versions and provided.name != package.name)
            for provided, package in self._providers.get(relation.name, ())
            if self._gives(provided, relation)
        )

    def _who_gives(self, relation: Relation) -> List[RepositoryPackage]:
        """Return who gives it, the package of that very name first."""
        found = [
            package for provided, package in self._providers.get(relation.name, ()) if self._gives(provided, relation)
        ]
        return sorted(found, key=lambda package: (package.name != relation.name, package.name))

    def _gives(self, provided: Relation, wanted: Relation) -> bool:
        return not wanted.operator or (bool(provided.version) and self._holds(wanted, provided.version))

    def _holds(self, wanted: Relation, version: str) -> bool:
        return not wanted.operator or _HOLDS[wanted.operator](self._compare(version, wanted.version))

    def _sentence(
        self, package: RepositoryPackage, group: Sequence[Relation], provider: Optional[RepositoryPackage]
    ) -> str:
        needs = " or ".join(" ".join(filter(None, (r.name, r.operator, r.version))) for r in group)
        if provider is None:
            return f"{package.name} {package.version} needs {needs}, which no repository gives"
        has = self._versions[provider.name]
        return (
            f"{package.name} {package.version} needs {needs}, and the host has {provider.name} {has}; name "
            "repositories of the state that the host has, or bring the host up to theirs"
        )
