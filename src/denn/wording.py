"""Numbers and metrics in sentences."""


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: "1 document", "2,500 documents"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def span(seconds: float) -> str:
    """Format seconds as 45s, 1m20s or 1h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


def metric_title(name: str) -> str:
    """Write a metric's name as prose does: "micro-F1", "precision at 5"."""
    return name.replace("_f1", "-F1").replace("_", " ")
