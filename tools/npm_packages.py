"""The npm packages that the projects in `web/` pin, read from their lock files.

npm writes the licence and the SHA-512 hash of each package into `package-lock.json`. It rejects a package with another
hash.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packageurl import PackageURL

ROOT = Path(__file__).parents[1]
LOCKS = tuple(sorted((ROOT / "web").glob("*/package-lock.json")))
_INSTALLED = "node_modules/"
_USES = ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies")


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """One version of a package."""

    name: str
    version: str
    licence: str
    sha512: str  # in hex
    is_tool: bool  # builds or tests the project, and nothing of it is delivered
    uses: tuple[str, ...]

    @property
    def purl(self) -> PackageURL:
        return purl(self.name, self.version)


@dataclass(frozen=True, slots=True)
class NpmProject:
    """A project of ours and the packages that it pins."""

    name: str
    version: str
    licence: str
    uses: tuple[str, ...]
    packages: tuple[NpmPackage, ...]

    @property
    def purl(self) -> PackageURL:
        return purl(self.name, self.version)


def purl(name: str, version: str) -> PackageURL:
    scope, _, short = name.rpartition("/")
    return PackageURL("npm", scope or None, short, version)


def projects() -> tuple[NpmProject, ...]:
    return tuple(read(path.read_text("utf-8")) for path in LOCKS)


def read(text: str) -> NpmProject:
    """The project of a lock file. Raises `ValueError` for a package without version, licence or SHA-512 hash."""
    listed: dict[str, dict[str, Any]] = json.loads(text)["packages"]
    project = listed.pop("")
    return NpmProject(
        project["name"], project["version"], project["license"], tuple(_uses(project)), tuple(_packages(listed))
    )


def _packages(listed: Mapping[str, Mapping[str, Any]]) -> Iterator[NpmPackage]:
    for place, found in listed.items():
        name = place.removeprefix(_INSTALLED)
        if _INSTALLED in name:
            raise ValueError(f"two versions of one package: {place}")
        digest = re.fullmatch(r"sha512-([A-Za-z0-9+/]{86}==)", found.get("integrity", ""))
        if digest is None:
            raise ValueError(f"no SHA-512 hash: {name}")
        if not {"version", "license"} <= found.keys():
            raise ValueError(f"no version or no licence: {name}")
        hashed = base64.b64decode(digest[1]).hex()
        uses = tuple(one for one in _uses(found) if _INSTALLED + one in listed)
        yield NpmPackage(name, found["version"], found["license"], hashed, found.get("dev", False), uses)


def _uses(found: Mapping[str, Any]) -> list[str]:
    return sorted({name for key in _USES for name in found.get(key, ())})
