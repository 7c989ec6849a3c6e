"""Which site's page a browser asks for: a form or script of another site must not use the keys that a browser keeps."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers

from denn.service.problems import Refusal

SAFE = ("GET", "HEAD", "OPTIONS")  # change nothing and cost little
USUAL = re.compile(r":(80|443)$")  # ports that need not be named
REFUSED = (
    "Pages of another site may not ask for this. Allow the site with --allow-origin; a proxy must pass on the Host "
    "header."
)


def check_origin(method: str, headers: Headers, allowed: Collection[str]) -> None:
    """Refuse what a page of a site that is not allowed has sent; programs, which name no site, come through."""
    if method in SAFE:
        return
    origins, site = headers.getlist("origin"), headers.get("sec-fetch-site", "none").lower()
    if not origins and site in ("none", "same-origin"):
        return
    if len(origins) == 1 and origins[0] != "null":
        if "*" in allowed or origins[0].lower() in {one.lower().rstrip("/") for one in allowed}:
            return
        if site == "same-origin":  # the browser's own word, which no page can change; a proxy may have changed the Host
            return
        if site == "none" and _is_own(origins[0], headers.get("host", "")):
            return
    raise Refusal(403, REFUSED)


def _is_own(origin: str, host: str) -> bool:
    """Say whether an origin is this service; its scheme may be that of a proxy, where TLS ends."""
    scheme, _, name = origin.lower().partition("://")
    return scheme in ("http", "https") and bool(name) and USUAL.sub("", name) == USUAL.sub("", host.lower())
