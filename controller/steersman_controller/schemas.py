"""JSON Schema of everything that others may write or read."""

from typing import Any

import msgspec

from steersman_controller.events import Event
from steersman_controller.sidecar.admin import Reply, Request
from steersman_controller.sidecar.config import SidecarConfig
from steersman_policies.codec import SCHEMA, Envelope


def schemas() -> dict[str, Any]:
    """Schemas by name. Records on the wire are arrays: their fields in the order of `prefixItems`."""
    return {
        "schema_version": SCHEMA,
        "wire": msgspec.json.schema(Envelope),
        "recording": msgspec.json.schema(Event),
        "config": msgspec.json.schema(SidecarConfig),
        "admin_request": msgspec.json.schema(Request),
        "admin_reply": msgspec.json.schema(Reply),
    }
