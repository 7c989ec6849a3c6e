"""Names of the arXiv categories that are the labels of AAPD, for systems that read the names of labels.

Categories with the same name in two archives name theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from denn.types import Corpus

ARXIV: Mapping[str, str] = {
    "cmp-lg": "computation and language archive",
    "cond-mat.dis-nn": "disordered systems and neural networks",
    "cond-mat.stat-mech": "statistical mechanics",
    "cs.AI": "artificial intelligence",
    "cs.CC": "computational complexity",
    "cs.CE": "computational engineering, finance, and science",
    "cs.CG": "computational geometry",
    "cs.CL": "computation and language",
    "cs.CR": "cryptography and security",
    "cs.CV": "computer vision and pattern recognition",
    "cs.CY": "computers and society",
    "cs.DB": "databases",
    "cs.DC": "distributed, parallel, and cluster computing",
    "cs.DL": "digital libraries",
    "cs.DM": "discrete mathematics",
    "cs.DS": "data structures and algorithms",
    "cs.FL": "formal languages and automata theory",
    "cs.GT": "computer science and game theory",
    "cs.HC": "human-computer interaction",
    "cs.IR": "information retrieval",
    "cs.IT": "information theory",
    "cs.LG": "machine learning",
    "cs.LO": "logic in computer science",
    "cs.MA": "multiagent systems",
    "cs.MM": "multimedia",
    "cs.MS": "mathematical software",
    "cs.NA": "numerical analysis",
    "cs.NE": "neural and evolutionary computing",
    "cs.NI": "networking and internet architecture",
    "cs.PF": "performance",
    "cs.PL": "programming languages",
    "cs.RO": "robotics",
    "cs.SC": "symbolic computation",
    "cs.SE": "software engineering",
    "cs.SI": "social and information networks",
    "cs.SY": "systems and control",
    "math.CO": "combinatorics",
    "math.IT": "information theory in mathematics",
    "math.LO": "logic",
    "math.NA": "numerical analysis in mathematics",
    "math.NT": "number theory",
    "math.OC": "optimization and control",
    "math.PR": "probability",
    "math.ST": "statistics theory in mathematics",
    "nlin.AO": "adaptation and self-organizing systems",
    "physics.data-an": "data analysis, statistics and probability",
    "physics.soc-ph": "physics and society",
    "q-bio.NC": "neurons and cognition",
    "q-bio.QM": "quantitative methods",
    "quant-ph": "quantum physics",
    "stat.AP": "applications",
    "stat.ME": "methodology",
    "stat.ML": "machine learning in statistics",
    "stat.TH": "statistics theory",
}
_BY_CODE = {code.lower(): name for code, name in ARXIV.items()}


def readable_names(corpus: Corpus) -> Sequence[str]:
    """Return a name for each label: its entry in the corpus's vocabulary, or what an arXiv code stands for.

    A corpus whose labels are not all arXiv categories keeps their names: in another corpus, such a code may be a word.
    """
    labels = corpus.labels.names
    known = all(label.lower() in _BY_CODE for label in labels)
    return [
        _BY_CODE[label.lower()] if known and label not in corpus.vocabulary else corpus.vocabulary.name(label)
        for label in labels
    ]
