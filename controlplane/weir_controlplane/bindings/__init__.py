"""What administrators give to tenants: namespaces, and prefixes of URIs."""
