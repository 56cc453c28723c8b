"""Which import stream stands for which export stream. 001, AGB0 §4.5 step 3."""

from dataclasses import dataclass

from veen.bridge.faults import BundleFault, Code

EXPORT, IMPORT = "export/", "import/"


@dataclass(frozen=True, slots=True)
class Mapping:
    """Rules by the beginning of a name; the longest that fits counts."""

    rules: tuple[tuple[str, str], ...] = ((EXPORT, IMPORT),)

    def __post_init__(self) -> None:
        if any(not source or not target or source == target for source, target in self.rules):
            raise ValueError("a rule has two different beginnings of names")
        if len({source for source, _ in self.rules}) != len(self.rules):
            raise ValueError("two rules have the same beginning")

    def target(self, stream: str) -> str:
        """export/zone1/doors -> import/zone1/doors. Raises `BundleFault` where no rule fits."""
        fitting = [rule for rule in self.rules if stream.startswith(rule[0]) and len(stream) > len(rule[0])]
        if not fitting:
            begins = ", ".join(source for source, _ in self.rules)
            raise BundleFault(Code.MAPPING, f"no import stream stands for {stream!r}: names begin with {begins}")
        source, target = max(fitting, key=lambda rule: len(rule[0]))
        return target + stream.removeprefix(source)

    def is_source(self, stream: str) -> bool:
        return any(stream.startswith(source) for source, _ in self.rules)


def parse(texts: list[str] | None) -> Mapping:
    """From options of the form FROM=TO. Raises `ValueError`."""
    if not texts:
        return Mapping()
    rules = []
    for text in texts:
        source, given, target = text.partition("=")
        if not given:
            raise ValueError(f"{text!r} is not FROM=TO, like export/=import/")
        rules.append((source, target))
    return Mapping(tuple(rules))
