# The image of `phalanx install`: the package and its pinned dependencies, without tools and not as root.
#     docker build -t registry.example/phalanx:1 .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY requirements.lock ./
# Every version and hash is that of the lock file; which of them are installed, the package says.
RUN pip download --quiet --no-deps --require-hashes --only-binary :all: -r requirements.lock -d wheels
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv tools \
    && tools/bin/pip install --quiet --no-index --find-links wheels hatchling \
    && tools/bin/pip wheel --quiet --no-deps --no-build-isolation -w wheels . \
    && python -m venv --without-pip /opt/phalanx \
    && pip --python /opt/phalanx install --quiet --no-index --find-links wheels 'phalanx[exact]'

FROM python:${PYTHON}-slim
COPY --from=build /opt/phalanx /opt/phalanx
ENV PATH=/opt/phalanx/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT ["phalanx"]
CMD ["--help"]
