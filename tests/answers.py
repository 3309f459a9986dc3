"""Holds real answers against what is written about them: the marshmallow schema, and /openapi.json made from it."""
from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs
from marshmallow import Schema

from frontend.api.openapi import describe
from frontend.settings import Settings

DOCUMENT = describe(Settings.from_environment().max_total_tokens)


def check(schema: type[Schema], answer: Any) -> None:
    """Raises where an answer has something else than the schema says, or lacks something."""
    schema().load(answer)
    _validator(schema.__name__.removesuffix("Schema")).validate(answer)


@cache
def _validator(name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})
