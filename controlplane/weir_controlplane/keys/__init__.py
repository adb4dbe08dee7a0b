"""Tenants and API keys: who calls, and what they may do."""
