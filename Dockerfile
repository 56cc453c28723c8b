# The image of `make image`, for those who build with a daemon: docs/containers.md. The first stage only runs the tool:
# all that is in the image is in this folder or pinned by hash in requirements/. So its tag need not be pinned.
FROM python:3.13-slim-trixie AS build
WORKDIR /source
COPY requirements/image.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/image.txt
COPY . .
# The time of the commit, for the same bytes as `make image`: --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
ARG SOURCE_DATE_EPOCH=0
RUN PYTHONPATH=src python -m tools.image --layer /layer.tar
RUN mkdir /image && tar --extract --numeric-owner --same-permissions --file /layer.tar --directory /image

FROM scratch
COPY --from=build /image/ /
LABEL io.veen.sbom="/usr/share/veen/sbom.cdx.json" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.title="veen"
ENV HOME="/var/lib/veen" LANG="C.UTF-8" PATH="/usr/local/bin:/usr/bin" PYTHONDONTWRITEBYTECODE="1"
VOLUME ["/var/lib/veen"]
WORKDIR /
USER 10001:10001
CMD ["veen", "--help"]
