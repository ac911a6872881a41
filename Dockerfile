# The container image: the binary and the RDMA libraries, nothing else. `docker build -t gdr-agent .`
# tests/image/build makes the same content where no base image can be pulled.

FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
        libclang-14-dev libibverbs-dev librdmacm-dev pkg-config \
    && rm -rf /var/lib/apt/lists/*
ENV LIBCLANG_PATH=/usr/lib/llvm-14/lib
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY src src
COPY tests/standins tests/standins
COPY README.md ./
RUN cargo build --release --locked --bin gdr-agent

# rdma-core 56 with all providers; its providers want the glibc they were built with.
FROM debian:trixie-slim AS libraries
RUN apt-get update && apt-get install -y --no-install-recommends libgcc-s1 libibverbs1 ibverbs-providers binutils
COPY tests/image/rootfs /rootfs.sh
COPY --from=build /src/target/release/gdr-agent /gdr-agent
RUN bash /rootfs.sh / /rootfs /gdr-agent

FROM scratch
COPY --from=libraries /rootfs /
USER 0:0
ENV PATH=/
WORKDIR /
ENTRYPOINT ["/gdr-agent"]
