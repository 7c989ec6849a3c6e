"""A short run of what `make soak` does for minutes; see rolling.py."""

import shutil
import signal

import pytest
from rolling import roll

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not shutil.which("caddy"), reason="Caddy is not installed; `apt-get install caddy` installs it")
def test_a_restarted_replica_costs_no_request(tiny_model):
    found = roll(tiny_model, seconds=0, clients=4, restarts=1, drain=3, pause=0.05)
    assert found["requests"] > 50 and found["adds_acknowledged"] > 5
    assert not found["failed"], found["outcomes"]
    wrong = ("adds_lost", "documents_beyond_the_adds", "changes_beyond_the_adds")
    assert [found[name] for name in wrong] == [0, 0, 0]
    assert found["exit_codes"] == {-signal.SIGTERM: 1}
