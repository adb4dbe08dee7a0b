# The operator, and the CRDs that the chart's hook Job applies.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
COPY requirements/operator.txt /tmp/requirements.txt
RUN python3 -m venv /opt/weir \
    && /opt/weir/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes --requirement /tmp/requirements.txt \
    && /opt/weir/bin/python -m pip uninstall --quiet --yes pip setuptools
COPY cli/weir_cli /opt/weir/lib/weir/weir_cli
COPY operator/weir_operator /opt/weir/lib/weir/weir_operator
RUN echo /opt/weir/lib/weir > "$(/opt/weir/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/weir.pth" \
    && /opt/weir/bin/python -m compileall -q /opt/weir/lib/weir

FROM ${BASE}
# kopf and getpass need a user with a name.
RUN echo 'weir:x:10001:10001:Weir:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'weir:x:10001:' >> /etc/group
COPY --from=build /opt/weir /opt/weir
COPY LICENSE /opt/weir/LICENSE
ENV PATH=/opt/weir/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
EXPOSE 8081
ENTRYPOINT ["python", "-m", "weir_cli"]
CMD ["serve", "operator"]
