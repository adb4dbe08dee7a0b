"""The Kubernetes API: connection, calls, watches, the store of what was seen, and the writer.

Knows kinds, versions and field ownership; nothing of LLMServices' or BatchJobs' meaning.
"""
