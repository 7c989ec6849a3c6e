"""Errors that the user can fix: each says what is wrong, what was expected, and what to do next."""


class DennError(Exception):
    """An error that the user can fix; shells show its message without a traceback and exit with code 2."""


class DataError(DennError):
    """A corpus, row or text is invalid."""


class ConfigError(DennError):
    """A recipe, parameter or name is unknown or has the wrong type."""


class EncoderError(DennError):
    """The weights or the tokenizer of an encoder are missing, damaged or not the published ones."""


class StoreError(DennError):
    """The datastore cannot carry out the request."""


class UnknownError(StoreError):
    """The datastore has no such document or change."""


class ConflictError(StoreError):
    """The request conflicts with an earlier change."""


class UnavailableError(StoreError):
    """The datastore is currently unavailable."""


class BundleError(DennError):
    """A model folder is missing, incomplete, modified or in another format."""


class HubError(DennError):
    """A model could not be downloaded from the Hugging Face hub, or uploaded to it."""


class TrainingError(DennError):
    """Training cannot start or continue."""


class NoRoomError(TrainingError):
    """There is not enough disk space for the result."""


class FineTuningError(TrainingError):
    """Fine-tuning failed because time was too short or it diverged; a model without it may still be good."""


class LostProcessError(TrainingError):
    """Another process of the same training run has ended."""


class BatchError(DennError):
    """Some partitions of a batch could not be processed."""


class MissingExtraError(DennError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, package: str, extra: str | None = None) -> None:
        install = f"'denn[{extra}]'" if extra else package
        super().__init__(f"{what} needs the package {package!r}, which is not installed. Run: pip install {install}")
