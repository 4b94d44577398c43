import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet.api.quantity import DURATION_PATTERN, QUANTITY_PATTERN, duration_s, quantity_bytes

BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
SECONDS: dict[str, Decimal | int] = {"ms": Decimal("0.001"), "s": 1, "m": 60, "h": 3600, "d": 86400}


@pytest.mark.parametrize(
    ("text", "size"),
    [("80Gi", 80 * 2**30), ("1.5G", 1_500_000_000), ("1024", 1024), ("0.5Ki", 512), ("1Ei", 2**60), ("3k", 3000)],
)
def test_quantity(text: str, size: int) -> None:
    assert quantity_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "80GB", "Gi", "-1Gi", "80 Gi", "0", "0Gi", "1e9", "500m", "80gi", "٣Gi", "80Gi\n"]
)
def test_wrong_quantity_names_the_value_and_one_that_works(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text)) + ".*such as 80Gi"):
        quantity_bytes(text)


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(BYTES)))
def test_quantity_round_trip(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    assert quantity_bytes(text) == number * BYTES[unit]
    assert quantity_bytes(str(quantity_bytes(text))) == quantity_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2), ("100ms", 0.1), ("15m", 900), ("1h30m", 5400), ("1.5s", 1.5), ("1d", 86400), ("0m1s", 1)],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ("2", "such as 2s"),
        ("", "100ms"),
        ("2 s", "100ms"),
        ("0s", "100ms"),
        ("fast", "100ms"),
        ("-1s", "15m"),
        ("1us", "15m"),
    ],
)
def test_wrong_duration_names_the_value_and_one_that_works(text: str, works: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text)) + f".*{works}"):
        duration_s(text)


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(SECONDS)))
def test_duration_round_trip(number: int, unit: str) -> None:
    assert duration_s(f"{number}{unit}") == float(number * SECONDS[unit])


@given(st.from_regex(QUANTITY_PATTERN, fullmatch=True) | st.text(max_size=8))
def test_quantity_and_schema_agree(text: str) -> None:
    """The API server has only the pattern: it may let a zero through, and nothing else."""
    try:
        accepted = quantity_bytes(text) > 0
    except ValueError:
        accepted = False
    matches = re.search(QUANTITY_PATTERN, text) is not None and not text.endswith("\n")
    assert accepted == matches or (matches and not accepted and Decimal(re.split("[A-Za-z]", text)[0]) < 1)


@given(st.from_regex(DURATION_PATTERN, fullmatch=True) | st.text(max_size=8))
def test_duration_and_schema_agree(text: str) -> None:
    try:
        accepted = duration_s(text) > 0
    except ValueError:
        accepted = False
    matches = re.search(DURATION_PATTERN, text) is not None and not text.endswith("\n")
    assert accepted == matches or (matches and not re.search("[1-9]", text))
