"""Protection against cross-site requests: pages of other sites must not use the keys that a browser keeps."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers

from denn.service.problems import Refusal

READING = ("GET",)  # changes nothing; the guard has turned HEAD into GET
COSTLY = ("/v1/", "/metrics")  # paths that need work even to be read; the page itself may be opened from other sites
USUAL = re.compile(r":(80|443)$")  # default ports, which may be omitted
REFUSED = (
    "Cross-site request not allowed. Allow the site with --allow-origin; if there is a proxy, it must forward the Host "
    "header."
)


def check_origin(method: str, path: str, headers: Headers, allowed: Collection[str]) -> None:
    """Reject requests from pages of sites that are not allowed; programs send no origin and pass."""
    if method == "OPTIONS" or (method in READING and not path.startswith(COSTLY)):
        return
    origins, site = headers.getlist("origin"), headers.get("sec-fetch-site", "none").lower()
    if not origins and site in ("none", "same-origin"):
        return
    if len(origins) == 1 and origins[0] != "null":
        if "*" in allowed or origins[0].lower() in {one.lower().rstrip("/") for one in allowed}:
            return
        if site == "same-origin":  # set by the browser, so no page can forge it; a proxy may have changed the Host
            return
        if site == "none" and _is_own(origins[0], headers.get("host", "")):
            return
    raise Refusal(403, REFUSED)


def _is_own(origin: str, host: str) -> bool:
    """Return whether an origin is this service; its scheme may differ behind a proxy that terminates TLS."""
    scheme, _, name = origin.lower().partition("://")
    return scheme in ("http", "https") and bool(name) and USUAL.sub("", name) == USUAL.sub("", host.lower())
