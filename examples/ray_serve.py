"""Serve a denn model on Ray Serve, with several replicas and dynamic batching.

    pip install 'denn[minilm]' 'ray[serve]'
    DENN_MODEL=model serve run examples.ray_serve:app
    curl localhost:8000/predict -H 'content-type: application/json' -d '{"texts": ["How is VAT shown?"]}'

Compared with `denn serve`, this has no web page, no keys and no teaching, but Ray spreads the replicas over a cluster
and can scale their number with the load. Every machine needs denn, and the model under the same path.
"""

import asyncio
import os
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from ray import serve

import denn

api = FastAPI(title="denn on Ray Serve")


def unicode_text(text: str) -> str:
    """Reject half characters, which JSON can contain: they would fail all requests of a batch."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("not valid Unicode text") from None
    return text


class Texts(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    texts: list[Annotated[str, AfterValidator(unicode_text)]] = Field(min_length=1, max_length=1000)
    neighbours: int = Field(3, ge=0, le=100)


def as_json(prediction: denn.Prediction, neighbours: int) -> dict[str, Any]:
    """Return a prediction as plain values."""
    return {
        "labels": prediction.labels,
        "scores": {label: round(score, 4) for label, score in prediction.scores.items()},
        "neighbours": [
            {"id": one.id, "similarity": round(one.similarity, 4), "labels": one.labels, "text": one.text}
            for one in prediction.neighbours[:neighbours]
        ],
    }


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1}, max_ongoing_requests=100)
@serve.ingress(api)
class Tagger:
    """A replica: one process with one model."""

    def __init__(self, folder: str) -> None:
        self.model = denn.load(folder)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.01)
    async def tag(self, requests: list[Texts]) -> list[list[dict[str, Any]]]:
        """Score the texts of all waiting requests in one pass, outside the event loop."""
        texts = [text for request in requests for text in request.texts]
        most = max(request.neighbours for request in requests)
        tagged = iter(await asyncio.to_thread(self.model.predict, texts, evidence=most))
        return [[as_json(next(tagged), request.neighbours) for _ in request.texts] for request in requests]

    @api.post("/predict")
    async def predict(self, body: Texts) -> dict[str, Any]:
        """Tag texts, in order."""
        try:
            return {"predictions": await self.tag(body), "replica": os.getpid()}
        except denn.errors.DennError as error:
            raise HTTPException(503, str(error)) from error

    def check_health(self) -> None:
        """Let Ray replace this replica if its datastore cannot be read."""
        if self.model.method.store is not None:
            len(self.model.store)


app = Tagger.bind(os.environ.get("DENN_MODEL", "model"))
