"""How the API server is reached: the pod's ServiceAccount or a kubeconfig file.

One configuration serves the calls (`kubernetes.aio`) and the watches (kopf).
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from pathlib import Path

import kopf
import yaml
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, Configuration

TOKEN_LIFE_S = 600.0
CONNECTIONS = 32


class ConnectionSettingsError(Exception):
    """The API server's address or credentials cannot be read; the message says what to set."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the API server's address or credentials cannot be read: {why} "
            "(set WEIR_OPERATOR_KUBECONFIG outside a pod)"
        )


async def configuration(kubeconfig: Path | None) -> Configuration:
    """The client configuration.

    ``kubeconfig`` None: the pod's ServiceAccount, or outside a pod KUBECONFIG or ~/.kube/config.

    Raises:
        ConnectionSettingsError: none of these can be read.
    """
    if _is_missing(kubeconfig):
        raise ConnectionSettingsError(f"{kubeconfig} is no file")
    loaded = Configuration()
    try:
        if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            kubernetes_config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=loaded
            )
        else:
            path = None if kubeconfig is None else str(kubeconfig)
            await kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=path, client_configuration=loaded, persist_config=False
            )
    except (kubernetes_config.ConfigException, OSError) as error:
        raise ConnectionSettingsError(str(error)) from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConnectionSettingsError(f"not a whole kubeconfig: {error}") from error
    loaded.connection_pool_maxsize = CONNECTIONS
    loaded.retries = None  # retries are the queue's
    return loaded


def _is_missing(kubeconfig: Path | None) -> bool:
    """Whether there is no such file: the client would load an empty one."""
    return kubeconfig is not None and not kubeconfig.expanduser().is_file()


def client(loaded: Configuration, *, user_agent: str) -> ApiClient:
    """A client whose requests carry ``user_agent``; close it in the loop that used it.

    Raises:
        ConnectionSettingsError: a certificate or key of the configuration cannot be used.
    """
    try:
        made = ApiClient(configuration=loaded)
    except OSError as error:  # of ssl
        raise ConnectionSettingsError(f"a certificate or its key: {error}") from error
    made.user_agent = user_agent
    return made


async def auth_headers(loaded: Configuration) -> Mapping[str, str]:
    """The header that says who we are; a ServiceAccount's token is read again as it rotates."""
    found = await loaded.get_api_key_with_prefix("BearerToken", alias="authorization")
    return {"Authorization": str(found)} if found else {}


async def kopf_login(loaded: Configuration) -> kopf.ConnectionInfo:
    """The same connection for kopf, which asks again when it expires or is refused."""
    headers = await auth_headers(loaded)
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return kopf.ConnectionInfo(
        server=str(loaded.host),
        ca_path=loaded.ssl_ca_cert or None,
        insecure=not loaded.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=loaded.cert_file or None,
        private_key_path=loaded.key_file or None,
        expiration=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=TOKEN_LIFE_S),
    )
