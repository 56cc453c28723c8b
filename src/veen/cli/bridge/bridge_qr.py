"""`veen bridge print` and `scan`: bundles as QR images."""

from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli.command import Misuse, command
from veen.bridge import bundle, qr
from veen.cli.bridge.bridge_options import app, need_folder
from veen.cli.kit import output, output_files
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import hinted
from veen.client import local_files
from veen.core import Malformed


@command(
    app,
    "print",
    "veen bridge print 9f2c….bundle --out codes",
    "veen bridge print 9f2c….bundle --out codes --svg --part-bytes 300",
)
def print_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a bundle")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder for the images")],
    svg: Annotated[bool, typer.Option("--svg", help="write SVG instead of PNG")] = False,
    part_bytes: Annotated[int, typer.Option("--part-bytes", metavar="N", min=1, help="bytes per code")] = 600,
    scale: Annotated[int, typer.Option("--scale", metavar="N", min=1, help="pixels per module of a code")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Write a bundle as numbered QR images, each with a digest.

    Use it for air gaps that only paper or a screen may cross.
    """

    data = local_files.read_file(file, bundle.MAX_BUNDLE_BYTES)
    bundle.decode(data)
    try:
        texts = qr.split(data, part_bytes)
    except ValueError as error:
        raise Misuse(str(error), "export smaller bundles with --max-events") from None
    paths = qr.write(texts, need_folder(out), "svg" if svg else "png", scale)
    output.table(("image",), [(str(path),) for path in paths], as_json)


@command(app, "scan", "veen bridge scan codes/1-of-3.png codes/2-of-3.png codes/3-of-3.png --out again.bundle")
def scan(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="photographs or scans of the codes")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="the bundle to create")],
    as_json: JsonOption = False,
) -> None:
    """Read a bundle from QR images in any order.

    The command names parts that are missing, damaged or from another bundle. Verify the bundle with veen bridge verify.
    """

    output_files.check_new(out)
    texts = qr.scan(images)
    try:
        data = qr.join(texts)
    except Malformed as error:
        hint = "scan the named parts again and give the images of all parts, in any order; duplicates are fine"
        raise hinted(error, hint) from None
    found = bundle.decode(data)
    output_files.write_new(out, data)
    rows: dict[str, output.Value] = {"bundle_id": found.bundle_id, "codes": len(set(texts)), "file": str(out)}
    output.facts(rows, as_json)
