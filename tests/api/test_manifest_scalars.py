import pytest
import yaml

from pagefleet.api.manifest_scalars import TAG, Loader, read_bool, read_float, read_int


def tag(text: str) -> str:
    node = yaml.compose(text, Loader=Loader)
    assert isinstance(node, yaml.ScalarNode)
    return node.tag.removeprefix(TAG)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[
            ("0", 0),
            ("7", 7),
            ("-7", -7),
            ("+7", 7),
            ("010", 8),
            ("0o10", 8),
            ("0O10", 8),
            ("-0x1F", -31),
            ("0X1f", 31),
        ],
        *[("0b11", 3), ("1_000", 1000), ("0_1", 1)],
    ],
)
def test_whole_numbers(text: str, number: int) -> None:
    assert tag(text) == "int"
    assert read_int(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e3", 1000), ("1.0", 1), ("09", 9), (".5", 0.5), ("5.", 5), ("5e-1", 0.5), ("-1.5E+1", -15), ("1e300", 1e300)],
)
def test_numbers(text: str, number: float) -> None:
    assert tag(text) == "float"
    assert read_float(text) == number
    assert isinstance(read_float(text), type(number))


@pytest.mark.parametrize("text", ["y", "Yes", "TRUE", "on"])
def test_true(text: str) -> None:
    assert tag(text) == "bool"
    assert read_bool(text) is True


@pytest.mark.parametrize("text", ["n", "No", "FALSE", "off", "Off"])
def test_false(text: str) -> None:
    assert tag(text) == "bool"
    assert read_bool(text) is False


@pytest.mark.parametrize("text", ["1:30", "1.2.3", "yEs", "e3", "0x", "0xg", "1e", "--1", "a", "'1'", "."])
def test_texts(text: str) -> None:
    assert tag(text) == "str"


@pytest.mark.parametrize("text", ["", "abc", "_", "0b2", "08", "1" * 5000])
def test_no_whole_number(text: str) -> None:
    """Only an explicit tag leads here."""
    with pytest.raises(ValueError, match=r"."):
        read_int(text)


@pytest.mark.parametrize("text", [".inf", "-.Inf", ".nan", "1e999", "abc", ""])
def test_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_float(text)


def test_no_truth() -> None:
    with pytest.raises(ValueError, match="maybe"):
        read_bool("maybe")
