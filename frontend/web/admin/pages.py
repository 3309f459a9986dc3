"""All pages below /admin, and the check that only admins see them."""
from __future__ import annotations

from flask import Blueprint

from frontend.web.admin import audit, health, models, people, requests, spend
from frontend.web.visitor import require_admin

bp = Blueprint("admin", __name__, url_prefix="/admin")
for _page in (people, requests, spend, models, audit, health):
    bp.register_blueprint(_page.bp)


@bp.before_request
def _admins_only() -> None:
    require_admin()
