"""The process in the pod: an OpenAI server around an engine under Weir's scheduler.

Only ``vllm_bridge`` may import vLLM.
"""
