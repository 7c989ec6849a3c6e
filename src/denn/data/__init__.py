"""Corpora: readers for files, frames and lists, the validation split, and known corpora."""
