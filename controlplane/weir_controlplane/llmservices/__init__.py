"""LLMServices of Kubernetes as the operator registers them: their pods, and how those do.

What an agent is and what it holds belongs to `agents` and `dispatch`.
"""
