# A node. Its torch brings CUDA; the machine needs NVIDIA's driver and container toolkit, and nothing else.
#   docker build -f deploy/docker/node.Dockerfile -t giornata-node .
# With models baked in, so that a new machine fetches none (NAME or NAME@VARIANT, with spaces between):
#   docker build -f deploy/docker/node.Dockerfile --build-arg MODELS="stabilityai/stable-diffusion-xl-base-1.0@fp16" …
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
# The large part first, and by itself: a change of ours leaves its layer as it is on every machine.
# pip refuses every file whose hash is another; python -m tools.image_lock writes the lock.
COPY deploy/docker/node.lock ./
RUN python -m venv /opt/giornata \
    && /opt/giornata/bin/pip install --no-cache-dir --require-hashes --requirement node.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/giornata/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/giornata/bin/pip check

FROM python:3.11-slim-bookworm
# A C compiler: kernels are compiled on the machine that they are for.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 giornata \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/giornata giornata \
    && install --directory --owner=10001 --group=10001 /var/lib/giornata /models
COPY --from=build /opt/giornata /opt/giornata
ENV PATH=/opt/giornata/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/models \
    HOME=/var/lib/giornata \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    GIORNATA_DATA=/var/lib/giornata
USER 10001:10001
ARG MODELS=""
# By the code that fetches them on a node, so that they are found there.
RUN ["/opt/giornata/bin/python", "-c", "\
import os\n\
from giornata.diffusion.hub import HuggingFaceHub\n\
for each in os.environ.get('MODELS', '').split():\n\
    name, _, variant = each.partition('@')\n\
    print(HuggingFaceHub().pipeline(name, revision=None, variant=variant or None))\n"]
VOLUME ["/var/lib/giornata"]
# SIGTERM: the job is written, committed and given back within GIORNATA_GRACE_S; give it some seconds more.
STOPSIGNAL SIGTERM
ENTRYPOINT ["giornata"]
CMD ["node"]
