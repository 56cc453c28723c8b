"""Write a folder as a container image in an OCI archive: one layer, no registry, no daemon.

The same files give the same bytes on every machine. So the layer is not compressed, because the result would depend on
the version of zlib; what pushes the image to a registry compresses it. Owners, modes and times are set here and not
read from the disk.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"
CONTAINERD_NAME = "io.containerd.image.name"  # `ctr images import` names the image by it
PLAIN, PROGRAM, FOLDER = 0o644, 0o755, 0o755
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Owner and mode of one folder of the image. All other files belong to root, and only root may write them."""

    owner: int
    mode: int


def write_layer(root: Path, out: Path, places: Mapping[str, Place], time: int) -> None:
    """The files of `root` as a tar archive, sorted by name."""
    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in _below(root):
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.mtime = time
            if path.is_symlink():
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                archive.addfile(entry)
            elif path.is_dir():
                place = places.get(entry.name, Place(0, FOLDER))
                entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, place.mode, place.owner, place.owner
                archive.addfile(entry)
            elif path.is_file():
                status = path.stat()
                entry.size, entry.mode = status.st_size, PROGRAM if status.st_mode & 0o111 else PLAIN
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                raise ValueError(f"{path} is neither file, folder nor link")


def _below(folder: Path) -> Iterator[Path]:
    """All files below a folder, each after its folder."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def write_image(layer: Path, out: Path, name: str, architecture: str, config: Mapping[str, object], time: str) -> str:
    """The archive of an image with this layer and configuration. Returns the digest of its manifest."""
    layer_digest = _digest(layer)
    created = {"created": time, "created_by": "make image"}
    document = {
        "created": time,
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        "history": [created],
    }
    settings = _json(document)
    layers = [{"mediaType": LAYER, "digest": layer_digest, "size": layer.stat().st_size}]
    manifest = _json(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": _described(CONFIG, settings), "layers": layers}
    )
    found = {**_described(MANIFEST, manifest), "annotations": {CONTAINERD_NAME: name, REFERENCE: name.split(":")[-1]}}
    index = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [found]})
    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        for blob in (manifest, settings):
            _add(archive, _blob(_bytes_digest(blob)), blob)
        entry = tarfile.TarInfo(_blob(layer_digest))
        entry.size = layer.stat().st_size
        with layer.open("rb") as file:
            archive.addfile(entry, file)
    return _bytes_digest(manifest)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _described(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _bytes_digest(data), "size": len(data)}


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _bytes_digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def _digest(path: Path) -> str:
    found = sha256()
    with path.open("rb") as file:
        while part := file.read(_COPY_BYTES):
            found.update(part)
    return f"sha256:{found.hexdigest()}"
