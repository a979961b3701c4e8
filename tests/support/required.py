"""Installed distributions that a list of requirements brings."""

from __future__ import annotations

from importlib.metadata import Distribution, distribution


def requirement_name(requirement: str) -> str | None:
    """The canonical name, None where the requirement is for an extra or does not apply here."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    parsed = Requirement(requirement)
    if parsed.marker is not None and not parsed.marker.evaluate({"extra": ""}):
        return None
    return str(canonicalize_name(parsed.name))


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """Every distribution that the requirements bring, by name."""
    found: dict[str, Distribution] = {}
    queue = [name for name in map(requirement_name, requirements) if name]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found[name] = distribution(name)
        queue += [other for other in map(requirement_name, found[name].requires or []) if other]
    return found
