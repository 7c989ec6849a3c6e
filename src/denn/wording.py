"""Numbers in sentences."""


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: "1 document", "2,500 documents"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
