# The images of the release, one target each:
#
#   docker build --target clusterip --tag ghcr.io/clusterip-policy/clusterip .
#   docker build --target clusterip-agent --tag ghcr.io/clusterip-policy/clusterip-agent .
#
# `make images` puts files from this machine in the place of the stage `build`, and so needs no registry. A release does
# the same.
FROM rust:1.95-bookworm AS build
WORKDIR /source
RUN apt-get update && apt-get install --yes --no-install-recommends jq nftables \
    && rustup target add wasm32-unknown-unknown
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/source/target \
    WASM_TOOLCHAIN=rustup make build && scripts/image-files target/release/clusterip /files

# For the agents of deploy/external. Kubernetes gives capabilities only to root, so the DaemonSet changes the user.
FROM scratch AS clusterip-agent
LABEL org.opencontainers.image.source=https://github.com/clusterip-policy/clusterip-policy
COPY --from=build /files/clusterip-agent /
ENV PATH=/usr/local/bin:/usr/sbin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/clusterip"]

# For deploy/webhook. The last target is the default.
FROM scratch AS clusterip
LABEL org.opencontainers.image.source=https://github.com/clusterip-policy/clusterip-policy
COPY --from=build /files/clusterip /
ENV PATH=/usr/local/bin
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["/usr/local/bin/clusterip"]
