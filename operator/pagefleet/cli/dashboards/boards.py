"""All boards by name."""

from collections.abc import Mapping
from types import MappingProxyType

from pagefleet.cli.dashboards.autoscaler_board import AUTOSCALER_BOARD
from pagefleet.cli.dashboards.board import Board
from pagefleet.cli.dashboards.fleet_board import FLEET_BOARD
from pagefleet.cli.dashboards.service_board import SERVICE_BOARD

BOARDS: Mapping[str, Board] = MappingProxyType(
    {board.name: board for board in (FLEET_BOARD, SERVICE_BOARD, AUTOSCALER_BOARD)}
)
