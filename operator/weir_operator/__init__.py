"""The Kubernetes operator: LLMService and BatchJob objects become pods and batches.

`api` holds the object models, `planning` decides, and everything else carries decisions out.
"""
