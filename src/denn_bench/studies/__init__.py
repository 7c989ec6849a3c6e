"""Measurements behind the documentation; run one with `python -m denn_bench.studies.NAME`, from a checkout."""
