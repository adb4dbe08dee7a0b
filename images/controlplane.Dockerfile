# The control plane: files, batches and dispatch over HTTP.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
COPY requirements/controlplane.txt /tmp/requirements.txt
RUN python3 -m venv /opt/weir \
    && /opt/weir/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes --requirement /tmp/requirements.txt \
    && /opt/weir/bin/python -m pip uninstall --quiet --yes pip setuptools
COPY cli/weir_cli /opt/weir/lib/weir/weir_cli
COPY controlplane/weir_controlplane /opt/weir/lib/weir/weir_controlplane
COPY node_agent/weir_engine /opt/weir/lib/weir/weir_engine
RUN echo /opt/weir/lib/weir > "$(/opt/weir/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/weir.pth" \
    && /opt/weir/bin/python -m compileall -q /opt/weir/lib/weir

FROM ${BASE}
# Libraries ask for the name of the user.
RUN echo 'weir:x:10001:10001:Weir:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'weir:x:10001:' >> /etc/group
COPY --from=build /opt/weir /opt/weir
COPY LICENSE /opt/weir/LICENSE
ENV PATH=/opt/weir/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
EXPOSE 8080
ENTRYPOINT ["python", "-m", "weir_cli"]
CMD ["serve", "controlplane"]
