"""Weir's scheduler inside vLLM: the only place that knows vLLM.

``scheduler`` makes the class that vLLM's ``scheduler_cls`` names; ``messages`` holds what the agent
and the engine process tell each other and imports no vLLM. Nothing of vLLM's source is copied.
"""

SCHEDULER_CLS = "weir_agent.vllm_bridge.scheduler.make_scheduler"
"""What ``--scheduler-cls`` must name. Settings go into ``additional_config["weir"]``."""
