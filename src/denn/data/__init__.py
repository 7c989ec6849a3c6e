"""Corpora: readers of files, frames and lists, the split of a validation part, and known corpora."""
