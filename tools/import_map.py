"""The import-linter contract for the map in pyproject.toml: imports follow its arrows and no others."""

from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.contract import InvalidContractOptions

NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Arrow:
    """One line of the map: `package` may import `targets`."""

    package: str
    targets: tuple[str, ...]


class ArrowField(fields.Field[Arrow]):
    """Parses `a.b -> a.c, a.d`, and `a.b -> nothing` for a package without imports of ours."""

    def parse(self, raw_data: str | list[str]) -> Arrow:
        package, arrow, listed = str(raw_data).partition("->")
        targets = tuple(target.strip() for target in listed.split(","))
        if not (arrow and package.strip() and all(targets)):
            raise fields.ValidationError(f"'{raw_data}' is not of the form 'a.b -> a.c, a.d' or 'a.b -> {NOTHING}'")
        return Arrow(package.strip(), () if targets == (NOTHING,) else targets)


class ImportMapContract(Contract):
    """Every package is on the map and imports only itself and the packages that its arrow lists.

    A root that the map divides, such as `veen`, may be imported by all its packages (for the version, for example) and
    imports none of them. An arrow of a package that does not exist yet applies from its first line.
    """

    type_name = "import_map"

    arrows = fields.ListField(subfield=ArrowField())
    source = fields.StringField()

    def validate(self) -> None:
        """Reject a map that names a package twice, points to an unknown one, or has a cycle."""
        lines = cast(list[Arrow], self.arrows)
        self.map = {line.package: frozenset(line.targets) for line in lines}
        if len(self.map) != len(lines):
            raise InvalidContractOptions({"arrows": "a package has two arrows"})
        for package, targets in self.map.items():
            if unknown := sorted(targets - self.map.keys()):
                raise InvalidContractOptions({"arrows": f"{package} -> {unknown[0]}, which has no arrow"})
        try:
            TopologicalSorter(self.map).prepare()
        except CycleError as error:
            raise InvalidContractOptions({"arrows": f"a cycle: {' -> '.join(error.args[1])}"}) from None

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare the import graph and the source folders with the map."""
        broken = sorted([*self._off_the_map(graph), *self._against_the_arrows(graph)])
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one unwrapped line per fault, so the names in it can be searched."""
        for line in check.metadata["broken"]:
            output.console.print(line, style="red", markup=False, soft_wrap=True)
        output.new_line()

    def _package(self, module: str) -> str:
        """The package of `module`, as the map counts packages."""
        root, _, rest = module.partition(".")
        return root if root in self.map or not rest else f"{root}.{rest.partition('.')[0]}"

    def _roots(self) -> set[str]:
        return {package.partition(".")[0] for package in self.map}

    def _off_the_map(self, graph: ImportGraph) -> Iterator[str]:
        """Packages without an arrow; from folders too, because the graph has only the roots it was given."""
        roots = self._roots()
        seen = {self._package(module) for module in graph.modules if module.partition(".")[0] in roots}
        source = Path(cast(str, self.source))
        seen |= set(_packages_in(source))
        for root in roots - self.map.keys():
            seen |= {f"{root}.{name}" for name in _packages_in(source / root)}
        for package in seen - self.map.keys() - roots:
            yield f"{package} is not on the map: add an arrow"

    def _against_the_arrows(self, graph: ImportGraph) -> Iterator[str]:
        """Imports between our packages that no arrow allows."""
        ours = self.map.keys() | self._roots()
        for importer in graph.modules:
            package = self._package(importer)
            if package not in ours:
                continue
            allowed = self.map.get(package, frozenset()) | {package, package.partition(".")[0]}
            for imported in graph.find_modules_directly_imported_by(importer):
                target = self._package(imported)
                if target in ours - allowed:
                    yield from _places(graph, importer, imported, f"no arrow {package} -> {target}")


def _packages_in(folder: Path) -> Iterator[str]:
    """Names of the modules and packages in `folder`, with or without an `__init__.py`."""
    for entry in folder.iterdir():
        if entry.is_dir() and any(entry.rglob("*.py")):
            yield entry.name
        elif entry.suffix == ".py" and entry.stem != "__init__":
            yield entry.stem


def _places(graph: ImportGraph, importer: str, imported: str, reason: str) -> Iterator[str]:
    """One line for each place in `importer` with the import."""
    places = [f":{found['line_number']}" for found in graph.get_import_details(importer=importer, imported=imported)]
    for place in places or [""]:
        yield f"{importer}{place} imports {imported}: {reason}"
