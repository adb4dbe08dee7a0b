"""`weir tenants` and `weir keys`: administration, with a key of scope `admin`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from weir_cli.batch import Key, Url, connected
from weir_cli.console import err, out, show_rows
from weir_cli.models import ApiKey, KeyRequest

DAY_S = 86_400

tenants_app = typer.Typer(no_args_is_help=True, help="Manage tenants (admin key).")
keys_app = typer.Typer(no_args_is_help=True, help="Manage API keys (admin key).")


@tenants_app.command("create")
def create_tenant(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    max_batches: Annotated[
        int | None, typer.Option(help="Batches at once; without it, the control plane's limit.")
    ] = None,
    max_queued_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that wait; without it, the control plane's limit."),
    ] = None,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Create a tenant; prints its id."""
    with connected(url, api_key) as api:
        tenant = api.create_tenant(
            name, max_batches=max_batches, max_queued_tokens=max_queued_tokens
        )
        out.print(tenant.id, markup=False)


@tenants_app.command("list")
def list_tenants(url: Url = None, api_key: Key = None) -> None:
    """List the tenants and the limits of their own."""
    with connected(url, api_key) as api:
        tenants = api.list_tenants()
    rows = [
        (tenant.id, tenant.name, _limit(tenant.max_batches), _limit(tenant.max_queued_tokens))
        for tenant in tenants
    ]
    show_rows(("id", "name", "batches at once", "tokens queued"), rows)


@keys_app.command("create")
def create_key(  # noqa: PLR0913 - flags are arguments
    scope: Annotated[str, typer.Option(help="tenant, admin or agent.")] = "tenant",
    tenant: Annotated[str | None, typer.Option(help="For scope tenant: its name or id.")] = None,
    agent_id: Annotated[
        str | None, typer.Option(help="For scope agent: the only agent that may use it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name to know the key by.")] = None,
    expires_in_days: Annotated[
        float | None,
        typer.Option(min=0, max=36_500, help="Life of the key; without it, until revoked."),
    ] = None,
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Create a key; prints it once, it cannot be shown again."""
    request = KeyRequest(
        scope=scope,
        tenant=tenant,
        agent_id=agent_id,
        name=name,
        expires_in_s=None if expires_in_days is None else expires_in_days * DAY_S,
    )
    with connected(url, api_key) as api:
        made = api.create_key(request)
        err.print(f"key {made.id} of scope {made.scope}; it is shown only now:", markup=False)
        out.print(made.key, markup=False)


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `weir keys list` shows it.")],
    url: Url = None,
    api_key: Key = None,
) -> None:
    """Revoke a key; it stops working at once."""
    with connected(url, api_key) as api:
        revoked = api.revoke_key(key_id)
        out.print(f"{revoked.id}: revoked", markup=False)


@keys_app.command("list")
def list_keys(url: Url = None, api_key: Key = None) -> None:
    """List the keys, without their secrets."""
    with connected(url, api_key) as api:
        keys = api.list_keys()
    rows = [
        (key.id, key.scope, key.agent_id or key.tenant or "", key.prefix, key.name, _state(key))
        for key in keys
    ]
    show_rows(("id", "scope", "for", "prefix", "name", "state"), rows)


def _limit(number: int | None) -> str:
    return "default" if number is None else str(number)


def _state(key: ApiKey) -> str:
    if key.revoked:
        return "revoked"
    if key.expires_at is None:
        return "active"
    state = "until" if key.expires_at > time.time() else "expired"
    return f"{state} {datetime.fromtimestamp(key.expires_at, UTC):%Y-%m-%d %H:%M} UTC"
