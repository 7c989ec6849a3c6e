"""Server queries for the tests of the shared datastore, and vectors to store."""

import torch
from postgres_server import server


def sql(statement, *values):
    with server().connect() as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def quoted(store):
    return f'"{store._where.schema}"'


def vectors(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def clusters(n, d):
    centres = vectors(30, d, 1)
    return centres[torch.arange(n) % 30] + 0.5 * vectors(n, d, 2)
