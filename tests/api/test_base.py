from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import BaseModel, ValidationError

from pagefleet.api import conditions, v1alpha1
from pagefleet.api.base import ApiModel, Boolean, Integer, Number, StatusModel, Timestamp


class Section(ApiModel):
    whole_number: Integer = 1
    number: Number = 1.0
    yes: Boolean = True
    at: Timestamp | None = None


class Report(StatusModel):
    whole_number: Integer = 1


def test_yaml_is_camel_case_and_python_is_not() -> None:
    assert Section.from_manifest({"wholeNumber": 2}) == Section(whole_number=2)
    assert Section(whole_number=2).to_manifest() == {"wholeNumber": 2, "number": 1.0, "yes": True}


@pytest.mark.parametrize(
    "data",
    [
        {"whole_number": 2},  # Python's name is no field in YAML
        {"wholeNumber": "2"},
        {"wholeNumber": 2.0},
        {"wholeNumber": True},
        {"number": "2"},
        {"number": float("nan")},
        {"yes": 1},
        {"yes": "yes"},
        {"at": "2026-01-02T03:04:05"},  # no time zone
        {"unknown": None},
    ],
)
def test_what_the_api_server_refuses_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Section.from_manifest(data)


def test_key_without_value_is_a_key_left_out() -> None:
    assert Section.from_manifest({"wholeNumber": None, "number": 2}) == Section(number=2.0)


def test_status_of_a_newer_version_can_be_read() -> None:
    assert Report.from_manifest({"wholeNumber": 3, "newer": {}}) == Report(whole_number=3)


def test_times_are_whole_seconds_in_utc() -> None:
    moment = datetime(2026, 1, 2, 5, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))
    section = Section(at=moment)
    assert section.at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert section.to_manifest()["at"] == "2026-01-02T03:04:05Z"
    assert Section.from_manifest(section.to_manifest()) == section


def _models() -> list[type[BaseModel]]:
    found = [value for value in vars(v1alpha1).values() if isinstance(value, type) and issubclass(value, BaseModel)]
    return [*found, conditions.Condition]


@pytest.mark.parametrize("model", _models())
def test_everything_is_frozen_and_described(model: type[BaseModel]) -> None:
    assert model.model_config.get("frozen")
    assert model.__doc__
    for name, info in model.model_fields.items():
        assert info.description, f"{model.__name__}.{name} has no description"
        assert info.description.strip().endswith("."), f"{model.__name__}.{name}"
