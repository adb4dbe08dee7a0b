"""BatchJobs of Kubernetes: each is one batch, made once, suspended and resumed, delivered to a URI.

What a batch is and how it ends belongs to `batches`; here stands only what the operator adds.
"""
