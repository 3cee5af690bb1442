# The service as an image: small, not root. It has no PostgreSQL in it: set DATABASE_URL. It listens where others can
# reach it, so it wants tokens (docs/configuration.md), or to be told that whatever is before it lets in only whom it should.
#
#     docker build -t roadstead .
#     docker run --rm -p 127.0.0.1:8080:8080 -e DATABASE_URL=postgres://… -e ROADSTEAD_HTTP__INSECURE=true roadstead

FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
# The recorded queries stand in for a database.
ENV SQLX_OFFLINE=true
COPY Cargo.toml Cargo.lock ./
COPY .sqlx .sqlx
COPY migrations migrations
COPY examples examples
COPY src src
# Cargo wants to find the tests it is told of, if only by name.
RUN mkdir -p tests/it && echo 'fn main() {}' > tests/it/main.rs \
    && cargo build --release --locked --bin roadstead \
    && strip --strip-debug target/release/roadstead

# It needs the C library, and nothing else.
FROM debian:bookworm-slim
COPY --from=build /build/target/release/roadstead /usr/local/bin/roadstead
USER 65532:65532
ENV ROADSTEAD_HTTP__LISTEN=0.0.0.0:8080
EXPOSE 8080
STOPSIGNAL SIGTERM
# Without DATABASE_URL it would look for programs of PostgreSQL, of which there are none here: it says so and exits with 69.
ENTRYPOINT ["/usr/local/bin/roadstead"]
CMD ["serve"]
