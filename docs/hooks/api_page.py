"""Reference of a service's REST API: a table of its routes."""

from collections.abc import Iterable

from page_text import code, table
from pydantic import BaseModel

from ekya.config.fleet_sections import StreamConfig
from ekya.service.http.route import Route


def page(routes: Iterable[Route]) -> str:
    """Returns the routes as a Markdown table."""
    rows = (
        (code(f"{route.method} {route.path}"), route.about, _keys(route.body or route.query))
        for route in routes
    )
    return table(("request", "what it does", "keys"), rows)


def _keys(model: type[BaseModel] | None) -> str:
    if model is None:
        return ""
    if model is StreamConfig:
        return "[a stream](../reference/fleet-file.md)"
    return ", ".join(map(code, model.model_fields))
