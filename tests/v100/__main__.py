"""Compare our pools with those of the V100 engine's own sizing code.

Fetches `revolta` through pip into a temporary directory (it installs the package
name `vllm`, so never into the environment) and sizes generated layouts of equal
spans with both, in a process of its own. `make test-v100`, about two minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REVOLTA = "revolta==0.1.4"
PLATFORM = ("--python-version", "3.12", "--implementation", "cp")
WHEEL_TAG = ("--platform", "manylinux_2_34_x86_64")
ROOT = Path(__file__).parents[2]


def fetch(into: Path) -> Path:
    """Download and unpack the wheel, and what its Python sources import beyond ours."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    only = ["--no-deps", "--only-binary=:all:"]
    subprocess.run(
        [*pip, "download", *only, *PLATFORM, *WHEEL_TAG, "-d", str(into), REVOLTA], check=True
    )
    unpacked = into / "unpacked"
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    subprocess.run([*pip, "install", *only, "--target", str(unpacked), "gguf"], check=True)
    return unpacked


def main() -> int:
    """Exit status 0 when every layout got the same slots from both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--unpacked", type=Path, help="an unpacked wheel instead of a download")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        unpacked = arguments.unpacked or fetch(Path(directory))
        command = [sys.executable, "-m", "tests.v100.compare"]
        done = subprocess.run(
            [*command, str(arguments.layouts), str(arguments.seed)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(unpacked), str(ROOT)])},
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
