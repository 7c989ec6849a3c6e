"""Facts about known corpora: sizes, digests, and where their files come from and belong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Statistics:
    """Statistics of a corpus over all its splits."""

    documents: int
    labels: int
    labels_per_document: float
    words_per_document: float


@dataclass(frozen=True)
class Edition:
    """One version of a corpus's files; a split of size 0 is taken from train when the corpus is read."""

    train: int
    valid: int
    test: int
    labels: int
    digests: Mapping[str, str] = field(default_factory=dict)  # split → sha256 of its content, if known
    difference: str = ""  # how it differs from the published edition, which has nothing here

    @property
    def sizes(self) -> dict[str, int]:
        """The number of documents in each split, and of labels."""
        return {"train": self.train, "valid": self.valid, "test": self.test, "labels": self.labels}


@dataclass(frozen=True)
class Known:
    """The editions of a corpus, the published one first, and its files."""

    editions: tuple[Edition, ...]
    files: str  # the files that its folder should contain
    paper: Statistics | None = None  # as printed in the paper
    aliases: tuple[str, ...] = ()  # other names its folder may have


OURS = "train.jsonl, valid.jsonl and test.jsonl"
SGM_FILES = (
    "SGM's text_train, label_train, text_val, label_val, text_test and label_test, or train.src, train.tgt, valid.src, "
    "valid.tgt, test.src and test.tgt"
)
AAPD_HELD_OUT = {
    "valid": "aa3180cf1610cb44989915855d789d8898ef396c0ad845398721009cc083d4ab",
    "test": "ea681d327081fbe1699b0f8d307a9e8d07c766ff322459a3537b3b245cca0c44",
}
KNOWN = {
    "aapd": Known(
        (
            Edition(53_840, 1_000, 1_000, 54, AAPD_HELD_OUT),
            Edition(
                40_827,
                1_000,
                1_000,
                54,
                {**AAPD_HELD_OUT, "train": "8215675ea07fb8a15fdbdb3d8b0ea60ed7dadcd18f7f9af69331566f2340510c"},
                "this train split is a reconstruction with 40,827 instead of the published 53,840 documents",
            ),
        ),
        f"{OURS}, or {SGM_FILES}",
        Statistics(55_840, 54, 2.41, 163.43),
        ("aapd_recon",),
    ),
    "aapd-extra": Known(
        (
            Edition(
                44_038,
                1_000,
                1_000,
                54,
                {**AAPD_HELD_OUT, "train": "b2d2a82a2988a48e0a3be9ec129e041335e5c04dc2fa37bab1259f22a1ffe06a"},
            ),
        ),
        "the files of aapd, and extra.jsonl",
        aliases=("aapd", "aapd_recon"),
    ),
    "rcv1": Known(
        (Edition(802_414, 1_000, 1_000, 103),),
        f"{OURS}, or {SGM_FILES}",
        Statistics(804_414, 103, 3.24, 123.94),
        ("rcv1-v2",),
    ),
    "amazon531": Known(
        (
            Edition(29_487, 0, 19_658, 531),
            Edition(
                4_697,
                500,
                700,
                428,
                {
                    "train": "f0198afc53683214c9acfe0f8c06a74c5dbf2fdbc144908bc9254e4918992e72",
                    "valid": "8a2c20c614ed8fbab06c41e88fa29395b848c93a231451a79c4a359623983123",
                    "test": "7c6c06f623b31e2a67cb4b129e84170d2d8a2a0830ec38899d7b1a3e24e62813",
                },
                "this edition has 5,897 of the 29,487 published training documents, without stop words, digits and "
                "punctuation, in a different split: 428 labels instead of 531",
            ),
        ),
        "train.jsonl and test.jsonl, optionally valid.jsonl, or DENN's text_train, label_train, text_test and "
        "label_test, or TaxoClass's labels.txt and the folders train and test, each with corpus.txt and doc2labels.txt",
        Statistics(49_145, 531, 2.93, 98.43),
        ("amazon531_subset", "Amazon-531"),
    ),
    "eurlex57k": Known(
        (
            Edition(
                45_000,
                6_000,
                6_000,
                4_271,
                {
                    "train": "d3c76452333a423dc790ecf895c5ea11eb2848e99ba7e29b1ea374431c28fef1",
                    "valid": "d01540830330aec1d3b1a8b1477162a42253a9b488492ac75f507ea1c0dd8204",
                    "test": "268e141fb77075fc0ac840c186049ad2bcd84b3cd4e05a82640dc10ab4d610e7",
                },
            ),
            Edition(
                45_000,
                6_000,
                6_000,
                4_271,
                {
                    "train": "0fe808fdbae5bc5ed20909000833d909d81ecca688a33a5d83b33ef8c2917e19",
                    "valid": "95cf83096186f638f10ef38d4cfb41479b18610cc26f6d990f5866bc7195a629",
                    "test": "d0a876cf2fc5508bea32c3669115619d35da9fa8aab13890f8567dcfd4c423b5",
                },
                "the labels are concept numbers; for their names, put EURLEX57K.json next to the folders",
            ),
        ),
        f"{OURS}, or the folders train, dev and test of JSON files, and EURLEX57K.json for the label names",
        Statistics(57_000, 4_271, 5.07, 757.96),
        ("EURLEX57K",),
    ),
    "reuters21578": Known(
        (
            Edition(
                7_770,
                0,
                3_019,
                90,
                {
                    "train": "863677aeaf817e9b3e6e1c418502475acbc641f3ddf37be57d370c3811717422",
                    "test": "adfe802bc3d44a9b8782fcad1bc804b565de8b56f955058ea9893bc623620dd2",
                },
            ),
        ),
        "train.jsonl and test.jsonl, or reut2-000.sgm to reut2-021.sgm",
    ),
    "goemotions": Known(
        (
            Edition(
                43_410,
                5_426,
                5_427,
                28,
                {
                    "train": "16b8aafcc5edcd3e4d9097e4f2b60c867a9c78aeba0a4386ebb3ad6cc7e23fd4",
                    "valid": "b501d41394a2492cb25077df28ef832d6441793c06ca3e842bae2ebad2cce793",
                    "test": "2af1fed599deca885a629c620bf10c130bdcd367cf44436464f4f13fea46513f",
                },
            ),
        ),
        f"{OURS}, or train.tsv, dev.tsv, test.tsv and emotions.txt (or labels.txt)",
    ),
    "debian": Known(
        (Edition(23_520, 2_940, 2_940, 365),),  # Debian 13; other releases differ slightly
        "debian.jsonl, which is fetched if it is missing",
    ),
}


def files_of(name: str) -> str:
    """List the files that the folder of a corpus should contain."""
    return KNOWN[name].files if name in KNOWN else OURS


def folder_of(name: str, root: Path) -> Path:
    """Return the folder of a corpus below the data folder: its name, or an alias if only that exists."""
    names = (name, *(KNOWN[name].aliases if name in KNOWN else ()))
    return next((root / other for other in names if (root / other).is_dir()), root / name)
