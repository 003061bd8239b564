"""The OpenAPI description beside what the server really does."""

import re

import pytest
from fake_service import FakeService
from http_asking import BEARER, serving
from jsonschema import Draft202012Validator

from ekya import __version__
from ekya.fleet.run.live.lender import VERSION_HEADER
from ekya.service.http.bodies import ValidationQuery
from ekya.service.http.lending import RoomQuery
from ekya.service.http.openapi import openapi_document
from ekya.service.http.routes import ROUTES
from ekya.service.http.server import build_application

PAGE_ROUTES = {"/", "/validation", "/login", "/logout"}


def test_openapi_describes_every_route_that_is_served_and_no_other():
    app = build_application(FakeService(), "city-east", None)
    served = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.method != "HEAD" and not route.resource.canonical.startswith("/static/")
    }
    described = {
        (method.upper(), path) for path, methods in openapi_document()["paths"].items() for method in methods
    }
    assert {(method, path) for method, path in served if path not in PAGE_ROUTES} == described
    assert described == {(route.method, route.path) for route in ROUTES}


def test_openapi_references_lead_to_components():
    document = openapi_document()
    names = set(document["components"]["schemas"])
    assert {"ServiceStatus", "CameraStatus", "Series", "StreamConfig", "CameraTerms", "Problem"} <= names
    assert set(references(document)) <= {f"#/components/schemas/{name}" for name in names}
    Draft202012Validator.check_schema({"$defs": document["components"]["schemas"]})


def test_openapi_says_what_keys_mean():
    schemas = openapi_document()["components"]["schemas"]
    assert schemas["CameraStatus"]["properties"]["why"]["description"].startswith("what the last plan says")
    assert schemas["CameraTerms"]["description"].startswith("Terms of a camera")
    assert schemas["StreamConfig"]["properties"]["weight"]["description"]


def test_openapi_says_which_bodies_may_be_left_out():
    posts = {path: methods.get("post", {}) for path, methods in openapi_document()["paths"].items()}
    bodies = {path: post["requestBody"] for path, post in posts.items() if "requestBody" in post}
    may = [path for path, body in bodies.items() if not body["required"]]
    assert may == ["/api/v1/cameras/{camera}/roll-back"]
    assert bodies[may[0]]["content"]["application/json"]["schema"]["$ref"].endswith("/EarlierModel")


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with serving(FakeService(), tmp_path_factory.mktemp("service")) as asking:
        yield asking


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if r.method == "GET" and r.media == "application/json"], ids=lambda r: r.name
)
def test_openapi_schemas_hold_for_answers(ask, route):
    document = openapi_document()
    operation = document["paths"][route.path]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    query = "?job=17" if route.query is ValidationQuery else ""
    query = f"?borrower={'0' * 16}&left_us=1" if route.query is RoomQuery else query
    path = route.path.replace("{camera}", "gate-north").replace("{loan}", "a-loan")
    answer = ask.get(path + query, {**BEARER, VERSION_HEADER: __version__})
    assert answer.status == 200
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json)
    refused = ask.get(re.sub(r"\{\w+\}", "attic", route.path), {})
    if refused.status >= 400:
        assert str(refused.status) in operation["responses"]


def test_openapi_is_served_as_it_is_made(ask):
    assert ask.get("/openapi.json", {}).json == openapi_document()


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        yield from (found for one in value.values() for found in references(one))
    elif isinstance(value, list | tuple):
        yield from (found for one in value for found in references(one))
