"""Numbers as people read them."""

from pagefleet.capacity.accelerators import GIB

MIB = 1024**2


def bytes_text(size: float) -> str:
    """Return bytes in GiB, or in MiB below one of them."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def count_text(number: float) -> str:
    """Return a count: whole and with separators from 100 on, with one digit below."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def time_text(seconds: float) -> str:
    """Return a time in s, ms or us, whichever reads best."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} us" if seconds >= 1e-5 else f"{seconds * 1e6:.2g} us"
