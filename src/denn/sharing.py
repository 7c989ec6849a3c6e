"""Models on the Hugging Face hub: push a model's folder, and download one into its own folder."""

from __future__ import annotations

import logging
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from denn import __version__
from denn.bundle import MOST_FILES, read, read_card, undisturbed
from denn.bundle_card import Card
from denn.encoders.weights import cache_folder
from denn.errors import BundleError, ConfigError, HubError
from denn.hub import NAME, client, explained
from denn.model_card import readme
from denn.progress import Silent
from denn.stores.address import ELSEWHERE, FILE, create_store, open_store
from denn.stores.copying import copy
from denn.strict_json import dumps
from denn.validation import DOCUMENTS

log = logging.getLogger(__name__)

STORE = f"store/{FILE}"
CALLER = {"library_name": "denn", "library_version": __version__}
PATIENCE = 10  # seconds for the hub's first answer
KEPT = {".gitattributes"}  # files of the repository that a push does not remove


@dataclass(frozen=True)
class Texts:
    """The numbers of documents that pushing a model would upload."""

    stored: int
    validation: int

    def sentence(self, name: str, private: bool) -> str:
        """Describe what a push uploads, and who can read it."""
        who = f"a private repository: everyone with access to {name} can read them" if private else "a PUBLIC one"
        return (
            f"Pushing to {name} uploads the texts and labels of {self.stored:,} stored and {self.validation:,} "
            f"validation documents, and words of the training texts, together with the model, to {who}."
        )


def fetch(name: str, revision: str | None = None) -> Path:
    """Download a model from the hub and return its folder: a copy in denn's cache, whose datastore may be changed.

    Only the datastore and files with a digest in bundle.json are fetched, not the address of an external datastore.
    """
    hub = client()
    fault = f"{name} is not a folder here, and could not be downloaded from the hub"
    with explained(fault, HubError):
        known = not _answers(hub, name, revision)
        try:
            card_file = Path(
                hub.hf_hub_download(name, "bundle.json", revision=revision, local_files_only=known, **CALLER)
            )
        except hub.errors.RemoteEntryNotFoundError as error:
            raise BundleError(f"{name} on the hub is not a denn model: it has no bundle.json.") from error
        commit = card_file.parent.name
        target = cache_folder() / "hub" / name.replace("/", "--") / commit
        if target.is_dir():
            return target
        wanted = _wanted(name, read_card(card_file.parent))
        with ExitStack() as unfinished:
            target.parent.mkdir(parents=True, exist_ok=True)
            part = Path(unfinished.enter_context(tempfile.TemporaryDirectory(dir=target.parent)))
            for file in wanted:
                try:
                    found = hub.hf_hub_download(name, file, revision=commit, **CALLER)
                except hub.errors.RemoteEntryNotFoundError:  # reading the model reports missing files
                    continue
                (part / "model" / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, part / "model" / file)
            if not target.is_dir():  # another process may have been faster
                (part / "model").rename(target)
    return target


def _answers(hub: Any, name: str, revision: str | None) -> bool:
    """Ask the hub for a model once, because the client itself retries for 20 seconds without a network."""
    try:
        hub.HfApi(**CALLER).model_info(name, revision=revision, timeout=PATIENCE)
    except hub.errors.HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
        return False
    except Exception:  # whatever the HTTP library raises without a network, and offline mode
        return False
    return True


def _wanted(name: str, card: Card) -> list[str]:
    """Return the files to fetch; reject names that lead out of the folder or into `store` before writing anything."""
    for file in card.digests:
        parts = PurePosixPath(file).parts
        if ".." in parts or file.startswith("/") or "\\" in file or ":" in file or not file.isprintable():
            raise BundleError(f"{name} on the hub names a file outside its folder: {ascii(file)[:200]}. Do not use it.")
        # Some file systems ignore case, or dots and spaces at the end of a name.
        if parts[:1] and parts[0].rstrip(". ").casefold() == "store":
            raise BundleError(
                f"{name} on the hub lists a file of its datastore, which no model does: {ascii(file)[:200]}. "
                "Do not use it."
            )
    if len(card.digests) > MOST_FILES:
        raise BundleError(f"{name} on the hub has more than {MOST_FILES} files; expected a model.")
    return ["bundle.json", *sorted(card.digests), STORE]


def texts_of(folder: Path) -> Texts:
    """Count the documents that pushing a model uploads; raise a HubError for a datastore outside its folder."""
    _refuse_elsewhere(folder)
    card = read_card(folder)
    stored = 0
    if (folder / STORE).is_file():
        with open_store(folder / STORE, read_only=True, index="exact") as store:
            stored = len(store)
    kept = 0
    if card.validation:
        with (folder / card.validation / DOCUMENTS).open("rb") as lines:
            kept = sum(1 for _ in lines)
    return Texts(stored, kept)


def push(
    folder: Path,
    name: str,
    *,
    private: bool = True,
    revision: str | None = None,
    license: str | None = None,
    token: str | None = None,
    message: str = "Upload a denn model",
) -> str:
    """Upload a model with a generated README.md in one commit; return the address of the commit.

    Files of an earlier model are removed in the same commit. The datastore is uploaded without its history.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"Got the name {name!r}, expected user/model: letters, digits, dots, dashes, underscores.")
    texts = texts_of(folder)
    hub = client()
    log.warning(texts.sentence(name, private))
    api = hub.HfApi(token=token, **CALLER)
    with explained(f"The model was not pushed to {name}", HubError), tempfile.TemporaryDirectory() as scratch:
        files = undisturbed(folder, lambda: _files(folder, Path(scratch), name, texts, license))
        api.create_repo(name, private=private, exist_ok=True)
        if private and not api.model_info(name).private:
            raise HubError(
                f"{name} already exists and is public, so the model was not pushed. Push with private=False (--public) "
                "to publish its texts, or choose another name."
            )
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        old = set(api.list_repo_files(name, revision=revision)) - files.keys() - KEPT
        operations: list[Any] = [hub.CommitOperationDelete(file) for file in sorted(old)]
        operations += [hub.CommitOperationAdd(file, content) for file, content in files.items()]
        done = api.create_commit(name, operations, commit_message=message, revision=revision)
    return str(done.commit_url)


def _files(folder: Path, scratch: Path, name: str, texts: Texts, license: str | None) -> dict[str, Path | bytes]:
    """Return the files to upload: the model's files, a copy of its datastore, and a README."""
    card, labels = read(folder)
    files: dict[str, Path | bytes] = {file: folder / file for file in card.digests}
    card = _without_paths(card)
    files["bundle.json"] = dumps(card.model_dump(), "The model", BundleError, indent=1, ensure_ascii=False).encode()
    files["README.md"] = readme(name, card, labels, texts.stored, texts.validation, license).encode()
    if (folder / STORE).is_file():
        files[STORE] = _copied_store(folder / STORE, scratch / FILE)
    return files


def _copied_store(source: Path, target: Path) -> Path:
    """Copy only the documents: the file itself also contains removed texts, and who changed what."""
    target.unlink(missing_ok=True)
    with open_store(source, read_only=True, index="exact") as old:
        with create_store(target, old.dimension, old.given_labels, index="exact") as new:
            copy(old, new, Silent())
            new.vacuum()
    return target


def _without_paths(card: Card) -> Card:
    """Remove the path of the encoder on the machine that trained the model."""
    encoder = card.parameters.get("encoder")
    if not isinstance(encoder, str) or not (Path(encoder).is_absolute() or Path(encoder).expanduser().is_dir()):
        return card
    return card.model_copy(update={"parameters": {**card.parameters, "encoder": Path(encoder).name}})


def _refuse_elsewhere(folder: Path) -> None:
    if (folder / "store" / ELSEWHERE).is_file():
        raise HubError(
            f"{folder} uses a datastore outside its folder; databases and their addresses are never pushed. Copy it "
            f"into the folder first: delete {folder / STORE}* if it exists, and run denn store copy {folder} "
            f"{folder / STORE}, then denn store use {folder} own"
        )
