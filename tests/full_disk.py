"""A disk that fills up amid a write, by way of the limit that the system has on the length of files."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What fits is written, then the system says no."""
    before, heard = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)
