"""`denn data`: known corpora, their sizes in the paper and on this machine."""

import json

import pytest


def write_goemotions(folder):
    folder.mkdir()
    (folder / "emotions.txt").write_text("joy\nfear\n")
    (folder / "train.tsv").write_text("a b c d\t0\tx\nso\t0,1\ty\n")
    (folder / "dev.tsv").write_text("a\t1\tx\n")
    (folder / "test.tsv").write_text("a b\t1\tx\n")


def test_the_paper_and_what_is_here_stand_side_by_side(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write_goemotions(tmp_path / "goemotions")
    ran = run("data", "list", "--data-dir", tmp_path)
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["goemotions", *"----", "2", "1", "1", "2", "1.25", "2"] in lines  # 5 labels and 8 words of 4 documents
    assert ["aapd", "55,840", "54", "2.41", "163", *"------"] in lines
    assert ["rcv1", "804,414", "103", "3.24", "124", *"------"] in lines
    assert f"reading goemotions from {tmp_path}/goemotions" in ran.err
    assert "goemotions: differs from the published corpus: 2 train documents instead of 43,410" in ran.err
    assert "DENN_DATA" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_the_list_as_json(run, tmp_path):
    write_goemotions(tmp_path / "goemotions")
    rows = json.loads(run("data", "list", "--json", "--data-dir", tmp_path).out)
    assert rows["goemotions"] == {
        "paper": None,
        "found": {
            "folder": str(tmp_path / "goemotions"),
            "train": 2,
            "valid": 1,
            "test": 1,
            "documents": 4,
            "labels": 2,
            "labels_per_document": 1.25,
            "words_per_document": 2.0,
        },
    }
    assert rows["eurlex57k"]["found"] is None
    assert rows["eurlex57k"]["paper"] == {
        "documents": 57_000,
        "labels": 4_271,
        "labels_per_document": 5.07,
        "words_per_document": 757.96,
    }


def test_a_corpus_that_cannot_be_read_is_named_and_the_others_are_listed(run, tmp_path):
    write_goemotions(tmp_path / "goemotions")
    (tmp_path / "aapd").mkdir()
    (tmp_path / "debian").mkdir()  # listing downloads nothing
    ran = run("data", "list", "--json", "--data-dir", tmp_path)
    assert ran.code == 0
    assert f"warning: {tmp_path}/aapd: there is no train.jsonl or text_train or train.src." in ran.err
    found = {name: row["found"] is not None for name, row in json.loads(ran.out).items()}
    assert [name for name, there in found.items() if there] == ["goemotions"]


def test_debian_is_written_as_a_file_to_train_on(run, tmp_path):
    (tmp_path / "debian").mkdir()
    rows = [{"id": f"p{i}", "text": f"päckage {i}", "labels": ["a::b"] if i % 2 else []} for i in range(60)]
    (tmp_path / "debian" / "debian.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    ran = run("data", "get", "debian", "--data-dir", tmp_path, "--out", out)
    assert ran.code == 0
    assert f"Wrote 30 tagged packages to {out}; 30 others have no tags." in ran.err
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == rows[1::2]


@pytest.mark.parametrize(
    ("name", "files"),
    [("goemotions", "train.tsv, dev.tsv, test.tsv and emotions.txt"), ("aapd-extra", "the files of aapd, and extra")],
)
def test_other_corpora_must_be_put_in_their_place(run, tmp_path, name, files):
    ran = run("data", "get", name, "--data-dir", tmp_path)
    assert ran.code == 2
    assert f"Put these files into {tmp_path}/{name}: " in ran.err
    assert files in ran.err


def test_models_are_trained_and_measured_on_a_corpus_by_name(run, tmp_path):
    folder = tmp_path / "aapd_recon"  # an alias
    folder.mkdir()
    for part, size in {"train": 20, "val": 4, "test": 6}.items():
        (folder / f"text_{part}").write_text("".join(f"text {row}\n" for row in range(size)))
        (folder / f"label_{part}").write_text("".join(f"cs.A cs.{row % 2}\n" for row in range(size)))
    model = tmp_path / "model"
    ran = run("train", "aapd", "--method", "dummy", "--out", model, "--data-dir", tmp_path)
    assert ran.code == 0
    assert "warning: aapd: differs from the published corpus: 20 train documents instead of 53,840, " in ran.err
    assert json.loads((model / "bundle.json").read_text())["corpus"]["valid"] == 4
    assert json.loads(run("evaluate", model, "aapd", "--json", "--data-dir", tmp_path).out)["documents"] == 6
