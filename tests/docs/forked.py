"""`denn` for the shell blocks of pages: a process that has imported everything, and a fork of it for each command.

Importing torch takes two seconds, and what a training needs besides takes two more; pages have dozens of commands.
Standard streams, folder, environment, exit code and signals are those of the shell.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

IMPORTED = (
    "denn.build denn.cli.app denn.cli.progress denn.cli.show denn.methods.denn denn.refitting denn.report.page "
    "denn.analysis.audit denn.combiners.learnt denn.witnesses.words denn.service.app scipy.optimize sklearn.svm "
    "torch._dynamo"  # the first optimizer imports it
).split()

CLIENT = f"""#!{sys.executable} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ["DENN_FORKED"])
    asked = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
    answer = server.makefile()
    child = int(answer.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    sys.exit(int(answer.readline() or 1))
"""


def _run(asked: dict, streams: list[int], connection: socket.socket) -> None:
    """Run the command in this forked process, and report its exit code."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww")
        )
        sys.argv = ["denn", *asked["arguments"]]
        from denn.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(f"{code}\n".encode())
        os._exit(code)


def _listen(address: str) -> None:
    """Fork for every command, until this process is ended."""
    for name in IMPORTED:
        importlib.import_module(name)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the children
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen(16)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection, _ = server.accept()
        message, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
        while not message.endswith(b"\n"):
            message += connection.recv(2**20)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            connection.sendall(f"{os.getpid()}\n".encode())
            _run(json.loads(message), streams, connection)
        for stream in streams:
            os.close(stream)
        connection.close()


@contextmanager
def commands(folder: Path):
    """Yield an environment in which `denn` runs in such a fork."""
    client, address = folder / "denn", folder / "socket"
    client.write_text(CLIENT)
    client.chmod(0o755)
    with subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout.readline() == "ready\n"
            yield {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "DENN_FORKED": str(address)}
        finally:
            listener.terminate()


if __name__ == "__main__":
    _listen(sys.argv[1])
