"""A connection to one API server: credentials, time limits, and sending again what failed.

The only module that imports the official Kubernetes client. Of it, configuration and raw request call are used:
the typed API would cost 0.7 s and 30 MB to import, and the dynamic client trusts a discovery cache in the temporary
folder; a path needs neither.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from pagefleet.api.client_errors import Answer, ApiError, Unreachable, find_error
from pagefleet.api.retry import RetrySettings, pause_before_retry_s

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """A request before it is sent, perhaps several times."""

    method: str
    path: str
    query: Mapping[str, str | None] = field(default_factory=dict)
    """Parameters; those of value None are left out."""
    body: dict[str, Any] | None = None
    content_type: str = JSON
    accept: str = JSON
    is_repeatable: bool = True
    """Whether a second sending has the same end: false for a create, and for a write bound to a resourceVersion."""
    timeout_s: float | None = None
    """Time limit of each sending; None is the connection's own."""
    retry: RetrySettings | None = None
    """None is the connection's own."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Connection:
    """A pool of connections with the credentials to use. It belongs to one event loop."""

    def __init__(
        self,
        api: kubernetes_client.ApiClient,
        *,
        log_in_again: Callable[[], Awaitable[None]],
        retry: RetrySettings,
        timeout_s: float,
    ) -> None:
        self._api = api
        self._log_in_again = log_in_again
        self._retry = retry
        self._timeout_s = timeout_s
        self.last_answer_monotonic_s: float | None = None
        """When the API server last answered, whatever it said."""

    @classmethod
    async def open(cls, kubeconfig: str | None, user_agent: str, *, retry: RetrySettings, timeout_s: float) -> Self:
        """Read the credentials of a kubeconfig, or of the pod this runs in; sends nothing.

        Raises `ApiError` with a sentence where there are none. Certificates inside a kubeconfig are written to the
        temporary folder.
        """
        configuration = kubernetes_client.Configuration()

        async def log_in() -> None:
            await _log_in(configuration, kubeconfig)

        await log_in()
        # By default each request asks a thread for a password in ~/.netrc, a hand-over for the interpreter's lock in
        # both directions. All else that trusting the environment means is the proxy.
        configuration.client_session_kwargs = {"trust_env": False}
        configuration.proxy = configuration.proxy or _proxy_for(configuration.host)
        api = kubernetes_client.ApiClient(configuration)
        api.user_agent = user_agent
        return cls(api, log_in_again=log_in, retry=retry, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def answer(self, request: Request) -> Answer:
        """Send a request until it succeeds or patience ends; raises `ApiError`."""
        has_fresh_login = False
        attempt = 0
        while True:
            attempt += 1
            retry_after_s, was_sent = None, True
            try:
                answer = await self._send(request)
            except (aiohttp.ClientError, TimeoutError, OSError) as fault:
                was_sent = not isinstance(fault, aiohttp.ClientConnectorError)
                error: ApiError | None = Unreachable(f"{request}: {str(fault) or 'no answer in time'}")
            else:
                self.last_answer_monotonic_s = time.monotonic()
                error, retry_after_s = find_error(answer), answer.retry_after_s
            if error is None:
                return answer
            if error.status == 401 and not has_fresh_login:
                # A service account that was made again has a new token in the file before the minute is over.
                has_fresh_login = True
                with contextlib.suppress(ApiError):  # then the old credentials get the same answer again
                    await self._log_in_again()
                continue
            pause_s = pause_before_retry_s(
                request.retry or self._retry,
                attempt,
                error,
                retry_after_s=retry_after_s,
                is_repeatable=request.is_repeatable,
                was_sent=was_sent,
                dice=random.random(),  # noqa: S311 - spreads load, keeps no secret
            )
            if pause_s is None:
                raise error
            await asyncio.sleep(pause_s)

    async def lines(self, request: Request, *, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an answer as they come, until the server ends it; sends once.

        Raises `ApiError`, also where no line came for `silence_s`.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=silence_s)
        try:
            response = await self._open(request, timeout)
        except (aiohttp.ClientError, TimeoutError, OSError) as fault:
            raise Unreachable(f"{request}: {str(fault) or 'no answer in time'}") from fault
        try:
            if error := find_error(Answer(response.status, b"" if response.status < 300 else await response.read())):
                if error.status == 401:
                    await self._log_in_again()
                raise error
            async for line in response.response.content:
                self.last_answer_monotonic_s = time.monotonic()
                yield line
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as fault:  # ValueError: a line that is too long
            raise Unreachable(f"{request}: {str(fault) or 'silence'}") from fault
        finally:
            response.response.close()

    async def _send(self, request: Request) -> Answer:
        # Of the documented forms of `_request_timeout` a pair raises TypeError; the default is 300 s.
        response = await self._open(request, aiohttp.ClientTimeout(total=request.timeout_s or self._timeout_s))
        content = await response.read()
        return Answer(response.status, content, _seconds(response.headers.get("Retry-After")))

    async def _open(self, request: Request, timeout: aiohttp.ClientTimeout) -> Any:
        """Send a request and return the answer before its body."""
        _, url, headers, _, _ = await self._api.param_serialize(
            request.method,
            request.path,
            query_params=[(name, value) for name, value in request.query.items() if value is not None],
            header_params={"Accept": request.accept, "Content-Type": request.content_type},
            auth_settings=["BearerToken"],
        )
        # The body goes round `param_serialize`, which would copy it value by value.
        return await self._api.call_api(request.method, url, headers, request.body, _request_timeout=timeout)


async def _log_in(configuration: kubernetes_client.Configuration, kubeconfig: str | None) -> None:
    """Read address and credentials into a configuration; raises `ApiError`."""
    try:
        if kubeconfig is not None:
            await kubernetes_config.load_kube_config(
                kubeconfig, client_configuration=configuration, persist_config=False
            )
        else:  # it leaves a hook that reads a rotated token within the minute
            kubernetes_config.load_incluster_config(client_configuration=configuration)
    except Exception as error:  # a broken file comes out as whatever the loader stumbled over
        source = f"the kubeconfig {kubeconfig}" if kubeconfig is not None else "this pod's service account"
        words = " ".join(f"{error}".split())
        raise ApiError(0, "NoCredentials", f"{source} gives no access to a cluster: {words}") from error


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for a URL (HTTPS_PROXY, NO_PROXY), as kubectl does."""
    parts = urlsplit(url)
    if proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header; its date form, which no API server sends, counts as none."""
    try:
        return max(0.0, float(retry_after)) if retry_after is not None else None
    except ValueError:
        return None
