# The server, without torch:  docker build -f deploy/docker/server.Dockerfile -t giornata-server .
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
# pip refuses every file whose hash is another; python -m tools.image_lock writes the lock.
COPY deploy/docker/server.lock ./
RUN python -m venv /opt/giornata \
    && /opt/giornata/bin/pip install --no-cache-dir --require-hashes --requirement server.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/giornata/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/giornata/bin/pip check

FROM python:3.11-slim-bookworm
COPY --from=build /opt/giornata /opt/giornata
RUN groupadd --gid 10001 giornata \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/giornata giornata \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/giornata
ENV PATH=/opt/giornata/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GIORNATA_HOST=0.0.0.0 \
    GIORNATA_PORT=8470 \
    GIORNATA_DATA=/var/lib/giornata
# giornata.toml, with the fleets, is read from here if it is there
WORKDIR /etc/giornata
USER 10001:10001
VOLUME ["/var/lib/giornata"]
EXPOSE 8470
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8470/healthz', timeout=4)"]
ENTRYPOINT ["giornata"]
CMD ["server"]
