# clusterip for deploy/webhook: docker build --tag ghcr.io/clusterip-policy/clusterip:v0.1.0 .
FROM rust:1.95-bookworm AS build
WORKDIR /source
RUN rustup target add wasm32-unknown-unknown
COPY . .
# Builds the module first, because the program embeds it.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/source/target \
    WASM_TOOLCHAIN=rustup make build && cp target/release/clusterip /clusterip

# For the agents of deploy/external, with nft: docker build --target agent \
#   --tag ghcr.io/clusterip-policy/clusterip-agent:v0.1.0 .
FROM debian:12-slim AS agent
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates nftables \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /clusterip /usr/local/bin/clusterip
ENTRYPOINT ["/usr/local/bin/clusterip"]

# Contains the C library that Rust's standard library needs, certificates and an unprivileged user, but no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /clusterip /usr/local/bin/clusterip
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["/usr/local/bin/clusterip"]
