import httpx
import pytest
from starlette.exceptions import HTTPException

from pagefleet.engine.errors import EngineDead, EngineError, QueueFull, RequestRefused
from pagefleet.engine.server.errors import as_http_error
from pagefleet.engine.server.public import new_app


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestRefused("x", parameter="p", code="c"), 400, "invalid_request_error", "c"),
        (QueueFull("x", reason="queue_requests", retry_after_s=7), 503, "server_error", "queue_full"),
        (EngineDead("x"), 503, "server_error", "engine_dead"),
        (EngineError("x"), 500, "server_error", "engine_error"),
        (HTTPException(404), 404, "invalid_request_error", "not_found"),
        (ValueError("x"), 500, "server_error", "internal_error"),
    ],
)
def test_every_error_has_its_status_and_code(error: Exception, status: int, kind: str, code: str) -> None:
    http_error = as_http_error(error)

    assert http_error.status == status
    assert http_error.body()["error"]["type"] == kind
    assert http_error.body()["error"]["code"] == code
    assert ("Retry-After" in http_error.headers) == (status == 503)


async def test_an_unexpected_error_tells_the_client_nothing_of_the_inside() -> None:
    app = new_app()

    @app.get("/fail")
    async def fail() -> None:
        raise ValueError("a secret")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/fail")

    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
