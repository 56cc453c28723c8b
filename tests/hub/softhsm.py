"""A PKCS#11 token of SoftHSM, a Debian package. Tests that need it are skipped where it is absent."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from veen.storage.secret_keys import TokenSource

MODULES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so")
PIN = "4711"


def make_token(folder: Path) -> TokenSource:
    """A new token. Programs find it through `SOFTHSM2_CONF`, which this sets for the process and its children."""
    pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed: pip install veen[pkcs11]")
    module = next((Path(one) for one in MODULES if Path(one).exists()), None)
    program = shutil.which("softhsm2-util")
    if module is None or program is None:
        pytest.skip("SoftHSM is not installed: apt-get install softhsm2")
    tokens, settings, pin_file = folder / "tokens", folder / "softhsm2.conf", folder / "pin"
    tokens.mkdir(parents=True)
    settings.write_text(f"directories.tokendir = {tokens}\n")
    pin_file.touch(0o600)
    pin_file.write_text(f"{PIN}\n")
    os.environ["SOFTHSM2_CONF"] = str(settings)
    command = [program, "--init-token", "--free", "--label", "veen", "--pin", PIN, "--so-pin", PIN]
    subprocess.run(command, check=True, capture_output=True)
    return TokenSource(module, "veen", pin_file)
