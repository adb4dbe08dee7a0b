# The node agent, on a base that has the engine: vLLM's own image, or any Python with vLLM.
# What the base has wins: Weir's few packages stand last on the path, in a folder of their own.
ARG BASE=vllm/vllm-openai:v0.32.0
FROM ${BASE} AS build
USER 0
COPY requirements/agent.txt /tmp/requirements.txt
RUN python3 -m venv /tmp/venv \
    && /tmp/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
        --require-hashes --no-deps --target /opt/weir/packages --requirement /tmp/requirements.txt
COPY cli/weir_cli /opt/weir/lib/weir_cli
COPY node_agent/weir_engine /opt/weir/lib/weir_engine
COPY node_agent/weir_agent /opt/weir/lib/weir_agent
RUN python3 -m compileall -q /opt/weir

FROM ${BASE}
USER 0
RUN echo 'weir:x:10001:10001:Weir:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'weir:x:10001:' >> /etc/group \
    && printf '/opt/weir/lib\n/opt/weir/packages\n' \
        > "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/weir.pth"
COPY --from=build /opt/weir /opt/weir
COPY LICENSE /opt/weir/LICENSE
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp HF_HOME=/tmp/huggingface
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["python3", "-m", "weir_cli"]
CMD ["serve", "agent"]
