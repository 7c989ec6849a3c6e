"""Serve the example on Ray until standard input closes: `python serve_session.py MODEL PORT`; prints "ready"."""

import os
import sys
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "DENN_MODEL": sys.argv[1]}
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for the replicas

import ray
from ray import serve
from ray_serve import app

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
serve.run(app)
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.read()
serve.shutdown()
ray.shutdown()
