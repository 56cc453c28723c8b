"""Write every generated vector file of VEIL: `python -m vectors.veil.generate`. The same code gives the same bytes."""

from collections.abc import Callable
from pathlib import Path

from vectors.form import Doc, render
from vectors.veil.sealed import channels
from vectors.veil.shards import erasure, objects

FOLDER = Path(__file__).parent

# `dialect.json` is not here: its figures are copied by hand, so our code cannot change them.
GENERATED: dict[str, Callable[[], Doc]] = {
    "channels.json": channels,
    "erasure.json": erasure,
    "objects.json": objects,
}


def main() -> None:
    for name, make in GENERATED.items():
        (FOLDER / name).write_bytes(render(make()))


if __name__ == "__main__":
    main()
