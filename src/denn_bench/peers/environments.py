"""Packages of the peers: virtual environments, created once from pinned packages, or existing folders."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from denn.encoders.weights import cache_folder
from denn.errors import DennError

COMPLETE = "complete"  # written last


class EnvironmentFailed(DennError):
    """A peer's packages cannot be installed."""


def python_of(name: str, packages: Sequence[str], carriers: Sequence[str] = ()) -> Path:
    """Return the Python of an environment with these packages, created if missing; without packages, denn's own."""
    if not packages:
        return Path(sys.executable)
    listed = "\n".join((*packages, *carriers))
    digest = hashlib.sha256(listed.encode()).hexdigest()[:8]
    folder = cache_folder() / "peers" / f"{name}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / COMPLETE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder, python, packages, carriers)
        (folder / COMPLETE).write_text(listed + "\n", encoding="utf-8")
    return python


def packages_of(name: str, folder: Path) -> Path:
    """Return the subfolder with a runner's unpacked packages."""
    found = folder.resolve() / name
    if not found.is_dir():
        raise EnvironmentFailed(f"{found} is missing. Expected a folder with the unpacked packages of this runner.")
    return found


def _make(folder: Path, python: Path, packages: Sequence[str], carriers: Sequence[str]) -> None:
    _call(sys.executable, "-m", "venv", str(folder))
    install = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # Install torch first and alone, so that its pin selects the build.
    first = [package for package in packages if package.startswith("torch==")]
    for step in (first, packages, carriers and ("--no-deps", *carriers)):
        if step:
            _call(*install, *step)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
        raise EnvironmentFailed((errors or done.stderr.strip().splitlines() or ["no message"])[0])
