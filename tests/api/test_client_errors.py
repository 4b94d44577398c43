import json

import pytest

from pagefleet.api.client_errors import Answer, ApiError, Conflict, Invalid, NotFound, find_error


def status(code: int, reason: str, message: str) -> Answer:
    return Answer(code, json.dumps({"kind": "Status", "reason": reason, "message": message}).encode())


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (status(404, "NotFound", "no pod"), NotFound, "404 NotFound: no pod"),
        (status(409, "AlreadyExists", "taken"), Conflict, "409 AlreadyExists: taken"),
        (status(422, "Invalid", "too small"), Invalid, "422 Invalid: too small"),
        (status(403, "Forbidden", "not you"), ApiError, "403 Forbidden: not you"),
        (
            status(500, "", "failed to create typed patch object (team/chat): .spec.x: field not declared in schema"),
            Invalid,
            "500 HTTP 500: failed to create typed patch object (team/chat): .spec.x: field not declared in schema",
        ),
        (status(500, "InternalError", "etcd"), ApiError, "500 InternalError: etcd"),
        (Answer(404, b"404 page not found\n"), NotFound, "404 HTTP 404: 404 page not found"),
        (Answer(502, b"<html>\nBad gateway"), ApiError, "502 HTTP 502: <html>"),
        (Answer(503, b""), ApiError, "503 HTTP 503: no message"),
        (Answer(500, b"\xff\xfe"), ApiError, "500 HTTP 500: \ufffd\ufffd"),
        (Answer(400, b"[1]"), ApiError, "400 HTTP 400: [1]"),
        (Answer(301, b""), ApiError, "301 HTTP 301: no message"),
    ],
)
def test_answers_that_refuse(answer: Answer, kind: type[ApiError], text: str) -> None:
    error = find_error(answer)
    assert type(error) is kind
    assert str(error) == text
    assert error.status == answer.status


@pytest.mark.parametrize("code", [200, 201, 202])
def test_answers_that_do_not(code: int) -> None:
    assert find_error(Answer(code, b"not even JSON")) is None
