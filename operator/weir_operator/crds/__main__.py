"""`python -m weir_operator.crds apply` and `… release`: the commands of the chart's hook Jobs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from kubernetes.aio.client import ApiException

from weir_operator.cluster.connection import ConnectionSettingsError, client, configuration
from weir_operator.crds.apply import NotEstablishedError, apply_crds
from weir_operator.crds.release import (
    StillRunningError,
    delete_crds,
    stop_operator,
    strip_finalizers,
)

_FAILURES = (
    ConnectionSettingsError,
    NotEstablishedError,
    StillRunningError,
    ApiException,
    aiohttp.ClientError,
    TimeoutError,
    OSError,
)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weir_operator.crds", description=__doc__)
    parser.add_argument(
        "--kubeconfig", type=Path, help="default: the pod's ServiceAccount, or what kubectl uses"
    )
    parser.add_argument("--timeout-s", type=float, default=90.0, help="longest wait for one step")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("apply", help="apply the CRDs and wait until they are served")
    release = commands.add_parser(
        "release", help="stop the operator, then take its finalizer off every BatchJob"
    )
    release.add_argument("--namespace", required=True, help="the operator's namespace")
    release.add_argument("--deployment", required=True, help="the operator's Deployment")
    release.add_argument(
        "--delete-crds", action="store_true", help="then delete the CRDs with all their objects"
    )
    return parser


async def _run(given: argparse.Namespace) -> None:
    api = client(await configuration(given.kubeconfig), user_agent="weir-crds")
    async with api:
        if given.command == "apply":
            await apply_crds(api, within_s=given.timeout_s)
            return
        await stop_operator(
            api,
            namespace=given.namespace,
            deployment=given.deployment,
            within_s=given.timeout_s,
        )
        await strip_finalizers(api)
        if given.delete_crds:
            await delete_crds(api, within_s=given.timeout_s)


def main(arguments: Sequence[str]) -> int:
    """Runs one command; 1 with the reason on stderr when it failed."""
    given = _arguments().parse_args(arguments)
    try:
        asyncio.run(_run(given))
    except _FAILURES as error:
        sys.stderr.write(f"{given.command}: {type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
