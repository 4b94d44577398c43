"""PromQL of the metric tables: a key that no table holds is a KeyError when a board is made."""

from pagefleet.api.control_metrics import CONTROL_METRIC
from pagefleet.api.metrics import METRIC
from pagefleet.cli.dashboards.board import Query, Variable

ENGINE_FILTER = 'namespace=~"$namespace", service=~"$service", model_name=~"$model"'
SERVICE_FILTER = 'namespace=~"$namespace", service=~"$service"'
INTERVAL = "$__rate_interval"
QUANTILES = (0.5, 0.95, 0.99)
BY_SERVICE = "namespace, service"


def engine(key: str, extra: str = "", *, where: str = ENGINE_FILTER) -> str:
    """Select an engine's gauge or counter; `extra` narrows it, such as `state="active"`."""
    return _select(METRIC[key].series_names()[0], where, extra)


def control(key: str, extra: str = "", *, where: str = SERVICE_FILTER) -> str:
    """Select a gauge or counter of a service, of operator or autoscaler."""
    return _select(CONTROL_METRIC[key].series_names()[0], where, extra)


def process(key: str) -> str:
    """Select a gauge or counter of operator or autoscaler themselves."""
    return control(key, where="")


def by_service(selector: str) -> str:
    """Reduce a control-plane gauge to one series for each service, whichever process leads."""
    return f"max by ({BY_SERVICE}) ({selector})"


def rate(selector: str) -> str:
    """Return growth per second."""
    return f"rate({selector}[{INTERVAL}])"


def quantile(share: float, key: str, by: str = "") -> str:
    """Return a quantile of a histogram of any table, all its series together but for the labels of `by`."""
    if key in METRIC:
        buckets, where = METRIC[key].series_names()[0], ENGINE_FILTER
    else:
        buckets, where = CONTROL_METRIC[key].series_names()[0], ""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) ({rate(_select(buckets, where, ''))}))"


def mean(key: str, by: str) -> str:
    """Return the mean of an engine's histogram."""
    _, total, count = METRIC[key].series_names()
    parts = [f"sum by ({by}) ({rate(_select(name, ENGINE_FILTER, ''))})" for name in (total, count)]
    return " / ".join(parts)


def quantiles(key: str) -> tuple[Query, ...]:
    """Return the median and the tails of a histogram."""
    return tuple(Query(quantile(share, key), f"p{100 * share:g}") for share in QUANTILES)


def or_zero(expression: str) -> str:
    """Return 0 where there is no series, for counts of what need not exist."""
    return f"{expression} or on() vector(0)"


def or_none(expression: str, label: str) -> str:
    """Return 0 under the name `none` where there is no series."""
    return f'{expression} or on() label_replace(vector(0), "{label}", "none", "", "")'


def kv_blocks(state: str, *, by: str = "", where: str = ENGINE_FILTER) -> str:
    """Return the KV-cache blocks in a state, summed."""
    selector = engine("kv_blocks", f'state="{state}"', where=where)
    return f"sum by ({by}) ({selector})" if by else f"sum ({selector})"


def variables(*, of: str, model: bool) -> tuple[Variable, ...]:
    """Return the choices of namespace and service, and of the model where wanted; `of` is a series that has them."""
    chosen = [
        Variable(name="namespace", label="Namespace", of=of),
        Variable(name="service", label="Service", of=f'{of}{{namespace=~"$namespace"}}'),
    ]
    if model:
        selector = f'{of}{{namespace=~"$namespace", service=~"$service"}}'
        chosen.append(Variable(name="model", label="Model", of=selector, from_label="model_name"))
    return tuple(chosen)


def _select(name: str, where: str, extra: str) -> str:
    filters = ", ".join(part for part in (where, extra) if part)
    return f"{name}{{{filters}}}" if filters else name
