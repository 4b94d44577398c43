"""Flags that `operator run` and `autoscaler run` have in common; all else comes from the environment."""

from typing import Annotated

import typer

Kubeconfig = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Credentials; default $KUBECONFIG, or those of the pod.", show_default=False),
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", help="Serve this namespace only; may be given again. Default all.", show_default=False),
]
HttpPort = Annotated[int | None, typer.Option(help="Port of health and metrics; default 8080.", show_default=False)]
