"""The bill of materials of a release in CycloneDX JSON: every package that veen needs, with hashes and licence.

It has no time and no random number, so the same commit always gives the same bytes. Its sources are the committed lock
files of Python and npm and `requirements/licences.json`.

python -m tools.bill_of_materials FILE...    print it for these files of a release
"""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.utils import canonicalize_name

import veen
from tools import licences, lock_files, npm_packages
from tools.debian_packages import ARCHITECTURE, RELEASE, DebianPackage
from tools.lock_files import Pin
from tools.npm_packages import NpmPackage, NpmProject

SERIAL_LINE = '  "serialNumber": '


def bill_of_materials(
    artifacts: Iterable[Path],
    pins: Sequence[Pin] | None = None,
    extras: Sequence[str] = ("all",),
    debian: Iterable[DebianPackage] = (),
) -> str:
    """JSON that lists files of a release, all packages of `requirements/all.txt` or these pins, and those of npm.

    The container image also has Debian packages.
    """
    bom = Bom()
    bom.metadata.timestamp = None  # type: ignore[assignment]
    root = Component(
        name="veen",
        version=veen.__version__,
        type=ComponentType.APPLICATION,
        bom_ref=f"veen=={veen.__version__}",
        purl=PackageURL("pypi", None, "veen", veen.__version__),
        licenses=[LicenseExpression("Apache-2.0")],
        external_references=[distribution(path.name, [sha256(path)]) for path in artifacts],
    )
    bom.metadata.component = root
    known, required = licences.read(), {(pin.name, pin.version) for pin in lock_files.read("base")}
    pins = lock_files.read("all") if pins is None else pins
    components = {pin: component(pin, known[pin.name], (pin.name, pin.version) in required) for pin in pins}
    direct = {canonicalize_name(one.name) for one in lock_files.project_requirements(extras)}
    for pin, one in components.items():
        bom.components.add(one)
        for user, other in components.items():
            if user.name in pin.required_by:
                bom.register_dependency(other, [one])
        if pin.name in direct:
            bom.register_dependency(root, [one])
    for project in npm_packages.projects():
        add_project(bom, root, project)
    for package in debian:
        one = debian_component(package)
        bom.components.add(one)
        bom.register_dependency(root, [one])
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(SERIAL_LINE)) + "\n"


def component(pin: Pin, licence: str, required: bool) -> Component:
    purl = PackageURL("pypi", None, pin.name, pin.version)
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED if required else ComponentScope.OPTIONAL,
        bom_ref=f"{pin.name}=={pin.version}",
        purl=purl,
        licenses=[LicenseExpression(licence)],
        external_references=[distribution(purl.to_string(), [one.removeprefix("sha256:") for one in pin.hashes])],
        properties=[Property(name="veen:marker", value=str(pin.marker))] if pin.marker else (),
    )


def add_project(bom: Bom, root: Component, project: NpmProject) -> None:
    """Add a project of npm, which the release contains, and its packages."""
    ours = Component(
        name=project.name,
        version=project.version,
        type=ComponentType.APPLICATION,
        scope=ComponentScope.REQUIRED,
        bom_ref=project.purl.to_string(),
        purl=project.purl,
        licenses=[LicenseExpression(project.licence)],
    )
    components = {package.name: npm_component(package) for package in project.packages}
    for component in (ours, *components.values()):
        bom.components.add(component)
    bom.register_dependency(root, [ours])
    bom.register_dependency(ours, [components[name] for name in project.uses])
    for package in project.packages:
        bom.register_dependency(components[package.name], [components[name] for name in package.uses])


def npm_component(package: NpmPackage) -> Component:
    scope, _, name = package.name.rpartition("/")
    purl = package.purl.to_string()
    return Component(
        group=scope or None,
        name=name,
        version=package.version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.EXCLUDED if package.is_tool else ComponentScope.REQUIRED,
        bom_ref=purl,
        purl=package.purl,
        licenses=[LicenseExpression(package.licence)],
        external_references=[distribution(purl, [package.sha512], HashAlgorithm.SHA_512)],
    )


def debian_component(package: DebianPackage) -> Component:
    """A package of the image. Its licence is in the image: /usr/share/doc/NAME/copyright."""
    purl = PackageURL("deb", "debian", package.name, package.version, {"arch": ARCHITECTURE, "distro": RELEASE})
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED,
        bom_ref=f"debian:{package.name}={package.version}",
        purl=purl,
        external_references=[distribution(purl.to_string(), [package.digest])],
    )


def distribution(
    url: str, digests: Iterable[str], algorithm: HashAlgorithm = HashAlgorithm.SHA_256
) -> ExternalReference:
    hashes = [HashType(alg=algorithm, content=digest) for digest in digests]
    return ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(url), hashes=hashes)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.stdout.write(bill_of_materials(map(Path, sys.argv[1:])))
