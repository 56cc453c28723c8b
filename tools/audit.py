"""Look up the pinned versions in the vulnerability data of the package index, with pip-audit.

python -m tools.audit [OPTION...]    options of pip-audit, such as `-s osv`

Exit status 0: all pinned versions were looked up and none has a known vulnerability. 1: some have. 2: there was no data
about at least one package; pip-audit itself reports that as success.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

from tools import lock_files

FOUND, UNKNOWN = 1, 2


def audit(options: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off", "--disable-pip"]
    command += ["--require-hashes", f"--requirement={lock_files.FOLDER / 'dev.txt'}", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return unknown(f"pip-audit failed: {reason}")
    vulnerable = [(package, found) for package in packages for found in package.get("vulns", ())]
    for package, found in vulnerable:
        fixed = ", ".join(found["fix_versions"]) or "no version"
        print(f"{package['name']} {package['version']}: {found['id']}, fixed in {fixed}")
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped:
        return unknown(f"no data for {len(skipped)} of {len(packages)} packages: {', '.join(skipped[:3])} …")
    print(f"{len(packages)} packages, {len(vulnerable)} known vulnerabilities")
    return FOUND if vulnerable else 0


def unknown(reason: str) -> int:
    print(f"veen: error: the pinned versions could not be checked: {reason}", file=sys.stderr)
    print(
        "veen: hint: pip-audit needs the JSON API of PyPI; for the service of OSV run: python -m tools.audit -s osv",
        file=sys.stderr,
    )
    return UNKNOWN


if __name__ == "__main__":
    sys.exit(audit(sys.argv[1:]))
