# The image of `phalanx install`: the package and its pinned dependencies, without tools and as no root user.
#     docker build -t registry.example/phalanx:1 .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /build
RUN python -m venv /opt/phalanx
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY src src
# Every version and hash is that of the lock file; the dependencies themselves are the package's own.
RUN sed -e '/^ *--hash/d' -e 's/ *\\$//' requirements.lock > constraints.txt \
    && pip download --quiet --no-deps --require-hashes --only-binary :all: -r requirements.lock -d wheels \
    && /opt/phalanx/bin/pip install --quiet --no-index --find-links wheels hatchling editables \
    && /opt/phalanx/bin/pip install --quiet --no-index --find-links wheels --no-build-isolation -c constraints.txt '.[exact]' \
    && /opt/phalanx/bin/pip uninstall --quiet --yes hatchling editables

FROM python:${PYTHON}-slim
COPY --from=build /opt/phalanx /opt/phalanx
ENV PATH=/opt/phalanx/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT ["phalanx"]
CMD ["--help"]
