import re

import pytest

from pagefleet.api import labels

NAME = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@pytest.mark.parametrize("name", [name for name in vars(labels) if name.endswith(("_LABEL", "_ANNOTATION"))])
def test_names_are_valid_kubernetes_keys(name: str) -> None:
    assert NAME.fullmatch(getattr(labels, name))


def test_selectors_select_what_labels_mark() -> None:
    assert labels.service_selector("chat").items() <= labels.service_labels("chat").items()
    assert labels.revision_selector("chat", "1a2b").items() <= labels.revision_labels("chat", "1a2b").items()
    assert labels.service_selector("chat").items() <= labels.revision_labels("chat", "1a2b").items()


def test_revisions_are_told_apart() -> None:
    assert not labels.revision_selector("chat", "1a2b").items() <= labels.revision_labels("chat", "3c4d").items()


def test_selector_text_is_sorted() -> None:
    assert labels.label_selector_text({"b": "2", "a": "1"}) == "a=1,b=2"
    assert labels.label_selector_text(labels.service_selector("chat")) == (
        "app.kubernetes.io/component=engine,app.kubernetes.io/name=pagefleet,serving.pagefleet.io/service=chat"
    )
