"""`pagefleet operator run`: the operator's flags; all else comes from the environment, as the chart sets it."""

import typer

from pagefleet.cli.errors import UserMistake, require_extra
from pagefleet.cli.process_options import HttpPort, Kubeconfig, Namespaces

OPERATOR_MODULES = ("aiohttp", "kopf", "kubernetes", "prometheus_client")


def run(kubeconfig: Kubeconfig = None, namespace: Namespaces = None, http_port: HttpPort = None) -> None:
    """Run the operator: turn InferenceServices into engine pods until stopped."""
    require_extra("operator", OPERATOR_MODULES)
    from pagefleet.api.process_environment import SettingsError
    from pagefleet.operator.settings import read_settings
    from pagefleet.operator.start import start

    try:
        settings = read_settings(kubeconfig=kubeconfig, namespaces=tuple(namespace or ()), http_port=http_port)
    except SettingsError as error:
        raise UserMistake(f"{error}.") from error
    raise typer.Exit(start(settings))
