"""Waiting threads leave the cores to working ones, in the library and on the command line."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow  # every case starts Python and torch
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch has another OpenMP, which says nothing of this")
@pytest.mark.parametrize(("given", "spins"), [(None, "0"), ("ACTIVE", "30000000000")])
@pytest.mark.parametrize("code", ["import denn; denn.load", "import denn_bench.studies.machine"])
def test_threads_that_wait_do_not_spin(code, given, spins):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    own |= {"OMP_DISPLAY_ENV": "VERBOSE"} | ({"OMP_WAIT_POLICY": given} if given else {})
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True)
    assert done.returncode == 0
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
