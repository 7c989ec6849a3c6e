"""Malicious folders: links out of them, impossible sizes, code, endless tokenizers, manipulated datastores."""

import base64
import json
import os
import pickle
import shutil
import sqlite3
import struct
from pathlib import Path
from random import Random
from typing import Any

from bundle_damage import change_lines, files, flip_bytes, name_of

SIZES = {
    "hidden_size": 10**9, "vocab_size": 10**9, "num_hidden_layers": 10**9, "max_position_embeddings": 10**9,
    "intermediate_size": 10**12, "num_attention_heads": 10**6, "type_vocab_size": 10**9,
}  # fmt: skip
REGEXES = ["(a*)*$", "(.|.)*\\n\\n$", "(\\S+)+x", "\\S*\\S*\\S*\\S*x", "(a)\\1*", "(?<x>a\\g<x>?)", "[", "(?=(.*)*)"]


def link(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder))
    secret = folder.parent / "outside"
    secret.write_bytes(path.read_bytes())
    way = draw.choice(("outside", "/dev/zero", "loop", "pipe", "folder", "parent", "/proc/self/mem", "new"))
    path.unlink()
    if way == "pipe":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    elif way == "new":
        shutil.copyfile(secret, path)
        (draw.choice((folder, path.parent)) / "extra").symlink_to(draw.choice((secret, "..", "/", "nowhere")))
    else:
        path.symlink_to({"outside": secret, "loop": path, "parent": ".."}.get(way, Path(way)))
    return f"{name_of(folder, path)} is a link or no file: {way}"


def declare_sizes(folder: Path, draw: Random) -> str:
    card = json.loads((folder / "bundle.json").read_text())
    config = folder / "encoder" / "config.json"
    numbers = sorted(name for name, value in card["parameters"].items() if type(value) is int)
    way = draw.choice(("parameter", "parameter", "config", "config", "sparse"))
    if way == "config" and config.exists():
        name = draw.choice(sorted(SIZES))
        size = draw.choice((SIZES[name], 10**6, 10**5))
        config.write_text(json.dumps(json.loads(config.read_text()) | {name: size}))
    elif way == "sparse":
        path = draw.choice(files(folder))
        name, size = name_of(folder, path), draw.choice((2**31, 2**36, 2**42))
        if name.startswith("store/"):
            size = 2**31
        with path.open("r+b") as file:
            file.truncate(size)
        (folder / ".unsigned").touch()  # nobody would compute a digest of that
    else:
        name, size = draw.choice(numbers), draw.choice((10**6, 10**9, 10**12, 10**30))
        card["parameters"][name] = size
        (folder / "bundle.json").write_text(json.dumps(card))
    return f"{way}: {name} = {size}"


class Payload:
    """A pickle that writes a file."""

    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.canary}'",)


def plant_code(folder: Path, draw: Random) -> str:
    canary = str(folder.parent / "canary")
    inside = folder / "encoder" if (folder / "encoder").is_dir() else folder
    code = f"import os\nos.system({f'touch {canary!r}'!r})\nclass Evil: pass\n"
    (inside / "evil.py").write_text(code)
    (inside / "__init__.py").write_text(code)
    wanted = {f"Auto{kind}": "evil.Evil" for kind in ("Config", "Model")} | {
        "AutoTokenizer": ["evil.Evil", "evil.Evil"]
    }
    way = draw.choice(("config", "known", "tokenizer", "bin", "all bins", "adapter", "generation"))
    config = inside / "config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    if way in ("config", "known"):
        config.write_text(
            json.dumps(settings | {"auto_map": wanted} | ({"model_type": "evil"} if way == "config" else {}))
        )
    elif way == "tokenizer":
        tokenizer = inside / "tokenizer.json"
        if tokenizer.exists():
            words = json.loads(tokenizer.read_text())["model"]["vocab"]
            (inside / "vocab.txt").write_text("\n".join(sorted(words, key=words.__getitem__)))
            tokenizer.unlink()
        (inside / "tokenizer_config.json").write_text(json.dumps({"auto_map": wanted, "tokenizer_class": "Evil"}))
    elif way in ("bin", "all bins"):
        for path in files(folder, ".safetensors"):
            target = path.with_name("pytorch_model.bin") if way == "bin" else path
            target.write_bytes(pickle.dumps(Payload(canary)))
        (inside / "model.safetensors").unlink(missing_ok=True)
    elif way == "adapter":
        (inside / "adapter_config.json").write_text(
            json.dumps({"base_model_name_or_path": "evil/evil", "auto_mapping": wanted})
        )
        (inside / "adapter_model.bin").write_bytes(pickle.dumps(Payload(canary)))
    else:
        (inside / "generation_config.json").write_text(json.dumps({"auto_map": wanted}))
        (inside / "custom_generate").mkdir()
        (inside / "custom_generate" / "generate.py").write_text(code)
    return f"planted code: {way}"


MODELS: list[dict[str, Any]] = [
    {"type": "Unigram", "unk_id": None, "vocab": []},
    {"type": "Unigram", "unk_id": 9, "vocab": [["a", -1.0]]},
    {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]},
    {"type": "BPE", "vocab": {"g": 0, "o": 1}, "merges": [], "dropout": 0.5},
    {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"},
    {"type": "WordPiece", "vocab": {"[UNK]": 5 * 10**8}, "unk_token": "[UNK]", "max_input_chars_per_word": 10**12},
    {"type": "X"},
]


def change_tokenizer(folder: Path, draw: Random) -> str:
    path = folder / "encoder" / "tokenizer.json"
    if not path.exists():
        return change_lines(folder, draw)
    content = json.loads(path.read_text())
    words, pieces = sorted(content["model"]["vocab"]), content["post_processor"]["single"]
    regex, text = {"Regex": draw.choice(REGEXES)}, draw.choice(("", "a", "aa", "b" * 10**6))
    replacing = {"type": "Replace", "pattern": {"String": draw.choice(("", "a", "o"))}, "content": text}
    tables = (b"", struct.pack("<I", 4) + draw.randbytes(64), draw.randbytes(200), bytes(4) + b"x" * 10**5)
    table = base64.b64encode(draw.choice(tables)).decode()
    special = content["post_processor"]["special_tokens"]
    ids = draw.choice(([], [2**32 - 1], [10**5], [0] * 1000))
    vocabularies = (dict(zip(words, draw.sample(range(10**6), len(words)), strict=True)), {"[UNK]": 0}, {}, {"a": -1})
    added = {"special": True, "single_word": False, "lstrip": True, "rstrip": True, "normalized": draw.random() < 0.5}
    added |= {"id": draw.choice((0, 10**6, 2**32 - 1)), "content": draw.choice(("", "goal", " "))}
    changes: dict[str, dict[str, Any]] = {
        "regex": {"normalizer": {"type": "Replace", "pattern": regex, "content": text}},
        "split": {"pre_tokenizer": {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}},
        "growth": {"normalizer": {"type": "Sequence", "normalizers": [replacing] * draw.choice((1, 5, 40, 1000))}},
        "characters": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": table}},
        "template": {"single": draw.choice(([], pieces[:1] * 1000, pieces[1:], pieces * 3))},
        "ids": {"special_tokens": special | {"[CLS]": special["[CLS]"] | {"ids": ids}}},
        "model": {"model": draw.choice(MODELS)},
        "vocabulary": {"model": content["model"] | {"vocab": draw.choice(vocabularies)}},
        "bytes": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
        "added": {"added_tokens": [added]},
    }
    way = draw.choice(sorted(changes))
    (content["post_processor"] if way in ("template", "ids") else content).update(changes[way])
    path.write_text(json.dumps(content))
    return f"tokenizer: {str(changes[way])[:200]}"


def change_rows(folder: Path, draw: Random) -> str:
    """Change the datastore by statements that its file allows."""
    path = folder / "store" / "store.sqlite"
    if not path.exists():
        return flip_bytes(folder, draw)
    statement = draw.choice((
        "UPDATE documents SET labels = x'ff7f0000'", "UPDATE documents SET labels = x'00ffffff'",
        "UPDATE documents SET labels = x'00000000ffffffff'",
        "UPDATE documents SET labels = x'010203'", "UPDATE documents SET embedding = x''",
        "UPDATE documents SET embedding = x'0000c07f' || substr(embedding, 5)",  # NaN
        "UPDATE documents SET embedding = zeroblob(length(embedding))",
        "UPDATE documents SET embedding = zeroblob(10) WHERE row = 3", "UPDATE documents SET embedding = 'text'",
        "UPDATE documents SET embedding = x'ffff7f7f' || substr(embedding, 5)",  # the largest float
        "UPDATE documents SET text = x'ff'", "UPDATE documents SET text = 3", "UPDATE documents SET id = x'ff' || row",
        "UPDATE documents SET id = row", "UPDATE documents SET changed = 'x'", "UPDATE documents SET changed = -1",
        "UPDATE meta SET value = 10000000000 WHERE key = 'dimension'",
        "UPDATE meta SET value = 0 WHERE key = 'dimension'",
        "UPDATE meta SET value = 'x' WHERE key = 'dimension'", "UPDATE meta SET value = -1 WHERE key = 'version'",
        "UPDATE meta SET value = 'x' WHERE key = 'version'", "DELETE FROM meta WHERE key = 'epoch'",
        "DELETE FROM meta WHERE key = 'dimension'", "DELETE FROM meta", "DELETE FROM labels", "DELETE FROM documents",
        "UPDATE labels SET column = column + 100", "UPDATE labels SET name = x'ff' || column WHERE column = 5",
        "INSERT INTO labels VALUES (6, 'new')", "INSERT INTO labels VALUES (1000000000, 'far')",
        "INSERT INTO labels VALUES (6, x'ff')", "DROP TABLE documents", "DROP TABLE past", "DROP TABLE removed",
        "ALTER TABLE documents RENAME COLUMN text TO words", "PRAGMA user_version = 77", "PRAGMA application_id = 5",
        "UPDATE documents SET text = zeroblob(50000000) WHERE row = 1",
        "CREATE TRIGGER evil AFTER UPDATE ON meta BEGIN DELETE FROM documents; END",
        "CREATE VIEW evil AS SELECT load_extension('x')",
    ))  # fmt: skip
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    return f"store: {statement}"
