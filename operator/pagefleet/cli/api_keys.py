"""What PAGEFLEET_API_KEY holds: the keys that a server takes, separated by spaces; a client sends the first."""


def first_api_key(keys: str | None) -> str | None:
    """Return the key that a client sends; None when there is none."""
    return next(iter((keys or "").split()), None)
