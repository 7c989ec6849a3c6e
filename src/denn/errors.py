"""The errors a user can mend: each says what it got, what it expected, and what to do next."""


class DennError(Exception):
    """Something the user can mend; shells show its sentence without a traceback and exit with 2."""


class DataError(DennError):
    """A corpus, a row or a text is not what it should be."""


class ConfigError(DennError):
    """A recipe, a parameter or a name is not known or not of its type."""


class EncoderError(DennError):
    """The weights or the tokenizer of an encoder are missing, broken or not the published ones."""


class StoreError(DennError):
    """The datastore cannot do what was asked."""


class UnknownError(StoreError):
    """The datastore has no such document or change."""


class ConflictError(StoreError):
    """What is asked does not go together with what happened before."""


class UnavailableError(StoreError):
    """The datastore cannot be used just now."""


class BundleError(DennError):
    """A model folder is missing, incomplete, changed or of another format."""


class HubError(DennError):
    """The Hugging Face hub did not give a model, or did not take one."""


class TrainingError(DennError):
    """Training cannot start or cannot go on."""


class NoRoomError(TrainingError):
    """There is no room to write what was learnt."""


class FineTuningError(TrainingError):
    """Fine-tuning came to nothing, in too short a time or by a collapse; a model without it may still be good."""


class MissingExtraError(DennError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, package: str, extra: str | None = None) -> None:
        install = f"'denn[{extra}]'" if extra else package
        super().__init__(f"{what} needs the package {package!r}, which is not installed. Run: pip install {install}")
