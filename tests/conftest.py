"""Shared fixtures: random two-layer transformers, a corpus whose words determine its labels, and a model of it."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: test processes share the cores
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # quiet and safe when a test forks
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gc
import json
import logging
import pty
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import settings

import denn

# The same examples every time, however slow the machine is; `make check` tries fewer of them.
settings.register_profile("all", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("few", settings.get_profile("all"), max_examples=15)
settings.load_profile("all")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # ignored in background shells, and inherited by commands
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(100_000)  # imported objects stay: scanning them repeatedly took a fifth of the collection time


class NamesFailuresAtOnce:
    """Writes the name of a test as soon as it fails, so that a run that is killed has named it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write(f"\n{report.nodeid}: {report.when} failed\n")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NamesFailuresAtOnce(config))


@pytest.fixture(autouse=True)
def _logs_of_commands_end_with_the_test() -> Iterator[None]:
    """Remove the handler that a command adds; later tests would write their log lines between the dots."""
    logger = logging.getLogger("denn")
    before = logger.handlers, logger.level
    yield
    logger.handlers, level = before
    logger.setLevel(level)


TRANSFORMERS = {"tiny_encoder", "tiny_roberta", "tiny_mpnet", "tiny_distilbert"}  # fixtures, below


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules whose tests are all slow if only fast ones were requested."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow" in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with a transformer as slow: the import alone takes seconds in every process."""
    for item in items:
        if isinstance(item, pytest.Function) and TRANSFORMERS.intersection(item.fixturenames):
            item.add_marker(pytest.mark.slow)


WORDS = {
    "sport": "goal match team referee stadium coach",
    "haute cuisine": "oven butter sauce recipe chef truffle",
    "Космос": "orbit rocket planet comet астроном galaxy",
    "日本 旅行": "kyoto temple sakura ryokan 電車 osaka",
    "music": "violin chord melody concert drum tempo",
    "rare: weather": "hurricane barometer drizzle",
}
FILLER = "the a of and in with to for on it was is this that by from at very old new".split()
SPECIAL = ["[PAD]", "<pad>", "[UNK]", "[CLS]", "[SEP]"]  # BERT pads with 0, RoBERTa and MPNet with 1


def synthetic_documents(part: str, count: int, seed: int) -> list[denn.Document]:
    """Create documents whose words determine their labels; the second has none and the third has the rare one."""
    chance = random.Random(seed)
    documents = []
    for number in range(count):
        labels = chance.sample(list(WORDS)[:-1], chance.choice((1, 1, 2, 3)))
        labels = {1: [], 2: ["rare: weather", "sport"]}.get(number, labels)
        words = [word for label in labels for word in chance.sample(WORDS[label].split(), 3)]
        words += chance.choices(FILLER, k=chance.randint(1, 9))
        chance.shuffle(words)
        documents.append(denn.Document(" ".join(words), tuple(labels), f"{part}-{number}"))
    return documents


@pytest.fixture(scope="session", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use temporary settings instead of the user's, also in commands that tests run."""
    os.environ["DENN_CONFIG"] = str(tmp_path_factory.mktemp("settings"))


@pytest.fixture(scope="session")
def tiny_corpus() -> denn.Corpus:
    """Sixty training documents, sixty for validation (enough to learn a combination) and twenty for testing."""
    return denn.Corpus(
        train=synthetic_documents("train", 60, seed=1),
        valid=synthetic_documents("valid", 60, seed=2),
        test=synthetic_documents("test", 20, seed=3),
        name="tiny",
    )


def write_tokenizer(folder: Path) -> int:
    """Write a word-piece tokenizer over the words above and single characters; return the vocabulary's size."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import WordPiece
    from tokenizers.processors import TemplateProcessing

    words = sorted({*" ".join(WORDS.values()).split(), *FILLER})
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
    vocabulary = [*SPECIAL, *words, *letters, *(f"##{letter}" for letter in letters)]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = Tokenizer(WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, numbers[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(numbers)


def write_encoder(folder: Path, kind: str) -> Path:
    """Write a random transformer of a Hugging Face model type, 2 layers, 32 wide, 2 heads, with a mean-pooling file."""
    import torch
    from transformers import AutoConfig, AutoModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64 if kind == "bert" else 66,  # RoBERTa's and MPNet's first position is 2
        "vocab_size": write_tokenizer(folder),
        "pad_token_id": 0 if kind in ("bert", "distilbert") else 1,
    }
    if kind == "distilbert":
        names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        names["intermediate_size"] = "hidden_dim"
        sizes = {names.get(name, name): size for name, size in sizes.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes))
        with torch.no_grad():  # biases and norms start as zeros and ones, which would hide mistakes
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


@pytest.fixture(scope="session")
def encoder_writer() -> Callable[[Path, str], Path]:
    """Write other random transformers; see `write_encoder`."""
    return write_encoder


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random BERT."""
    return write_encoder(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random RoBERTa."""
    return write_encoder(tmp_path_factory.mktemp("roberta"), "roberta")


@pytest.fixture(scope="session")
def tiny_mpnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random MPNet."""
    return write_encoder(tmp_path_factory.mktemp("mpnet"), "mpnet")


@pytest.fixture(scope="session")
def tiny_distilbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random DistilBERT, which has no packed form."""
    return write_encoder(tmp_path_factory.mktemp("distilbert"), "distilbert")


@pytest.fixture(scope="session")
def tiny_settings(tiny_encoder: Path) -> Mapping[str, object]:
    """Parameters that train the tiny corpus in about a second; read-only."""
    settings = {
        "encoder": str(tiny_encoder),
        "precision": "float32",
        "device": "cpu",
        "epochs": 12,
        "batch_size": 16,
        "schedule": "constant",
        "learning_rate": 5e-3,
        "head_learning_rate": 5e-2,
        "k": 5,
        "gamma": 0.5,
    }
    return MappingProxyType(settings)


@pytest.fixture(scope="session")
def tiny_model(
    tmp_path_factory: pytest.TempPathFactory, tiny_corpus: denn.Corpus, tiny_settings: Mapping[str, object]
) -> Path:
    """The folder of a DENN model of the tiny corpus; copy it before changing it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    denn.train(tiny_corpus, out=folder, **tiny_settings).close()
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A hub on this machine that the real client talks to, with empty caches and a valid token."""
    import huggingface_hub

    from hub_server import TOKEN, serving

    constants = huggingface_hub.constants
    with serving() as server:
        monkeypatch.setenv("DENN_CACHE", str(tmp_path / "denn-cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage uses a separate protocol
        yield server
        huggingface_hub.close_session()


@pytest.fixture
def deaf_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model without the witness neighbours."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "deaf"))
    card = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    card["parameters"] |= {"witnesses": ["classifier", "words"], "combination": "average"}
    (folder / "bundle.json").write_text(json.dumps(card), encoding="utf-8")
    return folder


@pytest.fixture
def answer_on_terminal() -> Callable[[Sequence[object], str, str], tuple[int, str]]:
    """A function that runs a command on a real terminal and types an answer when it asks: exit code and screen."""

    def answer(command: Sequence[object], question: str, typed: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        with subprocess.Popen([str(word) for word in command], stdin=theirs, stdout=theirs, stderr=theirs) as asked:
            os.close(theirs)
            said = b""
            while question.encode() not in said:
                said += os.read(ours, 1000)
            os.write(ours, f"{typed}\n".encode())
            with suppress(OSError):  # the other end is closed
                while more := os.read(ours, 1000):
                    said += more
        os.close(ours)
        return asked.returncode, said.decode()

    return answer


@pytest.fixture(scope="session")
def names_of_labels() -> Mapping[str, str]:
    """A vocabulary of the tiny corpus: ids and names, one of them in no document."""
    ids = {f"http://example.org/{number}": name for number, name in enumerate(WORDS)}
    return MappingProxyType(ids | {"http://example.org/unseen": "seen nowhere"})


@pytest.fixture(scope="session")
def named_model(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_corpus: denn.Corpus,
    tiny_settings: Mapping[str, object],
    names_of_labels: Mapping[str, str],
) -> Path:
    """The folder of a model like the tiny one, whose labels are ids of a vocabulary; copy it before changing it."""
    folder = tmp_path_factory.mktemp("models") / "named"
    corpus = denn.read_corpus(list(tiny_corpus.train), list(tiny_corpus.valid), vocabulary=names_of_labels)
    denn.train(corpus, out=folder, **tiny_settings).close()
    return folder
