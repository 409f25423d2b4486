"""How people are asked and what makes their answers count: the section ``approvals`` of ``passerelle.yaml``."""

from __future__ import annotations

from pydantic import Field

from passerelle.gateway.devices.assurance import Demand
from passerelle.gateway.settings_section import Section


class ApprovalSettings(Section):
    """What is wanted of answers."""

    signatures: Demand = Field(
        default="paired",
        description="Whose yes to something of high or critical risk must be signed by a device: `paired`, of "
        "everybody who has a paired device with a key; `always`; `never`.",
    )
    push_contact: str = Field(
        default="mailto:passerelle@localhost.invalid",
        pattern=r"^(mailto:[^\s@]+@[^\s@]+|https://\S+)$",
        description="Whom the operators of push services can ask; Web Push takes the extra `webpush`.",
    )
