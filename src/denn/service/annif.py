"""Annif's REST API over a denn model, so that its clients work unchanged."""

from fastapi import APIRouter

router = APIRouter(prefix="/v1", tags=["Annif"])
