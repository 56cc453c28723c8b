"""Attachments by the hash of their ciphertext: whoever stores one, its name checks it. Spec §4.6."""

from threading import Lock

from veen.core import Malformed
from veen.core.hashing import HASH_BYTES, h
from veen.storage.durable import Disk
from veen.storage.folders import Folders


class AttachmentStore:
    """The attachments of one data directory."""

    def __init__(self, disk: Disk, folders: Folders) -> None:
        self._disk = disk
        self._folders = folders
        self._writing = Lock()  # two that bring the same one would share its draft

    def put(self, coid: bytes, sealed: bytes) -> bool:
        """Keep it, synced. False where it was there already. Raises `Malformed` where it is not what its name says."""
        if len(coid) != HASH_BYTES or h(sealed) != coid:
            raise Malformed("attachment", "its bytes are not those its coid names")
        path = self._folders.attachment(coid)
        with self._writing:
            known = path.exists()
            if not known:
                self._disk.make_folder(path.parent)
                self._disk.sync_folder(self._folders.attachments)
                self._disk.write_file(path, sealed)
            # Also where it was there: whoever brought it first may not have lived to this line.
            self._disk.sync_folder(path.parent)
        return not known

    def get(self, coid: bytes) -> bytes | None:
        path = self._folders.attachment(coid)
        return path.read_bytes() if path.exists() else None
