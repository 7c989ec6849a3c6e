"""Work on several batches at once: embed ahead and finish behind, so that GPU and CPU do not wait for each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")
Made = TypeVar("Made")

EMBEDDED_AHEAD = 2  # batches; with one, the GPU would wait whenever scoring a batch takes as long as embedding the next


def work_ahead(batches: Iterable[Batch], work: Callable[[Batch], Made], ahead: int = 1) -> Iterator[tuple[Batch, Made]]:
    """Yield each batch with the result of `work`, which a separate thread computes some batches ahead."""
    with ThreadPoolExecutor(1, "denn-ahead") as worker:
        begun: deque[tuple[Batch, Future[Made]]] = deque()
        for batch in batches:
            begun.append((batch, worker.submit(work, batch)))
            if len(begun) > ahead:
                first, made = begun.popleft()
                yield first, made.result()
        for first, made in begun:
            yield first, made.result()


class Streams:
    """CUDA streams: one for embeddings in the background, and two with priority for scoring and finishing batches."""

    def __init__(self, device: torch.device) -> None:
        self.background = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.foreground = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.finishing = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextmanager
    def first(self) -> Iterator[None]:
        """Run the work inside before embeddings that are in progress, then let other streams see its results."""
        with torch.cuda.stream(self.foreground):
            yield
        torch.cuda.current_stream(self.foreground.device).wait_stream(self.foreground)

    def embed_ahead(
        self, batches: Iterable[Sequence[str]], embed: Callable[[Sequence[str]], Tensor]
    ) -> Iterator[tuple[Sequence[str], Tensor]]:
        """Yield each batch with its embeddings, which the work in `first` waits for."""

        def start(texts: Sequence[str]) -> tuple[Tensor, torch.cuda.Event]:
            with torch.cuda.stream(self.background):
                embeddings = embed(texts)
                return embeddings, self.background.record_event()

        for texts, (embeddings, ready) in work_ahead(batches, start, EMBEDDED_AHEAD):
            self.foreground.wait_event(ready)
            embeddings.record_stream(self.foreground)  # so that its memory is not reused before then
            yield texts, embeddings

    def finish_behind(self, batches: Iterable[Batch], finish: Callable[[Batch], Made]) -> Iterator[Made]:
        """Yield the result of `finish` for each batch, in a separate thread, while `first` scores the next batch."""

        def marked() -> Iterator[tuple[Batch, torch.cuda.Event]]:
            for batch in batches:
                yield batch, self.foreground.record_event()

        def work(item: tuple[Batch, torch.cuda.Event]) -> Made:
            batch, ready = item
            with torch.cuda.stream(self.finishing):
                self.finishing.wait_event(ready)
                return finish(batch)  # waits for the device, so that the batch's memory can be reused

        return (made for _, made in work_ahead(marked(), work))
