# PostgreSQL and Redis for the chart's small stores, where the public images cannot be had.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        postgresql redis-server \
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/*/main /etc/postgresql/*/main \
    && usermod --uid 999 postgres \
    && mkdir -p /var/lib/postgresql/weir
USER 999
