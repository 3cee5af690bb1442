# The service as an image: small, without a shell, not root. It has no PostgreSQL in it: set DATABASE_URL.
#
#     docker build -t roadstead .
#     docker run --rm -p 8080:8080 -e DATABASE_URL=postgres://… roadstead

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

# It needs the C library and its own user, and nothing else.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /build/target/release/roadstead /usr/local/bin/roadstead
USER 65532:65532
ENV ROADSTEAD_HTTP__LISTEN=0.0.0.0:8080
EXPOSE 8080
STOPSIGNAL SIGTERM
# Without DATABASE_URL it would look for programs of PostgreSQL, of which there are none here: it says so and exits with 69.
ENTRYPOINT ["/usr/local/bin/roadstead"]
CMD ["serve"]
