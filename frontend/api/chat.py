"""POST /v1/chat/completions: refused for everybody, since Base models have no chat format."""
from __future__ import annotations

from flask import Blueprint, Response

from frontend.errors import InvalidRequest

MESSAGE = (
    "This API serves Base models, which have no chat format: send POST /v1/completions with a prompt instead of "
    "POST /v1/chat/completions with messages."
)

bp = Blueprint("chat", __name__)


@bp.post("/v1/chat/completions")
def refuse() -> Response:
    """Refuse whatever is sent, signed in or not; the body is not even read."""
    raise InvalidRequest(MESSAGE)
