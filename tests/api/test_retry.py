import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet.api.client_errors import ApiError, Conflict, Invalid, NotFound, Unreachable
from pagefleet.api.retry import NEVER, RetrySettings, pause_before_retry_s

SETTINGS = RetrySettings(attempts=4, first_pause_s=1.0, longest_pause_s=3.0, longest_asked_pause_s=30.0)
BUSY = ApiError(429, "TooManyRequests", "")
STARTING = ApiError(503, "ServiceUnavailable", "")
GONE = Unreachable("refused")


def pause(
    error: ApiError,
    attempt: int = 1,
    *,
    settings: RetrySettings = SETTINGS,
    retry_after_s: float | None = None,
    is_repeatable: bool = True,
    was_sent: bool = True,
    dice: float = 1.0,
) -> float | None:
    return pause_before_retry_s(
        settings,
        attempt,
        error,
        retry_after_s=retry_after_s,
        is_repeatable=is_repeatable,
        was_sent=was_sent,
        dice=dice,
    )


@pytest.mark.parametrize("error", [BUSY, STARTING, GONE, ApiError(500, "", ""), ApiError(504, "", "")])
def test_what_may_pass_later(error: ApiError) -> None:
    assert pause(error) == 1.0


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, "", ""),
        Conflict(409, "", ""),
        Invalid(422, "", ""),
        Invalid(500, "", "failed to create typed patch object"),
        ApiError(400, "", ""),
        ApiError(401, "", ""),
        ApiError(403, "", ""),
        ApiError(410, "Expired", ""),
    ],
)
def test_what_will_not(error: ApiError) -> None:
    assert pause(error) is None


def test_pauses_double_up_to_a_bound_and_end() -> None:
    assert [pause(STARTING, attempt) for attempt in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, None]
    assert pause(STARTING, settings=NEVER) is None


def test_dice_spread_over_half_of_a_pause() -> None:
    assert (pause(STARTING, dice=0.0), pause(STARTING, dice=0.5)) == (0.5, 0.75)


def test_the_server_may_ask_for_time() -> None:
    assert pause(BUSY, retry_after_s=5.0) == 6.0
    assert pause(BUSY, retry_after_s=31.0) is None


@pytest.mark.parametrize(
    ("error", "was_sent", "goes_again"),
    [(BUSY, True, True), (GONE, False, True), (GONE, True, False), (STARTING, True, False)],
)
def test_a_create_is_sent_again_only_where_it_surely_did_nothing(
    error: ApiError, was_sent: bool, goes_again: bool
) -> None:
    assert (pause(error, is_repeatable=False, was_sent=was_sent) is not None) is goes_again


@given(
    attempt=st.integers(1, 100),
    dice=st.floats(0, 1),
    asked=st.none() | st.floats(0, 1e6),
    status=st.sampled_from([0, 400, 409, 429, 500, 503]),
)
def test_a_pause_has_a_bound(attempt: int, dice: float, asked: float | None, status: int) -> None:
    found = pause(ApiError(status, "", "") if status else GONE, attempt, retry_after_s=asked, dice=dice)
    assert found is None or 0 < found <= SETTINGS.longest_asked_pause_s + SETTINGS.longest_pause_s
